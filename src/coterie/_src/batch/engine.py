"""The engine that runs jobs as batches of trials on a device, and what it refuses to run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from coterie._src.batch.trials import run_batch
from coterie._src.experiments.callbacks import Callback
from coterie._src.experiments.config import Config
from coterie._src.experiments.engines import Engine, Interrupted, Job, Stop, round_listener
from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.outcome import TrialResult
from coterie._src.experiments.problems import MixedRegression
from coterie._src.kernels.cuda.aggregation import MAX_CLIENTS
from coterie._src.kernels.cuda.runtime import available

MEMORY_SHARE = 0.4
"""Of the device's free memory, for the samples of a batch and the clients' assignment caches."""
MOST_SAMPLES = 5000
"""The errors of a client that answers for an empty cluster stay in a block's shared memory."""


def check_device(config: Config) -> None:
    """Raise a ValueError for what a batch on a device cannot do."""
    problem, section = config.problem, config.algorithm
    if not torch.cuda.is_available():
        raise ValueError("run.device: cuda, but torch finds no CUDA device here")
    if not available():
        raise ValueError("run.device: cuda needs CuPy (pip install 'coterie[gpu]')")
    clients, samples = getattr(problem, "clients", 0), getattr(problem, "samples", 0)
    few = isinstance(samples, int) and samples <= MOST_SAMPLES
    batched = [method.name for method in METHODS if method.batched]
    needed = {
        "problem.kind": (isinstance(problem, MixedRegression), "mixed-regression"),
        "problem.samples": (few, f"one number for all clients, at most {MOST_SAMPLES}"),
        "problem.clients": (clients <= MAX_CLIENTS, f"at most {MAX_CLIENTS}"),
        "problem.dtype": (getattr(problem, "dtype", "") == "float32", "float32"),
        "attack.kind": (config.attack.kind == "paper" and config.attack.target == "own", "paper with target own"),
        "attack.scale": (config.attack.scale != "worst", "a number"),
        "attack.sleep": (config.attack.sleep == 0, "0"),
        "algorithm.init": (not config.asks_for_start, "a start that needs no answers"),
        "algorithm.before": (section.before == "nothing", "nothing"),
        "algorithm.optimiser": (section.optimiser == "plain", "plain"),
        "algorithm.quorum": (section.quorum == 1, "1"),
        "algorithm.participation": (section.participation == 1, "1"),
        "algorithm.tolerance": (section.tolerance == 0, "0"),
        "algorithm.resample": (not section.resample, "false"),
        "run.methods": (set(config.methods) <= set(batched), "among " + ", ".join(batched)),
        "three_stage.first": (config.three_stage.first == "truth" or "three-stage" not in config.methods, "truth"),
    }
    for key, (fits, wanted) in needed.items():
        if not fits:
            raise ValueError(f"{key}: on run.device = cuda must be {wanted}")


def device_engine(device: str) -> Engine:
    """The engine that runs trials of one configuration together, as many at once as fit into the device's memory."""

    def run(jobs: Sequence[Job], callback: Callback, stop: Stop) -> Iterator[tuple[int, TrialResult]]:
        listener = round_listener(callback, stop)
        groups: dict[str, list[int]] = {}
        for index, job in enumerate(jobs):
            groups.setdefault(job.config.model_dump_json(), []).append(index)
        for group in groups.values():
            config = jobs[group[0]].config
            for some in _batches(config, group, device):
                if stop():
                    return
                try:
                    results = run_batch(
                        config, [jobs[index].trial for index in some], device, lambda: listener(0, "", {})
                    )
                except Interrupted:
                    return
                except torch.OutOfMemoryError:
                    raise OSError(0, f"out of memory with {len(some)} trials at once", device) from None
                yield from zip(some, results, strict=True)

    return run


def _batches(config: Config, jobs: list[int], device: str) -> Iterator[list[int]]:
    problem = config.problem
    assert isinstance(problem, MixedRegression)
    assert isinstance(problem.samples, int)
    methods, rows = len(set(config.methods) - {"oracle"}), problem.clusters + 2  # the cache, and two updates
    size = 4 * problem.clients * (problem.samples + methods * rows) * problem.dim
    memory = 1 << 30
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()  # what torch keeps from the last batch is free, too
        memory = torch.cuda.mem_get_info(device)[0]
    most = max(1, int(MEMORY_SHARE * memory / size))
    for first in range(0, len(jobs), most):
        yield jobs[first : first + most]
