"""The progress of a run or a sweep while it is under way: small files that are replaced, for `coterie watch`.

FOLDER/progress.json is of the process that runs the trials or has workers for them, FOLDER/progress/PID.json of each
process that runs a trial. They are written about once a second and never read back; the numbers of a run do not depend
on them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from coterie._src.arrays import as_numpy
from coterie._src.experiments.callbacks import Callback, RunInfo
from coterie._src.experiments.config import Config
from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.outcome import TrialResult
from coterie._src.experiments.process import Note, Process
from coterie._src.experiments.recorder import Recorder
from coterie._src.experiments.run_folder import write_atomically
from coterie._src.intake import Verdict

PROGRESS = "progress.json"
TRIALS = "progress"
"""The folder with a file for each process that runs trials; it is removed at the end."""
MIN_SECONDS = 1.0
"""Seconds between two writes of a file, at least."""
SHARE = 1 / 200
"""The share of the time that a process of trials spends on its file, at most; the losses are computed for it alone."""
MAX_LINES = 20
"""The most refused replies, and clients of the audit, that are listed."""
MAX_NAME = 100
"""The characters of a client's name that are kept."""

Status = Literal["running", "complete", "interrupted", "failed"]


class Progress(Note):
    """The progress of a run or a sweep."""

    status: Status
    process: Process
    trials: int
    finished: int
    rounds: int = 0  # of all methods and trials since this process began
    max_rounds: int | None = None  # if there are as many rounds as there may be
    seconds: float = 0.0  # since this process began
    left: float | None = None  # seconds, by the rate so far
    at_most: bool = False  # whether `left` counts on as many rounds as there may be


class Refusal(Note):
    """A reply of the last round that was refused."""

    client: str
    reason: str


class Audited(Note):
    """What the audit of a method says about a client so far."""

    client: str
    cluster: int  # -1: none
    refused: float  # share of the rounds
    silent: float
    trimmed: float


class TrialProgress(Note):
    """What a process does: the last round of a method in a trial."""

    process: Process
    trial: int
    method: str
    round: int
    rounds: int  # at most
    accepted: int = 0
    refused: int = 0
    silent: int = 0
    sizes: tuple[int, ...] = ()  # accepted replies per cluster
    losses: tuple[float | None, ...] = ()  # the median loss of the clients in each cluster
    movement: float | None = None
    refusals: tuple[Refusal, ...] = ()  # some of them, if there are many
    audit: tuple[Audited, ...] = ()  # the clients that stand out most


def max_rounds(config: Config) -> int:
    """The rounds of a trial with all its methods, at most; the start counts as one."""
    rounds = config.algorithm.rounds
    return sum(1 if METHODS[name].immediate else rounds + 1 for name in config.methods)


class ProgressFile(Callback):
    """Keeps FOLDER/progress.json while a run or a sweep is under way: a callback, or a context that notes its end.

    Parameters
    ----------
    folder : exists when the run starts; None: nothing is written.
    trials : how many there are in all.
    finished : how many were finished before.
    max_rounds : of all trials, if that is known.
    """

    def __init__(self, folder: Path | None, trials: int, finished: int = 0, max_rounds: int | None = None) -> None:
        self.folder, self.trials, self.before, self.max_rounds = folder, trials, finished, max_rounds
        self.finished, self.rounds = finished, 0
        self.process, self.began, self.due = Process.current(), time.monotonic(), 0.0
        self.status: Status = "running"

    def on_start(self, run: RunInfo) -> None:
        """Note the beginning."""
        self.__enter__()

    def on_progress(self, rounds: int) -> None:
        """Note how many rounds there were so far."""
        self.rounds = rounds
        self._write_if_due()

    def on_trial(self, result: TrialResult) -> None:
        """Note one more finished trial."""
        self.finished += 1
        self._write_if_due()

    def on_end(self, status: Literal["complete", "interrupted", "failed"]) -> None:
        """Note the end."""
        self.close(status)

    def close(self, status: Status) -> None:
        """Note the end."""
        self.status = status
        self._clear()
        self._write()

    def __enter__(self) -> Self:
        self._clear()
        self._write()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self.status == "running":
            self.close("complete" if kind is None else "failed")

    def _write_if_due(self) -> None:
        if time.monotonic() >= self.due:
            self._write()

    def _write(self) -> None:
        seconds = time.monotonic() - self.began
        left, at_most = self._left(seconds)
        note = Progress(
            status=self.status, process=self.process, trials=self.trials, finished=self.finished, rounds=self.rounds,
            max_rounds=self.max_rounds, seconds=seconds, left=left, at_most=at_most,
        )  # fmt: skip
        _write(self.folder, PROGRESS, note)
        self.due = time.monotonic() + MIN_SECONDS

    def _left(self, seconds: float) -> tuple[float | None, bool]:
        """Seconds left, by the finished trials or else by the rounds, and whether there may be fewer rounds."""
        if (done := self.finished - self.before) > 0:
            return seconds / done * (self.trials - self.finished), False
        if self.rounds and self.max_rounds is not None:
            return seconds / self.rounds * max(0, self.max_rounds - self.rounds), True
        return None, False

    def _clear(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder / TRIALS, ignore_errors=True)


