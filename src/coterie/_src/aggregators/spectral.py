"""The spectral filter: the mean of the rows that do not pull together.

A lie moves a mean only if the liars agree on a direction, and then the rows vary along it more than chance allows. How
much chance allows is known: for c rows of noise the largest eigenvalue of their products follows the Tracy–Widom law
(Johnstone, On the distribution of the largest eigenvalue in principal components analysis, 2001), with a scale that the
rows themselves tell. So there is no variance bound to be given, and where nobody lies nothing is lost. Everything
happens on the products of the rows around the median (`products`), whatever the dimension; on a GPU, if many are there.

In the line of Diakonikolas et al., Robust estimators in high dimensions without the computational intractability, 2016,
and Zhu, Wang, Pang, Wang, Jiao, Song and Jordan, Byzantine-robust federated learning with optimal statistical rates,
2023, which need the variance or stop elsewhere. Zhu et al. have two forms, and so has `SpectralFilter`: rows go, or (no
regret) they lose weight, as experts do who were wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from array_api_compat import is_numpy_array

from coterie._src.aggregators.base import Aggregator, ceil_count, check_fraction
from coterie._src.aggregators.coordinatewise import median
from coterie._src.aggregators.distance import moved, reachable
from coterie._src.aggregators.products import Products, around, averages, in_numpy, typical_distance
from coterie._src.arrays import Array, Floats, Ints, as_numpy, namespace, on_gpu

TRACY_WIDOM = 3.27
"""The largest eigenvalue of pure noise lies beyond this with probability 0.001; of few rows a little more often, since
its scale is judged without the leading direction. A false alarm costs a row or two."""
MEDIAN_CHI_SQUARED = 0.4549
"""The median of the square of a standard normal variable."""
FEWEST = 8
"""Rows, and columns, from which on a spectrum says something."""
MANY = 512
"""Rows from which on as many go at a time as have gone before, and a GPU is worth its while."""
FAR = 3.0
"""Typical distances from the median beyond which a row is no honest one. Of Gaussian noise in 8 dimensions, the fewest
that are looked at, 999 of 1000 rows lie within 1.9; in more, within less."""
NOTHING = 1e-12
"""A share of the rows' squares that is rounding: of what is left then no direction is judged."""
TURNS = 100
"""At most so often weights are turned down; half a weight at a time, the farthest lie is gone after some thirty."""


