"""The squared loss on a CPU, client by client, and the search for a client's best centre by lower bounds (Numba).

Benchmark: `python -m benchmarks simulation`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie._src.kernels.compiling import compiled
from coterie._src.kernels.elkan import (
    FLAT,
    HEIGHT,
    LOWER,
    MARGIN,
    PATH,
    REMAINDER,
    ROUNDING,
    SMALLEST,
    STEEPNESS,
    UNDERFLOW,
    UNIT,
)

Floats = NDArray[Any]
Ints = NDArray[np.int64]

FIRST_CACHE = 1 << 12
"""Values of a block of samples that is read twice: 16 KB, half of a first-level cache."""
SUMMED = 1 << 12
"""The number of samples whose gradient is summed in the precision of the features."""


@partial(compiled, reorder=True, inline=True)
def _score(x: Any, w: Any) -> Any:
    """x·w for one row."""
    s = x.dtype.type(0)
    for c in range(len(x)):
        s += x[c] * w[c]
    return s


@partial(compiled, inline=True)
def _errors(x: Any, y: Any, w: Any, errors: Any) -> Any:
    """errors[l] = x_l·w − y_l; returns the sum of their squares."""
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
def _inner_product(offset: Any, gradient: Any) -> Any:
    total = 0.0
    for c in range(len(offset)):
        total += np.float64(offset[c]) * np.float64(gradient[c])
    return total


@partial(compiled, inline=True)
def _by_samples(x: Any, y: Any, centre: Any, errors: Any, gradient: Any) -> Any:
    """The mean squared error; its gradient is added to `gradient`.

    For a block of rows the errors are computed row by row, since memory is fastest when read in order; then the
    gradient, four rows at a time, while the block is in the first-level cache. The samples are read once from memory.
    """
    rows, block, total = len(x), len(errors), 0.0
    factor = x.dtype.type(2) / x.dtype.type(rows)
    for start in range(0, rows, block):
        stop = min(start + block, rows)
        total += _errors(x[start:stop], y[start:stop], centre, errors)
        _add(x[start:stop], errors, factor, gradient)
    return total / rows


@compiled
def _loss_and_gradient(x: Any, y: Any, gram: bool, centre: Any, scratch: Any, gradient: Any) -> Any:
    """F_i(θ) − floor_i; gradient = ∇F_i(θ), for the client whose rows these are (see `RegressionData`).

    In Gram form ½⟨θ − a_i, ∇F_i(θ)⟩ with ∇F_i(θ) = 2G_i(θ − a_i), a sum of rows, since G_i is symmetric.
    """
    for c in range(len(gradient)):
        gradient[c] = 0
    if gram:
        for c in range(len(scratch)):
            scratch[c] = centre[c] - y[c]
        _add(x, scratch, scratch.dtype.type(2), gradient)
        return 0.5 * _inner_product(scratch, gradient)
    many, total = len(x) > SUMMED, 0.0  # a float32 sum over more samples would lose its digits
    sums = np.zeros(len(gradient) if many else 0)
    for start in range(0, len(x), SUMMED):
        stop = min(start + SUMMED, len(x))
        loss = _by_samples(x[start:stop], y[start:stop], centre, scratch, gradient)
        if not many:
            return loss
        share = (stop - start) / len(x)
        total += share * loss
        for c in range(len(gradient)):
            sums[c] += share * gradient[c]
            gradient[c] = 0
    for c in range(len(gradient)):
        gradient[c] = sums[c]
    return total


@partial(compiled, reorder=True)
def _product(steps: NDArray[np.int8], centre: Floats) -> float:
    number = centre.dtype.type
    total = number(0)
    for c in range(len(centre)):
        total += number(steps[c]) * centre[c]
    return np.float64(total)


@partial(compiled, reorder=True)
def _set_bound(loss: float, gradient: Floats, centre: Floats, bound: Floats, j: int) -> None:
    """Store the lower bound and the steepness at centre j, where the loss was just computed."""
    square, rise = 0.0, 0.0
    for c in range(len(gradient)):
        value = np.float64(gradient[c])
        square += value * value
        rise += value * np.float64(centre[c])
    bound[LOWER, j] = loss - MARGIN * (abs(loss - rise) + abs(rise))
    bound[STEEPNESS, j], bound[PATH, j] = (1 + MARGIN) * np.sqrt(square) + UNDERFLOW, 0


@partial(compiled, reorder=True)
def _set_plane(loss: float, gradient: Floats, centre: Floats, plane: Floats, steps: NDArray[np.int8]) -> None:
    """Store the tangent plane of a client's loss at a centre."""
    largest = 0.0
    for c in range(len(gradient)):
        largest = max(largest, abs(np.float64(gradient[c])))
    plane[UNIT] = largest / 127 if largest < np.inf else np.nan  # NaN excludes nothing
    unit, remainder = np.float64(plane[UNIT]), 0.0
    for c in range(len(gradient)):
        value = np.float64(gradient[c])
        steps[c] = np.int8(np.rint(value / unit)) if unit > FLAT else np.int8(0)
        remainder += (value - unit * steps[c]) ** 2
    plane[HEIGHT], plane[REMAINDER] = loss - unit * _product(steps, centre), np.sqrt(remainder) + UNDERFLOW


