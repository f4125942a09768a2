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
"""How much steeper than an honest reply a Byzantine one may be before the automatic step overshoots on it."""


@dataclass(frozen=True)
class Server:
    """What the server does with the accepted replies of a round.

    Parameters
    ----------
    aggregate : the rule per cluster.
    project : Π_Θ.
    trim : the fraction per side that the audit counts as "trimmed".
    audit : whether the audit is wanted.
    optimiser : what is made of the aggregated updates.
    shared : so many leading coordinates are one for all clusters, aggregated over all clients (a common representation
        with a head for each cluster, as IFCA has it for FEMNIST).
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
    """What the server remembers from round to round beside the centres."""

    moments: Moments | None = None  # of its optimiser
    aggregator: Array | None = None  # (k, d), of its rule


class Step(NamedTuple):
    """The outcome of a server step."""

    centres: Array  # (k, d)
    sizes: Ints  # (k,), accepted replies per cluster
    trimmed: Floats | None  # (rows,), per accepted reply the share of its coordinates that is extreme, if asked for
    rejected: Bools  # (k,), True where the step was not finite and the centre stayed
    moves: Floats  # (k,), ‖θ_j⁽ᵗ⁺¹⁾ − θ_j⁽ᵗ⁾‖
    memory: ServerMemory = ServerMemory()  # for the next step


def take_step(
    server: Server,
    centres: Array,
    accepted: Accepted,
    step_sizes: Floats,
    substitutes: Accepted | None = None,
    weights: Floats | None = None,
    memory: ServerMemory = ServerMemory(),  # noqa: B008 - it is immutable
) -> Step:
    """θ_j ← Π_Θ(θ_j − γ_j g_j) with g_j the aggregate of the replies that claim cluster j.

    A cluster with no reply at all keeps its centre, and so does one whose step would not be finite: the mean of updates
    near the largest float is infinite.

    Parameters
    ----------
    step_sizes : (k,), γ_j.
    substitutes : replies to take as they are for clusters that no client chose, one for each.
    weights : (rows,), how much each reply counts, for a rule that takes weights.
    memory : what the server remembers of the last round.
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
