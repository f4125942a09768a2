"""Whose folder it is, by the files in it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from coterie._src.experiments.database import ARCHIVE, FILE
from coterie._src.experiments.progress import PROGRESS
from coterie._src.report.run_record import SUMMARY


def kind_of(folder: Path) -> Literal["run", "federation", "sweep"]:
    """Whether it is the folder of a run, a federation or a sweep; ValueError for any other."""
    if (folder / SUMMARY).is_file():
        return "run"
    if (folder / FILE).is_file() or (folder / ARCHIVE).is_file():
        return "sweep"
    if (folder / "audit.sqlite").is_file() or (folder / PROGRESS).is_file():
        return "federation"
    raise ValueError(f"{folder}: is the folder of no run, federation or sweep")
