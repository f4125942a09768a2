"""The server's step with the clients' Hessians: a share of a Newton step for every cluster."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from coterie._src.aggregators import median, trimmed_share
from coterie._src.algorithms.base import State
from coterie._src.arrays import Floats, as_numpy, like, namespace
from coterie._src.init.conditioning import Conditioning, NewtonSteps, selected_rows
from coterie._src.intake import Accepted
from coterie._src.server import UNCONSTRAINED, Server, Step, take_step

SHARE = 0.6
"""The share of a Newton step that is taken: a cluster of Byzantine clients whose replies are up to three times as steep
as honest ones, as in the paper's attack, does not make its centre diverge."""

LARGE = 2.0
"""The standard deviations of one update along one direction from which on a step is judged by the members' losses."""
SHORTER = (1.0, 0.5, 0.25, 0.125, 0.0)
"""The shares of a large step that are tried."""


def newton_step(
    server: Server,
    state: State,
    accepted: Accepted,
    share: float,
    longest: float = math.inf,
    by_size: Floats | None = None,
) -> tuple[Step, NewtonSteps, Floats]:
    """θ_j ← Π_Θ(θ_j − share·B R_jᵀ g_j) with g_j the aggregate of the rows R_j Bᵀ∇F_i of cluster j.

    B are the coordinates of `state.conditioning`, and R_jᵀR_j is the inverse of the mean Hessian of the cluster's
    members. Where the clients' Hessians differ by more than chance, the noise of each row has a shape of its own. The
    rule then judges the rows R_i Bᵀ∇F_i, whose noise is alike, and the step is that of the rows which it keeps.

    A large step that costs too many members is shortened (`bearable_shares`).

    longest: the length of a step at most, in the coordinates of the federation. by_size: (rows,), how much the replies
    count by their numbers of samples, where the state does not say so.

    Returns the step, whose moves are in the coordinates of the rows, so that they measure the change of predictions;
    the maps R_j for the next round; and the (rows, r) rows.
    """
    conditioning, clusters = state.conditioning, state.centres.shape[0]
    assert conditioning is not None
    weights = conditioning.leverages_of(accepted.clients)
    if state.weights is not None:
        weights = weights * state.weights[accepted.clients]
    if by_size is not None:
        weights = weights * by_size
    newton = state.newton
    if newton is None or not newton.fits(accepted.clients, accepted.labels):
        newton = conditioning.newton(accepted.clients, accepted.labels, clusters, weights)
    updates = conditioning.coordinates.updates(as_numpy(accepted.updates))
    chosen = selected_rows(conditioning, newton, server.aggregate, updates, weights)
    rows = chosen.rows if chosen.newton is newton else newton.rows(updates)
    used = accepted._replace(clients=chosen.clients, labels=chosen.labels, updates=chosen.rows)
    taken = chosen.weights if chosen.rule.takes_weights else None
    inner = replace(server, aggregate=chosen.rule, project=UNCONSTRAINED, audit=False)
    origin, step_sizes = np.zeros((clusters, rows.shape[1])), np.full(clusters, share)
    step = take_step(inner, origin, used, step_sizes, None, taken, state.memory)
    moved_by = chosen.newton.moves(step.centres)
    if conditioning.means is None:  # the Hessians of the clients are known
        moved_by *= bearable_shares(conditioning, newton, rows, updates, step.centres, moved_by)[:, None]
    lengths = np.linalg.norm(moved_by, axis=1, keepdims=True)
    moves = conditioning.coordinates.parameters(moved_by * np.minimum(1.0, longest / np.maximum(lengths, 1e-300)))
    with np.errstate(over="ignore", invalid="ignore"):
        moved = like(as_numpy(state.centres).astype(np.float64) + moves, state.centres)
    xp = namespace(moved)
    rejected = step.rejected | ~as_numpy(xp.isfinite(moved).all(axis=1))
    after = server.project(moved)
    if rejected.any():
        after = xp.where(like(rejected[:, None].astype(np.float64), after) > 0, state.centres, after)
    trimmed = trimmed_share(rows, accepted.labels, server.trim) if server.audit else None
    sizes = np.bincount(accepted.labels, minlength=clusters)
    return step._replace(centres=after, rejected=rejected, trimmed=trimmed, sizes=sizes), newton, rows


def bearable_shares(
    conditioning: Conditioning, newton: NewtonSteps, rows: Floats, updates: Floats, steps: Floats, moves: Floats
) -> Floats:
    """(k,): the share of each step that the members of the cluster bear: 1, ½, ¼, ⅛, or 0.

    By its own update and Hessian, the move δ changes a member's loss by u_iᵀδ + ½ δᵀH_iδ, exactly for a squared loss. A
    step of more than `LARGE` standard deviations of one update is shortened while it raises the loss of all members but
    as many as may be Byzantine, and of more than half. Whichever rows the rule has kept: if these are a Byzantine
    minority, the step costs all honest members, since in their direction no honest member gains as much.

    What Byzantine clients can do at worst, where they are at most `conditioning.byzantine` and fewer than half of the
    cluster: a step that makes the loss of every honest member larger is at most `LARGE` standard deviations long.

    rows, steps: (rows, r) and (k, r), in the coordinates in which the noise of a typical member is white. updates,
    moves: (rows, r) and (k, r), the same in the coordinates of the federation.
    """
    shares, noise = np.ones(len(moves)), []
    for j in range(len(moves)):
        own = rows[newton.labels == j]
        if len(own) > 1:
            noise.append(float(np.median(np.linalg.norm(own - as_numpy(median(own)), axis=1))))
    large = LARGE * float(np.median(noise)) / np.sqrt(rows.shape[1]) if noise else math.inf
    for j in np.flatnonzero(np.linalg.norm(steps, axis=1) > large).tolist():
        members = np.flatnonzero(newton.labels == j)
        slopes = updates[members] @ moves[j]
        hessians = conditioning.hessians[newton.clients[members]]
        bends = 0.5 * (hessians @ moves[j].astype(hessians.dtype)).astype(np.float64) @ moves[j]
        rank = min(conditioning.byzantine, (len(members) - 1) // 2)
        costs = (np.sort(slopes * share + bends * share**2)[rank] > 0 for share in SHORTER)
        shares[j] = next(share for share, costly in zip(SHORTER, costs, strict=True) if not costly)
    return shares
