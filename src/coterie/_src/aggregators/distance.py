"""Rules that use distances: Krum, centred clipping, the geometric median.

They use the squared distances between the rows, which one kernel computes from differences, so that two rows that are
near each other and far from 0 lose no digits (norms and inner products would cancel); or the inner products of the rows
around a robust centre, in float64 (`products`). Both add up over the columns (`columns`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from array_api_compat import is_torch_array

from coterie._src.aggregators.base import Aggregator, ceil_count, check_fraction, check_rows, trim_count
from coterie._src.aggregators.columns import SHARD, Result, Sharded, by_columns, ranges
from coterie._src.aggregators.coordinatewise import mean_of_ranks, median
from coterie._src.aggregators.products import (
    around,
    centred_blocks,
    in_numpy,
    products_around,
    typical_distance,
)
from coterie._src.arrays import Array, Floats, Ints, as_numpy, like, namespace, on_gpu
from coterie._src.kernels.order_statistics import native
from coterie._src.kernels.pairwise import BLOCK, add_squared_distances
from coterie._src.kernels.threads import threads

FARTHEST = 1e4
"""Rows farther than this many median distances from the centre are clipped to that distance."""
NEAR = 30.0
"""On a GPU only rows farther than this many median distances from the centre are compared by differences (slower)."""


def squared_distances(updates: Array | Sharded) -> Floats:
    """(rows, d) -> (rows, rows) float64: ‖x_i − x_j‖², infinite where it overflows the rows' dtype.

    >>> squared_distances(np.array([[0.0, 0.0], [3.0, 4.0]])).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    check_rows(updates)
    found: Floats = _squared_distances(updates).total
    return found


@by_columns
def _squared_distances(updates: Array) -> Result:
    return Result(_squared_distances_on_gpu(updates) if on_gpu(updates) else _squared_distances_on_cpu(updates), None)


def _squared_distances_on_cpu(updates: Array) -> Floats:
    rows = len(updates)
    values = np.ascontiguousarray(native(updates))  # the kernel is slow on other layouts
    lower = np.zeros((rows, rows))
    for first, last in ranges(values.shape[1], SHARD):
        parts = [(np.zeros((rows, rows)), first + start, first + stop) for start, stop in ranges(last - first, BLOCK)]
        for done in [
            threads().submit(add_squared_distances, values, values, (start, stop), True, part)
            for part, start, stop in parts
        ]:
            done.result()
        lower += sum((part for part, _, _ in parts), np.zeros((rows, rows)))
    return lower + lower.T


def _squared_distances_on_gpu(updates: Array) -> Floats:
    """As `squared_distances`, by products in float64 around the median; by differences for rows far from it.

    The error of a product is about 1e-16 times the squared distances of the two rows to the centre.
    """
    xp, updates = namespace(updates), as_real(updates)
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


def as_real(updates: Array | Sharded) -> Array | Sharded:
    """The rows; integers are converted to float64."""
    if isinstance(updates, Sharded):
        return updates
    xp = namespace(updates)
    if xp.isdtype(updates.dtype, "complex floating"):
        raise ValueError(f"updates must be real numbers, got {updates.dtype}")
    return updates if xp.isdtype(updates.dtype, "real floating") else xp.astype(updates, xp.float64)


