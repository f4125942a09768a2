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
    finite = as_numpy(xp.isfinite(moved))
    if np.count_nonzero(finite) < finite.size:
        rejected = np.asarray(~finite.all(axis=1))
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
