"""Trials in batches on a GPU: the same problem, start and methods, with the samples drawn on the device."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie._src.arrays import Ints
from coterie._src.attacks.payloads import PAPER
from coterie._src.batch import Batch, Lane, descend, respond
from coterie._src.batch.three_stage import minimisers, trimmed_kmeans
from coterie._src.data import Truth
from coterie._src.data.synthetic import draw_layout
from coterie._src.experiments import tables
from coterie._src.experiments.config import ROBUST_STARTS, Config, MixedRegression
from coterie._src.experiments.engines import Engine, Interrupted, Job, OnProgress, Stop, counted_rounds
from coterie._src.experiments.trial import MethodResult, TrialResult, compare
from coterie._src.kernels.cuda.batch import MOST_CLIENTS
from coterie._src.kernels.order_statistics.cuda import available
from coterie._src.metrics import NOT_APPLICABLE, evaluate
from coterie._src.server import unit_sphere
from coterie._src.simulation import stream
from coterie._src.tasks.linear import block_curvatures

METHODS = ("brifca-median", "brifca-trimmed", "ifca", "three-stage", "oracle")
MEMORY_SHARE = 0.4
"""Of the device's free memory, for the samples of a batch and what their clients keep."""
MOST_SAMPLES = 5000
"""The errors of a client that stands in for an empty cluster stay in a block's shared memory."""
ORACLE_BYTES = 1 << 30
"""For the float64 copy of a cluster's samples; trials are taken in turns where it would need more."""


def check_device(config: Config) -> None:
    """Refuse, in one line, what a batch on a device cannot do."""
    problem, section = config.problem, config.algorithm
    if not torch.cuda.is_available():
        raise ValueError("run.device: cuda, but torch finds no CUDA device here")
    if not available():
        raise ValueError("run.device: cuda needs CuPy (pip install 'coterie[gpu]')")
    clients, samples = getattr(problem, "clients", 0), getattr(problem, "samples", 0)
    few = isinstance(samples, int) and samples <= MOST_SAMPLES
    needed = {
        "problem.kind": (isinstance(problem, MixedRegression), "mixed-regression"),
        "problem.samples": (few, f"one number for all clients, at most {MOST_SAMPLES}"),
        "problem.clients": (clients <= MOST_CLIENTS, f"at most {MOST_CLIENTS}"),
        "problem.dtype": (getattr(problem, "dtype", "") == "float32", "float32"),
        "attack.kind": (config.attack.kind == "paper" and config.attack.target == "own", "paper with target own"),
        "attack.scale": (config.attack.scale != "worst", "a number"),
        "attack.sleep": (config.attack.sleep == 0, "0"),
        "algorithm.init": (section.init not in ROBUST_STARTS, "a start that needs no answers"),
        "algorithm.before": (section.before == "nothing", "nothing"),
        "algorithm.optimiser": (section.optimiser == "plain", "plain"),
        "algorithm.quorum": (section.quorum == 1, "1"),
        "algorithm.participation": (section.participation == 1, "1"),
        "algorithm.tolerance": (section.tolerance == 0, "0"),
        "algorithm.resample": (not section.resample, "false"),
        "run.methods": (set(config.methods) <= set(METHODS), "among " + ", ".join(METHODS)),
        "three_stage.first": (config.three_stage.first == "truth" or "three-stage" not in config.methods, "truth"),
    }
    for key, (fits, wanted) in needed.items():
        if not fits:
            raise ValueError(f"{key}: on run.device = cuda must be {wanted}")


class Draws(NamedTuple):
    """T trials on the device."""

    batch: Batch
    truths: list[Truth]
    start: Tensor  # (T, k, d)
    stand_ins: list[np.random.Generator]


