"""The server's step with the clients' Hessians: a share of a Newton step for every cluster."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from coterie._src.aggregators import Aggregator, SpectralFilter, trimmed_share
from coterie._src.algorithms.base import State
from coterie._src.arrays import Floats, as_numpy, like, namespace
from coterie._src.init.conditioning import NewtonSteps, selected_rows
from coterie._src.intake import Accepted
from coterie._src.server import UNCONSTRAINED, Server, Step, take_step

SHARE = 0.6
"""The share of a Newton step that is taken: a cluster of Byzantine clients whose replies are up to three times as steep
as honest ones, as in the paper's attack, does not make its centre diverge."""

LARGE = 4.0
"""The standard deviations of one update in one direction from which on a move is judged by the members' losses. A move
of so many changes the loss of an honest member near its optimum for the worse, whatever its own noise is."""
SHARES = (1.0, 0.5, 0.25, 0.125, 0.0)
"""The shares of a move that are tried."""


class NewtonStep(NamedTuple):
    """The outcome of a Newton step."""

    step: Step  # whose moves are in the coordinates of the rows, so that they measure the change of predictions
    newton: NewtonSteps  # the maps for the next round
    rows: Floats  # (rows, r), R_j Bᵀ∇F_i
    byzantine: int  # the bound on the number of Byzantine clients, raised if more of them stand out


def newton_step(
    server: Server, state: State, accepted: Accepted, share: float, longest: float = math.inf, byzantine: int = 0
) -> NewtonStep:
    """θ_j ← Π_Θ(θ_j − share·B R_jᵀ g_j) with g_j the aggregate of the rows R_j Bᵀ∇F_i of cluster j.

    B are the coordinates of `state.conditioning`, and R_jᵀR_j is the inverse of the mean Hessian of the cluster's
    members. Where the clients' Hessians differ by more than chance, the noise of each row has a shape of its own. The
    rule then judges the rows R_i Bᵀ∇F_i, whose noise is alike, and the step is that of the rows which it keeps.

    longest: the length of a step at most, in the coordinates of the federation. byzantine: the bound so far.
    """
    conditioning, clusters = state.conditioning, state.centres.shape[0]
    assert conditioning is not None
    weights = conditioning.leverages[accepted.clients]
    if state.weights is not None:
        weights = weights * state.weights[accepted.clients]
    newton = state.newton
    if newton is None or not newton.fits(accepted.clients, accepted.labels):
        newton = conditioning.newton(accepted.clients, accepted.labels, clusters, weights)
    updates = conditioning.coordinates.updates(as_numpy(accepted.updates))
    rule, byzantine = _raised(server.aggregate, newton, updates, weights, state.round, byzantine)
    conditioning = replace(conditioning, byzantine=byzantine)
    chosen = selected_rows(conditioning, newton, rule, updates, weights)
    rows = chosen.rows if chosen.newton is newton else newton.rows(updates)
    used = accepted._replace(clients=chosen.clients, labels=chosen.labels, updates=chosen.rows)
    taken = chosen.weights if chosen.rule.takes_weights else None
    inner = replace(server, aggregate=chosen.rule, project=UNCONSTRAINED, audit=False)
    origin, step_sizes = np.zeros((clusters, rows.shape[1])), np.full(clusters, share)
    step = take_step(inner, origin, used, step_sizes, None, taken, state.memory)
    moved_by = chosen.newton.moves(step.centres)
    shares = _bearable(newton, conditioning.hessians[accepted.clients], updates, moved_by, byzantine)
    moved_by = moved_by * shares[:, None]
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
    step = step._replace(centres=after, rejected=rejected, trimmed=trimmed, sizes=sizes)
    return NewtonStep(step, newton, rows, byzantine)


def _bearable(newton: NewtonSteps, hessians: Floats, updates: Floats, moves: Floats, byzantine: int) -> Floats:
    """(k,): the share of each move that members of the cluster bear: 1, ½, ¼, …, or 0.

    By its own gradient and Hessian, the move δ changes a member's loss by u_iᵀδ + ½ δᵀH_iδ. A move of more than
    `LARGE` standard deviations of one update, of a typical cluster, is not made if it costs all members but as many as
    may be Byzantine, and at least half: whatever the rule left in, these are the honest ones.

    hessians: (rows, r, r). updates: (rows, r). moves: (k, r).
    """
    shares, noise = np.ones(len(moves)), []
    for j in range(len(moves)):
        rows = updates[newton.labels == j]
        if len(rows) > 1:
            noise.append(float(np.median(np.linalg.norm(rows - np.median(rows, axis=0), axis=1))))
    large = LARGE * float(np.median(noise)) / np.sqrt(updates.shape[1]) if noise else np.inf
    for j in np.flatnonzero(np.linalg.norm(moves, axis=1) > large).tolist():
        members = np.flatnonzero(newton.labels == j)
        slopes, rank = updates[members] @ moves[j], min(byzantine, (len(members) - 1) // 2)
        bends = 0.5 * (hessians[members] @ moves[j].astype(np.float32)).astype(np.float64) @ moves[j]
        for shares[j] in SHARES:
            if len(members) and not np.sort(slopes + shares[j] * bends)[rank] > 0:
                break
    return shares


def _raised(
    rule: Aggregator, newton: NewtonSteps, updates: Floats, weights: Floats, round: int, byzantine: int
) -> tuple[Aggregator, int]:
    """The rule and the bound on the number of Byzantine clients, both raised if more clients stand out than it allows.

    Far rows are counted in every round, before they can do harm. Rows that only the spectrum shows are counted in
    rounds 0, 1, 3, 7, …, and only if they are half as many again: a false alarm leaves out one or two of them.
    """
    if not isinstance(rule, SpectralFilter):
        return rule, byzantine
    judged = newton.standardised(updates)
    rows = newton.rows(updates) if judged is None else judged
    due, far, all_of_them = round & (round + 1) == 0, 0, 0
    for j in np.unique(newton.labels).tolist():
        members = np.flatnonzero(newton.labels == j)
        far += len(rule.standing_out(rows[members], weights[members], spectrum=False))
        all_of_them += len(rule.standing_out(rows[members], weights[members])) if due else 0
    seen = max(far, all_of_them if all_of_them > byzantine + max(2, byzantine // 2) else 0)
    most = (len(rows) - 1) // 2
    byzantine = max(byzantine, min(seen, most))
    return (replace(rule, max_byzantine=byzantine) if byzantine > rule.max_byzantine else rule), byzantine
