"""Engines that run many trials, in one process, in several, or on a Ray cluster, with the same results."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, NamedTuple

from coterie._src.aggregators import Aggregator
from coterie._src.arrays import Array, available_cores
from coterie._src.attacks import Attack
from coterie._src.experiments.callbacks import NOTHING, Callback, OnRound, replay_rounds
from coterie._src.experiments.config import Config
from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.outcome import Row, TrialResult
from coterie._src.experiments.progress import trial_notes
from coterie._src.experiments.setup import NOTHING_CUSTOM, Custom, DataCache
from coterie._src.experiments.trial import run_trial

POLL_SECONDS = 0.1
Stop = Callable[[], bool]


class Interrupted(Exception):
    """Raised within a trial that is to stop."""


class Job(NamedTuple):
    """One trial of one configuration.

    record: whether to record its rounds and audit. folder: where its progress is noted, on this machine; None: nowhere.
    """

    config: Config
    trial: int
    record: bool = True
    folder: Path | None = None


Engine = Callable[[Sequence[Job], Callback, Stop], Iterator[tuple[int, TrialResult]]]
"""Runs jobs and yields (index of the job, result) as they end; tells the callback of progress and rounds.

Once `stop()` is true no job is started, running jobs are abandoned, and the iteration ends.
"""


def worker_count(config: Config) -> int:
    """The number of processes: as configured, or one per core."""
    return available_cores() if config.run.workers == "auto" else config.run.workers


def run_trials(
    config: Config,
    callback: Callback = NOTHING,
    stop: Stop = lambda: False,
    *,
    rules: Mapping[str, Aggregator | Callable[[Array], Array]] | None = None,
    attack: Attack | None = None,
    folder: Path | None = None,
) -> Iterator[TrialResult]:
    """Yield the trials of a configuration as they end; see `Engine` for the arguments.

    callback: its `on_progress`, `on_round` and `on_trial` are called; `on_start` and `on_end` are the caller's to call.
    rules: additional aggregators by name, each of which runs in Algorithm 1 beside the configured methods. attack:
    replaces the configured one. With either, all trials run in this process. folder: where their progress is noted.
    """
    if known := set(rules or {}) & set(METHODS.names):
        raise ValueError(f"rules: {', '.join(sorted(known))} is the name of a method; choose another")
    jobs = [Job(config, trial, folder=folder) for trial in range(config.run.trials)]
    if rules or attack:
        results = _in_this_process(jobs, callback, stop, Custom(rules or {}, attack))
    else:
        results = local_engine(worker_count(config))(jobs, callback, stop)
    for _, result in results:
        callback.on_trial(result)
        yield result


def local_engine(workers: int) -> Engine:
    """An engine with worker processes on this machine, or this process if one is enough. The workers end with it."""

    def run(jobs: Sequence[Job], callback: Callback, stop: Stop) -> Iterator[tuple[int, TrialResult]]:
        if min(workers, len(jobs)) <= 1:
            return _in_this_process(jobs, callback, stop)
        return _in_workers(jobs, min(workers, len(jobs)), callback, stop)

    return run


def round_listener(callback: Callback, stop: Stop = lambda: False) -> OnRound:
    """A function to call after every round: it calls the callback, and raises `Interrupted` if `stop()`."""
    done = 0

    def on_round(trial: int, method: str, row: Row) -> None:
        nonlocal done
        done += 1
        callback.on_progress(done)
        if row:
            callback.on_round(trial, method, row)
        if stop():
            raise Interrupted

    return on_round


def _in_this_process(
    jobs: Sequence[Job], callback: Callback, stop: Stop, custom: Custom = NOTHING_CUSTOM
) -> Iterator[tuple[int, TrialResult]]:
    on_round, cache = round_listener(callback, stop), DataCache()
    for index, job in enumerate(jobs):
        try:
            result = _run_job(job, on_round, cache, custom)
        except Interrupted:
            return
        yield index, result


def _run_job(job: Job, on_round: OnRound, cache: DataCache, custom: Custom = NOTHING_CUSTOM) -> TrialResult:
    return run_trial(job.config, job.trial, job.record, on_round, cache, custom, trial_notes(job.folder))


def _in_workers(jobs: Sequence[Job], workers: int, callback: Callback, stop: Stop) -> Iterator[tuple[int, TrialResult]]:
    context = multiprocessing.get_context("spawn")
    rounds, stopped = context.Value("q", 0), context.RawValue("b", 0)
    counter = rounds.get_obj()  # read without the lock, which an interruption could leave locked
    with ProcessPoolExecutor(workers, context, _initialise_worker, (rounds, stopped, os.getpid())) as pool:
        try:
            with _interrupts_blocked():  # workers start here and inherit it: only the parent reacts to Ctrl-C
                indices: dict[Future[TrialResult], int] = {pool.submit(_work, job): i for i, job in enumerate(jobs)}
            waiting = set(indices)
            while waiting and not stop():
                ended, waiting = wait(waiting, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                callback.on_progress(counter.value)
                for future in ended:
                    result = future.result()
                    replay_rounds(callback, result)
                    yield indices.pop(future), result
        except BrokenProcessPool:
            raise OSError(0, "one was killed (out of memory?); finished trials are kept", "worker processes") from None
        finally:
            stopped.value = 1  # a worker in the middle of a trial notices at its next round
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):  # not available on every system
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_worker: dict[str, Any] = {}


def _initialise_worker(rounds: Synchronized[int], stopped: Any, parent: int) -> None:
    _worker.update(rounds=rounds, stopped=stopped, cache=DataCache())
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()


def _exit_with_parent(parent: int) -> None:
    """End this worker when its parent is killed."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _work(job: Job) -> TrialResult:
    def on_round(trial: int, method: str, row: Row) -> None:
        with _worker["rounds"].get_lock():
            _worker["rounds"].value += 1
        if _worker["stopped"].value:
            raise Interrupted

    return _run_job(job, on_round, _worker["cache"])


def ray_engine(address: str | None = None) -> Engine:
    """An engine with tasks on a Ray cluster: that at `address`, or one that is started here (`coterie[ray]`)."""
    try:
        import ray
    except ImportError:
        raise ValueError("engine: ray needs Ray (pip install 'coterie[ray]')") from None

    def run(jobs: Sequence[Job], callback: Callback, stop: Stop) -> Iterator[tuple[int, TrialResult]]:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # no warning about unused GPUs
        own = not ray.is_initialized()
        if own:
            try:
                ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise ValueError(f"ray_address: {address}: {str(error).splitlines()[0]}") from None
        remote: Any = ray.remote(num_cpus=1, max_retries=3)(run_trial)
        try:
            indices = {remote.remote(job.config, job.trial, job.record): i for i, job in enumerate(jobs)}
            while indices and not stop():
                ended, _ = ray.wait(list(indices), timeout=POLL_SECONDS)
                for reference in ended:
                    result = ray.get(reference)
                    replay_rounds(callback, result)
                    yield indices.pop(reference), result
            for reference in indices:
                ray.cancel(reference, force=True)
        finally:
            if own:
                ray.shutdown()

    return run