def draw(config: Config, trials: Sequence[int], device: str) -> Draws:
    """Truth and start of each trial as on a CPU, from the same streams; features and noise from the device.

    Every trial has a generator of its own, so its numbers do not depend on the batch it is in.
    """
    problem, seed = config.problem, config.run.seed
    assert isinstance(problem, MixedRegression)
    assert isinstance(problem.samples, int)
    m, n, d = problem.clients, problem.samples, problem.dim
    features = torch.empty((len(trials), m, n, d), device=device)
    targets = torch.empty((len(trials), m, n), device=device)
    shares = None if problem.shares == "equal" else problem.shares
    truths, starts, parameters = [], [], []
    for place, trial in enumerate(trials):
        rng = stream(seed, trial, "data")
        layout = draw_layout(rng, m, problem.clusters, n, d, problem.byzantine, shares)
        generator = torch.Generator(device).manual_seed(int(rng.integers(2**62)))
        features[place].normal_(generator=generator)
        targets[place].normal_(generator=generator)
        truth = Truth(layout.centres.astype(np.float32), layout.labels)
        truths.append(truth)
        starts.append(tables.start(config, d, truth, stream(seed, trial, "start")))
        parameters.append(layout.behind().astype(np.float32))
    own = torch.from_numpy(np.stack(parameters)).to(device)
    targets.mul_(math.sqrt(problem.noise_variance)).add_((features @ own[..., None])[..., 0])
    lie = PAPER if config.attack.scale == "auto" else config.attack.scale
    scales = torch.from_numpy(np.where(truths[0].byzantine, lie, 1.0).astype(np.float32)).to(device)
    scales = scales.repeat(len(trials), 1)
    generators = [stream(seed, trial, "server") for trial in trials]
    return Draws(Batch(features, targets, scales), truths, torch.from_numpy(np.stack(starts)).to(device), generators)


def run_batch(
    config: Config, trials: Sequence[int], device: str, on_round: Callable[[], None] = lambda: None
) -> list[TrialResult]:
    """All methods of the trials, in lockstep: one pass over the samples serves all of them."""
    drawn = draw(config, trials, device)
    batch, section, clusters = drawn.batch, config.algorithm, config.problem.clusters
    began = time.perf_counter()
    labels = drawn.truths[0].labels  # the same in all trials: clusters one after the other, then Byzantine clients
    names: list[str] = [name for name in config.methods if name != "oracle"]
    unused = np.random.default_rng(0)  # no buckets on a device
    m = batch.features.shape[1]
    lanes = [Lane(tables.rule(name, config, m, unused), tables.projection(section)) for name in names]
    start = drawn.start[:, None].repeat(1, max(1, len(lanes)), 1, 1)
    if "three-stage" in names:
        stages = config.three_stage
        points = minimisers(batch, section.ridge, stages.erm == "float32-inverse")
        first = torch.from_numpy(labels).to(device).expand(len(trials), -1)
        centres, fixed = trimmed_kmeans(points, first, clusters, trim=section.trim, iterations=stages.iterations)
        own = names.index("three-stage")
        project = unit_sphere if stages.project == "unit-sphere" else lanes[own].project
        lanes[own] = lanes[own]._replace(project=project, fixed=fixed)
        start[:, own] = centres.to(start.dtype)
    results = [TrialResult(trial, {}) for trial in trials]
    if lanes:
        found = descend(
            batch,
            start,
            lanes,
            rounds=section.rounds,
            step=_curvatures(batch) if section.step == "auto" else section.step,
            stand_ins=_stand_ins(drawn, config, len(lanes)) if section.empty == "random-client" else None,
            on_round=on_round,
        )
        honest = batch._replace(scales=torch.ones_like(batch.scales))
        final = respond(honest, found, lanes)
        chosen, losses, ends = (part.cpu().numpy() for part in (final.labels, final.losses, found))
        seconds = (time.perf_counter() - began) / (len(trials) * len(lanes))
        for (place, truth), (lane, name) in itertools.product(enumerate(drawn.truths), enumerate(names)):
            result = _judged(ends[place, lane], chosen[place, lane].astype(np.int64), truth)
            judged = ~truth.is_byzantine & (chosen[place, lane] >= 0)
            loss = float(losses[place, lane][judged].mean(dtype=np.float64)) if judged.any() else NOT_APPLICABLE
            result.metrics.update(loss=loss, rounds=float(section.rounds), seconds=seconds)
            results[place].methods[name] = result
    _add_oracle(results, batch, drawn.truths, "oracle" in config.methods)
    return [TrialResult(r.trial, {name: r.methods[name] for name in config.methods}) for r in results]


def _judged(centres: np.ndarray, labels: np.ndarray, truth: Truth) -> MethodResult:
    return MethodResult(evaluate(centres, labels, truth), [], [], centres)


