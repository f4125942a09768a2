"""The server's half of a round: one pure step from centres and accepted replies to new centres."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from coterie._src.aggregators import Aggregator, per_cluster, trimmed_share
from coterie._src.arrays import Array, Bools, Floats, Ints, as_numpy, compiled, is_plain, like, namespace, row_distances
from coterie._src.intake import Accepted

STEEPER = 3.0
"""How much steeper than an honest reply a Byzantine one may be before the automatic step overshoots on it."""

Projection = Callable[[Array], Array]
"""Π_Θ row by row: (k, d) -> (k, d)."""


def unconstrained(centres: Array) -> Array:
    """Θ = R^d: no projection."""
    return centres


def l2_ball(centres: Array, radius: float) -> Array:
    """Θ = {θ : ‖θ‖ ≤ radius}: a longer centre is scaled back.

    >>> l2_ball(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0).round(6).tolist()
    [[0.6, 0.8], [0.3, 0.4]]
    """
    norms, units = _norms_and_units(centres)
    return namespace(centres).where(norms > radius, units * radius, centres)


def box(centres: Array, radius: float) -> Array:
    """Θ = [−radius, radius]^d: every coordinate is clipped."""
    return namespace(centres).clip(centres, -radius, radius)


def unit_sphere(centres: Array) -> Array:
    """Θ = {θ : ‖θ‖ = 1}: every centre is rescaled to norm 1; 0 stays where it is."""
    return _norms_and_units(centres)[1]


def _norms_and_units(centres: Array) -> tuple[Array, Array]:
    """Norms (k, 1) and the centres over them (0 stays 0), without overflow of the squares."""
    xp = namespace(centres)
    largest = xp.max(xp.abs(centres), axis=-1, keepdims=True)
    scaled = centres / xp.where(largest > 0, largest, largest + 1)
    length = xp.linalg.vector_norm(scaled, axis=-1, keepdims=True)
    return largest * length, scaled / xp.where(length > 0, length, length + 1)


class Optimiser(NamedTuple):
    """What the server makes of a cluster's aggregated update g_t.

    plain: the step goes along g_t, as in the paper. momentum: along v_t = μ v_{t−1} + g_t. adam: along m̂_t/(√v̂_t + ε)
    in every coordinate, with the running means m of g and v of g² (Kingma and Ba, Adam, 2015; for a server Reddi et
    al., Adaptive federated optimization, 2021). Robust is the aggregate; its past is as robust as it was.
    """

    kind: Literal["plain", "momentum", "adam"] = "plain"
    momentum: float = 0.9
    second: float = 0.99
    floor: float = 1e-3


PLAIN = Optimiser()


class Moments(NamedTuple):
    """What an optimiser remembers of the rounds so far."""

    first: Array  # (k, d)
    second: Array  # (k, d)
    rounds: Ints  # (k,), in which a cluster was heard


@dataclass(frozen=True)
class Server:
    """What the server does with the accepted replies of a round.

    aggregate: the rule per cluster. project: Π_Θ. trim: the fraction per side that the audit counts as
    "trimmed"; audit: whether it is wanted. shared: so many leading coordinates are one for all clusters, aggregated
    over all clients (a common representation with a head for each cluster, as IFCA has it for FEMNIST). quorum: a
    cluster with fewer accepted replies keeps its centre.
    """

    aggregate: Aggregator
    project: Projection = unconstrained
    trim: float = 0.05
    audit: bool = True
    optimiser: Optimiser = PLAIN
    shared: int = 0
    quorum: int = 1


class Step(NamedTuple):
    """The outcome of a server step."""

    centres: Array  # (k, d)
    sizes: Ints  # (k,), accepted replies per cluster
    trimmed: Floats | None  # (rows,), per accepted reply the share of its coordinates that stands outside, if asked for
    stuck: Bools  # (k,), True where the step was not finite and the centre stayed
    moves: Floats  # (k,), ‖θ_j⁽ᵗ⁺¹⁾ − θ_j⁽ᵗ⁾‖
    moments: Moments | None = None  # for the next step


def take_step(
    server: Server,
    centres: Array,
    accepted: Accepted,
    steps: Floats,
    stand_ins: Accepted | None = None,
    weights: Floats | None = None,
    moments: Moments | None = None,
) -> Step:
    """θ_j ← Π_Θ(θ_j − γ_j g_j) with g_j the aggregate of the replies that claim cluster j.

    steps: (k,), γ_j. stand_ins: replies to take as they are for clusters that nobody chose, one for each.
    weights: (rows,), how much each reply counts, for a rule that takes weights. A cluster with no reply at all
    keeps its centre, and so does one whose step would not be finite: the mean of updates near the largest float
    is infinite. moments: what the server's optimiser remembers; None in the first round.
    """
    gradients, sizes = per_cluster(server.aggregate, accepted.updates, accepted.labels, centres.shape[0], weights)
    if server.quorum > 1:
        gradients[np.flatnonzero(sizes < server.quorum)] = 0.0
    if stand_ins is not None:
        gradients[stand_ins.labels] = stand_ins.updates
    if server.shared and len(accepted.labels):
        common = accepted.updates[:, : server.shared]
        one, _ = per_cluster(server.aggregate, common, np.zeros_like(accepted.labels), 1, weights)
        gradients[:, : server.shared] = one
    if server.optimiser.kind != "plain":
        heard = sizes >= max(1, server.quorum)
        if stand_ins is not None:
            heard[stand_ins.labels] = True
        gradients, moments = _directions(server.optimiser, gradients, heard, moments)
    moved, stuck = _descend(centres, gradients, steps)
    after = server.project(moved)
    if np.count_nonzero(stuck):
        after = namespace(centres).where(like(stuck[:, None], centres) > 0, centres, after)
    shares = trimmed_share(accepted.updates, accepted.labels, server.trim) if server.audit else None
    return Step(after, sizes, shares, stuck, row_distances(after, centres), moments)


def _descend(centres: Array, directions: Array, steps: Floats) -> tuple[Array, Bools]:
    """θ_j − γ_j g_j, (k, d), and which of them are not finite, (k,)."""
    fits = is_plain(directions) and directions.shape == centres.shape and steps.shape == (len(centres),)
    if is_plain(centres) and fits:
        moved, stuck = np.empty_like(centres), np.empty(len(centres), dtype=np.bool_)
        _descend_plain(centres, directions, steps, moved, stuck)
        return moved, stuck
    xp = namespace(centres)
    moved = centres - like(steps[:, None], centres) * directions
    return moved, ~as_numpy(xp.all(xp.isfinite(moved), axis=1))


@compiled
def _descend_plain(centres: Floats, directions: Floats, steps: Floats, moved: Floats, stuck: Bools) -> None:
    for j in range(len(centres)):
        size, poison = moved.dtype.type(steps[j]), moved.dtype.type(0)
        for c in range(centres.shape[1]):
            moved[j, c] = centres[j, c] - size * directions[j, c]
            poison += moved[j, c] - moved[j, c]  # 0, or NaN
        stuck[j] = poison != 0


def _directions(optimiser: Optimiser, gradients: Array, heard: Bools, before: Moments | None) -> tuple[Array, Moments]:
    """(k, d): where the steps of an optimiser with a memory go.

    A cluster that was not heard has a gradient of 0, or only a shared one, as it is.

    An update that is not finite leaves the memory of its cluster as it was: its step is not taken, either.
    """
    xp = namespace(gradients)
    if before is None:
        before = Moments(0 * gradients, 0 * gradients, np.zeros(len(heard), dtype=np.int64))
    sound = heard & as_numpy(xp.all(xp.isfinite(gradients), axis=1))
    mask = like(sound[:, None].astype(np.float64), gradients) > 0
    if optimiser.kind == "momentum":
        first = xp.where(mask, optimiser.momentum * before.first + gradients, before.first)
        return xp.where(mask, first, gradients), before._replace(first=first)
    first = xp.where(mask, optimiser.momentum * before.first + (1 - optimiser.momentum) * gradients, before.first)
    second = xp.where(mask, optimiser.second * before.second + (1 - optimiser.second) * gradients**2, before.second)
    rounds = before.rounds + sound
    counted = np.maximum(rounds, 1)
    unbiased, spread = (
        moment / like((1 - rate**counted)[:, None], gradients)
        for moment, rate in ((first, optimiser.momentum), (second, optimiser.second))
    )
    along = unbiased / (xp.sqrt(spread) + optimiser.floor)
    return xp.where(mask, along, gradients), Moments(first, second, rounds)


def automatic_steps(curvatures: Floats, labels: Ints, clusters: int) -> Floats:
    """(clusters,): γ_j = 1/(3 L_j), with L_j judged from what the members of the cluster report.

    curvatures: (rows, 2) as in `Task.curvatures`, labels: (rows,). A client's own curvature λ_max
    overestimates that of a cluster of c clients, whose mean has c times the samples: by the
    Marchenko–Pastur edge √L(c) = √λ_max − √(trace/n)·(1 − 1/√c). So a small cluster at d ≥ n gets the
    short step it needs and a large one the long step it can take. Medians over the members keep a
    Byzantine minority from choosing the step; c is taken as 2c/π, the efficiency of a median.
    The 3 is for clusters that Byzantine clients hold alone in an early round: replies that are up to three
    times as steep as honest ones (the paper's attack) then move the centre but do not throw it out of
    reach, so that honest clients can still choose it later.
    Values that are not positive are ignored; a cluster that reports nothing takes those of all.
    """
    usable = (curvatures[:, 0] > 0) & (curvatures[:, 1] >= 0)
    if not usable.any():
        return np.zeros(clusters)
    roots = np.sqrt(curvatures[usable])
    medians = [_medians(roots[:, column], labels[usable], clusters) for column in range(2)]
    steepest, excess = (
        np.where(np.isnan(found), np.median(roots[:, column]), found) for column, found in enumerate(medians)
    )
    roots = curvature_roots(steepest, excess, np.bincount(labels, minlength=clusters))
    return np.array([1.0 / (STEEPER * root**2) for root in roots])


def curvature_roots(steepest: Array, excess: Array, counts: Array) -> Array:
    """√L(c) of clusters of c clients, by the Marchenko–Pastur edge (see `automatic_steps`), and at least 0.001·√λ_max.

    steepest, excess: √λ_max and √(trace/n) of a typical client. counts: c. All of one shape.
    """
    xp = namespace(steepest)
    pooled = 2 * counts / np.pi
    root = steepest - excess * (1 - 1 / xp.sqrt(xp.maximum(pooled, xp.ones_like(pooled))))
    return xp.maximum(root, 1e-3 * steepest)


def _medians(values: Floats, labels: Ints, clusters: int) -> Floats:
    """(clusters,): the median of the values under each label; NaN where there are none."""
    counts = np.bincount(labels, minlength=clusters)
    ranked = np.append(values[np.lexsort((values, labels))], np.nan)
    first = np.cumsum(counts) - counts
    middle = (ranked[first + (counts - 1) // 2] + ranked[np.minimum(first + counts // 2, len(values))]) / 2
    return np.where(counts > 0, middle, np.nan)
