"""Waiting for a process of a sweep that a test then kills or interrupts."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any


def kept(folder: Path) -> int:
    """How many results are on disk, while others write there."""
    file = folder / "results.sqlite"
    if not file.exists():
        return 0
    with closing(sqlite3.connect(file, timeout=60)) as connection:
        tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'results'").fetchone()[0]
        return int(connection.execute("SELECT count(*) FROM results").fetchone()[0]) if tables else 0


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    """Return when the condition holds or the process has ended; between two looks the processor is left to it."""
    while process.poll() is None and not condition():
        time.sleep(0.01)


def until_kept(count: int, folder: Path, process: subprocess.Popen[Any]) -> None:
    """Return when the folder holds so many results or the process has ended."""
    wait_for(lambda: kept(folder) >= count, process)