def _curvatures(batch: Batch) -> Tensor:
    """(T, m, 2) as `Task.curvatures`."""
    found = [torch.from_numpy(2.0 * block_curvatures(x)) for x in batch.features]
    return torch.stack(found).to(batch.features.device, batch.features.dtype)


def _stand_ins(drawn: Draws, config: Config, lanes: int) -> Tensor:
    m, shape = drawn.batch.features.shape[1], (config.algorithm.rounds, lanes, config.problem.clusters)
    picked = np.stack([rng.integers(m, size=shape) for rng in drawn.stand_ins], axis=1)
    return torch.from_numpy(picked).to(drawn.start.device)


def _add_oracle(results: list[TrialResult], batch: Batch, truths: list[Truth], wanted: bool) -> None:
    """The pooled least squares of every true cluster, and every method's distance as a multiple of the oracle's."""
    began = time.perf_counter()
    centres = oracle(batch, truths[0].labels).cpu().numpy()
    seconds = (time.perf_counter() - began) / len(results)
    for place, (result, truth) in enumerate(zip(results, truths, strict=True)):
        judged = _judged(centres[place].astype(np.float32), truth.labels, truth)
        judged.metrics.update(loss=NOT_APPLICABLE, rounds=0.0, seconds=seconds)
        if wanted:
            result.methods["oracle"] = judged
        for method in result.methods.values():
            compare(method, judged, truth)


def oracle(batch: Batch, labels: Ints) -> Tensor:
    """(T, k, d) float64: the least squares of the pooled samples of each label (m,) of 0 … k − 1.

    By the normal equations and, where a cluster has fewer samples than d, of least norm.
    """
    found = []
    for cluster in range(int(labels.max()) + 1):
        members = torch.from_numpy(np.flatnonzero(labels == cluster)).to(batch.features.device)
        several = max(1, ORACLE_BYTES // (8 * len(members) * batch.features[0, 0].numel()))
        turns = [slice(first, first + several) for first in range(0, len(batch.features), several)]
        parts = [_least_squares(batch.features[t][:, members], batch.targets[t][:, members]) for t in turns]
        found.append(torch.cat(parts))
    return torch.stack(found, dim=1)


def _least_squares(features: Tensor, targets: Tensor) -> Tensor:
    """(T, c, n, d), (T, c, n) -> (T, d) float64, all c clients together."""
    x, y = features.flatten(1, 2).double(), targets.flatten(1, 2).double()[..., None]
    wide = x.shape[1] < x.shape[2]
    small, right = (x @ x.mT, y) if wide else (x.mT @ x, x.mT @ y)
    solution: Tensor = torch.linalg.solve_ex(small, right)[0]
    return (x.mT @ solution if wide else solution)[..., 0]


def device_engine(device: str) -> Engine:
    """Batches of trials of one configuration on a device, as many at once as fit into its memory."""

    def run(jobs: Sequence[Job], on_progress: OnProgress, stop: Stop) -> Iterator[tuple[int, TrialResult]]:
        on_round = counted_rounds(on_progress, stop)
        groups: dict[str, list[int]] = {}
        for place, job in enumerate(jobs):
            groups.setdefault(job.config.model_dump_json(), []).append(place)
        for places in groups.values():
            config = jobs[places[0]].config
            for some in _batches(config, places, device):
                if stop():
                    return
                try:
                    results = run_batch(config, [jobs[place].trial for place in some], device, on_round)
                except Interrupted:
                    return
                except torch.OutOfMemoryError:
                    raise OSError(0, f"out of memory with {len(some)} trials at once", device) from None
                yield from zip(some, results, strict=True)

    return run


def _batches(config: Config, places: list[int], device: str) -> Iterator[list[int]]:
    problem = config.problem
    assert isinstance(problem, MixedRegression)
    assert isinstance(problem.samples, int)
    lanes, rows = len(set(config.methods) - {"oracle"}), problem.clusters + 2  # what clients keep, and two updates
    size = 4 * problem.clients * (problem.samples + lanes * rows) * problem.dim
    memory = 1 << 30
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()  # what torch keeps from the last batch is free, too
        memory = torch.cuda.mem_get_info(device)[0]
    most = max(1, int(MEMORY_SHARE * memory / size))
    for first in range(0, len(places), most):
        yield places[first : first + most]
