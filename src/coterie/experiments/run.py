"""Many trials, on one or several processes, with the same numbers."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized
from typing import Any

from coterie.experiments.config import Config
from coterie.experiments.trial import TrialResult, run_trial

POLL_SECONDS = 0.1
OnProgress = Callable[[int], None]
Stop = Callable[[], bool]


class Interrupted(Exception):
    """A trial was asked to stop in its middle."""


def worker_count(config: Config) -> int:
    """Processes to use: as configured, never more than trials."""
    wanted = len(os.sched_getaffinity(0)) if config.run.workers == "auto" else config.run.workers
    return min(wanted, config.run.trials)


def run_trials(
    config: Config, on_progress: OnProgress = lambda rounds: None, stop: Stop = lambda: False
) -> Iterator[TrialResult]:
    """Yield the trials of a configuration as they end; `on_progress` hears the rounds done so far.

    Once `stop()` is true no trial is begun, those under way are given up, and the iteration ends. No worker
    is left behind, then or when the generator is closed.
    """
    if worker_count(config) == 1:
        yield from _in_this_process(config, on_progress, stop)
    else:
        yield from _in_workers(config, on_progress, stop)


def _in_this_process(config: Config, on_progress: OnProgress, stop: Stop) -> Iterator[TrialResult]:
    done = 0

    def on_round() -> None:
        nonlocal done
        done += 1
        on_progress(done)
        if stop():
            raise Interrupted

    for trial in range(config.run.trials):
        try:
            result = run_trial(config, trial, on_round)
        except Interrupted:
            return
        yield result


def _in_workers(config: Config, on_progress: OnProgress, stop: Stop) -> Iterator[TrialResult]:
    context = multiprocessing.get_context("spawn")
    rounds, stopped = context.Value("q", 0), context.RawValue("b", 0)
    counter = rounds.get_obj()  # read without the lock, which an interruption could leave locked
    with ProcessPoolExecutor(worker_count(config), context, _initialise_worker, (config, rounds, stopped)) as pool:
        with _ctrl_c_held_back():  # workers start here, and inherit it: the parent decides when to stop
            waiting: set[Future[TrialResult]] = {pool.submit(_work, trial) for trial in range(config.run.trials)}
        try:
            while waiting and not stop():
                ended, waiting = wait(waiting, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                on_progress(counter.value)
                for future in ended:
                    yield future.result()
        finally:
            stopped.value = 1  # a worker in the middle of a trial notices at its next round
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_worker: dict[str, Any] = {}


def _initialise_worker(config: Config, rounds: Synchronized[int], stopped: Any) -> None:
    _worker.update(config=config, rounds=rounds, stopped=stopped)


def _work(trial: int) -> TrialResult:
    def on_round() -> None:
        with _worker["rounds"].get_lock():
            _worker["rounds"].value += 1
        if _worker["stopped"].value:
            raise Interrupted

    return run_trial(_worker["config"], trial, on_round)
