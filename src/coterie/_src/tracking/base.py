"""What trackers have in common: a thread of their own, and faults that never end a run."""

from __future__ import annotations

import math
import os
import re
import time
import warnings
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar, NamedTuple

from coterie import __version__
from coterie._src.experiments.callbacks import Callback, RunInfo, Status
from coterie._src.experiments.outcome import Row, TrialResult
from coterie._src.experiments.recorder import RENAMED_COLUMNS

START_SECONDS = 5.0
"""The seconds for which the first round waits for a tracker to begin."""
PAUSE_SECONDS = 1.0
"""The seconds between two transfers of what has happened."""
BUSY_SECONDS = 0.1
"""The seconds that one of them takes at most while rounds go on; what is left waits for the next."""
AT_ONCE = 50
"""The rows that are written at once."""
END_SECONDS = 60.0
"""The seconds for which the end of a run waits for a tracker that takes nothing."""

MAX_NAME = 150
"""The characters of a name that a folder may have as well."""


class Entry(NamedTuple):
    """What is tracked: the row of a round, or at the end of a trial the metrics of a method."""

    seconds: float  # since the epoch
    trial: int
    method: str  # in a sweep with the options of its configuration, see `Tracker.curves`
    values: Mapping[str, Any]
    is_final: bool = False  # of the end of a trial


class Curve(NamedTuple):
    """What the curves of one name belong to."""

    method: str
    options: Mapping[str, Any]  # of a configuration of a sweep, those in which it differs from others


class Point(NamedTuple):
    """One number of a curve."""

    seconds: float
    method: str
    name: str
    step: int
    value: float


class Tracker(Callback):
    """The base class of trackers.

    Everything that takes time is done by a thread, once a second for at most a tenth of it, and at the end. The run
    waits for it at its start, for a few seconds, and at its end, until all is written or a minute has passed in which
    nothing was. What fails in the thread is one warning, and the run goes on without the tracker.
    """

    name: ClassVar[str]
    """As `--track NAME:TARGET` has it."""
    target: str
    files: ExitStack
    """Closed at the end, whatever happens."""
    curves: dict[str, Curve]
    """By the method of an entry whose trial has ended: what it stands for."""

    @abstractmethod
    def begin(self, run: RunInfo) -> None:
        """Called first, in the thread."""

    @abstractmethod
    def write(self, entries: Sequence[Entry]) -> None:
        """Called with what has happened, in the thread; what is written need not be read before the next call."""

    @abstractmethod
    def finish(self, status: Status, results: Sequence[TrialResult]) -> None:
        """Called last, in the thread, with all trials that have ended, in their order."""

    def on_start(self, run: RunInfo) -> None:
        self._entries: deque[Entry] = deque()
        self._results: list[TrialResult] = []
        self.curves: dict[str, Curve] = {}
        self._status: Status = "failed"
        self._begun, self._ended, self._error, self._told = Event(), Event(), "", False
        self._thread = Thread(target=self._work, args=(run,), name=f"track {self.name}", daemon=True)
        self._thread.start()
        self._begun.wait(START_SECONDS)

    def on_round(self, trial: int, method: str, row: Row) -> None:
        self._add(Entry(time.time(), trial, method, row))

    def on_trial(self, result: TrialResult) -> None:
        methods = {self._curve_name(method, result.options): found for method, found in result.methods.items()}
        self._results.append(replace(result, methods=methods))
        for name, found in methods.items():
            self._add(Entry(time.time(), result.trial, name, found.metrics, is_final=True))

    def on_end(self, status: Status) -> None:
        self._status = status
        self._ended.set()
        self._written = time.monotonic()
        while self._thread.is_alive() and time.monotonic() - self._written < END_SECONDS:
            self._thread.join(END_SECONDS / 10)
        if self._thread.is_alive():
            self._error = f"has taken nothing for {END_SECONDS:.0f} s"
        self._warn()

    def _curve_name(self, method: str, options: Mapping[str, Any]) -> str:
        """The name of the curves of a method, in a sweep with its options; it is kept in `curves`."""
        name = ", ".join([method, *(f"{key}={value}" for key, value in options.items())])
        if len(name) > MAX_NAME:
            known = (known for known, curve in self.curves.items() if curve == (method, options))
            name = next(known, f"{name[:MAX_NAME]} … {len(self.curves)}")
        self.curves.setdefault(name, Curve(method, options))
        return name

    def _add(self, entry: Entry) -> None:
        if self._error:
            self._warn()
        else:
            self._entries.append(entry)

    def _work(self, run: RunInfo) -> None:
        try:
            with ExitStack() as self.files:
                self.begin(run)
                self._begun.set()
                while not self._ended.wait(PAUSE_SECONDS):
                    self._flush(BUSY_SECONDS)
                self._flush(math.inf)
                self.finish(self._status, sorted(self._results, key=lambda result: result.trial))
        except Exception as error:  # of a server, of a disk, of another package: none of them may end a run
            self._error = first_line(error)
            self._begun.set()

    def _flush(self, seconds: float) -> None:
        """Write what has happened, for about so many seconds."""
        began = time.monotonic()
        while self._entries and time.monotonic() - began < seconds:
            self.write([self._entries.popleft() for _ in range(min(AT_ONCE, len(self._entries)))])
            self._written = time.monotonic()

    def _warn(self) -> None:
        """Say once what has failed."""
        if self._error and not self._told:
            self._told = True
            text = without_passwords(f"{self.name}:{self.target}: {self._error}")
            warnings.warn(f"{text}; the run goes on without this tracker", RuntimeWarning, stacklevel=4)