@partial(compiled, inline=True)
def _lower_bounds(bound: Floats, moved: Floats, own: int, limit: Any) -> int:
    """Lower the bounds by the moves of the centres; return how many centres, without the own one, are not excluded."""
    number, candidates = moved.dtype.type, 0
    for j in range(len(moved)):
        lower = bound[LOWER, j]
        lowered = lower - bound[STEEPNESS, j] * moved[j] - number(ROUNDING) * abs(lower)
        bound[LOWER, j] = lowered
        bound[PATH, j] = (bound[PATH, j] + moved[j]) * number(1 + ROUNDING)
        candidates += not lowered > limit  # also where it is NaN
    return candidates - (not bound[LOWER, own] > limit)


@compiled
def _bound_by_plane(bound: Floats, j: int, plane: Floats, steps: NDArray[np.int8], centre: Floats) -> None:
    """Store the lower bound at centre j from the tangent plane."""
    height, rise = np.float64(plane[HEIGHT]), np.float64(plane[UNIT]) * _product(steps, centre)
    error = np.float64(plane[REMAINDER]) * np.float64(bound[PATH, j])
    bound[LOWER, j] = height + rise - error - MARGIN * (abs(height) + abs(rise))


@compiled
def respond(
    rows: Floats,
    column: Floats,
    offsets: Ints,
    floors: Floats,
    gram: bool,
    centres: Floats,
    labels: Ints,
    losses: Floats,
    gradients: Floats,
    search: bool,
    previous: Floats,
    bounds: Floats,
    planes: Floats,
    steps: NDArray[np.int8],
) -> None:
    """losses (m,) and gradients (m, d) of every client at the centre that labels (m,) names.

    With `search`, labels become those of the centres of lowest loss: every client first evaluates its last centre and
    then, while its samples are in the cache, the centres that its lower bounds do not exclude (see
    `elkan.LowerBounds`). previous: the centres of the last round, overwritten.
    """
    k, dim = centres.shape
    scratch = np.empty(dim if gram else max(4, FIRST_CACHE // dim // 4 * 4), dtype=rows.dtype)
    moved, gradient = np.empty(k, dtype=centres.dtype), np.empty(dim, dtype=centres.dtype)
    if search:
        for j in range(k):
            square = 0.0
            for c in range(dim):
                square += (np.float64(centres[j, c]) - np.float64(previous[j, c])) ** 2
                previous[j, c] = centres[j, c]
            moved[j] = np.sqrt(square)
            moved[j] *= 1 + MARGIN
    for i in range(len(labels)):
        own = labels[i]
        x, y = rows[offsets[i] : offsets[i + 1]], column[offsets[i] : offsets[i + 1]]
        losses[i] = floors[i] + _loss_and_gradient(x, y, gram, centres[own], scratch, gradients[i])
        if not search:
            continue
        bound = bounds[i]
        limit = losses.dtype.type((1 + MARGIN) * losses[i])
        if abs(limit) < SMALLEST:
            limit = losses.dtype.type(SMALLEST)
        if not _lower_bounds(bound, moved, own, limit):
            continue
        best = np.inf if np.isnan(losses[i]) else losses[i]
        for j in range(k):
            if bound[LOWER, j] > limit or j == own:
                continue
            if not gram:
                _bound_by_plane(bound, j, planes[i, j], steps[i, j], centres[j])
                if bound[LOWER, j] > limit:
                    continue
            loss = losses.dtype.type(floors[i] + _loss_and_gradient(x, y, gram, centres[j], scratch, gradient))
            _set_bound(np.float64(loss), gradient, centres[j], bound, j)
            if not gram:
                _set_plane(np.float64(loss), gradient, centres[j], planes[i, j], steps[i, j])
            found = np.inf if np.isnan(loss) else loss
            if found < best or (found == best and j < labels[i]):  # ties go to the first centre
                best, labels[i], losses[i] = found, j, loss
                for c in range(dim):
                    gradients[i, c] = gradient[c]
