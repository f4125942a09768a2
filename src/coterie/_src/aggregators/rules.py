"""Aggregation rules: (rows, d) -> (d,), and the per-cluster form."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie._src.arrays import Array, Floats, Ints, as_numpy, compiled, is_plain, namespace
from coterie._src.kernels.order_statistics import Groups, mean_between_ranks, mean_of_groups, mean_of_members
from coterie._src.kernels.order_statistics.machine_code import FEWEST_VALUES

Aggregator = Callable[[Array], Array]
"""From the (rows, d) updates of one cluster to one (d,) update; options are bound with functools.partial."""


def check_rows(updates: Array, least: int = 1) -> int:
    """The number of rows of a (rows, d) table, or the reason why it is none."""
    if updates.ndim != 2:
        raise ValueError(f"updates must have two axes (rows, d), got shape {tuple(updates.shape)}")
    if updates.shape[0] < least:
        raise ValueError("updates must hold at least one row")
    return int(updates.shape[0])


def trim_count(rows: int, trim: float) -> int:
    """⌊β·rows⌋, guarded against 0.29·100 = 28.999…: what `trimmed_mean` removes at each end.

    >>> trim_count(100, 0.29)
    29
    """
    if not 0 <= trim < 0.5:
        raise ValueError(f"trim must be in [0, 0.5), got {trim}")
    return min(math.floor(trim * rows + 1e-9), (rows - 1) // 2)


def mean(updates: Array) -> Array:
    """The mean of the rows: IFCA's aggregator, and not robust; one client moves it anywhere.

    >>> mean(np.array([[1.0], [3.0]]))
    array([2.])
    """
    return mean_between_ranks(updates, 0, check_rows(updates))


def mean_over(updates: Array, clients: int) -> Array:
    """The sum of the rows over a given number of clients, (1/m) Σ: what the paper's published IFCA baseline does.

    A cluster of c of the m clients so takes c/m of its step; with `mean` it takes all of it.

    >>> mean_over(np.array([[1.0], [3.0]]), clients=4)
    array([1.])
    """
    return mean(updates) * (check_rows(updates) / clients)


def median(updates: Array) -> Array:
    """The coordinate-wise median (Definition 1, Option I); an even number of rows averages the middle two.

    Stays within the honest rows' range in every coordinate while fewer than half of the rows are Byzantine.
    Reference: Yin et al., Byzantine-robust distributed learning, 2018.

    >>> median(np.array([[1.0], [2.0], [99.0]]))
    array([2.])
    """
    rows = check_rows(updates)
    return mean_between_ranks(updates, (rows - 1) // 2, rows // 2 + 1)


def trimmed_mean(updates: Array, trim: float) -> Array:
    """The coordinate-wise β-trimmed mean (Definition 2, Option II), β = `trim` in [0, ½).

    Per column the ⌊β·rows⌋ smallest and largest values go; the mean is over what is left. Stays within the
    honest rows' range in every coordinate while at most ⌊β·rows⌋ rows are Byzantine.
    Reference: Yin et al., Byzantine-robust distributed learning, 2018.

    >>> trimmed_mean(np.array([[1.0], [2.0], [4.0], [99.0]]), trim=0.25)
    array([3.])
    """
    rows = check_rows(updates)
    cut = trim_count(rows, trim)
    return mean_between_ranks(updates, cut, rows - cut)


class RankRule(NamedTuple):
    """A rule that is the mean of the order statistics between two ranks.

    trim: β, or None for the median. over: the number of clients to divide the sum by; None: the rows themselves.
    """

    trim: float | None
    over: int | None = None

    def of(self, rows: int) -> tuple[int, int]:
        """The ranks [low, high) among `rows` rows."""
        if self.trim is None:
            return (rows - 1) // 2, rows // 2 + 1
        cut = trim_count(rows, self.trim)
        return cut, rows - cut


def rank_rule(rule: Aggregator) -> RankRule | None:
    """What a rule is in terms of ranks; None if it is not of that kind."""
    if rule is mean:
        return RankRule(0.0)
    if rule is median:
        return RankRule(None)
    if isinstance(rule, partial) and not rule.args:
        if rule.func is trimmed_mean:
            return RankRule(rule.keywords["trim"])
        if rule.func is mean_over:
            return RankRule(0.0, rule.keywords["clients"])
    return None


def per_cluster(
    aggregate: Aggregator, updates: Array, labels: Ints, clusters: int, weights: Floats | None = None
) -> tuple[Array, Ints]:
    """One aggregate per cluster: (rows, d) and labels (rows,) in [0, clusters) -> (clusters, d) and counts (clusters,).

    An empty cluster gets zeros, and a count of 0 to tell. weights: (rows,), for a rule that takes them.

    >>> per_cluster(mean, np.array([[1.0], [3.0], [5.0]]), np.array([0, 0, 2]), 3)[0].tolist()
    [[2.0], [0.0], [5.0]]
    """
    rows, labels = check_rows(updates, least=0), np.asarray(labels)
    order, counts = np.empty(rows, dtype=np.int64), np.zeros(clusters, dtype=np.int64)
    whole = labels.shape == (rows,) and (labels.dtype.kind in "iub" or not rows)
    if not whole or not _grouped(labels.astype(np.int64, order="C", copy=False), order, counts):
        raise ValueError(f"labels must be {rows} whole numbers in [0, {clusters}), one per row")
    ranks = rank_rule(aggregate)
    if ranks is not None and is_plain(updates):
        return _means_between_ranks(ranks, updates, order, counts), counts
    xp, ends = namespace(updates), np.cumsum(counts)
    nothing = xp.sum(updates[:0, :], axis=0, dtype=updates.dtype)  # (d,) zeros on the same device
    rule: Callable[..., Array] = aggregate
    found = []
    for count, end in zip(counts, ends, strict=True):
        members = order[end - count : end]
        options = {} if weights is None else {"weights": weights[members]}
        found.append(rule(updates[members], **options) if count else nothing)
    return xp.stack(found), counts


@compiled
def _grouped(labels: Ints, order: Ints, counts: Ints) -> bool:
    """order: the rows, (rows,), cluster by cluster; counts: of each, (clusters,). False: a label is none of them."""
    for i in range(len(labels)):
        if labels[i] < 0 or labels[i] >= len(counts):
            return False
        counts[labels[i]] += 1
    places = np.cumsum(counts) - counts
    for i in range(len(labels)):
        order[places[labels[i]]] = i
        places[labels[i]] += 1
    return True


@lru_cache(maxsize=64)
def _groups_of(ranks: RankRule, counts: tuple[int, ...]) -> Groups:
    return Groups.of(counts, [ranks.of(count) if count else (0, 1) for count in counts])


def _means_between_ranks(ranks: RankRule, updates: NDArray[Any], order: Ints, counts: Ints) -> NDArray[Any]:
    """(clusters, d): as `per_cluster`, by one call where no cluster is worth threads or a program of its own."""
    table = np.zeros((len(counts), updates.shape[1]), dtype=updates.dtype)
    sizes = counts.tolist()
    if sizes and max(sizes) * updates.shape[1] < FEWEST_VALUES:
        mean_of_groups(updates, order, _groups_of(ranks, tuple(sizes)), table)
    else:
        for cluster, (count, end) in enumerate(zip(sizes, np.cumsum(counts).tolist(), strict=True)):
            if count:
                mean_of_members(updates, order[end - count : end], *ranks.of(count), table[cluster])
    if ranks.over is not None:
        table *= (counts / ranks.over).astype(table.dtype)[:, None]
    return table


def trimmed_share(updates: Array, labels: Ints, trim: float) -> Floats:
    """(rows,): the fraction of a row's coordinates among the ⌊β·count⌋ smallest or largest of its cluster.

    For the trimmed mean exactly what it discards (ties at the border count as kept); for other rules a
    measure of how far out a client stands.
    """
    values = as_numpy(updates)
    shares = np.zeros(len(labels))
    for cluster in np.unique(labels):
        members = np.flatnonzero(labels == cluster)
        cut = trim_count(len(members), trim)
        if cut == 0:
            continue
        rows = values[members]
        low = mean_between_ranks(rows, cut, cut + 1)
        high = mean_between_ranks(rows, len(members) - cut - 1, len(members) - cut)
        shares[members] = ((rows < low) | (rows > high)).mean(axis=1)
    return shares
