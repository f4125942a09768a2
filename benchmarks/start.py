"""The CPU time of a first `coterie run --trials 1`: with nothing compiled, and with everything compiled."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.cpu import processor

REPEATS = 3
COMMAND = ("run", "--trials", "1", "--set", "run.workers=1")


def cpu_seconds(cache: str) -> float:
    """User and system time of one run in a process of its own, with this folder for compiled code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "coterie", *COMMAND, "--out", str(Path(folder) / "run")]
        subprocess.run(command, env={**os.environ, "NUMBA_CACHE_DIR": cache}, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run() -> tuple[str, list[dict[str, Any]]]:
    """The least of some runs each: a shared machine may be slow for a while."""
    cold, warm = [], []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(cpu_seconds(cache))
            warm.append(cpu_seconds(cache))
    rows = [{"what": "cold", "CPU s": min(cold)}, {"what": "warm", "CPU s": min(warm)}]
    return f"{processor()}, coterie {' '.join(COMMAND)}, least of {REPEATS}", rows
