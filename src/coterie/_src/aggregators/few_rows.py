"""Which of a few rows, or of rows with few columns, deviate from the others by more than chance explains.

The spectrum of a handful of rows tells nothing by itself: the noise has to be known. The rows of all clusters share it,
so it is estimated from all of them together (`pooled_noise`). A group A of j rows in a cluster of c is then compared
with the others. With S_A = Σ_A (x_i − μ), μ the mean of all c rows,

    gain(A) = c/(j(c − j)) · ‖S_A‖²      (for one row of noise with covariance Σ: mean tr Σ, variance 2 tr Σ²),

which is about tr Σ/r times a χ² variable with r = (tr Σ)²/tr Σ² degrees of freedom, exactly so for white noise. Of all
groups of up to b rows, one is left out if its gain is larger than `LEVEL` explains: the quantile of that variable at
1 − LEVEL/(b·C(c, j)), a bound over all groups (Bonferroni). The others are tested again.

With weights w_i, where the noise of row i has the covariance Σ/w_i, sums are weighted, and c, j are sums of weights.
This is the likelihood-ratio test for a group of outliers with a common mean (Hawkins, Identification of outliers, 1980,
chapters 5 and 8), with the covariance from trimmed squares and corrected as in Croux and Haesbroeck, Influence function
and efficiency of the minimum covariance determinant scatter matrix estimator, 1999.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import chdtrc, chdtri, gammaln

from coterie._src.aggregators.distance import clipping
from coterie._src.aggregators.products import Products, Tall, in_numpy
from coterie._src.arrays import Floats, Ints

LEVEL = 0.02
"""The probability that a group of rows of pure noise is left out of a cluster. A cluster of four then loses a quarter
of its rows in one trial of fifty, and with 0.05 an adversary would move the mean hardly less far."""
FARTHEST = 64
"""The rows, the farthest from the mean, in whose direction groups are searched; also along the principal axes."""
LEAST = 0.2
"""The least number of degrees of freedom that trimmed squares count for, as a share of those of the rows left."""


class Noise(NamedTuple):
    """The covariance Σ of the noise of a row of weight 1, as far as `not_deviating` needs it."""

    trace: float  # tr Σ
    dim: float  # (tr Σ)²/tr Σ², between 1 and the number of columns


class Coordinates(NamedTuple):
    """Rows around the median of all, as `not_deviating` needs them."""

    known: Ints  # the indices of the rows at a finite distance from the median
    rows: Floats  # (known, r): their coordinates, or others with the same inner products
    factors: Floats  # (known,): by which very far rows are clipped (`clipping`)


def coordinates_of(products: Products) -> Coordinates:
    """The coordinates of rows from their products around their median."""
    products = in_numpy(products)
    factors = clipping(products.squares)
    known = np.flatnonzero(factors)
    near = products.among(known).scaled(factors[known])
    if isinstance(near, Tall):
        return Coordinates(known, near.away, factors[known])
    values, vectors = np.linalg.eigh(near.gram)
    return Coordinates(known, vectors * np.sqrt(np.maximum(values, 0.0)), factors[known])


def pooled_noise(rows: Floats, labels: Ints, weights: Floats, columns: int, byzantine: int) -> Noise | None:
    """The noise of rows (n, r) around the weighted means of their clusters; None where these have one row each.

    The `byzantine` rows whose removal lowers the sum of squares most are left out, one after the other. Of rows of pure
    noise these are the largest of n χ² variables, which the estimate allows for. The unbiased estimate of tr Σ² from
    the covariance C of N degrees of freedom is N²/((N − 1)(N + 2))·(tr C² − (tr C)²/N) (Bai and Saranadasa, 1996).

    columns: d, of the rows before they were given other coordinates.
    """
    kept = np.ones(len(rows), dtype=np.bool_)
    clusters = [np.flatnonzero(labels == j) for j in np.unique(labels)]
    everything = sum(len(members) - 1 for members in clusters)
    reductions = np.full(len(rows), -1.0)
    for members in clusters:
        reductions[members] = _reductions(rows[members], weights[members])
    byzantine = min(byzantine, len(rows) - 1)
    for _ in range(byzantine):
        farthest = int(reductions.argmax())
        kept[farthest], reductions[farthest] = False, -1.0
        members = np.flatnonzero(kept & (labels == labels[farthest]))
        reductions[members] = _reductions(rows[members], weights[members])
    left = [members[kept[members]] for members in clusters]
    degrees = sum(max(len(members) - 1, 0) for members in left)
    if degrees == 0:
        return None
    residuals = np.concatenate([_residuals(rows[members], weights[members]) for members in left if len(members)])
    covariance = residuals.T @ residuals if rows.shape[1] <= len(residuals) else residuals @ residuals.T
    squares = float(np.trace(covariance))
    if not squares > 0:
        return None
    largest = chdtri(columns, byzantine / len(rows)) if byzantine else np.inf
    counted = max(everything - len(rows) * float(chdtrc(columns + 2, largest)), LEAST * degrees)
    dim = float(columns)
    if degrees > 1:
        spread = float((covariance**2).sum()) - squares**2 / degrees
        spread *= 1 / ((degrees - 1) * (degrees + 2))
        dim = min(max((squares / degrees) ** 2 / max(spread, 1e-300), 1.0), dim) if spread > 0 else dim
    return Noise(squares / counted, dim)


def _residuals(rows: Floats, weights: Floats) -> Floats:
    """√w_i (x_i − μ) with the weighted mean μ."""
    found: Floats = np.sqrt(weights)[:, None] * (rows - weights @ rows / weights.sum())
    return found


def _reductions(rows: Floats, weights: Floats) -> Floats:
    """(c,): by how much Σ w‖x − μ‖² falls without a row: W/(W − w_i)·w_i‖x_i − μ‖²; −1 for a row that is alone."""
    if len(rows) < 2:
        return np.full(len(rows), -1.0)
    total = weights.sum()
    found: Floats = (_residuals(rows, weights) ** 2).sum(axis=1) * total / (total - weights)
    return found


def not_deviating(rows: Floats, weights: Floats, noise: Noise, removable: int) -> Ints:
    """The indices of the rows that are kept; at most `removable`, and fewer than half, are not.

    >>> rows = np.array([[0.1, 0.3], [-0.2, 0.0], [0.1, -0.3], [9.0, 9.0]])
    >>> not_deviating(rows, np.ones(4), Noise(trace=0.1, dim=2.0), 1).tolist()
    [0, 1, 2]
    """
    kept, left = np.arange(len(rows)), min(removable, (len(rows) - 1) // 2)
    while left > 0:
        group = _most_deviating(rows[kept], weights[kept], noise, left)
        if group is None:
            break
        kept, left = np.delete(kept, group), left - len(group)
        left = min(left, (len(kept) - 1) // 2)
    return kept


def _most_deviating(rows: Floats, weights: Floats, noise: Noise, most: int) -> Ints | None:
    """The group of at most `most` rows whose gain exceeds its bound by the largest factor; None where none does.

    The groups are the outermost rows in the direction of each row, and along both sides of the principal axes.
    """
    count, total = len(rows), float(weights.sum())
    away = rows - weights @ rows / total
    along = np.argsort(-(weights * (away**2).sum(axis=1)), kind="stable")[:FARTHEST]
    axes = np.linalg.svd(np.sqrt(weights)[:, None] * away, full_matrices=False)[2]
    directions = np.concatenate([away[along], axes, -axes]) if count > FARTHEST else away
    outermost = np.argsort(-(directions @ (weights[:, None] * away).T), axis=1, kind="stable")[:, :most]
    sums = np.cumsum((weights[:, None] * away)[outermost], axis=1)  # (directions, most, r)
    inside = np.cumsum(weights[outermost], axis=1)
    gains = total / (inside * (total - inside)) * (sums**2).sum(axis=2)
    ratios = gains / gain_bounds(count, most, noise)
    best, size = np.unravel_index(int(ratios.argmax()), ratios.shape)
    return outermost[best, : size + 1] if ratios[best, size] > 1 else None


def gain_bounds(count: int, most: int, noise: Noise) -> Floats:
    """(most,): what chance explains of the gain of a group of 1, 2, …, `most` of `count` rows.

    >>> gain_bounds(4, 1, Noise(trace=5.0, dim=5.0)).round(1)  # the χ² of 5 degrees, 0.02/4
    array([16.7])
    """
    sizes = np.arange(1, most + 1)
    groups = gammaln(count + 1) - gammaln(sizes + 1) - gammaln(count - sizes + 1)
    chances = LEVEL / most * np.exp(-np.minimum(groups, 600.0))
    found: Floats = noise.trace / noise.dim * chdtri(noise.dim, chances)
    return found
