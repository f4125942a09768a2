"""Trials of one configuration in a batch: the same problem, start and methods, with samples drawn on the device."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie._src.arrays import Floats, Ints
from coterie._src.attacks.payloads import PAPER
from coterie._src.batch.descent import Batch, BatchedMethod, descend, respond
from coterie._src.batch.least_squares import minimisers, oracle
from coterie._src.batch.three_stage import trimmed_kmeans
from coterie._src.data import Truth
from coterie._src.data.synthetic import draw_layout
from coterie._src.experiments.config import Config
from coterie._src.experiments.method_setting import RuleSetting, projection
from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.outcome import MethodResult, TrialResult
from coterie._src.experiments.problems import MixedRegression
from coterie._src.experiments.starts import first_centres
from coterie._src.experiments.trial import compare
from coterie._src.metrics import NOT_APPLICABLE, evaluate
from coterie._src.projections import UnitSphere
from coterie._src.simulation import stream
from coterie._src.tasks.linear import block_curvatures


class Draws(NamedTuple):
    """The data, truths and starts of T trials, and the servers' generators."""

    batch: Batch
    truths: list[Truth]
    start: Tensor  # (T, k, d)
    generators: list[np.random.Generator]


def draw(config: Config, trials: Sequence[int], device: str) -> Draws:
    """Draw truth and start of each trial from the streams that the CPU uses, features and noise on the device.

    Every trial has a generator of its own, so its numbers do not depend on the batch it is in.
    """
    problem, seed = config.problem, config.run.seed
    assert isinstance(problem, MixedRegression)
    assert isinstance(problem.samples, int)
    m, n, d = problem.clients, problem.samples, problem.dim
    features = torch.empty((len(trials), m, n, d), device=device)
    targets = torch.empty((len(trials), m, n), device=device)
    truths, starts, parameters = [], [], []
    for index, trial in enumerate(trials):
        rng = stream(seed, trial, "data")
        layout = draw_layout(rng, m, problem.clusters, n, d, problem.byzantine, problem.share_list)
        generator = torch.Generator(device).manual_seed(int(rng.integers(2**62)))
        features[index].normal_(generator=generator)
        targets[index].normal_(generator=generator)
        truth = Truth(layout.centres.astype(np.float32), layout.labels)
        truths.append(truth)
        given = config.algorithm.init, problem.clusters, d, truth, config.algorithm.warm, problem.dtype
        starts.append(first_centres(*given, stream(seed, trial, "start")))
        parameters.append(layout.client_parameters().astype(np.float32))
    own = torch.from_numpy(np.stack(parameters)).to(device)
    targets.mul_(math.sqrt(problem.noise_variance)).add_((features @ own[..., None])[..., 0])
    scale = PAPER if config.attack.scale == "auto" else config.attack.scale
    scales = torch.from_numpy(np.where(truths[0].is_byzantine, scale, 1.0).astype(np.float32)).to(device)
    batch = Batch(features, targets, scales.repeat(len(trials), 1))
    start = torch.from_numpy(np.stack(starts)).to(device)
    return Draws(batch, truths, start, [stream(seed, trial, "server") for trial in trials])


def run_batch(
    config: Config, trials: Sequence[int], device: str, on_round: Callable[[], None] = lambda: None
) -> list[TrialResult]:
    """The results of all methods on the given trials; one pass over the samples per round serves all of them."""
    drawn = draw(config, trials, device)
    results = [TrialResult(trial, {}) for trial in trials]
    names = [name for name in config.methods if name != "oracle"]
    if names:
        _add_methods(results, drawn, config, names, on_round)
    _add_oracle(results, drawn.batch, drawn.truths, "oracle" in config.methods)
    return [TrialResult(r.trial, {name: r.methods[name] for name in config.methods}) for r in results]


