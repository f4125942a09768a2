"""Rules that look at distances: Krum, centred clipping, the geometric median, and two steps before a rule.

They need the squared distances between the rows, which one kernel computes from differences: a distance between two
far rows that lie close together does not cancel, as it does where it is made of norms and products; or the products of
the rows around a robust centre, in float64 (`products`).
"""

from __future__ import annotations

import numpy as np
from array_api_compat import is_numpy_array, is_torch_array
from numpy.random import Generator

from coterie._src.aggregators.products import (
    BLOCK,
    add_squared_distances,
    around,
    centred_blocks,
    in_numpy,
    products_around,
    typical_distance,
)
from coterie._src.aggregators.rules import Aggregator, check_rows, mean, median, trim_count
from coterie._src.arrays import Array, Floats, Ints, as_numpy, like, namespace, on_gpu
from coterie._src.kernels.order_statistics import mean_between_ranks, native, threads

MIXED_COLUMNS = 1 << 13
"""Columns of a matrix product of `mixed`."""
PARTS = 16
"""Column ranges that threads work on. A fixed number: the sums do not depend on the number of threads."""
FARTHEST = 1e4
"""Rows beyond this many median distances from the centre count as if they were there."""
NEAR = 30.0
"""On a GPU only rows beyond this many median distances from the centre are compared by differences, which cost more."""


