"""Transformations of the rows before a rule that reduce the variance of the honest rows."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.random import Generator

from coterie._src.aggregators.base import Aggregator, as_aggregator, check_fraction, check_rows, trim_count
from coterie._src.aggregators.columns import Sharded, transformed
from coterie._src.aggregators.coordinatewise import mean, median
from coterie._src.aggregators.distance import as_real, squared_distances
from coterie._src.arrays import Array, Floats, Ints, like, namespace

MIXED_COLUMNS = 1 << 13
"""Columns of one matrix product."""


@dataclass(frozen=True)
class Preaggregation(Aggregator):
    """A rule applied to transformed rows; its memory is that of the rule."""

    rule: Aggregator

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", as_aggregator(self.rule))

    @property
    def has_memory(self) -> bool:
        return self.rule.has_memory

    @property
    def takes_shards(self) -> bool:
        return self.rule.takes_shards

    @abstractmethod
    def prepare(self, updates: Array) -> Array:
        """(rows, d) -> (transformed rows, d)."""

    def aggregate(self, updates: Array) -> Array:
        return self.rule(self.prepare(updates))

    def update(self, memory: Array | None, updates: Array, weights: Floats | None = None) -> tuple[Array, Array | None]:
        self._checked(weights, check_rows(updates))
        return self.rule.update(memory, self.prepare(updates))


@dataclass(frozen=True)
class NearestNeighbourMixing(Preaggregation):
    """A rule on mixed rows: every row becomes the mean of its rows − f nearest, itself included.

    f = ⌊byzantine_fraction·rows⌋. Mixing reduces the variance of the honest rows, and with it the error of the rule.

    Parameters
    ----------
    rule : what aggregates the mixed rows.
    byzantine_fraction : in [0, ½), of the rows.

    References
    ----------
    Allouah et al., Fixing by mixing, 2023.

    Examples
    --------
    >>> NearestNeighbourMixing(median, 0.25)(np.array([[0.0], [1.0], [2.0], [90.0]]))
    array([1.])
    """

    byzantine_fraction: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction("byzantine_fraction", self.byzantine_fraction)

    def prepare(self, updates: Array) -> Array:
        return mixed(updates, self.byzantine_fraction)


def mixed(updates: Array | Sharded, byzantine_fraction: float) -> Array | Sharded:
    """(rows, d) -> (rows, d): the rows after nearest-neighbour mixing."""
    rows, updates = int(updates.shape[0]), as_real(updates)
    between = squared_distances(updates)
    far = not bool(np.isfinite(between).all())
    np.fill_diagonal(between, -1.0)
    neighbours = np.argsort(between, axis=1, kind="stable")[:, : rows - trim_count(rows, byzantine_fraction)]
    shares = np.zeros((rows, rows))
    np.put_along_axis(shares, neighbours, 1 / neighbours.shape[1], axis=1)
    return transformed(updates, partial(_mixtures, shares, far), rows)


def _mixtures(shares: Floats, far: bool, updates: Array) -> Array:
    """(rows, d) -> (rows, d): Σ_j share_ij x_j. far: whether two rows may be too far apart for a number."""
    xp = namespace(updates)
    tame = not far and xp.finfo(updates.dtype).bits >= 32
    weights, middle, mixtures = like(shares, updates), median(updates), xp.empty_like(updates)
    for start in range(0, updates.shape[1], MIXED_COLUMNS):
        columns = slice(start, start + MIXED_COLUMNS)
        centre = middle[columns]
        around = updates[:, columns] - centre  # the median, so that nothing cancels
        if not tame:  # a value that is not finite counts as the median
            around = xp.where(xp.isfinite(around), around, 0.0 * centre)
        mixtures[:, columns] = weights @ around + centre
    return mixtures


@dataclass(frozen=True)
class Bucketing(Preaggregation):
    """A rule on the means of random buckets of rows: fewer rows of lower variance, of which more are contaminated.

    Parameters
    ----------
    rule : what aggregates the means.
    size : rows of a bucket; the contaminated share of the means is up to `size` times that of the rows.
    rng : draws the buckets.

    References
    ----------
    Karimireddy et al., Byzantine-robust learning on heterogeneous datasets via bucketing, 2022.

    Examples
    --------
    >>> Bucketing(median, 3, np.random.default_rng(0))(np.array([[1.0], [1.0], [3.0]])).round(6)
    array([1.666667])
    """

    size: int
    rng: Generator = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size < 1:
            raise ValueError(f"size must be at least 1, got {self.size}")

    def prepare(self, updates: Array) -> Array:
        rows = int(updates.shape[0])
        order = self.rng.permutation(rows)
        buckets = [order[i : i + self.size] for i in range(0, rows, self.size)]
        return transformed(updates, partial(_bucket_means, buckets), len(buckets))


def _bucket_means(buckets: list[Ints], updates: Array) -> Array:
    return namespace(updates).stack([mean(updates[bucket]) for bucket in buckets])