def _add_methods(
    results: list[TrialResult], drawn: Draws, config: Config, names: Sequence[str], on_round: Callable[[], None]
) -> None:
    """Algorithm 1 with the named methods, and the metrics of each."""
    batch, section = drawn.batch, config.algorithm
    began = time.perf_counter()
    methods, start = _methods(drawn, config, names)
    found = descend(
        batch,
        start,
        methods,
        rounds=section.rounds,
        step=_curvatures(batch) if section.step == "auto" else section.step,
        substitutes=_substitutes(drawn, config, len(methods)) if section.empty == "random-client" else None,
        on_round=on_round,
    )
    final = respond(batch._replace(scales=torch.ones_like(batch.scales)), found, methods)  # all of them honest
    labels, losses, centres = (part.cpu().numpy() for part in (final.labels, final.losses, found))
    seconds = (time.perf_counter() - began) / (len(results) * len(methods))
    for (trial, truth), (method, name) in itertools.product(enumerate(drawn.truths), enumerate(names)):
        chosen = labels[trial, method]
        result = _judged(centres[trial, method], chosen.astype(np.int64), truth)
        judged = ~truth.is_byzantine & (chosen >= 0)
        loss = float(losses[trial, method][judged].mean(dtype=np.float64)) if judged.any() else NOT_APPLICABLE
        result.metrics.update(loss=loss, rounds=float(section.rounds), seconds=seconds)
        results[trial].methods[name] = result


def _methods(drawn: Draws, config: Config, names: Sequence[str]) -> tuple[list[BatchedMethod], Tensor]:
    """The named methods and their starts (T, L, k, d); Three-Stage's labels and start are those of its k-means."""
    batch, section, stages = drawn.batch, config.algorithm, config.three_stage
    trials, m = batch.scales.shape
    setting = RuleSetting(section, m, np.random.default_rng(0))  # no buckets on a device
    methods = [BatchedMethod(METHODS[name].rule(setting), projection(section)) for name in names]
    start = drawn.start[:, None].repeat(1, len(methods), 1, 1)
    if "three-stage" in names:
        points = minimisers(batch, section.ridge, stages.erm == "float32-inverse")
        # the same in all trials: clusters one after the other, then Byzantine clients
        first = torch.from_numpy(drawn.truths[0].labels).to(start.device).expand(trials, -1)
        centres, fixed = trimmed_kmeans(
            points, first, config.problem.clusters, trim=section.trim, iterations=stages.iterations
        )
        own = names.index("three-stage")
        project = UnitSphere() if stages.project == "unit-sphere" else methods[own].project
        methods[own] = methods[own]._replace(project=project, fixed_labels=fixed)
        start[:, own] = centres.to(start.dtype)
    return methods, start


def _judged(centres: Floats, labels: Ints, truth: Truth) -> MethodResult:
    return MethodResult(evaluate(centres, labels, truth), [], [], centres)


def _curvatures(batch: Batch) -> Tensor:
    """(T, m, 2) as `Task.curvatures`."""
    found = [torch.from_numpy(2.0 * block_curvatures(x)) for x in batch.features]
    return torch.stack(found).to(batch.features.device, batch.features.dtype)


def _substitutes(drawn: Draws, config: Config, methods: int) -> Tensor:
    """(rounds, T, L, k): the client that answers for a cluster without clients, drawn for every round."""
    m, shape = drawn.batch.scales.shape[1], (config.algorithm.rounds, methods, config.problem.clusters)
    clients = np.stack([rng.integers(m, size=shape) for rng in drawn.generators], axis=1)
    return torch.from_numpy(clients).to(drawn.start.device)


def _add_oracle(results: list[TrialResult], batch: Batch, truths: list[Truth], wanted: bool) -> None:
    """The pooled least squares of every true cluster, and every method's distance as a multiple of the oracle's."""
    began = time.perf_counter()
    centres = oracle(batch, truths[0].labels).cpu().numpy()
    seconds = (time.perf_counter() - began) / len(results)
    for index, (result, truth) in enumerate(zip(results, truths, strict=True)):
        judged = _judged(centres[index].astype(np.float32), truth.labels, truth)
        judged.metrics.update(loss=NOT_APPLICABLE, rounds=0.0, seconds=seconds)
        if wanted:
            result.methods["oracle"] = judged
        for method in result.methods.values():
            compare(method, judged, truth)
