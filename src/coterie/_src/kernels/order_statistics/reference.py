"""Order statistics by sorting (NumPy)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def means_between_ranks(
    rows: NDArray[Any],
    members: Ints,
    counts: Sequence[int],
    ranks: Sequence[tuple[int, int]],
    out: NDArray[Any],
) -> None:
    """out[g] = per column, the mean of the values of group g with rank low_g ≤ rank < high_g.

    Parameters
    ----------
    rows : (rows, d), float32 or float64.
    members : row numbers, those of group 0 first, then those of group 1, and so on.
    counts, ranks : of each group the number of members and the two ranks; the row of a group without members is not
        written.
    out : (groups, d). A column with a NaN gives NaN; sums run in float64.
    """
    ends = np.cumsum(counts)
    for g, (count, (low, high)) in enumerate(zip(counts, ranks, strict=True)):
        if count:
            out[g] = mean_between_ranks(rows[members[ends[g] - count : ends[g]]], low, high)


def mean_between_ranks(rows: NDArray[Any], low: int, high: int) -> NDArray[Any]:
    """(rows, d) -> (d,) float64: the mean for one group.

    The values are summed around the lowest of them, so that equal rows give that row.
    """
    columns = np.ascontiguousarray(rows.T)  # NumPy sorts contiguous values several times faster
    inside = np.partition(columns, (low, high - 1), axis=1)[:, low:high].astype(np.float64)
    inside.sort(axis=1)
    first = inside[:, 0]
    with np.errstate(all="ignore"):
        result = first + (inside - first[:, None]).sum(axis=1) / (high - low)
        unusual = ~np.isfinite(result)  # infinite rows, or a spread beyond float64
        if unusual.any():
            result[unusual] = (inside[unusual] / (high - low)).sum(axis=1)
    result[np.isnan(columns).any(axis=1)] = np.nan
    return np.asarray(result)
