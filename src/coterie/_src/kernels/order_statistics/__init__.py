"""The mean of the order statistics between two ranks, per column: the mean, the median and the trimmed mean.

On a CPU by pruned sorting networks on blocks of columns (`numba`), on an NVIDIA GPU by generated CUDA (`cuda`), on any
other device by sorting; the `reference` uses NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from array_api_compat import is_numpy_array, is_torch_array
from numpy.typing import NDArray

from coterie._src.arrays import Array, Ints, as_numpy, like, namespace
from coterie._src.kernels.dispatch import Kernel
from coterie._src.kernels.order_statistics import cuda, reference

SORTED = 1 << 26
"""The number of values sorted at a time on a device without a kernel; sorting needs several times their memory."""
NETWORK_ROWS = 2048
"""Up to this many rows a sorting network is faster; beyond, each column is sorted by itself."""
FEW_VALUES = 1 << 16
"""For fewer float64 values the kernel is not compiled again: updates are float32 by default."""


def _worth(rows: NDArray[Any], members: Ints, counts: Sequence[int], *_: Any) -> bool:
    return rows.dtype == np.float32 or len(members) * rows.shape[1] >= FEW_VALUES


_means_between_ranks = Kernel(reference.means_between_ranks, "order_statistics.numba:means_between_ranks", _worth)


def means_between_ranks(
    rows: NDArray[Any], members: Ints, counts: Sequence[int], ranks: Sequence[tuple[int, int]]
) -> NDArray[Any]:
    """(groups, d): `mean_between_ranks` of every group of rows of a float32 or float64 array; 0 for an empty group.

    members: row numbers, group by group. counts, ranks: of each group its size and its two ranks [low, high).
    """
    out = np.zeros((len(counts), rows.shape[1]), dtype=rows.dtype)
    many = max(counts, default=0) > NETWORK_ROWS
    compute = reference.means_between_ranks if many else _means_between_ranks
    compute(rows, members, counts, ranks, out)
    return out


def mean_between_ranks(rows: Array, low: int, high: int, members: Ints | None = None) -> Array:
    """(rows, d) -> (d,): per column, the mean of the sorted values with rank low ≤ rank < high.

    The result has the array type, dtype and device of the rows (float64 for integers). A column with a NaN gives NaN.
    Sums are in float64. members: the indices of the rows to use; on a CPU they are not copied.

    >>> mean_between_ranks(np.array([[3.0], [1.0], [100.0]]), 1, 2)
    array([3.])
    """
    count = rows.shape[0] if members is None else len(members)
    if not 0 <= low < high <= count:
        raise ValueError(f"ranks must satisfy 0 <= low < high <= rows, got [{low}, {high}) of {count} rows")
    if members is not None and not 0 <= members.min() <= members.max() < rows.shape[0]:
        raise ValueError(f"members must be rows from 0 to {rows.shape[0] - 1}")
    xp = namespace(rows)
    if xp.isdtype(rows.dtype, "complex floating"):
        raise ValueError(f"updates must be real numbers, got {rows.dtype}")
    if not xp.isdtype(rows.dtype, "real floating"):
        rows = xp.astype(rows, xp.float64)
    if is_numpy_array(rows) or (is_torch_array(rows) and rows.device.type == "cpu"):
        chosen = np.arange(count) if members is None else members
        return like(means_between_ranks(native(rows), chosen, [count], [(low, high)])[0], rows)
    if members is not None:
        rows = rows[members]
    if is_torch_array(rows) and cuda.serves(rows):
        return cuda.mean_between_ranks(rows, low, high)
    width = max(1, SORTED // rows.shape[0])
    parts = [_by_sorting(rows[:, i : i + width], low, high) for i in range(0, rows.shape[1], width)]
    return parts[0] if len(parts) == 1 else xp.concat(parts)


def _by_sorting(rows: Array, low: int, high: int) -> Array:
    xp = namespace(rows)
    ranked = xp.sort(rows, axis=0)[low:high, :]  # NaN sorts last
    first = xp.astype(ranked[0, :], xp.float64)
    result = xp.astype(first + xp.mean(xp.astype(ranked, xp.float64) - first, axis=0), rows.dtype)
    return xp.where(xp.any(xp.isnan(rows), axis=0), float("nan") * result, result)


def native(rows: Array) -> NDArray[Any]:
    """The rows as float32 or float64 (what the kernel is compiled for), copied only if necessary."""
    if is_torch_array(rows) and rows.element_size() < 4:
        rows = rows.float()
    values = as_numpy(rows)
    if values.dtype in (np.float32, np.float64) and values.dtype.isnative:
        return values
    return values.astype(np.float32 if values.dtype == np.float16 else np.float64)
