"""When a descent has converged: the moves of the centres in standard errors, and what is left of the way."""

from __future__ import annotations

import math

import numpy as np

from coterie._src.aggregators import median
from coterie._src.algorithms.base import State
from coterie._src.arrays import Floats, as_numpy
from coterie._src.intake import Accepted
from coterie._src.server import Step

SLOWEST = 0.9
"""The largest factor between the moves of two rounds from which the distance that is left is computed."""
PATIENCE = 10
"""Rounds without a smaller move after which a descent that oscillates has converged: a rule that removes rows may."""


def progress(state: State, step: Step, accepted: Accepted, step_sizes: Floats) -> tuple[float, int, float]:
    """The smallest move so far in standard errors, the rounds since then, and the distance that is left.

    The largest move of a round counts, if it is smaller by a tenth than any before. A move of more than its error
    begins the count of rounds anew: something has happened.
    """
    if not len(accepted.clients) or step.rejected.any():
        return state.smallest_move, state.rounds_since, math.inf
    errors = np.maximum(standard_errors(accepted, step_sizes), 1e-300)
    move = float(np.max(step.moves / errors))
    left = float(np.max(distances_left(step.moves, state.moves) / errors))
    if move >= 1 or move < 0.9 * state.smallest_move:
        return move, 0, left
    return state.smallest_move, state.rounds_since + 1, left


def distances_left(moves: Floats, before: Floats | None) -> Floats:
    """(k,): how far the centres still have to go, or their last moves where these are larger.

    Moves that shrink by a factor q in a round add up to q/(1 − q) times the last one. A factor above `SLOWEST` is not
    believed: then the moves are noise, and do not shrink.
    """
    if before is None or before.shape != moves.shape:
        return moves
    factors = np.clip(moves / np.maximum(before, 1e-300), 0.0, SLOWEST)
    found: Floats = moves * np.maximum(1.0, factors / (1 - factors))
    return found


def standard_errors(accepted: Accepted, step_sizes: Floats) -> Floats:
    """(k,): γ_j √(q_j/c_j), with q_j the median squared distance of the c_j replies to their median.

    One reply shows no noise, nor do none: the q of the other clusters, their median, stands for their own.
    """
    counts, squares = np.bincount(accepted.labels, minlength=len(step_sizes)), np.zeros(len(step_sizes))
    updates = as_numpy(accepted.updates)
    for j in np.flatnonzero(counts > 1).tolist():
        rows = updates[accepted.labels == j]
        squares[j] = np.median(((rows - as_numpy(median(rows))) ** 2).sum(axis=1))
    if (counts > 1).any():
        squares[counts <= 1] = np.median(squares[counts > 1])
    errors: Floats = step_sizes * np.sqrt(squares / np.maximum(counts, 1))
    return errors
