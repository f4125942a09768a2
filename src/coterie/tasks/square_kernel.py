"""The square loss on a CPU: losses at all centres, or loss and gradient at one, client by client.

The same numbers as the array form of `LinearModel` up to rounding, without its temporary arrays; the losses are summed
in float64. What a client answers does not depend on who else is asked.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Ints, compiled
from coterie.data import Clients

FIRST_CACHE = 1 << 12
"""Values of a block that is looked at twice: half of a first cache of 32 KB, all of it for three questions."""
SUMMED = 1 << 12
"""Rows whose part of a gradient is summed in the features' own precision."""


@compiled
def _losses(
    features: NDArray[Any], targets: NDArray[Any], offsets: Ints, some: Ints, weights: NDArray[Any], out: NDArray[Any]
) -> None:
    """out[p, j] = (1/n_i) Σ_l (x_il·w_j − y_il)² for client i = some[p]; weights: (d, k)."""
    centres = weights.shape[1]
    scores = np.empty((np.diff(offsets).max(), centres), dtype=features.dtype)
    total = np.empty(centres, dtype=np.float64)
    for place in range(len(some)):
        first, last = offsets[some[place]], offsets[some[place] + 1]
        np.dot(features[first:last], weights, scores[: last - first])
        total[:] = 0.0
        for row in range(last - first):
            for j in range(centres):
                error = np.float64(scores[row, j] - targets[first + row])
                total[j] += error * error
        for j in range(centres):
            out[place, j] = total[j] / (last - first)


@partial(compiled, reorder=True)
def _score(x: Any, w: Any) -> Any:
    """x·w for one row."""
    s = x.dtype.type(0)
    for c in range(len(x)):
        s += x[c] * w[c]
    return s


@compiled
def _look(x: Any, y: Any, w: Any, errors: Any, total: float) -> float:
    """errors[l] = x_l·w − y_l for a block of rows; their squares are added to the total."""
    for row in range(len(x)):
        errors[row] = _score(x[row], w) - y[row]
        total += np.float64(errors[row]) * np.float64(errors[row])
    return total


@partial(compiled, contract=True)
def _add(x: Any, s: Any, factor: Any, out: Any) -> None:
    """out += factor·Σ_l s_l x_l over a block of rows, four at a time and in their order."""
    whole = len(x) - len(x) % 4
    for row in range(0, whole, 4):
        x0, x1, x2, x3 = x[row], x[row + 1], x[row + 2], x[row + 3]
        s0, s1, s2, s3 = factor * s[row], factor * s[row + 1], factor * s[row + 2], factor * s[row + 3]
        for c in range(len(out)):
            out[c] = out[c] + s0 * x0[c] + s1 * x1[c] + s2 * x2[c] + s3 * x3[c]
    for row in range(whole, len(x)):
        x0, s0 = x[row], factor * s[row]
        for c in range(len(out)):
            out[c] = out[c] + s0 * x0[c]


@partial(compiled, contract=True)
def _add_three(x: Any, s: Any, factor: Any, out0: Any, out1: Any, out2: Any) -> None:
    """`_add` for three sums: the rows are loaded once."""
    whole = len(x) - len(x) % 4
    for row in range(0, whole, 4):
        x0, x1, x2, x3 = x[row], x[row + 1], x[row + 2], x[row + 3]
        s0, s1, s2, s3 = factor * s[0, row], factor * s[0, row + 1], factor * s[0, row + 2], factor * s[0, row + 3]
        t0, t1, t2, t3 = factor * s[1, row], factor * s[1, row + 1], factor * s[1, row + 2], factor * s[1, row + 3]
        u0, u1, u2, u3 = factor * s[2, row], factor * s[2, row + 1], factor * s[2, row + 2], factor * s[2, row + 3]
        for c in range(len(out0)):
            v0, v1, v2, v3 = x0[c], x1[c], x2[c], x3[c]
            out0[c] = out0[c] + s0 * v0 + s1 * v1 + s2 * v2 + s3 * v3
            out1[c] = out1[c] + t0 * v0 + t1 * v1 + t2 * v2 + t3 * v3
            out2[c] = out2[c] + u0 * v0 + u1 * v1 + u2 * v2 + u3 * v3
    _add(x[whole:], s[0, whole:], factor, out0)
    _add(x[whole:], s[1, whole:], factor, out1)
    _add(x[whole:], s[2, whole:], factor, out2)


