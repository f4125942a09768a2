"""Rules that treat every coordinate separately: mean, median, trimmed mean."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from coterie._src.aggregators.base import Aggregator, check_fraction, trim_count
from coterie._src.aggregators.columns import Result, Sharded, by_columns
from coterie._src.arrays import Array, Floats, Ints, cast, like, namespace
from coterie._src.kernels.order_statistics import mean_between_ranks


@by_columns
def mean_of_ranks(updates: Array, low: int, high: int, members: Ints | None = None) -> Result:
    """Per column, the mean of the order statistics [low, high) of the rows, or of some members."""
    return Result(None, mean_between_ranks(updates, low, high, members))


@by_columns
def _weighted_mean(updates: Array, shares: Floats) -> Result:
    xp = namespace(updates)
    wide = xp.astype(updates, xp.float64)
    return Result(None, cast(xp.sum(wide * like(shares[:, None], wide), axis=0), updates))


@dataclass(frozen=True)
class Coordinatewise(Aggregator):
    """A rule that is, in every coordinate, the mean of the order statistics between two ranks."""

    takes_shards = True

    def aggregate(self, updates: Array | Sharded) -> Array:
        rows = int(updates.shape[0])
        low, high = self.ranks(rows)
        found = mean_of_ranks(updates, low=low, high=high).columns
        return found if self.factor(rows) == 1 else found * self.factor(rows)

    @abstractmethod
    def ranks(self, rows: int) -> tuple[int, int]:
        """The ranks [low, high) among so many rows."""


@dataclass(frozen=True)
class Mean(Coordinatewise):
    """The mean of the rows: IFCA's aggregator. It is not robust: one client can move it anywhere.

    Parameters
    ----------
    divisor : the number that the sum is divided by; None: the number of rows. With divisor m, the number of all
        clients, the step of a cluster of c clients shrinks to c/m, as in the paper's published IFCA baseline.

    Examples
    --------
    >>> import numpy as np
    >>> Mean()(np.array([[1.0], [3.0]]))
    array([2.])
    >>> Mean()(np.array([[1.0], [3.0]]), weights=[3.0, 1.0])
    array([1.5])
    """

    takes_weights: ClassVar[bool] = True

    divisor: int | None = None

    def ranks(self, rows: int) -> tuple[int, int]:
        return 0, rows

    def factor(self, rows: int) -> float:
        return 1.0 if self.divisor is None else rows / self.divisor

    def aggregate_weighted(self, updates: Array, weights: Floats) -> Array:
        if self.divisor is not None:
            raise ValueError(f"weights: {self} divides by a number of clients; use Mean()")
        return _weighted_mean(updates, shares=weights / weights.sum()).columns


@dataclass(frozen=True)
class Median(Coordinatewise):
    """The coordinate-wise median (Definition 1, Option I); an even number of rows averages the middle two.

    It stays within the range of the honest rows in every coordinate while fewer than half of the rows are Byzantine.

    References
    ----------
    Yin et al., Byzantine-robust distributed learning, 2018.

    Examples
    --------
    >>> import numpy as np
    >>> Median()(np.array([[1.0], [2.0], [99.0]]))
    array([2.])
    """

    def ranks(self, rows: int) -> tuple[int, int]:
        return (rows - 1) // 2, rows // 2 + 1


@dataclass(frozen=True)
class TrimmedMean(Coordinatewise):
    """The coordinate-wise β-trimmed mean (Definition 2, Option II).

    Per column the ⌊β·rows⌋ smallest and largest values are removed; the result is the mean of the rest. It stays within
    the range of the honest rows in every coordinate while at most ⌊β·rows⌋ rows are Byzantine.

    Parameters
    ----------
    trim : β in [0, ½), the fraction removed at each end.

    References
    ----------
    Yin et al., Byzantine-robust distributed learning, 2018.

    Examples
    --------
    >>> import numpy as np
    >>> TrimmedMean(0.25)(np.array([[1.0], [2.0], [4.0], [99.0]]))
    array([3.])
    """

    trim: float

    def __post_init__(self) -> None:
        check_fraction("trim", self.trim)

    def ranks(self, rows: int) -> tuple[int, int]:
        cut = trim_count(rows, self.trim)
        return cut, rows - cut


mean, median = Mean(), Median()
"""For code that needs the mean or the median of rows."""
