"""Grids of configurations, run trial by trial; finished trials are not run again."""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie._src.experiments.callbacks import NOTHING, Callback, flattened
from coterie._src.experiments.config import Config, anchored
from coterie._src.experiments.database import Database, key
from coterie._src.experiments.engines import Engine, Job, Stop
from coterie._src.experiments.problems import Folder
from coterie._src.experiments.results import varied
from coterie._src.experiments.run_folder import write_atomically
from coterie._src.experiments.starts import STARTS
from coterie._src.experiments.toml import override, parse_config, read_toml, toml_value

LISTS = ("run.methods", "problem.columns", "problem.offset", "problem.scale")
"""Keys whose value is a list in itself; several values are a list of lists."""
ONE_VALUE = ("run.trials", "run.workers", "run.device")
Raw = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """The configurations of a sweep; all have the same trials, workers and device. raw: what they came from."""

    configs: tuple[Config, ...]
    raw: Raw

    @property
    def trials(self) -> int:
        return self.configs[0].run.trials

    @property
    def keys(self) -> list[str]:
        """The identities of all results of the grid."""
        return [
            key(config, method, trial)
            for config in self.configs
            for trial in range(self.trials)
            for method in config.methods
        ]


def parse_grid(raw: Raw) -> Grid:
    """Every combination of the lists, for every table of `[[settings]]`.

    Any key may hold a list of values. `run.methods` is a list in itself, and a key whose value is a list
    (problem.columns, problem.offset, problem.scale) or may be one (problem.samples, problem.shares) takes a list of
    lists. `[[settings]]` gives keys that change together: each of its tables is laid over the rest before the lists
    are multiplied.
    """
    settings = raw.get("settings", [{}])
    if not isinstance(settings, list) or not settings or not all(isinstance(table, dict) for table in settings):
        raise ValueError("settings: must be tables, [[settings]]")
    base = {name: section for name, section in raw.items() if name != "settings"}
    configs: dict[str, Config] = {}
    for setting in settings:
        for config in _combinations(_laid_over(base, setting)):
            whole = anchored(config)
            configs.setdefault(whole.model_dump_json(), whole)
    found = tuple(configs.values())
    for name in ("trials", "workers", "device"):
        if len({str(getattr(config.run, name)) for config in found}) > 1:
            raise ValueError(f"run.{name}: must be the same for the whole sweep")
    return Grid(found, raw)


def all_options(configs: Sequence[Config]) -> dict[str, Any]:
    """Every option by its name; of one in which the configurations differ, the list of its values."""
    values: dict[str, dict[str, Any]] = {}
    for name, value in itertools.chain(*(flattened(config).items() for config in configs)):
        values.setdefault(name, {})[json.dumps(value)] = value
    found = {name: list(distinct.values()) for name, distinct in values.items()}
    return {name: several if len(several) > 1 else several[0] for name, several in found.items()}


def varied_options(configs: Sequence[Config]) -> list[str]:
    """The names of the options in which the configurations differ; the methods have results of their own."""
    return [name for name in varied([flattened(config) for config in configs]) if name != "run.methods"]


def seeded(grid: Grid, seed: int | None) -> Grid:
    """The same grid with other random numbers; None: as it is."""
    if seed is None:
        return grid
    configs = tuple(c.model_copy(update={"run": c.run.model_copy(update={"seed": seed})}) for c in grid.configs)
    return Grid(configs, {**grid.raw, "run": {**grid.raw.get("run", {}), "seed": seed}})


def read_grid(path: str | Path, overrides: list[str]) -> Grid:
    """The grid of a TOML file, changed by `section.key=value` overrides, whose value may be a list, too."""
    raw = read_toml(path)
    for text in overrides:
        override(raw, text)
    return parse_grid(raw)


def _laid_over(base: Raw, setting: Raw) -> Raw:
    merged = {name: dict(keys) if isinstance(keys, dict) else keys for name, keys in base.items()}
    for name, keys in setting.items():
        if not isinstance(keys, dict) or not isinstance(merged.get(name, {}), dict):
            raise ValueError(f"settings.{name}: must be a table of keys")
        merged[name] = {**merged.get(name, {}), **keys}
    return merged


