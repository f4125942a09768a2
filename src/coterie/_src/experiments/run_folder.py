"""The folder of a run: plain files, updated after every trial, from which the run can be repeated bit for bit."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors.numpy import save

from coterie import __version__
from coterie._src.data import Encoding
from coterie._src.experiments.callbacks import Callback, RunInfo, Status
from coterie._src.experiments.config import Config, anchored
from coterie._src.experiments.doubts import result_doubts
from coterie._src.experiments.methods import OWN
from coterie._src.experiments.outcome import MethodResult, Row, TrialResult
from coterie._src.experiments.problems import ClientTables
from coterie._src.experiments.results import as_csv
from coterie._src.experiments.summary import summarise
from coterie._src.experiments.toml import as_toml

COLUMNS = "columns.json"
"""The file of the encoding."""


def write_atomically(path: Path, content: bytes, durable: bool = True) -> None:
    """Write a file completely or not at all; durable: also if the machine stops, which waits for the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


class RunFolder(Callback):
    """The folder of one run.

    Files: config.toml, summary.json, trials.csv (a row per trial and method), rounds.csv (per round), audit.csv (per
    client; of trial 0 also its loss, and what speaks for a look at it), assignments.csv (of trial 0: per round, the
    clients that came into another cluster), directions.csv (of trial 0: the clients' updates at one point along two
    directions), clusters.csv (accuracies, for networks), clients.csv (held-out scores per client, for own data),
    centres/TRIAL.safetensors (a tensor per method; for the problem `folder` with the names of the columns),
    personal/TRIAL.safetensors (a model per client, of methods that give each its own), membership.json (of trial 0: the
    usual losses in each cluster), columns.json (for the problem `folder`, what was done to the columns). A trial is
    written when it is finished. `progress.ProgressFile` keeps progress.json beside them.
    """

    def __init__(self, path: str | Path, config: Config) -> None:
        self.path = Path(path)
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise ValueError(f"{self.path}: exists already and is not an empty folder; choose another")
        self.config = anchored(config)
        self.trials: list[TrialResult] = []
        self.notes: dict[str, str] = {}
        self.encoding: Encoding | None = None
        if isinstance(config.problem, ClientTables):
            self.notes = {"columns": json.dumps(config.problem.weight_names())}
            self.encoding = config.problem.encoding()

    def on_start(self, run: RunInfo) -> None:
        """Create the folder, with config.toml and a first summary.json."""
        header = (
            f"Coterie {__version__}. The numbers of this folder come from this file:\n"
            f"coterie run {self.path / 'config.toml'}"
        )
        write_atomically(self.path / "config.toml", as_toml(self.config, header).encode())
        if self.encoding is not None:
            write_atomically(self.path / COLUMNS, f"{json.dumps(self.encoding.as_dict(), indent=2)}\n".encode())
        self._write_summary("running")

    def on_trial(self, result: TrialResult) -> None:
        """Write a finished trial."""
        for name, rows in _tables(result).items():
            with (self.path / name).open("ab") as stream:
                stream.write(as_csv(rows, header=stream.tell() == 0).encode())
        self._write_models("centres", result, {name: found.centres for name, found in result.methods.items()})
        personal = {name: found.personal for name, found in result.methods.items() if found.personal is not None}
        if personal:
            self._write_models("personal", result, personal)
        if result.trial == 0:
            members = {name: one.membership.as_dict() for name, one in result.methods.items() if one.membership}
            self.write_json("membership.json", members)
        if result.changes is not None:
            self.write_json("changes.json", result.changes.as_dict())
        self.trials.append(result)
        self._write_summary("running")

    def _write_models(self, folder: str, result: TrialResult, models: Mapping[str, NDArray[Any]]) -> None:
        content = save({method: rows.copy() for method, rows in models.items()}, self.notes or None)
        write_atomically(self.path / folder / f"{result.trial}.safetensors", content)

    def on_end(self, status: Status) -> None:
        """Write the tables in the order of the trials, and the status; no models if a strict run has failed."""
        if status == "failed" and self.config.algorithm.strict:
            for name in ("centres", "personal"):
                shutil.rmtree(self.path / name, ignore_errors=True)
            (self.path / "membership.json").unlink(missing_ok=True)
        self.trials.sort(key=lambda trial: trial.trial)
        tables = [_tables(trial) for trial in self.trials]
        for name in dict.fromkeys(name for table in tables for name in table):
            rows = [row for table in tables for row in table.get(name, [])]
            write_atomically(self.path / name, as_csv(rows).encode())
        self._write_summary(status)

    def _write_summary(self, status: str) -> None:
        self.write_json("summary.json", outcome(self.config, self.trials, status))

    def write_json(self, name: str, values: dict[str, Any]) -> None:
        """Write a file of the folder."""
        write_atomically(self.path / name, f"{json.dumps(values, indent=2)}\n".encode())


def outcome(config: Config, trials: Sequence[TrialResult], status: str) -> dict[str, Any]:
    """The result of a run, as in summary.json and printed by `--json`."""
    return {
        "version": __version__,
        "status": status,
        "seed": config.run.seed,
        "trials_wanted": config.run.trials,
        "trials_finished": sorted(trial.trial for trial in trials),
        "methods": summarise(trials),
        "notes": list(result_doubts(config, trials).values()),
        "comparisons": {str(trial.trial): trial.comparisons for trial in trials if trial.comparisons},
        "changes": {str(trial.trial): trial.changes.as_dict() for trial in trials if trial.changes is not None},
        "diagnostics": {
            method: {str(trial.trial): found.as_dict()}
            for trial in sorted(trials, key=lambda trial: trial.trial)[:1]
            for method, result in trial.methods.items()
            if (found := result.diagnostics) is not None
        },
    }


def _tables(result: TrialResult) -> dict[str, list[Row]]:
    """The rows of a trial by file name."""
    named: list[tuple[Row, MethodResult]] = [
        ({"trial": result.trial, "method": method}, found) for method, found in result.methods.items()
    ]
    tested = [{**label, **row} for label, found in named for row in found.clusters]
    first = [] if result.trial else [(label, one) for label, one in named if not label["method"].endswith(OWN)]
    kept = {
        "assignments.csv": [{**label, **row} for label, found in first for row in found.assignments],
        "directions.csv": [{**label, **row} for label, found in first for row in _directions(found)],
    }
    return {
        "trials.csv": [{**label, **found.metrics} for label, found in named],
        "rounds.csv": [{**label, **row} for label, found in named for row in found.rounds],
        "audit.csv": [{**label, **row} for label, found in named for row in found.audit],
        **{name: rows for name, rows in kept.items() if rows},
        **({"clusters.csv": tested} if tested else {}),
        **({"clients.csv": [{"trial": result.trial, **row} for row in result.clients]} if result.clients else {}),
    }


def _directions(found: MethodResult) -> list[Row]:
    """A row per client with its update along two directions; empty where its reply was refused."""
    if found.directions is None:
        return []
    return [
        {
            "client": row["client"],
            **{
                axis: round(value, 6) if math.isfinite(value) else ""
                for axis, value in zip(("first", "second"), place, strict=True)
            },
        }
        for row, place in zip(found.audit, found.directions.tolist(), strict=True)
    ]