@dataclass(frozen=True)
class Krum(Aggregator):
    """The row with the lowest score, or the mean of the rows with the lowest scores (Multi-Krum).

    A row's score is the sum of the squared distances to its rows − f − 2 nearest others, f = ⌊byzantine_fraction·rows⌋;
    rows with equal scores are selected together. A row among f that are far from all others is never selected; the
    paper gives no guarantee for rows < 2f + 3.

    Parameters
    ----------
    byzantine_fraction : in [0, ½), of the rows.
    selected : the mean of the ⌈selected·rows⌉ best rows is returned; 0: the best one alone.

    References
    ----------
    Blanchard et al., Machine learning with adversaries, 2017.

    Examples
    --------
    >>> Krum(0.2)(np.array([[0.0], [1.0], [1.2], [2.0], [99.0]]))
    array([1.2])
    """

    takes_shards = True

    byzantine_fraction: float
    selected: float = 0.0

    def __post_init__(self) -> None:
        check_fraction("byzantine_fraction", self.byzantine_fraction)
        if not 0 <= self.selected <= 1:
            raise ValueError(f"selected must be in [0, 1], got {self.selected}")

    def aggregate(self, updates: Array) -> Array:
        rows, between = int(updates.shape[0]), squared_distances(updates)
        np.fill_diagonal(between, -1.0)  # every row sorts first among its neighbours, and is left out
        neighbours = max(1, rows - trim_count(rows, self.byzantine_fraction) - 2)
        nearest = np.sort(between, axis=1)[:, 1 : 1 + neighbours]
        scores = np.nan_to_num(nearest, nan=np.inf, posinf=np.inf).sum(axis=1)
        limit = np.sort(scores)[max(1, ceil_count(self.selected, rows)) - 1]
        chosen = np.flatnonzero(scores <= limit * (1 + 1e-9))
        return mean_of_ranks(updates, low=0, high=len(chosen), members=chosen).columns


@dataclass(frozen=True)
class CentredClipping(Aggregator):
    """v ← v + mean_i min(1, τ/‖x_i − v‖)·(x_i − v), repeated; differences longer than τ are clipped to τ.

    One row moves the result by at most τ·iterations/rows. v is always a combination of the start and the rows, so the
    iteration needs only their inner products.

    Parameters
    ----------
    radius : τ; None for the median distance of the rows to the start.
    iterations : number of steps.
    history : start at the aggregate of the last round, as in the paper, instead of at the coordinate-wise median.

    References
    ----------
    Karimireddy et al., Learning from history for Byzantine robust optimization, 2021.

    Examples
    --------
    >>> CentredClipping(radius=1.0, iterations=1)(np.array([[0.0], [0.0], [1.0], [1e9]]))
    array([0.625])
    """

    takes_shards = True

    radius: float | None = None
    iterations: int = 10
    history: bool = False

    def __post_init__(self) -> None:
        if self.radius is not None and not 0 < self.radius < np.inf:
            raise ValueError(f"radius must be a positive number, got {self.radius}")
        if self.iterations < 0:
            raise ValueError(f"iterations must be at least 0, got {self.iterations}")

    @property
    def has_memory(self) -> bool:
        return self.history

    def aggregate(self, updates: Array) -> Array:
        return self._clipped(updates, None)

    def update(self, memory: Array | None, updates: Array, weights: Floats | None = None) -> tuple[Array, Array | None]:
        if memory is None or not self.history:
            found = super().update(None, updates, weights)[0]
        else:
            self._checked(weights, check_rows(updates))
            found = self._clipped(updates, memory)
        return found, found if self.history else None

    def _clipped(self, updates: Array, memory: Array | None) -> Array:
        rows, updates = int(updates.shape[0]), as_real(updates)
        products, start = around_median(updates) if memory is None else around_point(updates, memory)
        products = in_numpy(products)
        away = np.sqrt(np.maximum(products.squares, 0.0))
        tau = float(np.median(away)) if self.radius is None else self.radius
        if tau == 0 or not np.isfinite(tau):
            return start
        # very far rows are shortened first, against overflow; the iteration clips them all the same
        factors = _clip_factors(away, FARTHEST * max(tau, float(np.median(away))))
        known = np.flatnonzero(factors)
        products = products.among(known).scaled(factors[known])
        weights = np.zeros(len(known))
        for _ in range(self.iterations):
            towards = products.times(weights)
            squares = products.squares - 2 * towards + weights @ towards
            clip = np.minimum(1.0, tau / np.sqrt(np.maximum(squares, 1e-300)))
            weights = weights * (1 - clip.sum() / rows) + clip / rows
        shares = weights * factors[known]
        return combination(updates if len(known) == rows else updates[known], start, shares=shares).columns