def squared_distances(updates: Array) -> Floats:
    """(rows, d) -> (rows, rows) float64: ‖x_i − x_j‖², infinite where it is beyond the rows' number format.

    >>> squared_distances(np.array([[0.0, 0.0], [3.0, 4.0]])).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    rows = check_rows(updates)
    lower = np.zeros((rows, rows))
    if is_numpy_array(updates) or (is_torch_array(updates) and updates.device.type == "cpu"):
        values = native(updates)
        values = np.ascontiguousarray(values)  # the kernel is fast on nothing else
        step = max(BLOCK, -(-values.shape[1] // PARTS))
        ranges = [(start, min(start + step, values.shape[1])) for start in range(0, values.shape[1], step)]
        parts = [np.zeros((rows, rows)) for _ in ranges]
        for done in [
            threads().submit(add_squared_distances, values, values, columns, True, part)
            for columns, part in zip(ranges, parts, strict=True)
        ]:
            done.result()
        lower = sum(parts, lower)
    elif is_torch_array(updates):
        return _squared_distances_on_gpu(updates)
    else:
        xp = namespace(updates)
        for i in range(1, rows):
            lower[i, :i] = as_numpy(xp.sum(xp.astype(updates[:i] - updates[i], xp.float64) ** 2, axis=1))
    return lower + lower.T


def _squared_distances_on_gpu(updates: Array) -> Floats:
    """As `squared_distances`, by products in float64 around the median; only what lies far from it, by differences.

    Of the squared distance of two rows a product loses some 1e-16 of theirs to the centre.
    """
    xp, updates = namespace(updates), _real(updates)
    gram = as_numpy(products_around(updates, median(updates)))
    away = np.diag(gram)
    with np.errstate(invalid="ignore"):
        between: Floats = np.maximum(away + away[:, None] - 2 * gram, 0.0)
    near = NEAR**2 * typical_distance(np.nan_to_num(away, nan=np.inf))
    for i in np.flatnonzero(~(away <= near)):
        exact = as_numpy(xp.sum(xp.astype(updates - updates[i], xp.float64) ** 2, axis=1))
        between[i], between[:, i] = exact, exact
    np.fill_diagonal(between, 0.0)
    return between


def _real(updates: Array) -> Array:
    """The rows as they are, whole numbers as float64."""
    xp = namespace(updates)
    if xp.isdtype(updates.dtype, "complex floating"):
        raise ValueError(f"updates must be real numbers, got {updates.dtype}")
    return updates if xp.isdtype(updates.dtype, "real floating") else xp.astype(updates, xp.float64)


def _lies(rows: int, byzantine: float) -> int:
    """⌊byzantine·rows⌋, fewer than half."""
    if not 0 <= byzantine < 0.5:
        raise ValueError(f"byzantine must be in [0, 0.5), got {byzantine}")
    return trim_count(rows, byzantine)


def krum(updates: Array, byzantine: float, selected: float = 0.0) -> Array:
    """The row that is nearest to its neighbours or, with `selected` > 0, the mean of the ⌈selected·rows⌉ best.

    A row's score is the sum of the squared distances to its rows − f − 2 nearest others, f = ⌊byzantine·rows⌋; the
    rows with the least scores are taken, equal ones together. Never takes one of f rows that lie far from the rest;
    with rows < 2f + 3 the paper promises nothing.
    Reference: Blanchard et al., Machine learning with adversaries, 2017.

    >>> krum(np.array([[0.0], [1.0], [1.2], [2.0], [99.0]]), byzantine=0.2)
    array([1.2])
    """
    rows = check_rows(updates)
    if not 0 <= selected <= 1:
        raise ValueError(f"selected must be in [0, 1], got {selected}")
    between = squared_distances(updates)
    np.fill_diagonal(between, -1.0)  # first in its own order, and left out
    nearest = np.sort(between, axis=1)[:, 1 : 1 + max(1, rows - _lies(rows, byzantine) - 2)]
    scores = np.nan_to_num(nearest, nan=np.inf, posinf=np.inf).sum(axis=1)
    wanted = max(1, int(np.ceil(selected * rows - 1e-9)))
    limit = np.sort(scores)[wanted - 1]
    chosen = np.flatnonzero(scores <= limit * (1 + 1e-9))
    return mean_between_ranks(updates, 0, len(chosen), chosen)


def mixed(updates: Array, rule: Aggregator, byzantine: float) -> Array:
    """Nearest-neighbour mixing before a rule: every row becomes the mean of its rows − f nearest, itself included.

    f = ⌊byzantine·rows⌋. Brings the honest rows together, so that few remain on which a rule can be deceived.
    Reference: Allouah et al., Fixing by mixing, 2023.

    >>> mixed(np.array([[0.0], [1.0], [2.0], [90.0]]), median, byzantine=0.25)
    array([1.])
    """
    rows, updates = check_rows(updates), _real(updates)
    between, xp = squared_distances(updates), namespace(updates)
    tame = bool(np.isfinite(between).all()) and xp.finfo(updates.dtype).bits >= 32
    np.fill_diagonal(between, -1.0)
    neighbours = np.argsort(between, axis=1, kind="stable")[:, : rows - _lies(rows, byzantine)]
    shares = np.zeros((rows, rows))
    np.put_along_axis(shares, neighbours, 1 / neighbours.shape[1], axis=1)
    weights, middle, mixtures = like(shares, updates), median(updates), xp.empty_like(updates)
    for start in range(0, updates.shape[1], MIXED_COLUMNS):
        columns = slice(start, start + MIXED_COLUMNS)
        centre = middle[columns]
        around = updates[:, columns] - centre  # the median, so that nothing cancels
        if not tame:  # a value that is not finite counts as the median
            around = xp.where(xp.isfinite(around), around, 0.0 * centre)
        mixtures[:, columns] = weights @ around + centre
    return rule(mixtures)


def bucketed(updates: Array, rule: Aggregator, size: int, rng: Generator) -> Array:
    """A rule on the means of random buckets of `size` rows: fewer rows, and more alike, at `size` times the lies.

    Reference: Karimireddy et al., Byzantine-robust learning on heterogeneous datasets via bucketing, 2022.

    >>> bucketed(np.array([[1.0], [1.0], [3.0]]), median, 3, np.random.default_rng(0)).round(6)
    array([1.666667])
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    rows = check_rows(updates)
    order = rng.permutation(rows)
    return rule(namespace(updates).stack([mean(updates[order[i : i + size]]) for i in range(0, rows, size)]))


