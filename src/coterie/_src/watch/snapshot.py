"""What is known about a run, a sweep or a federation at one moment, whichever of them it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from coterie._src.experiments.process import Process
from coterie._src.report.html.markup import Markup

STALE_SECONDS = 30.0
"""The age of the last news from which on a page says so."""
SHARE = 0.1
"""The share of the time that is spent on reading the same large files again."""

Kind = Literal["run", "sweep", "federation"]
State = Literal["waiting", "running", "stale", "gone", "complete", "interrupted", "failed", "unknown"]
STATES: tuple[State, ...] = ("waiting", "running", "stale", "gone", "complete", "interrupted", "failed", "unknown")
T = TypeVar("T")


class Bar(NamedTuple):
    """Progress in one unit, such as trials."""

    name: str
    done: int
    total: int


class Cluster(NamedTuple):
    """The accepted replies of a cluster in the last round, and the median loss of their clients."""

    size: int
    loss: float | None


class Refused(NamedTuple):
    """A reply that was not accepted."""

    client: str
    reason: str


class Rounds(NamedTuple):
    """The last round of a method in a trial, or of a federation."""

    method: str
    trial: int | None
    round: int
    rounds: int
    clusters: tuple[Cluster, ...] = ()
    replies: Mapping[str, int] | None = None  # by verdict, of the last round; None: there was none
    refused: tuple[Refused, ...] = ()  # some of them, if there are many
    movement: float | None = None
    process: int | None = None  # the number of the process that runs the trial

    @property
    def title(self) -> str:
        """What the rounds belong to; empty for a federation."""
        return self.method if self.trial is None else f"{self.method}, trial {self.trial}"


class Suspect(NamedTuple):
    """What the audit says about a client; shares of the rounds, None where they are not known."""

    client: str
    cluster: int
    refused: float
    silent: float
    trimmed: float
    distance: float | None = None
    reasons: str = ""


@dataclass(frozen=True)
class Snapshot:
    """A run, a sweep or a federation at one moment.

    updated: when the last news came, as a Unix time. left: seconds; at_most: whether it counts on as many rounds as
    there may be. audit_of: whose audit is shown. results: the table so far. methods: of a run, in the order of that
    table. advice: what to do now, if anything. trouble: why the files cannot be read just now.
    """

    kind: Kind
    title: str
    state: State
    updated: float | None = None
    bars: Sequence[Bar] = ()
    left: float | None = None
    at_most: bool = False
    rounds: Sequence[Rounds] = ()
    audit_of: str = ""
    suspects: Sequence[Suspect] = ()
    results: Markup | None = None
    methods: Sequence[str] = ()
    advice: str = ""
    trouble: str = ""

    @property
    def age(self) -> float | None:
        """Seconds since the last news."""
        return None if self.updated is None else max(0.0, time.time() - self.updated)


class Source(Protocol):
    """A folder that can be read again and again."""

    def read(self) -> Snapshot:
        """What is known now; ValueError or OSError where that cannot be read."""
        ...


def state_of(process: Process | None, age: float) -> State:
    """The state of what its process calls under way: its process may be gone, or silent for long."""
    if process is not None and process.has_ended():
        return "gone"
    return "stale" if age > STALE_SECONDS else "running"


class Remembered(Generic[T]):
    """A value computed from files: computed again when these have changed, for at most a share of the time."""

    def __init__(self, compute: Callable[[], T], *files: Path) -> None:
        self.compute, self.files = compute, files
        self.known: tuple[object, T] | None = None
        self.due = 0.0

    def __call__(self) -> T:
        """The value."""
        marks = [_mark(file) for file in self.files]
        if self.known is not None and (marks == self.known[0] or time.monotonic() < self.due):
            return self.known[1]
        began = time.monotonic()
        value = self.compute()
        self.known = marks, value
        self.due = time.monotonic() + (time.monotonic() - began) / SHARE
        return value


def _mark(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
