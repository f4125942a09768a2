"""The spectral filter: the mean of the rows, without rows that deviate together along one direction.

Byzantine rows move a mean only if they deviate in a common direction, and then the rows vary along that direction more
than noise does. The threshold is known: for c rows of noise the largest eigenvalue of the matrix of their inner
products follows the Tracy–Widom law (Johnstone, On the distribution of the largest eigenvalue in principal components
analysis, 2001), and its scale is estimated from the rows themselves. The filter therefore needs no variance bound, and
it removes nothing where no direction exceeds the threshold. All computations use the inner products of the rows around
their median (`products`), whatever the dimension, and run on a GPU if there are many rows.

That threshold holds for white noise. The updates of networks have noise with dozens of strong directions, common to
all honest rows, and all of these exceed it. Two signs show that the noise is not white: several directions exceed the
threshold, but no minority of the rows lies apart from the others along any of them; or the filter has removed as many
rows as may be Byzantine, and the rest still exceeds the threshold. In both cases rows have to give another reason to be
removed: along a direction beyond the threshold, a minority lies apart from the normal distribution, of any variance, of
the other rows (`displaced`). Near the threshold an eigenvector is mostly noise, and a minority does not show in the
coordinates along it; where the noise is white, the threshold alone therefore detects smaller shifts.

The filter follows Diakonikolas et al., Robust estimators in high dimensions without the computational intractability,
2016, and Zhu, Wang, Pang, Wang, Jiao, Song and Jordan, Byzantine-robust federated learning with optimal statistical
rates, 2023, which need the variance or use another stopping rule. Like Zhu et al., `SpectralFilter` has two forms: rows
are removed, or (no-regret) their weights are lowered by multiplicative updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from array_api_compat import device, is_numpy_array

from coterie._src.aggregators.base import Aggregator, ceil_count, check_fraction
from coterie._src.aggregators.coordinatewise import median
from coterie._src.aggregators.distance import affine_combination, around_median, clipping
from coterie._src.aggregators.products import Products, group_means, in_numpy, typical_distance
from coterie._src.arrays import Array, Floats, Ints, as_numpy, expit, like, namespace

TRACY_WIDOM = 3.27
"""The 0.999 quantile of the Tracy–Widom law. With few rows the largest eigenvalue of pure noise exceeds it a little
more often, since its scale is estimated without the leading direction. A false alarm removes one or two honest rows."""
MEDIAN_CHI_SQUARED = 0.4549
"""The median of the square of a standard normal variable."""
FEWEST = 8
"""The fewest rows, and columns, for which the spectrum is used."""
MANY = 512
"""From this many rows on, a step removes as many rows as all steps before it, and a GPU is used if there is one."""
FAR = 3.0
"""A row farther than this many typical distances from the median counts as Byzantine. Of Gaussian rows in 8 dimensions,
the fewest for which the spectrum is used, 999 of 1000 lie within 1.9; in more dimensions, within less."""
NEGLIGIBLE = 1e-12
"""If the remaining squares are less than this share of all squares, they are rounding errors and are not tested."""
DISPLACED = 9.2
"""The gain (see `displaced`) that chance explains along the leading direction. Of normal coordinates of 20 to 300 rows
about 1 % exceed it. The tail falls like e^(−gain/2), so that for the j-th direction a gain of 2 ln j more makes it
1/j %, and at most 15 % for 75 directions and their planes together. A false alarm removes 1 to 2 % of the rows."""
UNLIKE = 0.1
"""The gain per row that a minority needs on top of that, since honest coordinates are not exactly normal: those of
gradients of a network are skewed by 0.5 and more when few samples are still misclassified. A gamma distribution of
skewness 0.5 has a gain of 0.03 per row, of skewness 0.9 one of 0.1. So has a minority of 10 to 30 % that is displaced
by 2.8 standard deviations of the honest rows. Half of such minorities are found if they are displaced by 3 of them
(300 rows), 3.3 (100 rows), 3.7 (40 rows) or 4.5 (20 rows)."""
MINORITIES = (1 / 32, 1 / 8, 3 / 8)
"""The shares of the rows from which the search for a minority starts, on either side."""
GROUPS = 128
"""Of more rows, neighbouring coordinates are averaged, so that about so many remain. A displaced minority of 300 or of
1200 rows loses less than 4 % of its gain, chance loses more, and the search takes a third or a tenth of the time."""
FIRST_STEPS, LAST_STEPS = 10, 20
"""Steps of expectation maximisation from every start, and then from the best of them. Twice the starts
and four times the steps change the quantiles of 3000 gains, up to the 0.999 quantile, by 0.01 at most."""
SEVERAL = 3
"""If this many directions exceed the bound, and along none of them a minority is displaced, the noise is not white. A
common shift makes one direction exceed it, or two if the rows also hide it by variance in another one. Byzantine rows
that make more of them, each too weak to show as a minority, gain little: if white noise (100 rows, 10 or 30 Byzantine,
8 trials) is judged by `displaced` alone, the worst of several shifts costs the same in 1500 dimensions, at most 5 % of
the honest mean's error more in 200 dimensions, and in 20 dimensions 1.2 times that error instead of 1.1 with 10
Byzantine rows, 2.0 times instead of 1.5 with 30."""
NARROW = 1e-3
"""The least variance within the two groups, as a share of the whole; it keeps the likelihood finite."""
MAX_REWEIGHTINGS = 100
"""Each reweighting halves the weight of the farthest row, so some thirty make that weight negligible."""


@dataclass(frozen=True)
class SpectralFilter(Aggregator):
    """The mean of the rows, without up to `max_byzantine` rows that deviate along a common direction.

    While the largest eigenvalue of the covariance exceeds the bound for noise, the rows are split into two sides along
    its eigenvector, and the outermost rows of the smaller side are removed. Copies (see `products.copies`) count as one
    row, their mean, since honest rows have independent noise. Rows farther than 3 typical distances from the median are
    removed first. With fewer than 8 rows or columns the result is the coordinate-wise median.

    If three eigenvalues exceed the bound, but no minority is displaced along their directions, or if the rows exceed
    the bound even without `max_byzantine` rows, the noise is not white. Then rows are removed only from a minority that
    is displaced along a direction, compared with a normal distribution, of any variance, of the other rows (see
    `displaced`).

    With f Byzantine rows of c rows in R^d the remaining error is of the order of √(f/c)·(d/c)^¼ noise standard
    deviations where d > c, since a smaller shift cannot be detected; unlike the median's it does not grow like √d. If
    the noise is not white, f Byzantine rows within the honest spread remain: they shift the mean along a direction by
    about (f/c)·t standard deviations of the honest rows in that direction, with t from 3 (300 rows) to 4.5 (20 rows).
    A displacement that mixes with several honest directions of similar variance may be larger; the shift never exceeds
    √(f/(c − f)) standard deviations of all kept rows in its direction. Where the noise is white, Byzantine rows
    that make it look coloured gain the difference between the shifts that the two tests detect (see `SEVERAL`).

    Parameters
    ----------
    max_byzantine : bound on the Byzantine rows: a count (int), or a fraction of the rows (float); never half of them.
    form : "removal", or "no-regret", which lowers weights instead of removing rows. While the eigenvalue is too large,
        w_i shrinks by w_i·τ_i/(2 max τ), with τ_i the squared coordinate of row i along the eigenvector; then the
        weights are projected in relative entropy onto Σ w = 1, w_i ≤ 1/(c − max_byzantine) for c rows.

    Examples
    --------
    >>> rows = np.random.default_rng(0).standard_normal((30, 20))
    >>> found = SpectralFilter(max_byzantine=10)(np.concatenate([rows, 9 + np.zeros((10, 20))]))
    >>> np.allclose(found, rows.mean(axis=0))
    True
    """

    takes_weights: ClassVar[bool] = True
    takes_shards = True

    max_byzantine: int | float
    form: Literal["removal", "no-regret"] = "removal"

    def __post_init__(self) -> None:
        if self.form not in ("removal", "no-regret"):
            raise ValueError(f"form must be removal or no-regret, got {self.form!r}")
        if isinstance(self.max_byzantine, float):
            check_fraction("max_byzantine", self.max_byzantine)
        elif not self.max_byzantine >= 0:
            raise ValueError(f"max_byzantine must be a whole number of at least 0, got {self.max_byzantine}")

    def aggregate(self, updates: Array) -> Array:
        return self.aggregate_weighted(updates, np.ones(int(updates.shape[0])))

    def aggregate_weighted(self, updates: Array, weights: Floats) -> Array:
        """The weighted aggregate; the noise of a row is assumed to be proportional to 1/√weight."""
        rows, columns = updates.shape
        if min(rows, columns) < FEWEST:
            return median(updates)
        products, centre = around_median(updates)
        known, shares = self._shares(products, columns, weights)
        if shares is None:
            return centre if len(known) == rows else median(updates[known])
        used = np.flatnonzero(shares)
        return affine_combination(updates[known[used]], centre, shares[used])

    def shares(self, updates: Array, weights: Floats) -> Floats | None:
        rows, columns = updates.shape
        if min(rows, columns) < FEWEST:
            return None
        known, shares = self._shares(around_median(updates).total, columns, weights)
        if shares is None:
            return None
        found = np.zeros(rows)
        found[known] = shares / shares.sum()
        return found

    def _shares(self, products: Products, columns: int, weights: Floats) -> tuple[Ints, Floats | None]:
        """The rows at a finite distance from the centre, and how much each counts; None: the median of these rows.

        products: of the rows around their median.
        """
        rows = len(products)
        bound = ceil_count(self.max_byzantine, rows) if isinstance(self.max_byzantine, float) else self.max_byzantine
        everything, counts = np.arange(rows), weights / weights.max()
        factors = clipping(products.squares)
        known = np.flatnonzero(factors)
        if len(known) == 0:
            return everything, None
        products = in_numpy(products, fewest_on_gpu=MANY)  # for few rows a CPU is as fast
        products = products.among(known).scaled(factors[known])
        near = _within_distance(products.squares, counts[known], bound, rows - len(known))
        if len(near) == 0:
            return everything, None
        if len(near) < len(known):
            known, products = known[near], products.among(near)
        groups = products.copies(bound + 1)  # at most the Byzantine rows and the row that they copy
        means, group_counts = group_means(groups), np.zeros(groups.max() + 1)
        np.maximum.at(group_counts, groups, counts[known])
        if len(group_counts) < len(known):
            products = products.merged(means)
        removable = max(0, min(bound - (rows - len(known)), (len(group_counts) - 1) // 2))
        if removable and len(group_counts) < FEWEST:
            return known, None
        directions = min(len(group_counts) - 1, columns) // 4
        if self.form == "removal":
            kept = _kept(products, group_counts, removable, directions)
        else:
            group_counts = _reweighted(products, group_counts, removable, directions)
            kept = np.flatnonzero(group_counts)
        return known, group_counts[kept] / group_counts[kept].sum() @ means[kept] * factors[known]


def _within_distance(squares: Floats, counts: Floats, max_byzantine: int, removed: int) -> Ints:
    """The indices of the rows within `FAR` typical distances of the median.

    At most max_byzantine − removed rows are left out, the farthest ones. A single far row would show in the spectrum.
    Many far rows, each in another direction, would not: they raise the estimate of the noise, so that a common
    deviation of other rows passes for noise. The result is empty if at least half of the rows are equal and these are
    more than max_byzantine + 1; the aggregate then is the median.

    squares: (rows,), squared distances to the median. counts: (rows,), weights.
    """
    distances = np.sqrt(np.maximum(squares, 0.0) * counts)
    if np.median(distances) == 0 and (distances == 0).sum() > max_byzantine + 1:
        return np.arange(0)
    farthest = np.argsort(-distances, kind="stable")[: max(0, max_byzantine - removed)]
    too_far = farthest[distances[farthest] > FAR * typical_distance(distances)]
    return np.delete(np.arange(len(distances)), too_far)


Suspects = Callable[[Products, Floats, int, int, int], Ints | None]
"""From products around the mean, counts, the number wanted, the number removable and the number of directions to the
indices of rows to remove (empty if the choice is not clear), or None if no direction gives a reason to remove any."""


def _kept(products: Products, counts: Floats, removable: int, directions: int) -> Ints:
    """The indices of the rows that are kept; at most `removable` are not. products: around any centre."""
    kept = _kept_unless_white(products, counts, removable, directions)
    if kept is None:
        kept, white = _filtered(products, counts, removable, directions, _beyond_white_noise)
        if not white:
            kept = _filtered(products, counts, removable, directions, _displaced_rows)[0]
    return kept


def _kept_unless_white(products: Products, counts: Floats, removable: int, directions: int) -> Ints | None:
    """All rows if no direction exceeds the bound; the rows without displaced minorities if these have `SEVERAL`
    directions that do; otherwise None, since the noise may be white."""
    everything, centred = np.arange(len(products)), products.centred(counts)
    if removable == 0 or outlier_direction(centred, directions) is None:
        return everything
    if not _several(centred, directions):
        return None
    kept = _filtered(products, counts, removable, directions, _displaced_rows, centred)[0]
    left = centred if len(kept) == len(products) else products.among(kept).centred(counts[kept])
    return kept if _several(left, directions) else None


def _several(products: Products, directions: int) -> bool:
    """Whether at least `SEVERAL` directions exceed the bound for white noise. products: around the mean."""
    if directions < SEVERAL:
        return False
    values, vectors = products.leading(SEVERAL)
    negligible = NEGLIGIBLE * float(products.squares.sum())
    return bool(values[-SEVERAL] > _noise_edge(_without(products, values, vectors, 1, SEVERAL), negligible))


def _filtered(
    products: Products,
    counts: Floats,
    removable: int,
    directions: int,
    suspects: Suspects,
    centred: Products | None = None,
) -> tuple[Ints, bool]:
    """The indices of the rows that are kept, and whether the noise of these may be white.

    It is not white if `removable` rows are removed and the spectrum still exceeds the bound: then so do honest rows.
    centred: `products.centred(counts)`, whose spectrum may be known; None: computed.
    """
    kept = np.arange(len(products))
    while removable > 0 and len(kept) >= FEWEST:
        removed = len(products) - len(kept)
        wanted = max(1 + len(kept) // 64, removed if len(products) >= MANY else 0)
        if removed or centred is None:
            centred = products.among(kept).centred(counts[kept])
        found = suspects(centred, counts[kept], min(removable, wanted), removable, directions)
        if found is None:
            return kept, True
        if len(found) == 0:
            return kept, False
        kept, removable = np.delete(kept, found), removable - len(found)
    if len(kept) < FEWEST:
        return kept, True
    return kept, outlier_direction(products.among(kept).centred(counts[kept]), directions) is None


def _beyond_white_noise(
    products: Products, counts: Floats, wanted: int, removable: int, directions: int
) -> Ints | None:
    """Suspects if the noise is white: the outermost rows along the leading direction, if the spectrum has more."""
    along = outlier_direction(products, directions)
    return None if along is None else _outermost(as_numpy(along), counts, wanted, removable)


def _displaced_rows(products: Products, counts: Floats, wanted: int, removable: int, directions: int) -> Ints | None:
    """Suspects whatever the noise: the outermost rows of a minority that is displaced along one direction.

    The directions are those beyond the bound for white noise, the largest eigenvalue first. If an attack gives its
    direction about as much variance as an honest direction has, the two eigenvectors are mixtures of both; therefore
    the sum and the difference of each direction and the next one are examined with it.
    """
    values, vectors = products.leading(directions)
    xp = namespace(vectors)
    along = xp.flip(vectors, axis=1)
    after = xp.concat([along[:, 1:], 0 * along[:, :1]], axis=1)
    candidates = xp.concat([along, along + after, along - after], axis=1)
    gains, shares, sides = (each.reshape(3, -1) for each in displaced(candidates, removable))
    negligible = NEGLIGIBLE * float(products.squares.sum())
    enough = DISPLACED + UNLIKE * len(along) + 2 * np.log1p(np.arange(directions))
    for i in np.flatnonzero(gains.max(axis=0) > enough):
        if values[-1 - i] > _noise_edge(_without(products, values, vectors, 1, int(i) + 1), negligible):
            best = int(gains[:, i].argmax())
            outwards = np.argsort(-sides[best, i] * as_numpy(candidates[:, best * directions + int(i)]), kind="stable")
            return outwards[: min(wanted, max(1, round(float(shares[best, i]) * len(along))))]
    return None


def displaced(along: Array, most: int) -> tuple[Floats, Floats, Floats]:
    """Whether a minority of at most `most` rows is displaced, for coordinates of the rows along several directions.

    The gain is twice the logarithm of the ratio of two likelihoods: that of two normal groups with a common variance,
    of which one has at most `most` rows, and that of one normal group. It does not depend on the scale of the
    coordinates, which is why it needs no estimate of the honest spread.

    along: (rows, directions), on any device. Returns, each (directions,) in NumPy: the gain, the minority's share of
    the rows, and its side, −1 or 1.

    >>> line = np.linspace(-1.0, 1.0, 30)
    >>> gain, share, side = displaced(np.stack([line, np.where(line > 0.7, line + 5, line)], axis=1), 10)
    >>> (gain > DISPLACED).tolist(), round(30 * share[1]), side[1]
    ([False, True], 5, np.float64(1.0))
    """
    xp, (rows, columns) = namespace(along), along.shape
    away = (along - xp.mean(along, axis=0)).T
    away = xp.sort(away / xp.clip(xp.sqrt(xp.mean(away**2, axis=1, keepdims=True)), 1e-300, None), axis=1)
    sums = xp.cumulative_sum(away, axis=1)
    sizes = np.clip(np.rint(np.multiply(MINORITIES, rows)).astype(np.int64), 1, most)
    lowest, highest = as_numpy(sums)[:, sizes - 1] / sizes, -as_numpy(sums)[:, rows - sizes - 1] / sizes
    centres = like(np.concatenate([lowest, highest], axis=1).T, along)
    shares = 0 * centres + like(np.tile(sizes / rows, 2)[:, None], along)
    lasts = np.append(np.arange(math.ceil(rows / GROUPS) - 1, rows - 1, math.ceil(rows / GROUPS)), rows - 1)
    counts = like(np.diff(lasts, prepend=-1).astype(np.float64), along)
    if len(lasts) < rows:
        away = xp.diff(sums[:, xp.asarray(lasts, device=device(along))], prepend=0 * sums[:, :1], axis=1) / counts
    gains, shares, centres = _two_groups(away, counts, shares, centres, most / rows, FIRST_STEPS)
    best = xp.argmax(gains, axis=0), xp.arange(columns, device=device(along))
    gain, share, centre = _two_groups(away, counts, shares[best], centres[best], most / rows, LAST_STEPS)
    return as_numpy(gain), as_numpy(share), np.sign(as_numpy(centre))


def _two_groups(
    away: Array, counts: Array, share: Array, centre: Array, most: float, steps: int
) -> tuple[Array, Array, Array]:
    """Expectation maximisation for `displaced`: the gain, and the share and the centre of the minority.

    away: (directions, groups), coordinates of mean 0 and variance 1. counts: (groups,), the rows that have them.
    share, centre: (..., directions), to start from. most: the largest share.
    """
    xp, rows = namespace(away), counts.sum()

    def against(share: Array, centre: Array) -> tuple[Array, Array, Array]:
        """The logarithm of every row's odds to be of the minority; the other group's centre, and the variance."""
        other = -share * centre / (1 - share)
        variance = xp.clip(1 - share * centre**2 - (1 - share) * other**2, NARROW, None)
        slope = (centre - other) / variance
        offset = xp.log(share / (1 - share)) - slope * (centre + other) / 2
        return offset[..., None] + slope[..., None] * away, other, variance

    for _ in range(steps):
        members = expit(against(share, centre)[0]) * counts
        total = xp.sum(members, axis=-1)
        centre = xp.sum(members * away, axis=-1) / xp.clip(total, 1e-300, None)
        share = xp.clip(total / rows, 1 / float(rows), most)
    odds, other, variance = against(share, centre)
    squares = rows * (1 + other**2) / variance  # of the distances to the other group's centre
    gain = 2 * xp.logaddexp(0 * odds, odds) @ counts + rows * (2 * xp.log1p(-share) - xp.log(variance) + 1) - squares
    return gain, share, centre


def _reweighted(products: Products, counts: Floats, removable: int, directions: int) -> Floats:
    """(rows,): the counts times the weights of the no-regret form, which may remove the mass of `removable` rows.

    The iteration ends when no direction exceeds the bound for noise; if none of `MAX_REWEIGHTINGS` reaches that, the
    weights with the smallest leading eigenvalue are returned. If the noise is not white, rows are removed as in the
    other form. products, counts: as in `_kept`. Reference: Zhu et al.
    (2023) after Hopkins, Li and Zhang, Robust and heavy-tailed mean estimation made simple, via regret minimization,
    2020.
    """
    best: Floats = np.zeros(len(products))
    kept = _kept_unless_white(products, counts, removable, directions)
    if kept is not None:
        best[kept] = 1.0
        return counts * best
    upper = counts.sum() / np.sort(counts)[: len(counts) - removable].sum()  # the lightest rows may carry all the mass
    weights: Floats = np.ones(len(products))
    best, smallest = weights, np.inf
    for _ in range(MAX_REWEIGHTINGS):
        # scaled so that a fully trusted row has weight 1: the noise is estimated from such rows
        weighted = products.centred(counts * weights / weights.max())
        along = outlier_direction(weighted, directions)
        if along is None:
            return counts * weights
        eigenvalue = float(along @ weighted.times(along)) * weights.max()
        if eigenvalue < smallest:
            best, smallest = weights, eigenvalue
        scores = as_numpy(along) ** 2 / np.maximum(weights, 1e-300)
        weights = _capped(weights * (1 - scores / (2 * scores.max())), upper, counts)
    if not _filtered(products, counts, removable, directions, _beyond_white_noise)[1]:
        best = np.zeros(len(products))
        best[_filtered(products, counts, removable, directions, _displaced_rows)[0]] = 1.0
    return counts * best


def _capped(weights: Floats, upper: float, counts: Floats) -> Floats:
    """min(upper, s·weights) with the s for which the mean weighted by the counts is 1.

    This is the projection in relative entropy onto the weights of mean 1 that are at most `upper`.

    >>> _capped(np.array([1.0, 1.0, 1.0, 0.0]), 1.5, np.ones(4)).round(6).tolist()
    [1.333333, 1.333333, 1.333333, 0.0]
    """
    order = np.argsort(-weights, kind="stable")
    ranked, counted = weights[order], counts[order]
    # factors[j]: of the others if the j largest are at the bound; the first j that respects the bound is used
    left = counts.sum() - upper * np.concatenate([[0.0], np.cumsum(counted)[:-1]])
    factors = left / np.maximum(np.cumsum((ranked * counted)[::-1])[::-1], 1e-300)
    fits = np.flatnonzero(factors * ranked <= upper * (1 + 1e-12))
    return np.minimum(upper, weights * (factors[fits[0]] if len(fits) else 1e300))


def outlier_direction(products: Products, directions: int) -> Array | None:
    """(rows,): the coordinates of the rows along the leading direction; None where all tested directions are noise.

    The leading direction is returned if any of the first `directions` eigenvalues exceeds the bound for noise. The
    bound for an eigenvalue is estimated without its direction and all before it, so that one deviation does not raise
    the bound for another. The bound decreases with every direction that is removed. Directions are therefore tested in
    runs: if the first eigenvalue of a run is below the bound after its last direction, all of the run are.

    products: around the mean.
    """
    if directions == 0 or not (products.squares > 0).any():
        return None
    values, vectors = products.leading(1)
    leading, negligible = vectors[:, 0], NEGLIGIBLE * float(products.squares.sum())
    if values[0] > _noise_edge(_without(products, values, vectors, 1, 1), negligible):
        return leading
    values, vectors = products.leading(directions)
    left, first, run = products, 1, 1
    while first <= directions:
        last = min(first + run - 1, directions)
        after = _without(left, values, vectors, first, last)
        if values[-first] > _noise_edge(after, negligible):
            for i in range(first, last + 1):
                left = _without(left, values, vectors, i, i)
                if values[-i] > _noise_edge(left, negligible):
                    return leading
        left, first, run = after, last + 1, 2 * run
    return None


def _without(products: Products, values: Array, vectors: Array, first: int, last: int) -> Products:
    """The products without the directions of the first-largest to the last-largest eigenvalue."""
    removed = slice(-last, 1 - first or None)
    return products.without(values[removed], vectors[:, removed])


def _noise_edge(products: Products, negligible: float) -> float:
    """The bound on the largest eigenvalue of the products of pure noise, from robust moments of the rows.

    Rows of noise with covariance Σ have squared norms of mean tr Σ and products of variance tr Σ², like rows with
    d = (tr Σ)²/tr Σ² independent coordinates of variance tr Σ²/tr Σ. Rows much closer to the centre than the median are
    left out of the estimate: they may be copies of a forged update whose direction was removed. The bound is infinite
    where the sum of all squares is at most `negligible`.
    """
    squares = np.maximum(products.squares, 0.0)  # rounding may make them negative
    if not squares.sum() > negligible:
        return np.inf
    typical = np.flatnonzero(squares >= 0.5 * _median(squares))
    trace = _median(squares[typical])
    variance = np.nan
    if len(typical) > 1:
        variance = _median(products.squared_pairs(typical)) / MEDIAN_CHI_SQUARED
    if not (trace > 0 and variance > 0):
        return np.inf
    rows, dim = np.sqrt(len(products) - 1.0), trace / np.sqrt(variance)
    spread = (rows + dim) * (1 / rows + 1 / dim) ** (1 / 3)
    return float(variance / trace * ((rows + dim) ** 2 + TRACY_WIDOM * spread))


def _median(values: Array) -> float:
    """As `np.median`, without its checks."""
    low, high = (len(values) - 1) // 2, len(values) // 2
    ranked = np.partition(values, (low, high)) if is_numpy_array(values) else namespace(values).sort(values)
    return float((ranked[low] + ranked[high]) / 2)


def _outermost(along: Floats, counts: Floats, wanted: int, removable: int) -> Ints:
    """The indices of at most `wanted` rows: the outermost of the lighter of two sides.

    The sides are the two clusters of 2-means on the line. Where both have the same weight, one row of each is returned,
    or none if only one is removable.
    """
    order = np.argsort(along, kind="stable")
    before = np.cumsum(along[order])[:-1]
    sizes = np.arange(1, len(along))
    between = before**2 / sizes + (along.sum() - before) ** 2 / (len(along) - sizes)
    cut = int(between.argmax()) + 1
    low, high = counts[order[:cut]].sum(), counts[order[cut:]].sum()
    if low < high:
        return order[: min(wanted, cut)]
    if high < low:
        return order[max(cut, len(along) - wanted) :]
    return order[[0, -1]] if removable > 1 else order[:0]
