"""Folders as they look while something is under way, written by what writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from coterie._src.algorithms import State
from coterie._src.experiments import RunFolder
from coterie._src.experiments.callbacks import RunInfo
from coterie._src.experiments.process import Process
from coterie._src.experiments.progress import (
    PROGRESS,
    TRIALS,
    Audited,
    Progress,
    ProgressFile,
    Refusal,
    TrialProgress,
)  # fmt: skip
from coterie._src.federation.checkpoint import Checkpoint, Saved
from coterie._src.federation.progress import ProgressFile as FederationProgress
from small_trials import small

ESCAPE = "\x1b]0;title\x07\x1b[31mred\x1b[0m"
"""What changes the title and the colours of a terminal."""


def run_under_way(folder: Path, names: tuple[str, ...] = ("oslo", "bern")) -> ProgressFile:
    """The folder of a run of this process, whose first trial has replies of these clients that were refused."""
    made = RunFolder(folder, small())
    made.on_start(RunInfo("coterie run", 0))
    progress = ProgressFile(folder, 3, max_rounds=300).__enter__()
    progress.due = 0.0
    progress.on_progress(30)
    write_trial(folder, names)
    return progress


def write_trial(folder: Path, names: tuple[str, ...], **more: Any) -> None:
    note = TrialProgress(
        process=Process.current(), trial=0, method="ifca", round=7, rounds=12, accepted=22,
        refused=len(names), silent=1, sizes=(12, 10), losses=(0.25, None), movement=0.5,
        refusals=tuple(Refusal(client=name, reason="not_finite") for name in names),
        audit=tuple(Audited(client=name, cluster=1, refused=0.5, silent=0.25, trimmed=0.125) for name in names),
    ).model_copy(update=more)  # fmt: skip
    (folder / TRIALS).mkdir(exist_ok=True)
    (folder / TRIALS / "77.json").write_text(json.dumps(note.model_dump()), encoding="utf-8")


def as_if_killed(folder: Path, gone: Process) -> None:
    """The file of progress as a process leaves it that was killed."""
    file = folder / PROGRESS
    found = json.loads(file.read_bytes())
    if "status" in found:
        Progress.model_validate(found)
    file.write_text(json.dumps(found | {"process": gone.model_dump()}), encoding="utf-8")


def federation_under_way(folder: Path, faults: tuple[str, ...] = ("client 3 (node n3): not finite",)) -> Checkpoint:
    """The folder of a federation of eight sites over five rounds, of which one is far off and one is refused."""
    checkpoint = Checkpoint(folder)
    for round in range(1, 6):
        rows: list[dict[str, Any]] = [
            {"round": round, "client": c, "node": f"n{c}", "verdict": "accepted", "label": c % 2, "loss": 0.3,
             "trimmed": 0.1, "distance": 1.0, "samples": 10, "seconds": 0.1, "fault": ""}
            for c in range(8)
        ]  # fmt: skip
        rows[2]["distance"] = 9.0
        rows[3] |= {"verdict": "not_finite", "label": -1, "distance": None, "fault": faults[0]}
        checkpoint.save(Saved(State(round, np.zeros((2, 3))), np.random.default_rng(0), list(range(8))), rows)
    file = FederationProgress(folder, 20)
    file.update(
        file.progress._replace(
            round=5, replies=6, asked=8, accepted=7, refused=1, sizes=(4, 3), losses=(0.3, float("nan")), movement=0.1,
            left=90.0, faults=faults,
        )
    )  # fmt: skip
    return checkpoint
