"""The square loss on a CPU: losses at all centres, or loss and gradient at one, client by client.

The same numbers as the array forms of `LinearModel` and `Quadratic` up to rounding, without their temporary arrays; the
losses are summed in float64. What a client answers does not depend on who else is asked.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie._src.arrays import Ints, compiled, is_plain

FIRST_CACHE = 1 << 12
"""Values of a block that is looked at twice: half of a first cache of 32 KB."""
SUMMED = 1 << 12
"""Rows whose part of a gradient is summed in the features' own precision."""


class Local(NamedTuple):
    """What the kernels read of m clients: their samples, or their statistics (see `Quadratic`).

    rows: (N, d) and column: (N,), client i's from offsets[i] to offsets[i + 1]: its features and targets, or G_i and
    a_i. floors: (m,), F_i(a_i), or 0. gram: whether they are statistics.
    """

    rows: NDArray[Any]
    column: NDArray[Any]
    offsets: Ints
    floors: NDArray[Any]
    gram: bool

    @classmethod
    def of_samples(cls, features: Any, targets: Any, offsets: Ints) -> Local | None:
        """None where they are not arrays that the kernels read."""
        features, targets = _unmapped(features), _unmapped(targets)
        if not _plain(features, targets):
            return None
        return cls(features, targets, offsets, np.zeros(len(offsets) - 1, dtype=features.dtype), False)

    @classmethod
    def of_statistics(cls, minima: Any, floors: Any, grams: Any) -> Local | None:
        """None where they are not arrays that the kernels read."""
        if not _plain(minima, floors, grams):
            return None
        m, d = minima.shape
        return cls(grams.reshape(m * d, d), minima.reshape(m * d), d * np.arange(m + 1), floors, True)

    def serves(self, centres: Any) -> bool:
        """Whether such centres go with them."""
        alike = type(centres) is np.ndarray and centres.dtype == self.rows.dtype and centres.flags.c_contiguous
        return bool(alike and centres.ndim == 2 and centres.shape[1] == self.rows.shape[1])


def _plain(*arrays: Any) -> bool:
    return all(is_plain(array) and array.flags.c_contiguous and array.dtype == arrays[0].dtype for array in arrays)


def _unmapped(array: Any) -> Any:
    """An array in a file as an array like any other, without reading it."""
    return array.view(np.ndarray) if isinstance(array, np.memmap) else array


@compiled
def _losses_by_samples(local: Local, some: Ints, weights: NDArray[Any], out: NDArray[Any]) -> None:
    """out[p, j] = (1/n_i) Σ_l (x_il·w_j − y_il)² for client i = some[p]; weights: (d, k)."""
    features, targets, offsets, _, _ = local
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


@partial(compiled, reorder=True, inline=True)
def _score(x: Any, w: Any) -> Any:
    """x·w for one row."""
    s = x.dtype.type(0)
    for c in range(len(x)):
        s += x[c] * w[c]
    return s


@partial(compiled, inline=True)
def _errors(x: Any, y: Any, w: Any, errors: Any) -> Any:
    """errors[l] = x_l·w − y_l; returned is the sum of their squares."""
    total = 0.0
    for row in range(len(x)):
        error = _score(x[row], w) - y[row]
        errors[row] = error
        total += np.float64(error) * np.float64(error)
    return total


@partial(compiled, contract=True, inline=True)
def _add(x: Any, s: Any, factor: Any, out: Any) -> None:
    """out += factor·Σ_l s_l x_l, four rows at a time and in their order."""
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


@partial(compiled, reorder=True, inline=True)
def _product(offset: Any, gradient: Any) -> Any:
    total = 0.0
    for c in range(len(offset)):
        total += np.float64(offset[c]) * np.float64(gradient[c])
    return total