class TrialNotes:
    """Keeps FOLDER/progress/PID.json of a process that runs trials.

    The losses per cluster cost a pass over the samples. A file is therefore written again only after a second, and only
    after so long a time that writing takes at most `SHARE` of it.
    """

    def __init__(self, folder: Path, min_seconds: float = MIN_SECONDS) -> None:
        self.folder, self.min_seconds, self.due = folder, min_seconds, 0.0
        self.process = Process.current()

    def __call__(self, trial: int, method: str, rounds: int, recorder: Recorder) -> None:
        """Note the last round of a method, if it is time to; rounds: how many there are, at most."""
        if (began := time.monotonic()) < self.due:
            return
        note = _trial_progress(self.process, trial, method, rounds, recorder)
        _write(self.folder, f"{TRIALS}/{self.process.pid}.json", note)
        ended = time.monotonic()
        self.due = ended + max(self.min_seconds, (ended - began) / SHARE)


@lru_cache(maxsize=1)
def trial_notes(folder: Path | None) -> TrialNotes | None:
    """The notes of this process in a folder; None where there is none."""
    return None if folder is None else TrialNotes(folder)


def _write(folder: Path | None, name: str, note: Note) -> None:
    if folder is not None and folder.is_dir():  # if somebody has removed it, it stays away
        with contextlib.suppress(OSError):  # the numbers do not depend on the file
            write_atomically(folder / name, json.dumps(note.model_dump()).encode(), durable=False)


def _trial_progress(process: Process, trial: int, method: str, rounds: int, recorder: Recorder) -> TrialProgress:
    assert recorder.last is not None
    state, info = recorder.last
    place = {"process": process, "trial": trial, "method": method, "round": state.round, "rounds": rounds}
    if info is None or recorder.local:
        return TrialProgress(**place)
    names, info = recorder.task.clients.names, info.whole(recorder.task.clients.count)
    refused = np.flatnonzero((info.verdicts != Verdict.ACCEPTED) & (info.verdicts != Verdict.SILENT))
    return TrialProgress(
        **place,
        accepted=int(np.count_nonzero(info.verdicts == Verdict.ACCEPTED)),
        refused=len(refused),
        silent=int(np.count_nonzero(info.verdicts == Verdict.SILENT)),
        sizes=tuple(info.sizes.tolist()),
        losses=_losses(recorder, info.labels, len(info.sizes)),
        movement=_finite(float(info.movement)),
        refusals=tuple(
            Refusal(client=_short(names[client]), reason=Verdict(int(info.verdicts[client])).name.lower())
            for client in refused[:MAX_LINES].tolist()
        ),
        audit=tuple(_audit(recorder)),
    )


def _losses(recorder: Recorder, labels: NDArray[np.int64], clusters: int) -> tuple[float | None, ...]:
    """The median loss of the clients that were counted in each cluster."""
    assert recorder.last is not None
    losses = as_numpy(recorder.task.losses(recorder.last.state.centres))
    own = [losses[labels == j, j] for j in range(clusters)]
    return tuple(_finite(float(np.median(each))) if len(each) else None for each in own)


def _audit(recorder: Recorder) -> Sequence[Audited]:
    """The clients of which most replies were refused, then those of which most was trimmed."""
    if not recorder.rows:  # no round is recorded
        return []
    rounds = len(recorder.rows)
    trimmed = recorder.trimmed / np.maximum(1, recorder.counted)
    order = np.lexsort((-trimmed, -recorder.refused))[:MAX_LINES]
    return [
        Audited(
            client=_short(recorder.task.clients.names[client]),
            cluster=int(recorder.labels[client]),
            refused=float(recorder.refused[client]) / rounds,
            silent=float(rounds - recorder.heard[client]) / rounds,
            trimmed=float(trimmed[client]),
        )
        for client in order.tolist()
    ]


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _short(name: object) -> str:
    """A name of at most `MAX_NAME` characters, all of which a file can hold."""
    return str(name)[:MAX_NAME].encode("utf-8", "replace").decode()
