"""The store of sweeps: one SQLite file that many processes may write to, each finished trial at once."""

from __future__ import annotations

import hashlib
import json
import lzma
import math
import os
import sqlite3
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from coterie import __version__
from coterie._src.experiments.config import Config, named_files
from coterie._src.experiments.outcome import TrialResult
from coterie._src.experiments.starts import is_file
from coterie._src.experiments.summary import METRICS
from coterie._src.experiments.toml import parse_config

NUMERICS = 2
"""The version of the numerics: raised when a change, of code or of a default, moves results by more than rounding, so
that old ones are not taken for new. Sums in another order, as on another processor, are no reason."""
START_NUMERICS = 2
"""The same for the robust starts alone."""
FILE = "results.sqlite"
ARCHIVE = "results.sqlite.xz"
"""A finished file of results, compressed; it is read where there is no FILE, and never written to."""
MAX_ARCHIVE_BYTES = 2**30
BUSY_SECONDS = 60.0

Row = dict[str, Any]

SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS configurations (id TEXT PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS results (
    key TEXT PRIMARY KEY, configuration TEXT NOT NULL REFERENCES configurations (id),
    method TEXT NOT NULL, seed INTEGER NOT NULL, trial INTEGER NOT NULL,
    numerics INTEGER NOT NULL, version TEXT NOT NULL,
    {", ".join(f"{metric} REAL" for metric in METRICS.names)}
);
COMMIT;
"""


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def content(config: Config) -> Row:
    """What the numbers depend on: every section but [run], its device if not the CPU, and what is in named files."""
    inside = {name: section for name, section in config.model_dump(mode="json").items() if name != "run"}
    if config.run.device != "cpu":
        inside["run"] = {"device": config.run.device}
    places = named_files(config)
    return {**inside, "files": {"digest": _fingerprint(places)}} if places else inside


@lru_cache(maxsize=256)
def _fingerprint(places: tuple[str, ...]) -> str:
    """A digest of the contents, taken once per process: a sweep sees its files as they were when it began."""
    digest = hashlib.sha256()
    for place in places:
        folder = Path(place)
        for file in sorted(folder.iterdir()) if folder.is_dir() else [folder]:
            if file.is_file():
                digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:32]


def key(config: Config, method: str, trial: int) -> str:
    """The identity of one result: of what was chosen, not of what stands at its default.

    So a key that a later version adds, with a default that changes nothing, leaves old results valid. Files count by
    what is in them, not by where they are.
    """
    chosen = _by_first_names(config.model_dump(mode="json", exclude_defaults=True, exclude={"run"}))
    chosen["problem"] = {**chosen.get("problem", {}), "kind": config.problem.kind}
    chosen["problem"].pop("path", None)
    if is_file(start := config.algorithm.init):
        chosen["algorithm"]["init"] = start.partition(".safetensors#")[2]
    beyond: Row = {name: section for name, section in content(config).items() if name in ("run", "files")}
    if config.asks_for_start:
        beyond["start"] = START_NUMERICS
    return _digest([chosen | beyond, method, config.run.seed, trial, NUMERICS])


FIRST_NAMES = {
    ("algorithm", "max_byzantine"): "most_byzantine",
    ("algorithm", "max_clusters"): "most_clusters",
}
FIRST_VALUES = {
    ("attack", "kind"): {"data-poisoning": "none", "noisy-alie": "disguised"},
    ("attack", "target"): {"rotating": "hop"},
}
"""Keys and values that were renamed: an identity has the first ones, so that results of before stay valid."""


def _by_first_names(chosen: Row) -> Row:
    found: Row = {}
    for section, keys in chosen.items():
        found[section] = {}
        for name, value in keys.items():
            known = FIRST_VALUES.get((section, name), {})
            found[section][FIRST_NAMES.get((section, name), name)] = known.get(value, value) if known else value
    return found


class Database:
    """The results of sweeps in DIR/results.sqlite.

    Write-ahead logging makes a trial durable when it is added and keeps the file whole when a process is
    killed; several processes may write at once. Without create, DIR/results.sqlite.xz does as well.
    """

    def __init__(self, folder: str | Path, create: bool = False) -> None:
        self.path = Path(folder) / FILE
        if not create and not self.path.is_file() and (archive := Path(folder) / ARCHIVE).is_file():
            self.path = archive
        if not create and not self.path.is_file():
            run = (self.path.parent / "trials.csv").is_file()
            made = "this is the folder of a run, see its trials.csv" if run else "`coterie sweep` makes one"
            raise ValueError(f"{self.path}: no such file; {made}")
        with self._reported():
            if create:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self.connection = self._connected(create)
            weakref.finalize(self, self.connection.close).atexit = False  # an object that is gone leaves no open file
            tables = {
                name for (name,) in self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            if tables and not tables >= {"configurations", "results"}:
                raise sqlite3.DatabaseError(f"it holds {', '.join(sorted(tables))}")
            if create:
                self._prepare()
            without_key = self.connection.execute("SELECT count(*) FROM results WHERE key IS NULL").fetchone()[0]
        if create and without_key:
            raise ValueError(f"{self.path}: comes from an archive, whose results can be read and not be continued")

    def _connected(self, create: bool) -> sqlite3.Connection:
        """Where one cannot write, and no log of changes lies beside the file, it is read as it stands."""
        if self.path.name == ARCHIVE:
            content = _unpacked(self.path)
            connection = sqlite3.connect(":memory:", isolation_level=None)
            connection.deserialize(content)
            return connection
        place = self.path.resolve()  # where the log would be
        log = place.with_name(f"{place.name}-wal")
        if not create and not os.access(place.parent, os.W_OK) and not log.exists():
            return sqlite3.connect(f"{place.as_uri()}?immutable=1", uri=True, isolation_level=None)
        return sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)

    def _prepare(self) -> None:
        """Make the tables. The switch to WAL does not wait for others as everything else does, so it is tried again."""
        limit = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self.connection.execute("PRAGMA journal_mode = WAL")
                self.connection.executescript(SCHEMA)
                self._add_columns()
                return
            except sqlite3.OperationalError as error:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                if "locked" not in str(error) or time.monotonic() > limit:
                    raise
                time.sleep(0.01)

    def _columns(self) -> list[str]:
        return [name for _, name, *_ in self.connection.execute("PRAGMA table_info(results)")]

    def _add_columns(self) -> None:
        """A file of an earlier version gets the metrics that it did not know."""
        self.connection.execute("BEGIN IMMEDIATE")
        for metric in [metric for metric in METRICS.names if metric not in self._columns()]:
            self.connection.execute(f"ALTER TABLE results ADD COLUMN {metric} REAL")
        self.connection.execute("COMMIT")

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """One clear line for what can be wrong with a file or its disk."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "no such" in str(error):  # a table or a column: somebody else's database
                raise ValueError(f"{self.path}: is not a file of results ({error})") from None
            raise OSError(0, f"{error}", str(self.path)) from None
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{self.path}: is not a file of results ({error})") from None

    def add(self, config: Config, result: TrialResult) -> None:
        """Keep a trial, all its methods or none; what is there already stays."""
        inside = content(config)
        rows = [
            [
                *(key(config, method, result.trial), _digest(inside), method, config.run.seed, result.trial),
                *(NUMERICS, __version__),
                *(_number(found.metrics.get(metric, math.nan)) for metric in METRICS.names),
            ]
            for method, found in result.methods.items()
        ]
        names = ["key", "configuration", "method", "seed", "trial", "numerics", "version", *METRICS.names]
        holes = f"({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        with self._reported():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                self.connection.execute(
                    "INSERT OR IGNORE INTO configurations VALUES (?, ?)", [_digest(inside), json.dumps(inside)]
                )
                self.connection.executemany(f"INSERT OR IGNORE INTO results {holes}", rows)
                self.connection.execute("COMMIT")
            except sqlite3.Error:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    def keys(self) -> set[str]:
        """The identities of all results that are there."""
        with self._reported():
            return {found for (found,) in self.connection.execute("SELECT key FROM results")}

    def rows(self, only: Iterable[str] | None = None) -> list[Row]:
        """All results (or those with the given keys) as flat rows: `section.key`, method, seed, trial, metrics.

        Of this version of the numerics, in an order that does not depend on when they came.
        """
        with self._reported():
            known = self._columns()
        columns = ["key", "method", "seed", "trial", *(metric for metric in METRICS.names if metric in known)]
        query = (
            f"SELECT content, configuration, {', '.join(columns)} FROM results "
            "JOIN configurations ON configurations.id = configuration WHERE numerics = ?"
        )
        with self._reported():
            found = self.connection.execute(query, [NUMERICS]).fetchall()
            asked = only is None and not found
            others = self.connection.execute("SELECT count(*) FROM results").fetchone()[0] if asked else 0
        if others:
            raise ValueError(
                f"{self.path}: its {others} results are of another version of the numerics; run them again"
            )
        wanted = None if only is None else set(only)
        contents: dict[str, Row] = {}
        rows = []
        for text, name, *values in sorted(found, key=lambda row: (row[1], row[4], row[5], row[3])):
            row = dict(zip(columns, values, strict=True))
            if wanted is None or row["key"] in wanted:
                del row["key"]
                if name not in contents:
                    contents[name] = self._completed(text)
                metrics = {metric: math.nan if row.get(metric) is None else row[metric] for metric in METRICS.names}
                rows.append({**contents[name], **row, **metrics})
        return rows

    def _completed(self, text: str) -> Row:
        try:
            return _complete(json.loads(text))
        except ValueError as error:
            raise ValueError(f"{self.path}: is of another version of Coterie ({error})") from None

    def close(self) -> None:
        self.connection.close()


def _unpacked(archive: Path) -> bytes:
    unpacking = lzma.LZMADecompressor()
    try:
        content = unpacking.decompress(archive.read_bytes(), max_length=MAX_ARCHIVE_BYTES)
    except lzma.LZMAError as error:
        raise ValueError(f"{archive}: is not a file of results ({error})") from None
    if not unpacking.eof:
        raise ValueError(f"{archive}: is cut short, or holds more than {MAX_ARCHIVE_BYTES} bytes")
    return content


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _complete(inside: Row) -> Row:
    """Flat, as this version would write it: with the keys that an earlier one did not have."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # names that an earlier version had
        known = parse_config({name: keys for name, keys in inside.items() if name not in ("run", "files")})
    return _flat(known.model_dump(mode="json", exclude={"run"})) | _flat(
        {name: keys for name, keys in inside.items() if name in ("run", "files")}
    )


def _flat(inside: Row) -> Row:
    return {f"{section}.{name}": value for section, keys in inside.items() for name, value in keys.items()}