def points(entries: Sequence[Entry]) -> list[Point]:
    """The curves of what has happened: by round of trial 0 under `rounds/`, by trial under `trials/`.

    Later trials have a point each; their rounds would be as many curves again, which nobody could tell apart.
    """
    found = []
    for entry in entries:
        if entry.is_final or entry.trial == 0:
            prefix, step = ("trials", entry.trial) if entry.is_final else ("rounds", int(entry.values["round"]))
            for name, value in numbers(entry.values).items():
                if not (entry.is_final and math.isnan(value)):  # NaN: the metric does not apply
                    found.append(Point(entry.seconds, entry.method, f"{prefix}/{name}", step, value))
    return found


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """All numbers of a row but that of the round; several of one column are numbered.

    >>> numbers({"round": 3, "dist": 0.5, "sizes": "4 7"})
    {'dist': 0.5, 'sizes/0': 4.0, 'sizes/1': 7.0, 'accepted': 11.0}
    """
    found: dict[str, float] = {}
    for name, value in row.items():
        if name == "round" or name in RENAMED_COLUMNS:
            continue
        if isinstance(value, str):
            found |= {f"{name}/{j}": float(part) for j, part in enumerate(value.split())}
        else:
            found[name] = float(value)
    if "sizes" in row:
        found["accepted"] = float(sum(int(size) for size in row["sizes"].split()))
    return found


def tags(run: RunInfo) -> dict[str, str]:
    """What identifies a run."""
    return {"version": __version__, "seed": str(run.seed), "command": without_passwords(run.command)}


def without_passwords(text: str) -> str:
    """The text without what stands before the @ of an address.

    >>> without_passwords("mlflow:https://ada:secret@example.org/x")
    'mlflow:https://***@example.org/x'
    """
    return re.sub(r"(?<=://)[^/@\s]+@", "***@", text)


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def check_package(name: str, package: str) -> None:
    """Raise a ValueError where a package is missing."""
    if find_spec(package) is None:
        raise ValueError(f"track: {name} needs a package that is not here (pip install 'coterie[{name}]')")


def check_place(target: str, path: Path, is_folder: bool) -> None:
    """Raise a ValueError unless a file or a folder is at the path, or could be made there."""
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    if place == path and path.is_dir() != is_folder:
        raise ValueError(f"track: {target}: must be a {'folder' if is_folder else 'file'}")
    if place != path and not place.is_dir():
        raise ValueError(f"track: {target}: {place} is no folder")
    if not os.access(place, os.W_OK):
        raise ValueError(f"track: {target}: {place} cannot be written to")
