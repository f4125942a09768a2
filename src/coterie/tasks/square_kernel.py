"""The square loss on a CPU: losses at all centres, or loss and gradient at one, client by client.

The same numbers as the array form of `LinearModel` up to rounding, without its temporary arrays; the losses are summed
in float64. What a client answers does not depend on who else is asked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Ints, compiled
from coterie.data import Clients

FIRST_CACHE = 1 << 12
"""Values that stay in a core's first cache: half of 32 KB of float32."""
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


def _visit_each(
    features: NDArray[Any],
    targets: NDArray[Any],
    offsets: Ints,
    some: Ints,
    centres: NDArray[Any],
    labels: Ints,
    losses: NDArray[Any],
    gradients: NDArray[Any],
) -> None:
    """losses[p] = F_i(θ), gradients[p] = ∇F_i(θ) with θ = centres[labels[p]] for client i = some[p].

    The scores row by row, since memory is fastest when it is read in order; then the gradient, four rows at a time, of
    so few rows that they are still in the first cache. So the samples are read once, at the speed of a sum.
    """
    number, dim = features.dtype.type, features.shape[1]
    together = max(4, FIRST_CACHE // dim // 4 * 4)
    slopes, sums = np.empty(together, dtype=features.dtype), np.empty(dim, dtype=np.float64)
    for place in range(len(some)):
        first, last = offsets[some[place]], offsets[some[place] + 1]
        centre, gradient = centres[labels[place]], gradients[place]
        gradient[:] = 0
        sums[:] = 0
        added = first
        total, factor = 0.0, number(2) / number(last - first)
        for start in range(first, last, together):
            stop = min(start + together, last)
            for row in range(start, stop):
                x0, error = features[row], number(0)
                for c in range(dim):
                    error += x0[c] * centre[c]
                error -= targets[row]
                total += np.float64(error) ** 2
                slopes[row - start] = factor * error
            whole = stop - (stop - start) % 4
            for row in range(start, whole, 4):
                x0, x1, x2, x3 = features[row], features[row + 1], features[row + 2], features[row + 3]
                s0, s1, s2, s3 = slopes[row - start : row - start + 4]
                for c in range(dim):
                    gradient[c] += s0 * x0[c] + s1 * x1[c] + s2 * x2[c] + s3 * x3[c]
            for row in range(whole, stop):
                x0, s0 = features[row], slopes[row - start]
                for c in range(dim):
                    gradient[c] += s0 * x0[c]
            if stop - added >= SUMMED and stop < last:  # a float32 sum of many more would lose its digits
                sums += gradient
                gradient[:] = 0
                added = stop
        if added > first:
            gradient[:] = sums + gradient
        losses[place] = total / (last - first)


_visit = compiled(_visit_each, reorder=True)


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
    """(c,) and (c, d): F_i and ∇F_i of some clients, (c,), each at the centre that labels, (c,), name."""
    values = np.empty(len(some), dtype=centres.dtype)
    gradients = np.empty((len(some), clients.dim), dtype=centres.dtype)
    labels = np.ascontiguousarray(labels, dtype=np.int64)
    _visit(clients.features, clients.targets, clients.offsets, some, centres, labels, values, gradients)
    return values, gradients
