"""What a round costs more when its progress is noted on disk, and when a page watches it.

One process runs blocks of trials, by turns without notes, with notes, and with notes while `coterie watch` streams the
page to a reader. CPU time of that process per round, and how much of it is spent in the functions that write the notes;
the page has a process of its own.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.cpu import processor
from coterie._src.experiments import Config, RunFolder, read_config, run_trials
from coterie._src.experiments.callbacks import RunInfo
from coterie._src.experiments.progress import ProgressFile, TrialNotes

BLOCKS, TRIALS, ROUNDS = 12, 8, 300
MODES = ("without notes", "with notes", "watched")
CHANGES = (
    'run.methods=["ifca"]', f"run.trials={TRIALS}", "run.workers=1", f"algorithm.rounds={ROUNDS}",
    "algorithm.tolerance=0",
)  # fmt: skip


def timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """The function, which adds the CPU seconds that it takes to a list."""

    def call(*arguments: Any) -> Any:
        began = time.thread_time()
        try:
            return function(*arguments)
        finally:
            spent.append(time.thread_time() - began)

    return call


def block(config: Config, folder: Path | None) -> tuple[float, float]:
    """CPU and wall seconds of the trials, per round."""
    began = time.process_time(), time.perf_counter()
    with ProgressFile(folder, TRIALS, max_rounds=TRIALS * ROUNDS) as progress:
        for _ in run_trials(config, progress, folder=folder):
            pass
    rounds = TRIALS * ROUNDS
    return (time.process_time() - began[0]) / rounds, (time.perf_counter() - began[1]) / rounds


def work(folder: Path) -> None:
    """Run a block for every line that is read, and print what it took."""
    config = read_config(None, list(CHANGES))
    block(config, None)  # compiled
    print("ready", flush=True)
    spent: list[float] = []
    noting = (
        (TrialNotes, "__call__"),
        (ProgressFile, "on_progress"),
        (ProgressFile, "on_trial"),
        (ProgressFile, "close"),
    )
    with ExitStack() as patched:
        for owner, name in noting:
            patched.enter_context(patch.object(owner, name, timed(getattr(owner, name), spent)))
        for line in sys.stdin:
            spent.clear()
            took = block(config, None if line.strip() == MODES[0] else folder)
            print(*took, sum(spent) / (TRIALS * ROUNDS), flush=True)


@contextmanager
def reading(address: str, seen: list[int]) -> Iterator[None]:
    """A reader of the page's events meanwhile; seen: the length of every line."""
    with urllib.request.urlopen(f"{address}events") as stream:

        def read() -> None:
            while line := stream.readline():
                seen.append(len(line))

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        yield
        stream.fp.raw._sock.shutdown(2)  # ends the reader
        thread.join()


def run() -> tuple[str, list[dict[str, Any]]]:
    """Blocks in turn; the ratios are of the blocks of one turn, so that a slow minute counts for all."""
    cpu: dict[str, list[float]] = {mode: [] for mode in MODES}
    wall: dict[str, list[float]] = {mode: [] for mode in MODES}
    notes: dict[str, list[float]] = {mode: [] for mode in MODES}
    seen: list[int] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        RunFolder(folder, read_config(None, list(CHANGES))).on_start(RunInfo("benchmark", 0))
        me = [sys.executable, "-m"]
        worker = subprocess.Popen(
            [*me, "benchmarks.watch", str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        page = subprocess.Popen([*me, "coterie", "watch", str(folder)], stdout=subprocess.PIPE, text=True)
        with worker, page:
            assert worker.stdin is not None
            assert worker.stdout is not None
            assert page.stdout is not None
            address = page.stdout.readline().strip()
            worker.stdout.readline()
            for turn in range(BLOCKS):
                for mode in MODES[turn % 3 :] + MODES[: turn % 3]:
                    print(mode, file=worker.stdin, flush=True)
                    if mode == "watched":
                        with reading(address, seen):
                            told = worker.stdout.readline()
                    else:
                        told = worker.stdout.readline()
                    took = [float(word) for word in told.split()]
                    cpu[mode].append(took[0])
                    wall[mode].append(took[1])
                    notes[mode].append(took[2])
            worker.stdin.close()
            page.terminate()
    rows = []
    for mode in MODES:
        logs = [math.log(one / other) for one, other in zip(cpu[mode], cpu[MODES[0]], strict=True)]
        rows.append(
            {
                "mode": mode,
                "CPU ms per round": 1e3 * statistics.median(cpu[mode]),
                "wall ms per round": 1e3 * statistics.median(wall[mode]),
                "of it notes, %": 100 * sum(notes[mode]) / sum(cpu[mode]),
                "CPU beside none, %": f"{100 * statistics.median(logs):+.2f}",
                "standard error, %": f"{100 * 1.25 * statistics.stdev(logs) / math.sqrt(BLOCKS):.2f}",
            }
        )
    title = (
        f"{processor()}, ifca, {BLOCKS} turns of {TRIALS} trials of {ROUNDS} rounds, {len(seen)} lines of events read"
    )
    return title, rows


if __name__ == "__main__":
    work(Path(sys.argv[1]))