@compiled
def scratch(rows: NDArray[Any], gram: bool) -> NDArray[Any]:
    """What `look` needs beside its arguments."""
    dim = rows.shape[1]
    return np.empty(dim if gram else max(4, FIRST_CACHE // dim // 4 * 4), dtype=rows.dtype)


@partial(compiled, inline=True)
def look(x: Any, y: Any, gram: bool, centre: Any, room: Any, gradient: Any) -> Any:
    """F_i(θ) − floor_i, and gradient = ∇F_i(θ), for the client whose rows these are (see `Local`)."""
    for c in range(len(gradient)):
        gradient[c] = 0
    if gram:
        return _by_statistics(x, y, centre, room, gradient)
    if len(x) > SUMMED:
        return _by_many_samples(x, y, centre, room, gradient)
    return _by_samples(x, y, centre, room, gradient)


@partial(compiled, inline=True)
def _by_statistics(gram: Any, minimum: Any, centre: Any, offset: Any, gradient: Any) -> Any:
    """½⟨θ − a_i, ∇F_i(θ)⟩ with ∇F_i(θ) = 2G_i(θ − a_i), a sum of rows, since G_i is symmetric."""
    for c in range(len(offset)):
        offset[c] = centre[c] - minimum[c]
    _add(gram, offset, offset.dtype.type(2), gradient)
    return 0.5 * _product(offset, gradient)


@partial(compiled, inline=True)
def _by_samples(x: Any, y: Any, centre: Any, errors: Any, gradient: Any) -> Any:
    """The mean squared error, and its gradient, added to what is there.

    The errors row by row, since memory is fastest when it is read in order; then the gradient, four rows at a time, of
    so few rows that they are still in the first cache. So the samples are read once, at the speed of a sum.
    """
    rows, block, total = len(x), len(errors), 0.0
    factor = x.dtype.type(2) / x.dtype.type(rows)
    for start in range(0, rows, block):
        part = slice(start, min(start + block, rows))
        total += _errors(x[part], y[part], centre, errors)
        _add(x[part], errors, factor, gradient)
    return total / rows


@compiled
def _by_many_samples(x: Any, y: Any, centre: Any, errors: Any, gradient: Any) -> Any:
    """The mean over parts of the samples: a float32 sum over all of them would lose its digits."""
    total, sums = 0.0, np.zeros(len(gradient))
    for start in range(0, len(x), SUMMED):
        part = slice(start, min(start + SUMMED, len(x)))
        share = len(x[part]) / len(x)
        total += share * _by_samples(x[part], y[part], centre, errors, gradient)
        sums += share * gradient
        gradient[:] = 0
    gradient[:] = sums
    return total


@compiled
def _visit(
    local: Local, some: Ints, centres: NDArray[Any], labels: Ints, losses: NDArray[Any], gradients: NDArray[Any]
) -> None:
    rows, column, offsets, floors, gram = local
    room = scratch(rows, gram)
    for place in range(len(some)):
        i = some[place]
        x, y = rows[offsets[i] : offsets[i + 1]], column[offsets[i] : offsets[i + 1]]
        for q in range(len(labels)):  # of which all but the first find the client's samples in cache
            centre, gradient = centres[labels[q, place]], gradients[q, place]
            losses[q, place] = floors[i] + look(x, y, gram, centre, room, gradient)


@compiled
def _losses_by_statistics(local: Local, some: Ints, centres: NDArray[Any], out: NDArray[Any]) -> None:
    rows, column, offsets, floors, gram = local
    room, gradient = scratch(rows, gram), np.empty_like(centres[0])
    for place in range(len(some)):
        i = some[place]
        x, y = rows[offsets[i] : offsets[i + 1]], column[offsets[i] : offsets[i + 1]]
        for j in range(len(centres)):
            out[place, j] = floors[i] + look(x, y, gram, centres[j], room, gradient)


def losses(local: Local, centres: NDArray[Any], some: Ints) -> NDArray[Any]:
    """(c, k): F_i(θ_j) of some clients, (c,), at all centres, (k, d)."""
    out = np.empty((len(some), len(centres)), dtype=centres.dtype)
    if local.gram:
        _losses_by_statistics(local, some, centres, out)
    elif len(some):
        _losses_by_samples(local, some, np.ascontiguousarray(centres.T), out)
    return out


def visit(local: Local, centres: NDArray[Any], labels: Ints, some: Ints) -> tuple[NDArray[Any], NDArray[Any]]:
    """(q, c) and (q, c, d): F_i and ∇F_i of some clients, (c,), each at the q centres that labels, (q, c), name."""
    labels = np.ascontiguousarray(labels, dtype=np.int64)
    if labels.size and not 0 <= labels.min() <= labels.max() < len(centres):
        raise ValueError(f"labels must be whole numbers in [0, {len(centres)}), got {labels.min()} to {labels.max()}")
    values = np.empty(labels.shape, dtype=centres.dtype)
    gradients = np.empty((*labels.shape, centres.shape[1]), dtype=centres.dtype)
    _visit(local, some, centres, labels, values, gradients)
    return values, gradients
