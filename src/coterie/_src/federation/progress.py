"""The progress of a federation, in one small file beside its state, which `coterie federate watch` shows."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError

from coterie._src.algorithms import RoundInfo
from coterie._src.experiments.process import Process
from coterie._src.experiments.run_folder import write_atomically
from coterie._src.intake import Verdict

PROGRESS = "progress.json"
MIN_SECONDS = 0.5
"""Seconds between two writes within a round, at least."""


class Progress(NamedTuple):
    """The progress of a federation. Everything from `accepted` on is about the last finished round."""

    rounds: int  # the number of rounds, at most
    round: int = 0  # the last finished round
    waiting: bool = False  # whether the server waits for enough nodes to begin
    replies: int = 0  # replies to the open question; while waiting, the nodes that are present
    asked: int = 0  # clients that were asked; while waiting, the nodes that must be present
    accepted: int = 0
    refused: int = 0
    silent: int = 0
    sizes: tuple[int, ...] = ()  # accepted replies per cluster
    losses: tuple[float | None, ...] = ()  # their median loss per cluster
    movement: float | None = None
    left: float | None = None  # seconds left, if there are as many rounds as there may be
    faults: tuple[str, ...] = ()  # a line for each client that was not accepted
    done: bool = False
    process: dict[str, Any] | None = None  # that writes this, see `Process`; None in files of 0.1.0
    error: str = ""  # why the run has failed

    def line(self) -> str:
        """Return one line about the last finished round, for a log.

        >>> Progress(9, 2, accepted=5, silent=1, sizes=(3, 2), losses=(0.5, None), movement=0.1, left=7.0).line()
        'round 2/9: 5 accepted, 0 refused, 1 silent; clients@loss per cluster 3@0.5 2@-; moved 0.1; at most 7 s left'
        """
        clusters = " ".join(
            f"{size}@{'-' if loss is None else f'{loss:.3g}'}"
            for size, loss in zip(self.sizes, self.losses, strict=True)
        )
        return (
            f"round {self.round}/{self.rounds}: {self.accepted} accepted, {self.refused} refused, "
            f"{self.silent} silent; clients@loss per cluster {clusters}; moved {self.movement:.3g}; "
            f"at most {self.left:.0f} s left"
        )

    def has_died(self) -> bool:
        """Whether the run has failed, or its process is gone; False where that cannot be told from here."""
        if self.done:
            return False
        try:
            process = None if self.process is None else Process.model_validate(self.process)
        except ValidationError:
            process = None
        return bool(self.error) or (process is not None and bool(process.has_ended()))

    def after(
        self,
        round: int,
        info: RoundInfo,
        rows: Sequence[dict[str, Any]],
        left: float,
        name: Callable[[int], str] = str,
    ) -> Progress:
        """Return the progress with one more round finished.

        rows: the audit of this round. names: of the sites by their nodes, where they are known.
        """
        verdicts = [row["verdict"] for row in rows]
        losses = [
            [row["loss"] for row in rows if row["label"] == j and row["loss"] is not None]
            for j in range(len(info.sizes))
        ]
        accepted, silent = (verdicts.count(verdict.name.lower()) for verdict in (Verdict.ACCEPTED, Verdict.SILENT))
        not_asked = verdicts.count("blocked")
        return self._replace(
            round=round,
            accepted=accepted,
            silent=silent,
            refused=len(rows) - accepted - silent - not_asked,
            sizes=tuple(info.sizes.tolist()),
            losses=tuple(float(np.median(own)) if own else None for own in losses),
            movement=float(info.movement),
            left=left,
            faults=tuple(_fault(row, name) for row in rows if row["verdict"] != Verdict.ACCEPTED.name.lower()),
        )


VALID = TypeAdapter(Progress)


def _fault(row: dict[str, Any], name: Callable[[int], str]) -> str:
    verdict = row["verdict"].replace("_", " ")
    reason = f": {row['fault']}" if row["fault"] else ""
    site = name(int(row["node"]))
    who = f"client {row['client']} (node {row['node']})" if site == row["node"] else site
    return f"{who}: {verdict}{reason}"


def read_progress(folder: Path) -> tuple[Progress, float] | None:
    """Return the progress and the age of its file in seconds; None where there is no file yet."""
    file = folder / PROGRESS
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        entries = found | {name: tuple(found[name]) for name in ("sizes", "losses", "faults") if name in found}
        progress = VALID.validate_python(tuple(Progress(**entries)), strict=True)
        return progress, max(0.0, time.time() - file.stat().st_mtime)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: is not the progress of a federation ({error})") from None


class ProgressFile:
    """Keeps the file `progress.json` in a folder; with None as the folder the progress is kept in memory alone."""

    def __init__(self, folder: Path | None, rounds: int) -> None:
        progress = Progress(rounds, process=Process.current().model_dump())
        self.folder, self.progress, self._written = folder, progress, 0.0
        self.update()  # replaces the file of an earlier run

    def update(self, progress: Progress | None = None, at_once: bool = True) -> None:
        """Write the progress; one that is not to be written at once may wait for the next."""
        self.progress = progress or self.progress
        if self.folder is None or not (at_once or time.monotonic() - self._written >= MIN_SECONDS):
            return
        with contextlib.suppress(OSError):  # a run goes on without the file
            write_atomically(self.folder / PROGRESS, json.dumps(self.progress._asdict()).encode(), durable=False)
        self._written = time.monotonic()

    def count_replies(self, replies: int, asked: int, waiting: bool = False) -> None:
        """Note how many clients have answered the open question or, while waiting, how many nodes are present."""
        self.update(self.progress._replace(replies=replies, asked=asked, waiting=waiting), at_once=False)
