"""Order statistics on a CPU (Numba): sorting networks on blocks of columns, in SIMD registers.

Columns are processed in blocks of up to LANES. A comparator computes the minimum and the maximum of two rows of the
block, for all lanes at once. Most of its time is reading and writing the rows; therefore up to four consecutive
comparators on up to four rows form a group, which reads and writes each row once. Columns are independent: the result
does not depend on the number of threads. Benchmark: `python -m benchmarks cpu`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie._src.arrays import available_cores
from coterie._src.kernels.compiling import compiled
from coterie._src.kernels.order_statistics.network import BOTTOM, CROSS, PAIR, TOP, Table, fused_network
from coterie._src.kernels.threads import threads

Ints = NDArray[np.int64]

LANES = 256
"""The largest number of columns of a block."""
WHOLE = 32
"""The number of lanes of a narrow block is a multiple of this, for SIMD."""
THREAD_ELEMENTS = 1 << 19
"""The number of values from which on several threads are used."""


@compiled
def _compare(block: NDArray[Any], groups: Table) -> None:
    """Apply groups of comparators to the rows of a block, (rows, lanes).

    There is one loop without branches per kind, which the compiler turns into SIMD.
    """
    lanes = block.shape[1]
    for i in range(groups.shape[0]):
        kind = groups[i, 0]
        a, b, c, d = block[groups[i, 1]], block[groups[i, 2]], block[groups[i, 3]], block[groups[i, 4]]
        if kind == PAIR:
            for lane in range(lanes):
                x, y = a[lane], b[lane]
                a[lane] = x if x < y else y
                b[lane] = y if x < y else x
        elif kind == TOP:
            for lane in range(lanes):
                x, y, z = a[lane], b[lane], c[lane]
                large = y if x < y else x
                a[lane] = x if x < y else y
                b[lane] = large if large < z else z
                c[lane] = z if large < z else large
        elif kind == BOTTOM:
            for lane in range(lanes):
                x, y, z = a[lane], b[lane], c[lane]
                small = x if x < y else y
                a[lane] = small if small < z else z
                b[lane] = y if x < y else x
                c[lane] = z if small < z else small
        elif kind == CROSS:
            for lane in range(lanes):
                x, y, z, w = a[lane], b[lane], c[lane], d[lane]
                large, small = y if x < y else x, z if z < w else w
                a[lane] = x if x < y else y
                b[lane] = large if large < small else small
                c[lane] = small if large < small else large
                d[lane] = w if z < w else z
        else:
            for lane in range(lanes):
                x, y, z, w = a[lane], b[lane], c[lane], d[lane]
                small, large = x if x < y else y, y if x < y else x
                lowest, highest = z if z < w else w, w if z < w else z
                a[lane] = small if small < lowest else lowest
                b[lane] = large if large < highest else highest
                c[lane] = lowest if small < lowest else small
                d[lane] = highest if large < highest else large


@compiled
def _mean(block: NDArray[Any], positions: Table, total: NDArray[np.float64], out: NDArray[Any]) -> None:
    """Mean of block[positions] per lane, summed in float64 around the first row, so that equal rows give that row."""
    count, width = len(positions), out.shape[0]
    first = block[positions[0]]
    for lane in range(len(total)):
        total[lane] = 0.0
    for i in range(1, count):
        row = block[positions[i]]
        for lane in range(len(total)):
            total[lane] += np.float64(row[lane]) - np.float64(first[lane])
    unusual = 0
    for lane in range(width):
        result = np.float64(first[lane]) + total[lane] / count
        out[lane] = result
        unusual += result - result != 0.0
    if unusual:  # infinite rows, or a spread beyond float64
        for lane in range(width):
            if not np.isfinite(np.float64(first[lane]) + total[lane] / count):
                result = np.float64(0.0)
                for i in range(count):
                    result += np.float64(block[positions[i], lane]) / count
                out[lane] = result


@compiled
def _load(rows: NDArray[Any], members: Ints, start: int, stop: int, block: NDArray[Any], has_nan: NDArray[Any]) -> bool:
    """Copy the columns [start, stop) of some rows into the block; return whether some value is not finite.

    has_nan: NaN in lanes with a NaN, else 0. Rows are sliced one by one, so that the compiler knows that they are
    contiguous.
    """
    width = stop - start
    for lane in range(len(has_nan)):
        has_nan[lane] = 0
    for i in range(len(members)):
        row = rows[members[i], start:stop]
        target = block[i]
        for lane in range(width):
            value = row[lane]
            target[lane] = value
            has_nan[lane] += value - value  # 0, or NaN if the value is not finite
    suspect = 0
    for lane in range(width):
        suspect += has_nan[lane] != has_nan[lane]
    if suspect:
        for lane in range(width):
            has_nan[lane] = 0
        for i in range(len(members)):
            for lane in range(width):
                if np.isnan(block[i, lane]):
                    has_nan[lane] = np.nan
    return suspect > 0


@compiled
def _groups(
    rows: NDArray[Any],
    members: Ints,
    counts: Ints,
    comparators: Table,
    comparators_end: Ints,
    positions: Table,
    positions_end: Ints,
    first_column: int,
    last_column: int,
    out: NDArray[Any],
) -> None:
    """out[g, c] = mean of the rows at the positions of group g after its comparators, for a range of columns."""
    lanes = min(LANES, max(1, -(-(last_column - first_column) // WHOLE)) * WHOLE)
    has_nan, total = np.zeros(lanes, dtype=rows.dtype), np.zeros(lanes, dtype=np.float64)
    first, comparator, position = 0, 0, 0
    for g in range(len(counts)):
        count = counts[g]
        if count:
            block = np.zeros((count, lanes), dtype=rows.dtype)
            own = members[first : first + count]
            for start in range(first_column, last_column, lanes):
                stop = min(start + lanes, last_column)
                suspect = _load(rows, own, start, stop, block, has_nan)
                _compare(block, comparators[comparator : comparators_end[g]])
                part = out[g, start:stop]
                _mean(block, positions[position : positions_end[g]], total, part)
                if suspect:
                    for lane in range(stop - start):
                        if np.isnan(has_nan[lane]):
                            part[lane] = np.nan
        first, comparator, position = first + count, comparators_end[g], positions_end[g]


@lru_cache(maxsize=64)
def _program(counts: tuple[int, ...], ranks: tuple[tuple[int, int], ...]) -> tuple[Ints, Table, Ints, Table, Ints]:
    """The counts, the comparators of all groups and where each group's end, and likewise the positions."""
    each = [fused_network(c or 1, low, high) for c, (low, high) in zip(counts, ranks, strict=True)]
    comparators, positions = zip(*each, strict=True)
    ends = [np.cumsum([len(part) for part in parts]) for parts in (comparators, positions)]
    return np.array(counts), np.concatenate(comparators), ends[0], np.concatenate(positions), ends[1]


def means_between_ranks(
    rows: NDArray[Any],
    members: Ints,
    counts: Sequence[int],
    ranks: Sequence[tuple[int, int]],
    out: NDArray[Any],
) -> None:
    """See `reference.means_between_ranks`."""
    if not counts:
        return
    program, columns = _program(tuple(counts), tuple(ranks)), rows.shape[1]
    if not rows.flags.c_contiguous:
        rows = np.ascontiguousarray(rows)
    if len(members) * columns < THREAD_ELEMENTS:
        _groups(rows, members, *program, 0, columns, out)
        return
    parts = min(1 + len(members) * columns // THREAD_ELEMENTS, available_cores())
    step = -(-columns // parts // LANES) * LANES
    for part in [
        threads().submit(_groups, rows, members, *program, start, min(start + step, columns), out)
        for start in range(0, columns, step)
    ]:
        part.result()
