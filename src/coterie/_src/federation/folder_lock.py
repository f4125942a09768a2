"""A lock on a folder: two processes that would write the same state do not. The system releases it at death."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie._src.experiments.process import Process

if sys.platform != "win32":
    import fcntl

LOCK = ".lock"
POLL_SECONDS = 0.1

_held: dict[Path, int] = {}
"""How often this process holds a folder."""


@contextmanager
def locked(folder: Path, what: str, patience: float = 0.0) -> Iterator[None]:
    """Hold a folder against other processes; within one process it may be held more than once.

    Parameters
    ----------
    folder
        The folder; it is made where it does not exist.
    what
        Who holds it, for the message to others, such as "run".
    patience
        Seconds to wait for a process that is about to end.
    """
    place = folder.resolve()
    if place in _held:
        _held[place] += 1
        try:
            yield
        finally:
            _held[place] -= 1
        return
    place.mkdir(parents=True, exist_ok=True)
    file = os.open(place / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        limit = time.monotonic() + patience
        while not _try_lock(file):
            if time.monotonic() >= limit:
                number = _process_of(file).pid
                who = f"process {number}" if number else "its number is not known"
                raise ValueError(f"{folder}: another {what} works here ({who}); stop it first (stop.sh)")
            time.sleep(POLL_SECONDS)
        os.ftruncate(file, 0)
        os.pwrite(file, Process.current().model_dump_json().encode(), 0)
        _held[place] = 1
        try:
            yield
        finally:
            del _held[place]
            os.ftruncate(file, 0)
    finally:
        os.close(file)  # which releases it


def holder(folder: Path) -> Process | None:
    """The process that holds a folder, with number 0 where that is not known; None where nobody does."""
    try:
        file = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return None
    try:
        return None if _try_lock(file) else _process_of(file)
    finally:
        os.close(file)


def _process_of(file: int) -> Process:
    try:
        return Process.model_validate_json(os.pread(file, 1000, 0))
    except ValueError:
        return Process(pid=0, host="")


def _try_lock(file: int) -> bool:
    if sys.platform == "win32":  # nothing keeps two runs apart there
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