def centred_clipping(updates: Array, radius: float | None = None, iterations: int = 10) -> Array:
    """v ← v + mean_i min(1, τ/‖x_i − v‖)·(x_i − v), from the coordinate-wise median; τ = `radius`.

    radius: None for the median distance of the rows to the start. One row pulls the result by at most
    τ·iterations/rows from where it begins. v stays a combination of start and rows, so that the iteration runs on
    their products alone.
    Reference: Karimireddy et al., Learning from history for Byzantine robust optimization, 2021.

    >>> centred_clipping(np.array([[0.0], [0.0], [1.0], [1e9]]), radius=1.0, iterations=1)
    array([0.625])
    """
    if radius is not None and not 0 < radius < np.inf:
        raise ValueError(f"radius must be a positive number, got {radius}")
    rows, updates = check_rows(updates), _real(updates)
    start = median(updates)
    away = np.sqrt(_squared_distances_to(updates, start))
    tau = float(np.median(away)) if radius is None else radius
    if tau == 0 or not np.isfinite(tau):
        return start
    # a row that is far out of reach is pulled in along its line, where it is clipped all the same
    pull = _pull(away, FARTHEST * max(tau, float(np.median(away))))
    known = np.flatnonzero(pull)
    rows_known = updates if len(known) == rows else updates[known]
    products = in_numpy(around(rows_known, start, pull[known]))
    weights = np.zeros(len(known))
    for _ in range(iterations):
        towards = products.times(weights)
        squares = products.squares - 2 * towards + weights @ towards
        clip = np.minimum(1.0, tau / np.sqrt(np.maximum(squares, 1e-300)))
        weights = weights * (1 - clip.sum() / rows) + clip / rows
    shares = weights * pull[known]
    return start * (1 - float(shares.sum())) + (like(shares[None, :], updates) @ rows_known)[0]


def geometric_median(updates: Array, iterations: int = 100, tolerance: float = 1e-8) -> Array:
    """The point with the least sum of Euclidean distances to the rows, by Weiszfeld's iteration in float64.

    Starts at the coordinate-wise median, which no minority can move far; distances are kept away from zero by a
    fraction `tolerance` of their median. Every point on the way is a combination of start and rows, so that the
    iteration runs on their products alone. Reference: Pillutla et al., Robust aggregation, 2022.

    >>> geometric_median(np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 9.0]])).round(6).tolist()
    [0.0, 0.0]
    """
    check_rows(updates)
    updates = _real(updates)
    if is_torch_array(updates) and not on_gpu(updates):  # the same bits as in NumPy
        return like(geometric_median(as_numpy(updates), iterations, tolerance), updates)
    start = median(updates)
    with np.errstate(over="ignore", invalid="ignore"):
        products = in_numpy(around(updates, start))
    known = np.flatnonzero(np.isfinite(products.squares))  # beyond float64 a row pulls no more
    products = products.among(known)
    squares = products.squares
    distances = np.sqrt(squares)
    floor = tolerance * float(np.median(distances)) if len(known) else 0.0
    if floor == 0:  # at least half of the rows lie on one point, which is the answer
        return start
    shares = np.zeros(len(known))
    for _ in range(iterations):
        weights = 1.0 / np.maximum(distances, floor)
        moves, shares = -shares, weights / weights.sum()
        moves += shares
        towards = products.times(shares)
        distances = np.sqrt(np.maximum(squares - 2 * towards + shares @ towards, 0.0))
        if np.sqrt(max(0.0, float(moves @ products.times(moves)))) <= tolerance * float(np.median(distances)):
            break
    return moved(updates if len(known) == len(updates) else updates[known], start, shares)


def moved(updates: Array, centre: Array, shares: Floats) -> Array:
    """centre + Σ_i share_i (x_i − centre), in float64."""
    parts = [like(shares[None, :], block) @ block for block in centred_blocks(updates, centre)]
    xp = namespace(updates)
    away = xp.concat(parts, axis=1)[0]
    return xp.astype(xp.astype(centre, away.dtype) + away, updates.dtype)


def reachable(updates: Array, centre: Array, farthest: float = FARTHEST) -> tuple[Ints, Floats]:
    """Which rows lie within numbers' reach of the centre, and per row the factor that brings it within `farthest`.

    In typical distances.
    """
    away = np.sqrt(_squared_distances_to(updates, centre))
    pull = _pull(away, farthest * max(typical_distance(away), 1e-300))
    return np.flatnonzero(pull), pull


def _pull(away: Floats, reach: float) -> Floats:
    """(rows,): 1 within reach, less beyond; 0 for a row whose distance is beyond float64, which stays out of it."""
    if not np.isfinite(reach):
        reach = float(np.finfo(np.float64).max)
    return np.where(np.isfinite(away), reach / np.maximum(away, reach), 0.0)


def _squared_distances_to(updates: Array, point: Array) -> Floats:
    """(rows,) float64: ‖x_i − point‖²."""
    total = np.zeros(updates.shape[0])
    with np.errstate(over="ignore"):
        for block in centred_blocks(updates, point):
            total += as_numpy(namespace(updates).sum(block**2, axis=1))
    return total
