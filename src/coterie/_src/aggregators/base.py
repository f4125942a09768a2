"""The base class of aggregators, and the aggregation per cluster."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from coterie._src.aggregators.columns import Result, Sharded, by_columns
from coterie._src.arrays import Array, Floats, Ints, is_plain, namespace
from coterie._src.kernels.order_statistics import means_between_ranks, native
from coterie._src.kernels.replies import group_rows

ROUNDING = 1e-9
"""Tolerance for the rounding of fraction·count: 0.29·100 is 28.999…"""


def floor_count(fraction: float, rows: int) -> int:
    """⌊fraction·rows⌋, guarded against rounding.

    >>> floor_count(0.29, 100)
    29
    """
    return math.floor(fraction * rows + ROUNDING)


def ceil_count(fraction: float, rows: int) -> int:
    """⌈fraction·rows⌉, guarded against rounding."""
    return math.ceil(fraction * rows - ROUNDING)


def check_fraction(name: str, fraction: float) -> float:
    """Return the fraction, or raise a ValueError if it is not in [0, ½)."""
    if not 0 <= fraction < 0.5:
        raise ValueError(f"{name} must be in [0, 0.5), got {fraction}")
    return fraction


def trim_count(rows: int, trim: float) -> int:
    """⌊β·rows⌋, the number of rows that a trimmed mean removes at each end; fewer, if no row would be left."""
    return min(floor_count(check_fraction("trim", trim), rows), (rows - 1) // 2)


def check_rows(updates: Array, fewest: int = 1) -> int:
    """Return the number of rows of a (rows, d) array, or raise a ValueError if it is none."""
    if updates.ndim != 2:
        raise ValueError(f"updates must have two axes (rows, d), got shape {tuple(updates.shape)}")
    if updates.shape[0] < fewest:
        raise ValueError("updates must hold at least one row")
    return int(updates.shape[0])


@dataclass(frozen=True)
class Aggregator(ABC):
    """A rule from the (rows, d) updates of one cluster to one (d,) update.

    Two rules with the same options are equal, and `repr` shows the options. A new rule implements `aggregate`; a rule
    that takes weights sets `takes_weights` and implements `aggregate_weighted`, and a rule with memory returns True for
    `has_memory` and implements `update`.

    Examples
    --------
    >>> import coterie as ct
    >>> class Midrange(ct.Aggregator):
    ...     def aggregate(self, updates):
    ...         return (updates.min(axis=0) + updates.max(axis=0)) / 2
    >>> Midrange()(np.array([[1.0], [2.0], [4.0]]))
    array([2.5])
    """

    takes_weights: ClassVar[bool] = False

    @property
    def takes_shards(self) -> bool:
        """Whether it aggregates updates whose columns are not in memory at once (`columns.Sharded`)."""
        return False

    @property
    def has_memory(self) -> bool:
        """Whether `update` returns a memory for the next round."""
        return False

    def __call__(self, updates: Array, weights: Floats | None = None) -> Array:
        """(rows, d) -> (d,), of the same kind, dtype and device.

        Parameters
        ----------
        updates : NumPy array or PyTorch tensor, (rows, d).
        weights : (rows,), positive: how much every row counts. A rule without weights raises a ValueError.
        """
        return self.update(None, updates, weights)[0]

    @abstractmethod
    def aggregate(self, updates: Array) -> Array:
        """(rows, d) -> (d,), for at least one row."""

    def update(self, memory: Array | None, updates: Array, weights: Floats | None = None) -> tuple[Array, Array | None]:
        """The aggregate, and the memory for the next round, (d,), or None.

        memory: the memory of the last round; None in the first.
        """
        rows = check_rows(updates)
        checked = self._checked(weights, rows)
        return self.aggregate(updates) if checked is None else self.aggregate_weighted(updates, checked), None

    def aggregate_weighted(self, updates: Array, weights: Floats) -> Array:
        """(rows, d) and positive weights (rows,) -> (d,), for a rule that sets `takes_weights`."""
        raise NotImplementedError(f"{self} sets takes_weights and has no aggregate_weighted")

    def _checked(self, weights: Floats | None, rows: int) -> Floats | None:
        if weights is None:
            return None
        if not self.takes_weights:
            raise ValueError(f"weights: {self} cannot weigh its rows; use Mean or SpectralFilter")
        values = np.asarray(weights, dtype=np.float64)
        if values.shape != (rows,) or not ((values > 0) & np.isfinite(values)).all():
            raise ValueError(f"weights must be {rows} positive numbers, one per row")
        return values

    def shares(self, updates: Array, weights: Floats) -> Floats | None:
        """(rows,): how much every row counts if the aggregate is a mean of the rows, 0 for a row that is left out.

        None for a rule, or for rows, of which it is not. weights: (rows,), positive.
        """
        return None

    def ranks(self, rows: int) -> tuple[int, int] | None:
        """[low, high) if the rule is, per coordinate, the mean of the order statistics of these ranks; else None."""
        return None

    def factor(self, rows: int) -> float:
        """For a rule with `ranks`, the factor that their mean is multiplied by."""
        return 1.0


@dataclass(frozen=True)
class FunctionAggregator(Aggregator):
    """A function (rows, d) -> (d,) as an aggregator."""

    function: Callable[[Array], Array]

    def aggregate(self, updates: Array) -> Array:
        return self.function(updates)


def as_aggregator(rule: Aggregator | Callable[[Array], Array]) -> Aggregator:
    """Return a rule unchanged, and wrap a function as a rule."""
    return rule if isinstance(rule, Aggregator) else FunctionAggregator(rule)


class Aggregates(NamedTuple):
    """One aggregate for every cluster."""

    updates: Array  # (clusters, d), zeros for an empty cluster
    counts: Ints  # (clusters,), the number of rows of every cluster
    memory: Array | None = None  # (clusters, d), of a rule with memory; NaN for a cluster without


def per_cluster(
    rule: Aggregator | Callable[[Array], Array],
    updates: Array | Sharded,
    labels: Ints,
    clusters: int,
    weights: Floats | None = None,
    memory: Array | None = None,
) -> Aggregates:
    """One aggregate per cluster: (rows, d) updates with labels (rows,) in [0, clusters).

    Parameters
    ----------
    weights : (rows,), how much every row counts, for a rule that takes weights.
    memory : (clusters, d), the `memory` of the last round, for a rule with memory.

    >>> from coterie import Mean
    >>> per_cluster(Mean(), np.array([[1.0], [3.0], [5.0]]), np.array([0, 0, 2]), 3).updates.tolist()
    [[2.0], [0.0], [5.0]]
    """
    rule = as_aggregator(rule)
    rows, labels = check_rows(updates, fewest=0), np.asarray(labels)
    whole = labels.shape == (rows,) and (labels.dtype.kind in "iub" or not rows)
    order, counts = np.empty(rows, dtype=np.int64), np.empty(clusters, dtype=np.int64)
    if not whole or not group_rows(labels.astype(np.int64, order="C", copy=False), order, counts):
        raise ValueError(f"labels must be {rows} whole numbers in [0, {clusters}), one per row")
    weights = rule._checked(weights, rows)
    if weights is None and is_plain(updates) and rule.ranks(1) is not None:
        return Aggregates(_by_ranks(rule, updates, order, counts), counts)
    ends = np.cumsum(counts)
    if isinstance(updates, Sharded):
        xp, nothing = np, np.zeros(updates.shape[1], dtype=updates.dtype)
    else:
        xp = namespace(updates)
        nothing = xp.sum(updates[:0, :], axis=0, dtype=updates.dtype)  # (d,) zeros on the same device
    found, remembered = [], []
    for j, (count, end) in enumerate(zip(counts, ends, strict=True)):
        members = order[end - count : end]
        known = None if memory is None or bool(xp.any(xp.isnan(memory[j, :]))) else memory[j, :]
        aggregate, after = nothing, known
        if count:
            own = None if weights is None else weights[members]
            aggregate, after = rule.update(known, updates[members], own)
        found.append(aggregate)
        remembered.append(nothing * float("nan") + float("nan") if after is None else after)
    return Aggregates(xp.stack(found), counts, xp.stack(remembered) if rule.has_memory else None)


def _by_ranks(rule: Aggregator, updates: Any, order: Ints, counts: Ints) -> Any:
    """(clusters, d): the aggregates of all clusters by one kernel call."""
    sizes = counts.tolist()
    table = means_between_ranks(updates, order, sizes, [rule.ranks(size or 1) or (0, 1) for size in sizes])
    factors = [rule.factor(size) for size in sizes]
    if factors.count(1.0) < len(factors):
        table *= np.array(factors).astype(table.dtype)[:, None]
    return table


def shares_per_cluster(rule: Aggregator, rows: Floats, labels: Ints, clusters: int, weights: Floats) -> Floats | None:
    """(rows,): how much every row counts in the aggregate of its cluster; None if the rule gives no shares."""
    found = np.zeros(len(labels))
    for j in range(clusters):
        members = np.flatnonzero(labels == j)
        if len(members):
            shares = rule.shares(rows[members], weights[members])
            if shares is None:
                return None
            found[members] = shares
    return found


def trimmed_share(updates: Array | Sharded, labels: Ints, trim: float) -> Floats:
    """(rows,): the fraction of a row's coordinates among the ⌊β·count⌋ smallest or largest of its cluster.

    For the trimmed mean this is the share that it removes (ties count as kept); for other rules it measures how extreme
    an update is.
    """
    found: Floats = _extreme_coordinates(updates, labels=labels, trim=trim).total / updates.shape[1]
    return found


@by_columns
def _extreme_coordinates(updates: Array, labels: Ints, trim: float) -> Result:
    """(rows,): how many coordinates of a row `trimmed_share` counts."""
    values, clusters = native(updates), int(np.max(labels, initial=0)) + 1
    order, counts = np.empty(len(labels), dtype=np.int64), np.empty(clusters, dtype=np.int64)
    group_rows(labels, order, counts)
    sizes = counts.tolist()
    cuts = [trim_count(count, trim) if count else 0 for count in sizes]
    if not any(cuts):
        return Result(np.zeros(len(labels)), None)
    low = means_between_ranks(values, order, sizes, [(cut, cut + 1) for cut in cuts])
    ends = [count - cut if count else 1 for count, cut in zip(sizes, cuts, strict=True)]
    high = means_between_ranks(values, order, sizes, [(end - 1, end) for end in ends])
    extreme = ((values < low[labels]) | (values > high[labels])).sum(axis=1)
    return Result(np.where(np.array(cuts)[labels] > 0, extreme, 0.0), None)
