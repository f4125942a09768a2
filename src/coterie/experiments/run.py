"""Many trials, on one or several processes, with the same numbers."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing.sharedctypes import Synchronized
from typing import Any

from coterie.experiments.config import Config
from coterie.experiments.trial import TrialResult, run_trial

POLL_SECONDS = 0.1
OnProgress = Callable[[int], None]


class Interrupted(Exception):
    """A worker was asked to stop in the middle of a trial."""


def worker_count(config: Config) -> int:
    """Processes to use: as configured, never more than trials."""
    wanted = len(os.sched_getaffinity(0)) if config.run.workers == "auto" else config.run.workers
    return min(wanted, config.run.trials)


def run_trials(config: Config, on_progress: OnProgress = lambda rounds: None) -> Iterator[TrialResult]:
    """Yield the trials of a configuration as they end; `on_progress` hears the rounds done so far.

    On KeyboardInterrupt (or when the generator is closed) no worker is left behind.
    """
    if worker_count(config) == 1:
        yield from _in_this_process(config, on_progress)
    else:
        yield from _in_workers(config, on_progress)


def _in_this_process(config: Config, on_progress: OnProgress) -> Iterator[TrialResult]:
    done = 0

    def on_round() -> None:
        nonlocal done
        done += 1
        on_progress(done)

    for trial in range(config.run.trials):
        yield run_trial(config, trial, on_round)


def _in_workers(config: Config, on_progress: OnProgress) -> Iterator[TrialResult]:
    context = multiprocessing.get_context("spawn")
    rounds, stop = context.Value("q", 0), context.Value("b", 0)
    with ProcessPoolExecutor(worker_count(config), context, _initialise_worker, (config, rounds, stop)) as pool:
        waiting: set[Future[TrialResult]] = {pool.submit(_work, trial) for trial in range(config.run.trials)}
        try:
            while waiting:
                ended, waiting = wait(waiting, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                on_progress(rounds.value)
                for future in ended:
                    yield future.result()
        finally:
            stop.value = 1  # a worker in the middle of a trial notices at its next round
            pool.shutdown(wait=True, cancel_futures=True)


_worker: dict[str, Any] = {}


def _initialise_worker(config: Config, rounds: Synchronized[int], stop: Synchronized[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    _worker.update(config=config, rounds=rounds, stop=stop)


def _work(trial: int) -> TrialResult:
    def on_round() -> None:
        with _worker["rounds"].get_lock():
            _worker["rounds"].value += 1
        if _worker["stop"].value:
            raise Interrupted

    return run_trial(_worker["config"], trial, on_round)
