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
POSSIBLE = 1.001
"""The largest trace/n relative to λ_max, with a margin for rounding in float32."""


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
    gradients = _completed(server, found, accepted, substitutes, weights)
    updated = found.counts >= max(1, server.quorum)
    if substitutes is not None:
        updated[substitutes.labels] = True
    directions, moments = server.optimiser.update(gradients, updated, memory.moments)
    with np.errstate(over="ignore", invalid="ignore"):
        moved = centres - like(step_sizes[:, None], centres) * directions
    xp = namespace(centres)
    rejected = ~as_numpy(xp.isfinite(moved).all(axis=1))
    after = server.project(moved)
    if rejected.any():
        after = xp.where(like(rejected[:, None], centres) > 0, centres, after)
    shares = trimmed_share(accepted.updates, accepted.labels, server.trim) if server.audit else None
    moves = row_distances(after, centres)
    return Step(after, found.counts, shares, rejected, moves, ServerMemory(moments, found.memory))


def _completed(
    server: Server, found: Aggregates, accepted: Accepted, substitutes: Accepted | None, weights: Floats | None
) -> Array:
    """(k, d): the aggregates, 0 below the quorum, with substitutes in empty clusters and shared coordinates."""
    gradients = found.updates
    if server.quorum > 1:
        gradients[np.flatnonzero(found.counts < server.quorum)] = 0.0
    if substitutes is not None:
        gradients[substitutes.labels] = substitutes.updates
    if server.shared and len(accepted.labels):
        common = accepted.updates[:, : server.shared]
        one = per_cluster(server.aggregate, common, np.zeros_like(accepted.labels), 1, weights)
        gradients[:, : server.shared] = one.updates
    return gradients


def automatic_steps(curvatures: Floats, labels: Ints, clusters: int) -> Floats:
    """(clusters,): γ_j = 1/(3 L_j), with L_j estimated from the curvatures that the members of the cluster report.

    A client's own curvature λ_max overestimates that of a cluster of c clients, whose mean has c times the samples: by
    the Marchenko–Pastur edge √L(c) = √λ_max − √(trace/n)·(1 − 1/√c). A small cluster with d ≥ n therefore gets a short
    step and a large one a long step. The values are medians over the members, so that a Byzantine minority cannot
    determine the step; c is replaced by 2c/π, the efficiency of a median. The factor 3 is for clusters that consist of
    Byzantine clients in an early round: replies up to three times as steep as honest ones (the paper's attack) then do
    not make the centre diverge, so that honest clients can still choose it later. A cluster without values gets those
    of all clients.

    The two medians can come from different clients, and their difference from none. Therefore √L(c) is at least half
    the median of what the single members say, so that a minority determines no step above 4/(3 L_j) with L_j that of an
    honest member; below 2/L_j a step does not diverge. Pairs that no data have are ignored: both must be at least 0 and
    λ_max positive, and trace/n is at most λ_max, since the rank is at most n.

    curvatures: (rows, 2) as in `Task.curvatures`. labels: (rows,).
    """
    usable = (curvatures[:, 0] > 0) & (curvatures[:, 1] >= 0) & (curvatures[:, 1] <= POSSIBLE * curvatures[:, 0])
    if not usable.any():
        return np.zeros(clusters)
    roots, known, counts = np.sqrt(curvatures[usable]), labels[usable], np.bincount(labels, minlength=clusters)
    steepest, excess = (_medians(roots[:, column], known, clusters) for column in range(2))
    single = _medians(curvature_roots(roots[:, 0], roots[:, 1], counts[known]), known, clusters)
    together = np.maximum(curvature_roots(steepest, excess, counts), single / 2)
    return np.array([1.0 / (STEEPER * root**2) for root in together])


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
    ranked = np.append(values[np.lexsort((values, labels))], np.nan)
    first = np.cumsum(counts) - counts
    middle: Floats = (ranked[first + (counts - 1) // 2] + ranked[np.minimum(first + counts // 2, len(values))]) / 2
    return middle if counts.all() else np.where(counts > 0, middle, np.median(values))