@dataclass(frozen=True)
class GeometricMedian(Aggregator):
    """The point with the smallest sum of Euclidean distances to the rows, by Weiszfeld's iteration in float64.

    It starts at the coordinate-wise median, which a minority cannot move far. Every iterate is a combination of the
    start and the rows, so the iteration needs only their inner products.

    Parameters
    ----------
    iterations : the maximal number of steps.
    tolerance : a fraction of the median distance: the smallest distance that a step divides by, and the length of a
        step at which the iteration ends.

    References
    ----------
    Pillutla et al., Robust aggregation for federated learning, 2022.

    Examples
    --------
    >>> GeometricMedian()(np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 9.0]])).round(6).tolist()
    [0.0, 0.0]
    """

    takes_shards = True

    iterations: int = 100
    tolerance: float = 1e-8

    def aggregate(self, updates: Array) -> Array:
        updates = as_real(updates)
        if is_torch_array(updates) and not on_gpu(updates):  # so that the result has the same bits as with NumPy
            return like(self.aggregate(as_numpy(updates)), updates)
        products, start = around_median(updates)
        products = in_numpy(products)
        known = np.flatnonzero(np.isfinite(products.squares))  # a row at an infinite distance has weight 0
        products = products.among(known)
        squares = products.squares
        distances = np.sqrt(squares)
        floor = self.tolerance * float(np.median(distances)) if len(known) else 0.0
        if floor == 0:  # at least half of the rows are equal: they are the geometric median
            return start
        shares = np.zeros(len(known))
        for _ in range(self.iterations):
            weights = 1.0 / np.maximum(distances, floor)
            moves, shares = -shares, weights / weights.sum()
            moves += shares
            towards = products.times(shares)
            distances = np.sqrt(np.maximum(squares - 2 * towards + shares @ towards, 0.0))
            length = np.sqrt(max(0.0, float(moves @ products.times(moves))))
            if length <= self.tolerance * float(np.median(distances)):
                break
        return affine_combination(updates if len(known) == len(updates) else updates[known], start, shares)


@by_columns
def around_median(updates: Array) -> Result:
    """The products of the rows around their coordinate-wise median, and the median."""
    centre = median(updates)
    return Result(around(updates, centre), centre)


@by_columns
def around_point(updates: Array, point: Array) -> Result:
    """The products of the rows around a point, and the point."""
    return Result(around(updates, point), point)


@by_columns
def combination(updates: Array, start: Array, shares: Floats) -> Result:
    """start + Σ_i share_i (x_i − start), in the rows' dtype."""
    return Result(None, start * (1 - float(shares.sum())) + (like(shares[None, :], updates) @ updates)[0])


@by_columns
def _affine_combination(updates: Array, centre: Array, shares: Floats) -> Result:
    parts = [like(shares[None, :], block) @ block for block in centred_blocks(updates, centre)]
    xp = namespace(updates)
    away = xp.concat(parts, axis=1)[0]
    return Result(None, xp.astype(xp.astype(centre, away.dtype) + away, updates.dtype))


def affine_combination(updates: Array | Sharded, centre: Array, shares: Floats) -> Array:
    """centre + Σ_i share_i (x_i − centre), in float64."""
    return _affine_combination(updates, centre, shares=shares).columns


def clip_factors(updates: Array, centre: Array, farthest: float = FARTHEST) -> tuple[Ints, Floats]:
    """The indices of the rows at a finite distance from the centre, and per row the factor that clips this distance.

    Distances are clipped to `farthest` typical distances.
    """
    factors = clipping(_squared_distances_to(updates, centre), farthest)
    return np.flatnonzero(factors), factors


def clipping(squares: Floats, farthest: float = FARTHEST) -> Floats:
    """(rows,): from squared distances the factors of `clip_factors`; 0 for a row at a distance that is not finite."""
    away = np.sqrt(np.maximum(squares, 0.0))
    return _clip_factors(away, farthest * max(typical_distance(away), 1e-300))


def _clip_factors(distances: Floats, longest: float) -> Floats:
    """(rows,): min(1, longest/distance); 0 for a row whose distance overflows float64."""
    if not np.isfinite(longest):
        longest = float(np.finfo(np.float64).max)
    return np.where(np.isfinite(distances), longest / np.maximum(distances, longest), 0.0)


def _squared_distances_to(updates: Array, point: Array) -> Floats:
    """(rows,) float64: ‖x_i − point‖²."""
    total = np.zeros(updates.shape[0])
    with np.errstate(over="ignore"):
        for block in centred_blocks(updates, point):
            total += as_numpy(namespace(updates).sum(block**2, axis=1))
    return total
