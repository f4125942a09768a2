"""A finished run goes on with new data: from the earlier centres, and with a new search where the losses ask for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from threadpoolctl import threadpool_limits

from coterie._src.aggregators import Aggregator
from coterie._src.algorithms import Algorithm, ClusteredDescent
from coterie._src.arrays import Floats, Ints, as_numpy, like
from coterie._src.experiments.changes import Changes, ClusterChange
from coterie._src.experiments.config import Config
from coterie._src.experiments.method_setting import Setting
from coterie._src.experiments.methods import METHODS, Method
from coterie._src.experiments.models import load, read_labels
from coterie._src.experiments.outcome import MethodResult, TrialResult
from coterie._src.experiments.setup import Observe, TrialSetup, draw_trial
from coterie._src.experiments.trial import compare, judged_clients, run_method, run_methods
from coterie._src.init.conditioning import MAX_NUMBERS
from coterie._src.membership import LEVEL, Membership, held_out_losses, loss_variances, whitening
from coterie._src.metrics import distances
from coterie._src.packed import PackedMatrices
from coterie._src.tasks import Task

CHANGED = 3.0
"""A centre has changed if it moved by more than so many standard errors."""
BETTER = 2.0
"""A new search is better if its losses are lower by more than so many standard errors."""


@dataclass(frozen=True)
class EarlierRun:
    """What a run left: centres (k, d), and the names (m,) and clusters (m,) of its clients."""

    centres: NDArray[Any]
    names: tuple[str, ...]
    labels: Ints
    membership: Membership | None


def read_run(folder: str | Path, method: str | None = None) -> EarlierRun:
    """What `coterie run --out FOLDER` left of trial 0; method: by default the first of the run."""
    models, file = load(folder, method), Path(folder) / "audit.csv"
    wanted = models.config.methods[0] if method is None else method
    if not file.is_file():
        raise ValueError(f"{file}: no such file; only the folder of `coterie run` can be continued")
    known = read_labels(file, wanted, len(models.centres))
    if models.membership is not None and len(models.membership.loss) != len(models.centres):
        raise ValueError(f"{Path(folder) / 'membership.json'}: must have {len(models.centres)} clusters")
    labels = np.array(list(known.values()), dtype=np.int64)
    return EarlierRun(models.centres, tuple(known), labels, models.membership)


def continue_trial(config: Config, earlier: EarlierRun, observe: Observe | None = None) -> TrialResult:
    """Trial 0 of a configuration, whose first method begins with the earlier centres."""
    computing = config.problem.computing()
    with computing, threadpool_limits(limits=1), np.errstate(all="ignore"):
        setup, methods = draw_trial(config, 0), [METHODS[name] for name in config.methods]
        results, changes = continue_methods(methods, replace(setup, observe=observe), earlier)
        if setup.truth is not None and setup.truth.centres.shape[1]:
            oracle = run_method(METHODS["oracle"], setup, False)
            for result in results.values():
                compare(result, oracle, setup.truth)
        clients, comparisons = judged_clients(methods, results, setup)
    return TrialResult(0, results, clients, comparisons, changes)


def continue_methods(
    methods: Sequence[Method], setup: TrialSetup, earlier: EarlierRun
) -> tuple[dict[str, MethodResult], Changes]:
    """The results of some methods by name, of which the first continues the earlier run, and what has changed."""
    first = methods[0].base or methods[0]
    result, changes = continue_method(first, setup, earlier)
    return run_methods(methods, setup, known={first.name: result}), changes


def continue_method(method: Method, setup: TrialSetup, earlier: EarlierRun) -> tuple[MethodResult, Changes]:
    """The method from the earlier centres on, and what has changed.

    If more clients than may be Byzantine (and than the test refuses by chance) fit none of the clusters, the method
    also searches anew, as without an earlier run. The new clusters are taken if the losses of the clients are lower by
    more than their noise. The clients for whom they are lower by most do not count, as many as may be Byzantine: so
    Byzantine clients alone cannot have a cluster of their own.
    """
    task, count = setup.task, setup.task.clients.count
    if earlier.centres.shape[1] != task.dim:
        raise ValueError(f"state: its centres have {earlier.centres.shape[1]} parameters, the data need {task.dim}")
    if len(set(task.clients.names)) < count:
        raise ValueError("state: needs clients whose names differ")
    started = replace(setup, start=like(earlier.centres, setup.start), clusters=len(earlier.centres))
    result = run_method(_without_search(method), started)
    bound = setup.setting(setup.stream("buckets")).max_byzantine
    unfit = _unfit(task, result, earlier.membership or result.membership)
    searched = bool(unfit.sum() > bound + LEVEL * count)
    restarted = False
    numbers = [*range(len(earlier.centres))]
    if searched:
        fresh = run_method(method, setup)
        if _is_better(task, fresh, result, bound):
            result, restarted = fresh, True
            numbers = _matched_numbers(result, task.clients.names, earlier)
    result = _renumbered(result, numbers, earlier)
    if restarted:
        unfit = _unfit(task, result, result.membership)
    changes = _changes(task, result, earlier, bound, unfit)
    return result, replace(changes, searched=searched, restarted=restarted)


def _without_search(method: Method) -> Method:
    """The method, which begins with given centres."""

    def build(setting: Setting, rule: Aggregator) -> Algorithm:
        algorithm = method.build(setting, rule)
        if not isinstance(algorithm, ClusteredDescent) or method.one_centre or algorithm.labels is not None:
            raise ValueError(f"state: the method {method.name} cannot begin with given clusters")
        return replace(algorithm, init=None)

    return replace(method, build=build)


def _unfit(task: Task, result: MethodResult, membership: Membership | None) -> NDArray[np.bool_]:
    """(m,): which clients fit none of the clusters."""
    count, centres = task.clients.count, like(result.centres, task.clients.features)
    if membership is None:
        return np.zeros(count, dtype=np.bool_)
    losses = as_numpy(task.losses(centres)).astype(np.float64)
    clusters = losses.shape[1]
    variances = np.stack([loss_variances(task, centres, np.full(count, j)) for j in range(clusters)], axis=1)
    sizes = task.clients.sizes.tolist()
    return np.array([membership.cluster_of(losses[i], variances[i], sizes[i]) < 0 for i in range(count)])


def _is_better(task: Task, fresh: MethodResult, result: MethodResult, bound: int) -> bool:
    """Whether the losses of the fresh result are lower by more than noise; see `continue_method`."""
    before, after = (
        held_out_losses(task, like(one.centres, task.clients.features), one.labels) for one in (result, fresh)
    )
    gains = before - after
    gains = np.sort(np.where(np.isfinite(gains), gains, -np.inf))[: len(gains) - bound]
    noise = np.minimum(gains, 0.0)  # where nothing is better, gains are about symmetric: their variance is twice this
    return bool(gains.sum() > BETTER * math.sqrt(2 * float(noise @ noise)))


def _matched_numbers(result: MethodResult, names: Sequence[str], earlier: EarlierRun) -> list[int]:
    """The number of every new cluster: that of its earlier one by the members that they share, else a new one.

    Where no clients are known from before, by the distance of the centres, up to half of that of two earlier ones.
    """
    known = dict(zip(earlier.names, earlier.labels.tolist(), strict=True))
    old, new = len(earlier.centres), len(result.centres)
    shared = np.zeros((new, old))
    for name, label in zip(names, result.labels.tolist(), strict=True):
        if label >= 0 and known.get(name, -1) >= 0:
            shared[label, known[name]] += 1
    between = distances(result.centres, earlier.centres)
    apart = distances(earlier.centres, earlier.centres)
    nearest = apart[~np.eye(old, dtype=np.bool_)].min() if old > 1 else math.inf
    near = np.minimum(between, 1e300)
    score = -shared + near / max(float(near.max()), 1e-300)  # the distance decides between equal numbers of members
    allowed = shared > 0 if shared.any() else between <= nearest / 2
    rows, columns = linear_sum_assignment(score)
    numbers, following = [-1] * new, old
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        if allowed[row, column]:
            numbers[row] = column
    for j in range(new):
        if numbers[j] < 0:
            numbers[j], following = following, following + 1
    return numbers


def _renumbered(result: MethodResult, numbers: Sequence[int], earlier: EarlierRun) -> MethodResult:
    """The result with cluster j as number numbers[j]; an earlier cluster that is not among them keeps its centre."""
    total = max(len(earlier.centres), max(numbers) + 1)
    centres = np.zeros((total, result.centres.shape[1]), dtype=result.centres.dtype)
    centres[: len(earlier.centres)] = earlier.centres
    centres[numbers] = result.centres
    positions = np.array([*numbers, -1])  # the last is the number of a client in no cluster
    diagnostics = result.diagnostics
    if diagnostics is not None:
        closest = tuple(sorted(numbers[j] for j in diagnostics.closest))
        diagnostics = replace(diagnostics, closest=closest, empty=tuple(numbers[j] for j in diagnostics.empty))
    membership = result.membership
    return replace(
        result,
        centres=centres,
        labels=positions[result.labels],
        audit=[row | {"cluster": int(positions[row["cluster"]])} for row in result.audit],
        diagnostics=diagnostics,
        membership=None if membership is None else membership.renumbered(numbers, total, earlier.membership),
    )


def _changes(task: Task, result: MethodResult, earlier: EarlierRun, bound: int, unfit: NDArray[np.bool_]) -> Changes:
    names, labels = task.clients.names, result.labels
    known = dict(zip(earlier.names, earlier.labels.tolist(), strict=True))
    before = np.array([known.get(name, -1) for name in names])
    present = set(names)
    clusters = []
    for j in range(len(result.centres)):
        members = np.flatnonzero(labels == j)
        if j >= len(earlier.centres):
            counts = np.bincount(before[members][before[members] >= 0], minlength=1)
            origin = int(counts.argmax())
            split = 2 * counts[origin] >= len(members) > 0
            clusters.append(ClusterChange(j, "split" if split else "new", origin=origin if split else -1))
        elif not len(members):
            clusters.append(ClusterChange(j, "died" if (earlier.labels == j).any() else "same"))
        else:
            by = moved_by(task, earlier.centres[j], result.centres[j], members, bound)
            clusters.append(ClusterChange(j, "changed" if by > CHANGED else "same", by))
    moved = np.flatnonzero((before >= 0) & (labels >= 0) & (before != labels)).tolist()
    return Changes(
        tuple(clusters),
        tuple((names[i], int(before[i]), int(labels[i])) for i in moved),
        tuple(name for name in names if name not in known),
        tuple(name for name in earlier.names if name not in present),
        tuple(names[i] for i in np.flatnonzero(unfit).tolist()),
        False,
        False,
    )


def moved_by(task: Task, before: NDArray[Any], after: NDArray[Any], members: Ints, bound: int) -> float:
    """How far a centre moved, in standard errors of such a move, as predictions measure it.

    √(δᵀHδ / E), with H the mean Hessian of the members and E = 2 Σ w_i² ∇F_iᵀ H⁻¹ ∇F_i / (Σ w_i)², the expectation
    of δᵀHδ if two centres of the same optimum are fitted to other samples of such clients. The weights are the numbers
    of samples, at most their median; the largest terms are left out, as many as clients may be Byzantine. Where there
    are no Hessians: the mean rise of the members' losses at the earlier centre, in its standard errors.
    """
    some = task.on(task.clients.take(members))
    labels = np.zeros(len(members), dtype=np.int64)
    two = like(np.stack([after, before]), task.clients.features)
    kept = len(members) - min(bound, (len(members) - 1) // 2)
    if len(members) < 2:
        return math.nan
    if getattr(task, "hessians_known", "never") == "never" or len(members) * task.dim**2 > MAX_NUMBERS:
        losses = as_numpy(some.losses(two)).astype(np.float64)
        rises = np.sort(losses[:, 1] - losses[:, 0])[:kept]
        error = float(rises.std(ddof=1)) / math.sqrt(kept) if kept > 1 else 0.0
        return max(float(rises.mean()) / error, 0.0) if error > 0 else 0.0
    weights = np.minimum(some.clients.sizes, np.median(some.clients.sizes)).astype(np.float64)
    weights /= weights.sum()
    hessian = PackedMatrices(some.hessians(two, labels), task.dim).mean(weights)
    gradients = as_numpy(some.gradients(two, labels)).astype(np.float64)
    terms: Floats = np.sort(((weights[:, None] * gradients @ whitening(hessian)) ** 2).sum(axis=1))[:kept]
    expected = 2 * float(terms.mean()) * len(members)
    offset = after.astype(np.float64) - before.astype(np.float64)
    distance = float(offset @ hessian @ offset)
    precision = float(np.finfo(as_numpy(two[:1]).dtype).eps)
    expected += precision * float(after.astype(np.float64) @ hessian @ after)  # rounding errors are no change
    return math.sqrt(max(distance, 0.0) / expected) if expected > 0 else 0.0
