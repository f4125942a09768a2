"""The server's half of a round: one pure step from centres and accepted replies to new centres."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coterie._src.aggregators import Aggregates, Aggregator, per_cluster, trimmed_share
from coterie._src.arrays import Array, Bools, Floats, Ints, as_numpy, like, namespace, row_distances
from coterie._src.intake import Accepted
from coterie._src.optimisers import Moments, Optimiser, PlainSteps
from coterie._src.projections import Projection, Unconstrained

UNCONSTRAINED, PLAIN_STEPS = Unconstrained(), PlainSteps()
STEEPER = 3.0
"""A safety factor: the automatic step does not overshoot on replies up to this many times as steep as honest ones."""


@dataclass(frozen=True)
class Server:
    """What the server does with the accepted replies of a round.

    Parameters
    ----------
    aggregate : the rule per cluster.
    project : Π_Θ.
    trim : the fraction per side that the audit counts as "trimmed".
    audit : whether to compute the audit.
    optimiser : the rule from aggregated updates to steps.
    shared : the number of leading coordinates that are equal for all clusters and aggregated over all clients (a common
        representation with a head for each cluster, as in IFCA for FEMNIST).
    quorum : a cluster with fewer accepted replies keeps its centre.
    """

    aggregate: Aggregator
    project: Projection = UNCONSTRAINED
    trim: float = 0.05
    audit: bool = True
    optimiser: Optimiser = PLAIN_STEPS
    shared: int = 0
    quorum: int = 1


class ServerMemory(NamedTuple):
    """The state of the server from round to round, beside the centres."""

    moments: Moments | None = None  # of the optimiser
    aggregator: Array | None = None  # (k, d), of the rule
    shared: Array | None = None  # (1, shared), of the rule on the shared coordinates


NO_MEMORY = ServerMemory()


class Step(NamedTuple):
    """The outcome of a server step."""

    centres: Array  # (k, d)
    sizes: Ints  # (k,), accepted replies per cluster
    trimmed: Floats | None  # (rows,), per accepted reply the share of extreme coordinates; None without audit
    rejected: Bools  # (k,), True where the step was not finite and the centre stayed
    moves: Floats  # (k,), ‖θ_j⁽ᵗ⁺¹⁾ − θ_j⁽ᵗ⁾‖
    memory: ServerMemory = NO_MEMORY  # for the next step


def take_step(
    server: Server,
    centres: Array,
    accepted: Accepted,
    step_sizes: Floats,
    substitutes: Accepted | None = None,
    weights: Floats | None = None,
    memory: ServerMemory = NO_MEMORY,
) -> Step:
    """θ_j ← Π_Θ(θ_j − γ_j g_j) with g_j the aggregate of the replies that claim cluster j.

    A cluster without replies keeps its centre, and so does one whose step is not finite (the mean of updates near the
    largest float overflows).

    Parameters
    ----------
    step_sizes : (k,), γ_j.
    substitutes : one reply for each cluster that no client chose, used without aggregation.
    weights : (rows,), how much each reply counts, for a rule that takes weights.
    memory : the memory of the last round.
    """
    found = per_cluster(
        server.aggregate, accepted.updates, accepted.labels, centres.shape[0], weights, memory.aggregator
    )
    gradients, counts, shared = _completed(server, found, accepted, substitutes, weights, memory)
    directions, moments = server.optimiser.update(gradients, counts, memory.moments)
    with np.errstate(over="ignore", invalid="ignore"):
        moved = centres - like(step_sizes[:, None], centres) * directions
    after, rejected = server.project(moved), np.zeros(len(step_sizes), dtype=np.bool_)
    xp = namespace(centres)
    if not (finite := xp.isfinite(moved)).all():
        rejected = ~as_numpy(finite.all(axis=1))
        after = xp.where(like(rejected[:, None], centres) > 0, centres, after)
    shares = trimmed_share(accepted.updates, accepted.labels, server.trim) if server.audit else None
    moves = row_distances(after, centres)
    return Step(after, found.counts, shares, rejected, moves, ServerMemory(moments, found.memory, shared))


def _completed(
    server: Server,
    found: Aggregates,
    accepted: Accepted,
    substitutes: Accepted | None,
    weights: Floats | None,
    memory: ServerMemory,
) -> tuple[Array, Ints, Array | None]:
    """(k, d): the aggregates, 0 below the quorum, with substitutes in empty clusters and shared coordinates.

    And (k,), the replies behind them, 0 below the quorum, and the rule's memory of the shared coordinates.
    """
    gradients, counts, shared = found.updates, found.counts, memory.shared
    if server.quorum > 1:
        counts = np.where(counts < server.quorum, 0, counts)
        gradients[np.flatnonzero(counts == 0)] = 0.0
    if substitutes is not None:
        counts = counts.copy()
        gradients[substitutes.labels], counts[substitutes.labels] = substitutes.updates, 1
    if server.shared and len(accepted.labels):
        common = accepted.updates[:, : server.shared]
        one = per_cluster(server.aggregate, common, np.zeros_like(accepted.labels), 1, weights, shared)
        gradients[:, : server.shared], shared = one.updates, one.memory
    return gradients, counts, shared


def automatic_steps(curvatures: Floats, labels: Ints, clusters: int) -> Floats:
    """(clusters,): γ_j = 1/(3 L_j), with L_j estimated from the curvatures that the members of the cluster report.

    A client's own curvature λ_max overestimates that of a cluster of c clients, whose mean has c times the samples: by
    the Marchenko–Pastur edge √L(c) = √λ_max − √(trace/n)·(1 − 1/√c). A small cluster with d ≥ n therefore gets a short
    step and a large one a long step. The values are medians over the members, so that a Byzantine minority cannot
    determine the step; c is replaced by 2c/π, the efficiency of a median. The factor 3 is for clusters that consist of
    Byzantine clients in an early round: replies up to three times as steep as honest ones (the paper's attack) then do
    not make the centre diverge, so that honest clients can still choose it later. Values that are not positive are
    ignored; a cluster without values gets those of all clients.

    curvatures: (rows, 2) as in `Task.curvatures`. labels: (rows,).
    """
    usable = (curvatures[:, 0] > 0) & (curvatures[:, 1] >= 0)
    if not usable.any():
        return np.zeros(clusters)
    roots = np.sqrt(curvatures[usable])
    steepest, excess = (_medians(roots[:, column], labels[usable], clusters) for column in range(2))
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
    """(clusters,): the median of the values under each label; where there are none, that of all values."""
    counts = np.bincount(labels, minlength=clusters)
    ranked, first = values[np.lexsort((values, labels))], np.cumsum(counts) - counts
    low, high = (ranked.take(first + rank // 2, mode="clip") for rank in (counts - 1, counts))
    middle: Floats = (low + high) / 2
    return middle if counts.all() else np.where(counts > 0, middle, np.median(values))