@dataclass(frozen=True)
class SpectralFilter(Aggregator):
    """The mean of the rows, without up to `max_byzantine` of them that stand out together.

    While the largest eigenvalue of the covariance is more than noise could have, the rows fall into two sides along
    its direction, and the outermost of the smaller side is removed. Copies (see `products.copies`) count as one row,
    their mean, since honest rows have noise of their own. Rows that lie farther than 3 typical distances from the
    median are removed first. With fewer than 8 rows or columns a spectrum says nothing, and the median is taken.

    For f of c rows that lie about a mean in R^d, the error that is left is of the order of √(f/c)·(d/c)^¼ noise
    standard deviations where d > c, since a smaller shift cannot be seen; it does not grow like √d, as the median's.

    Parameters
    ----------
    max_byzantine : bound on the Byzantine rows: a count (int), or a fraction of the rows (float); never half of them.
    form : "removal", or "no-regret", which removes no row for its direction. While the eigenvalue is too large, w_i
        shrinks by w_i·τ_i/(2 max τ), with τ_i a row's squared position along the direction, and all are brought back
        to Σ w = 1, w_i ≤ 1/(c − max_byzantine) for c rows, by the smallest change in relative entropy.

    Examples
    --------
    >>> rows = np.random.default_rng(0).standard_normal((30, 20))
    >>> found = SpectralFilter(max_byzantine=10)(np.concatenate([rows, 9 + np.zeros((10, 20))]))
    >>> np.allclose(found, rows.mean(axis=0))
    True
    """

    takes_weights: ClassVar[bool] = True

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
        return self._weighed(updates, None)

    def _weighed(self, updates: Array, weights: Floats | None) -> Array:
        """Weights: the noise of a row is taken to shrink with the root of its weight."""
        rows, centre = int(updates.shape[0]), median(updates)
        bound = ceil_count(self.max_byzantine, rows) if isinstance(self.max_byzantine, float) else self.max_byzantine
        if min(rows, updates.shape[1]) < FEWEST:
            return centre
        given = np.ones(rows) if weights is None else weights
        counts = given / given.max()
        known, pull = reachable(updates, centre)
        if len(known) == 0:
            return centre
        products = around(updates[known], centre, pull[known])
        if not on_gpu(updates) or len(known) < MANY:  # of fewer rows a CPU is as fast, and leaves the GPU to others
            products = in_numpy(products)
        near = _near(products.squares, counts[known], bound, rows - len(known))
        if len(near) == 0:
            return centre
        if len(near) < len(known):
            known, products = known[near], products.among(near)
        groups = products.copies(bound + 1)  # Byzantine rows, and the one that they copy
        merged, heavy = averages(groups), np.zeros(groups.max() + 1)
        np.maximum.at(heavy, groups, counts[known])
        if len(heavy) < len(known):
            products = products.merged(merged)
        removable = max(0, min(bound - (rows - len(known)), (len(heavy) - 1) // 2))  # less those that are out already
        if removable and len(heavy) < FEWEST:
            return median(updates[known])
        directions = min(len(heavy) - 1, updates.shape[1]) // 4
        if self.form == "removal":
            kept = _kept(products, heavy, removable, directions)
        else:
            heavy = _reweighted(products, heavy, removable, directions)
            kept = np.flatnonzero(heavy)
        shares = heavy[kept] / heavy[kept].sum() @ merged[kept] * pull[known]
        inside = np.flatnonzero(shares)
        return moved(updates[known[inside]], centre, shares[inside])


def _near(squares: Floats, counts: Floats, liars: int, gone: int) -> Ints:
    """The rows within `FAR` typical distances of the median; of those beyond it liars − gone at most are left out.

    Not for the lie that each of them is, which the spectrum would show, but for all together: where each lies in a
    direction of its own, and far, they drag the mean along, and what all others then have in common passes for noise.
    squares: (rows,) squared distances to the median. Nobody where half of the rows are one and the same, and these are
    more than liars and whom they copy: then that is the answer.
    """
    away = np.sqrt(np.maximum(squares, 0.0) * counts)
    if np.median(away) == 0 and (away == 0).sum() > liars + 1:
        return np.arange(0)
    farthest = np.argsort(-away, kind="stable")[: max(0, liars - gone)]
    return np.delete(np.arange(len(away)), farthest[away[farthest] > FAR * typical_distance(away)])


def _kept(products: Products, counts: Floats, room: int, directions: int) -> Ints:
    """The rows that stay, of which `room` at most may go; products: around any centre."""
    kept = np.arange(len(products))
    while room > 0 and len(kept) >= FEWEST:
        along = standing_out(products.among(kept).centred(counts[kept]), directions)
        if along is None:
            break
        gone = len(products) - len(kept)
        wanted = max(1 + len(kept) // 64, gone if len(products) >= MANY else 0)
        outermost = _outermost(as_numpy(along), counts[kept], min(room, wanted), room)
        if len(outermost) == 0:
            break
        kept, room = np.delete(kept, outermost), room - len(outermost)
    return kept


def _reweighted(products: Products, counts: Floats, room: int, directions: int) -> Floats:
    """(rows,): the weights that stay, as if at most `room` rows had gone; of all turns those with the least spread.

    products, counts: as in `_kept`. Zhu et al. (2023) after Hopkins, Li and Zhang, Robust and heavy-tailed mean
    estimation made simple, via regret minimization, 2020.
    """
    if room == 0:
        return counts
    most = counts.sum() / np.sort(counts)[: len(counts) - room].sum()  # the lightest of them may carry all
    keeping: Floats = np.ones(len(products))
    best, least = keeping, np.inf
    for _ in range(TURNS):
        # a weight of 1 is that of a row that is believed: the noise is judged by these
        weighed = products.centred(counts * keeping / keeping.max())
        along = standing_out(weighed, directions)
        if along is None:
            return counts * keeping
        spread = float(along @ weighed.times(along)) * keeping.max()
        if spread < least:
            best, least = keeping, spread
        places = as_numpy(along) ** 2 / np.maximum(keeping, 1e-300)
        keeping = _below(keeping * (1 - places / (2 * places.max())), most, counts)
    return counts * best


def _below(keeping: Floats, most: float, counts: Floats) -> Floats:
    """min(most, s·keeping) with the s that makes the weighted mean 1: the nearest in relative entropy.

    >>> _below(np.array([1.0, 1.0, 1.0, 0.0]), 1.5, np.ones(4)).round(6).tolist()
    [1.333333, 1.333333, 1.333333, 0.0]
    """
    order = np.argsort(-keeping, kind="stable")
    ranked, counted = keeping[order], counts[order]
    # with the first j at the bound the others share what is left; the first j for which none of them is beyond it
    left = counts.sum() - most * np.concatenate([[0.0], np.cumsum(counted)[:-1]])
    factors = left / np.maximum(np.cumsum((ranked * counted)[::-1])[::-1], 1e-300)
    fits = np.flatnonzero(factors * ranked <= most * (1 + 1e-12))
    return np.minimum(most, keeping * (factors[fits[0]] if len(fits) else 1e300))


def standing_out(products: Products, directions: int) -> Array | None:
    """(rows,): where the rows stand along the leading direction, if it or one of the next is more than noise.

    products: around the mean. Each of the leading `directions` is judged by what is left without it and those before
    it, so that one lie does not hide behind another. What noise may have falls with every direction that is taken away;
    so where the first of a run of directions lies below what is allowed after its last, all do.
    """
    if directions == 0 or not (products.squares > 0).any():
        return None
    values, vectors = products.leading(1)
    leading, nothing = vectors[:, 0], NOTHING * float(products.squares.sum())
    if values[0] > _noise_edge(_without(products, values, vectors, 1, 1), nothing):
        return leading
    values, vectors = products.leading(directions)
    left, first, run = products, 1, 1
    while first <= directions:
        last = min(first + run - 1, directions)
        after = _without(left, values, vectors, first, last)
        if values[-first] > _noise_edge(after, nothing):
            for i in range(first, last + 1):
                left = _without(left, values, vectors, i, i)
                if values[-i] > _noise_edge(left, nothing):
                    return leading
        left, first, run = after, last + 1, 2 * run
    return None


def _without(products: Products, values: Array, vectors: Array, first: int, last: int) -> Products:
    """The products without the first-largest to the last-largest direction."""
    taken = slice(-last, 1 - first or None)
    return products.without(values[taken], vectors[:, taken])


def _noise_edge(products: Products, nothing: float) -> float:
    """How large the largest eigenvalue of the products of pure noise may be, judged by robust moments.

    Rows of noise with covariance Σ have squared norms of mean tr Σ and products of variance tr Σ², as rows with
    d = (tr Σ)²/tr Σ² independent coordinates of variance tr Σ²/tr Σ have. Rows that lie suspiciously close to the
    centre (copies of one lie, of which a direction was taken away) say nothing about noise. Where all squares together
    are no more than `nothing`, there is no noise to be judged by.
    """
    squares = np.maximum(products.squares, 0.0)  # which rounding may pass
    if not squares.sum() > nothing:
        return np.inf
    speaking = np.flatnonzero(squares >= 0.5 * _median(squares))
    trace = _median(squares[speaking])
    variance = np.nan
    if len(speaking) > 1:
        variance = _median(products.squared_pairs(speaking)) / MEDIAN_CHI_SQUARED
    if not (trace > 0 and variance > 0):
        return np.inf  # nothing is left to compare with
    rows, dim = np.sqrt(len(products) - 1.0), trace / np.sqrt(variance)
    spread = (rows + dim) * (1 / rows + 1 / dim) ** (1 / 3)
    return float(variance / trace * ((rows + dim) ** 2 + TRACY_WIDOM * spread))


def _median(values: Array) -> float:
    """As `np.median`, without what that looks at first."""
    low, high = (len(values) - 1) // 2, len(values) // 2
    ranked = np.partition(values, (low, high)) if is_numpy_array(values) else namespace(values).sort(values)
    return float((ranked[low] + ranked[high]) / 2)


def _outermost(along: Floats, counts: Floats, wanted: int, room: int) -> Ints:
    """The outermost `wanted` rows, at most, of the smaller of two sides.

    The sides are those of 2-means on the line. Where both weigh the same, nothing says who lies: one of each goes, if
    there is room for both.
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
    return order[[0, -1]] if room > 1 else order[:0]
