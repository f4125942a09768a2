"""The results of sweeps in one SQLite file, to which several processes may write."""

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
from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.outcome import TrialResult
from coterie._src.experiments.starts import is_file
from coterie._src.experiments.summary import METRICS
from coterie._src.experiments.toml import parse_config

NUMERICS = 2
"""The version of the numerics, raised when a change of code or of a default changes results by more than rounding, so
that old results are not used as new ones. Another order of summation, as on another processor, does not count."""
START_NUMERICS = 4
"""The version of the numerics of the robust starts."""
FILE = "results.sqlite"
ARCHIVE = "results.sqlite.xz"
"""A compressed file of results; it is read if there is no FILE, and never changed."""
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
    """All that results depend on: all sections but [run], the device if not the CPU, and a digest of named files."""
    inside = {name: section for name, section in config.model_dump(mode="json").items() if name != "run"}
    if config.run.device != "cpu":
        inside["run"] = {"device": config.run.device}
    paths = named_files(config)
    return {**inside, "files": {"digest": _fingerprint(paths)}} if paths else inside


@lru_cache(maxsize=256)
def _fingerprint(paths: tuple[str, ...]) -> str:
    """A digest of the contents of files and folders, computed once per process."""
    digest = hashlib.sha256()
    for path in paths:
        folder = Path(path)
        for file in sorted(folder.iterdir()) if folder.is_dir() else [folder]:
            if file.is_file():
                digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:32]


def key(config: Config, method: str, trial: int) -> str:
    """The key of one result: a digest of the settings that differ from their defaults, the method, seed and trial.

    Old results therefore stay valid when a later version adds a setting whose default changes nothing. Files count by
    their contents, not by their paths.
    """
    chosen = _with_original_names(config.model_dump(mode="json", exclude_defaults=True, exclude={"run"}))
    chosen["problem"] = {**chosen.get("problem", {}), "kind": config.problem.kind}
    chosen["problem"].pop("path", None)
    if (held_out := getattr(config.problem, "holdout", 0.0)) > 0:  # earlier versions held nothing out
        chosen["problem"]["holdout"] = held_out
    if is_file(start := config.algorithm.init):
        chosen["algorithm"]["init"] = start.partition(".safetensors#")[2]
    beyond: Row = {name: section for name, section in content(config).items() if name in ("run", "files")}
    if config.asks_for_start:
        beyond["start"] = START_NUMERICS
    if method in METHODS and METHODS[method].numerics:
        beyond["method"] = METHODS[method].numerics
    return _digest([chosen | beyond, method, config.run.seed, trial, NUMERICS])


ORIGINAL_NAMES = {
    ("algorithm", "max_byzantine"): "most_byzantine",
    ("algorithm", "max_clusters"): "most_clusters",
}
ORIGINAL_VALUES = {
    ("attack", "kind"): {"data-poisoning": "none", "noisy-alie": "disguised"},
    ("attack", "target"): {"rotating": "hop"},
}
"""Settings and values that were renamed; a key is computed with the original names, so that old results stay valid."""


def _with_original_names(chosen: Row) -> Row:
    found: Row = {}
    for section, keys in chosen.items():
        found[section] = {}
        for name, value in keys.items():
            known = ORIGINAL_VALUES.get((section, name), {})
            found[section][ORIGINAL_NAMES.get((section, name), name)] = known.get(value, value) if known else value
    return found


class Database:
    """The results of sweeps in DIR/results.sqlite.

    With write-ahead logging a trial is durable once it is added, the file stays intact when a process is killed, and
    several processes may write. Without `create`, DIR/results.sqlite.xz is read if there is no DIR/results.sqlite.
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
            weakref.finalize(self, self.connection.close).atexit = False  # closes the file with the object
            tables = {
                name for (name,) in self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            if tables and not tables >= {"configurations", "results"}:
                raise sqlite3.DatabaseError(f"it holds {', '.join(sorted(tables))}")
            if create:
                self._prepare()
            without_key = self.connection.execute("SELECT count(*) FROM results WHERE key IS NULL").fetchone()[0]
        if create and without_key:
            raise ValueError(f"{self.path}: comes from an archive, whose results can be read but not continued")

    def _connected(self, create: bool) -> sqlite3.Connection:
        """The connection; one that does not create the file cannot write either."""
        if self.path.name == ARCHIVE:
            content = _unpacked(self.path)
            connection = sqlite3.connect(":memory:", isolation_level=None)
            connection.deserialize(content)
            return connection
        if not create:
            return connect_read_only(self.path)
        return sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)

    def _prepare(self) -> None:
        """Create the tables. SQLite does not wait for other processes when it switches to WAL, so this is retried."""
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
        """Add the columns of metrics that an earlier version did not have."""
        self.connection.execute("BEGIN IMMEDIATE")
        for metric in [metric for metric in METRICS.names if metric not in self._columns()]:
            self.connection.execute(f"ALTER TABLE results ADD COLUMN {metric} REAL")
        self.connection.execute("COMMIT")

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Turn errors of SQLite into errors of one line that name the file."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "no such" in str(error):  # a table or a column: another kind of database
                raise ValueError(f"{self.path}: is not a file of results ({error})") from None
            raise OSError(0, f"{error}", str(self.path)) from None
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{self.path}: is not a file of results ({error})") from None

    def add(self, config: Config, result: TrialResult) -> None:
        """Store a trial, all its methods or none; existing results are not changed."""
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
        columns = f"({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        with self._reported():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                self.connection.execute(
                    "INSERT OR IGNORE INTO configurations VALUES (?, ?)", [_digest(inside), json.dumps(inside)]
                )
                self.connection.executemany(f"INSERT OR IGNORE INTO results {columns}", rows)
                self.connection.execute("COMMIT")
            except sqlite3.Error:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    def keys(self) -> set[str]:
        """The keys of all stored results."""
        with self._reported():
            return {found for (found,) in self.connection.execute("SELECT key FROM results")}

    def rows(self, only: Iterable[str] | None = None) -> list[Row]:
        """All results (or those with the given keys) as flat rows: `section.key`, method, seed, trial, metrics.

        Only results of this version of the numerics, in an order that does not depend on when they were added.
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


def connect_read_only(path: Path) -> sqlite3.Connection:
    """A connection that can neither write nor keep others from it.

    A file in a folder without write permission is opened as immutable, unless it has a log.
    """
    path = path.resolve()  # the log is beside the file itself, not beside a link to it
    log = path.with_name(f"{path.name}-wal")
    mode = "mode=ro" if os.access(path.parent, os.W_OK) or log.exists() else "immutable=1"
    return sqlite3.connect(f"{path.as_uri()}?{mode}", uri=True, timeout=BUSY_SECONDS, isolation_level=None)


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
    """The settings as a flat row of this version, with defaults for settings that an earlier version did not have."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # names that an earlier version had
        known = parse_config({name: keys for name, keys in inside.items() if name not in ("run", "files")})
    return _flat(known.model_dump(mode="json", exclude={"run"})) | _flat(
        {name: keys for name, keys in inside.items() if name in ("run", "files")}
    )


def _flat(inside: Row) -> Row:
    return {f"{section}.{name}": value for section, keys in inside.items() for name, value in keys.items()}