@compiled
def _visit(
    features: NDArray[Any],
    targets: NDArray[Any],
    offsets: Ints,
    some: Ints,
    centres: NDArray[Any],
    labels: Ints,
    losses: NDArray[Any],
    gradients: NDArray[Any],
) -> None:
    """losses[q, p] = F_i(θ), gradients[q, p] = ∇F_i(θ) with θ = centres[labels[q, p]] for client i = some[p].

    The scores row by row, since memory is fastest when it is read in order; then the gradient, four rows at a time, of
    so few rows that they are still in the first cache. So the samples are read once, at the speed of a sum, for all
    questions q; the gradients of three are summed at a time, since a row that is loaded serves them all. The numbers
    are those that each question would get alone.
    """
    number, dim, questions = features.dtype.type, features.shape[1], len(labels)
    threes = questions - questions % 3
    few = max(4, FIRST_CACHE // dim // 4 * 4)
    together, summed = 2 * few if threes else few, -(-SUMMED // (2 * few)) * 2 * few
    errors, totals = np.empty((questions, together), dtype=features.dtype), np.empty(questions, dtype=np.float64)
    sums = np.empty((questions, dim), dtype=np.float64)
    for place in range(len(some)):
        first, last = offsets[some[place]], offsets[some[place] + 1]
        own, factor, added = labels[:, place], number(2) / number(last - first), first
        for q in range(questions):
            totals[q], gradients[q, place][:] = 0.0, 0
        for start in range(first, last, together):
            stop = min(start + together, last)
            x, y = features[start:stop], targets[start:stop]
            for q in range(questions):  # each by itself: sums side by side would be added up in another order
                totals[q] = _look(x, y, centres[own[q]], errors[q], totals[q])
            for q in range(0, threes, 3):
                g0, g1, g2 = gradients[q, place], gradients[q + 1, place], gradients[q + 2, place]
                _add_three(x, errors[q : q + 3], factor, g0, g1, g2)
            for q in range(threes, questions):
                _add(x, errors[q], factor, gradients[q, place])
            if stop - added >= summed and stop < last:  # a float32 sum of many more would lose its digits
                if added == first:
                    sums[:] = 0
                sums += gradients[:, place]
                gradients[:, place] = 0
                added = stop
        if added > first:
            gradients[:, place] = sums + gradients[:, place]
        for q in range(questions):
            losses[q, place] = totals[q] / (last - first)


def serves(clients: Clients, centres: Any) -> bool:
    """Whether these are arrays that the kernels read."""
    plain = (np.float32, np.float64)
    return all(
        isinstance(array, np.ndarray)
        and array.flags.c_contiguous
        and array.dtype == centres.dtype
        and array.dtype in plain
        for array in (clients.features, clients.targets, centres)
    )


def losses(clients: Clients, centres: NDArray[Any], some: Ints) -> NDArray[Any]:
    """(c, k): F_i(θ_j) of some clients, (c,), at all centres, (k, d)."""
    out = np.empty((len(some), len(centres)), dtype=centres.dtype)
    if len(some):
        weights = np.ascontiguousarray(centres.T)
        _losses(clients.features, clients.targets, clients.offsets, some, weights, out)
    return out


def visit(clients: Clients, centres: NDArray[Any], labels: Ints, some: Ints) -> tuple[NDArray[Any], NDArray[Any]]:
    """(q, c) and (q, c, d): F_i and ∇F_i of some clients, (c,), each at the q centres that labels, (q, c), name."""
    labels = np.ascontiguousarray(labels, dtype=np.int64)
    values = np.empty(labels.shape, dtype=centres.dtype)
    gradients = np.empty((*labels.shape, clients.dim), dtype=centres.dtype)
    _visit(clients.features, clients.targets, clients.offsets, some, centres, labels, values, gradients)
    return values, gradients