def _combinations(raw: Raw) -> Iterator[Config]:
    lists = [
        (section, name, value)
        for section, keys in raw.items()
        if isinstance(keys, dict)
        for name, value in keys.items()
        if isinstance(value, list) and not _is_one(f"{section}.{name}", value)
    ]
    for section, name, value in lists:
        if f"{section}.{name}" in ONE_VALUE:
            raise ValueError(f"{section}.{name}: must be one value for the whole sweep, got {value}")
        if not value:
            raise ValueError(f"{section}.{name}: must hold at least one value")
    for values in itertools.product(*(value for _, _, value in lists)):
        chosen = {name: dict(keys) if isinstance(keys, dict) else keys for name, keys in raw.items()}
        for (section, name, _), value in zip(lists, values, strict=True):
            chosen[section][name] = value
        yield parse_config(chosen)


def _is_one(name: str, value: list[Any]) -> bool:
    """Whether a list is one value of a key."""
    return name in LISTS and (name == "run.methods" or not any(isinstance(entry, list) for entry in value))


def grid_toml(raw: Raw) -> str:
    """The grid as TOML, for the folder of the sweep."""
    lines: list[str] = []
    for name, section in raw.items():
        if name == "settings":
            continue
        lines += [f"[{name}]", *(f"{key} = {toml_value(value)}" for key, value in section.items()), ""]
    for setting in raw.get("settings", []):
        lines += ["[[settings]]"]
        lines += [f"{s}.{key} = {toml_value(v)}" for s, keys in setting.items() for key, v in keys.items()] + [""]
    return "\n".join(lines)


def keep_grid(grid: Grid, folder: Path) -> None:
    """Write DIR/grid.toml. A grid that is there may grow, by values, methods or trials, and not be replaced."""
    if (folder / "grid.toml").is_file():
        before = read_grid(folder / "grid.toml", [])
        if lost := [found for found in _identities(before) if found not in _identities(grid)]:
            raise ValueError(
                f"{folder / 'grid.toml'}: has {len(lost)} of its {len(before.configs)} configurations that this grid "
                "does not have; take another folder, or add to that grid"
            )
    text = grid_toml(_with_whole_paths(grid.raw))
    assert parse_grid(tomllib.loads(text)).configs == grid.configs
    write_atomically(folder / "grid.toml", text.encode())


def _identities(grid: Grid) -> list[str]:
    """The identity of each configuration, whatever its trials and workers."""
    return [key(config, "", 0) for config in grid.configs]


def _with_whole_paths(raw: Raw) -> Raw:
    """The grid with absolute paths, so that it is the same from any working directory."""

    def whole(value: Any) -> Any:
        if isinstance(value, list):
            return [whole(one) for one in value]
        return value if value in ("", *STARTS.names) else str(Path(value).resolve())

    def anchor(sections: Raw, base: Raw) -> Raw:
        found = {name: dict(keys) if isinstance(keys, dict) else keys for name, keys in sections.items()}
        if found.get("problem", {}).get("kind") == "folder" and "path" not in base.get("problem", {}):
            found["problem"].setdefault("path", Folder.model_fields["path"].default)
        for section, name in (("problem", "path"), ("algorithm", "init")):
            if name in found.get(section, {}):
                found[section][name] = whole(found[section][name])
        return found

    settings = [anchor(setting, raw) for setting in raw.get("settings", [])]
    return {**anchor(raw, {}), **({"settings": settings} if settings else {})}


def jobs_left(grid: Grid, database: Database) -> list[Job]:
    """The jobs whose results are missing: trial 0 of all configurations first, so that early results cover the grid.

    Those with the same problem come one after the other, and share its data (see `trial.Ground`).
    """
    jobs, known = [], database.keys()
    together: dict[str, list[Config]] = {}
    for config in grid.configs:
        together.setdefault(config.problem.model_dump_json(), []).append(config)
    for trial in range(grid.trials):
        for config in itertools.chain(*together.values()):
            if missing := [method for method in config.methods if key(config, method, trial) not in known]:
                run = config.run.model_copy(update={"methods": missing})
                jobs.append(Job(config.model_copy(update={"run": run}), trial, record=False))
    return jobs


def sweep(
    jobs: Sequence[Job],
    database: Database | Sequence[Database],
    engine: Engine,
    callback: Callback = NOTHING,
    stop: Stop = lambda: False,
    varied: Sequence[str] = (),
) -> None:
    """Run the jobs; each trial is written to the database, or to that of its job, before the next one is handled.

    varied: the options that the callback receives with each trial.
    """
    kept = [database] * len(jobs) if isinstance(database, Database) else database
    for place, result in engine(jobs, callback, stop):
        kept[place].add(jobs[place].config, result)
        options = flattened(jobs[place].config) if varied else {}
        callback.on_trial(replace(result, options={name: options[name] for name in varied if name in options}))
