"""The kernel: per column, the mean of the order statistics between two ranks.

Median, trimmed mean and mean are this one primitive with different ranks. On a CPU, columns are taken in
blocks of up to LANES; a block's rows run through Batcher's merge-exchange sorting network (Knuth, TAOCP vol. 3,
algorithm 5.2.2M), less the comparators that the requested ranks do not need, or, where few ranks are cut off, one that
only parts those from the rest. A comparator is a minimum and a maximum of two rows of the block, so it works on all
lanes at once in SIMD registers; a few of them are done at a time (`moves`). Columns are independent: the result does
not depend on the number of threads. What few rows ask for again and again becomes straight machine code
(`machine_code`), and on a GPU there is a kernel of its own (`cuda`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import is_numpy_array, is_torch_array
from numpy.typing import NDArray

from coterie._src.arrays import Array, Ints, as_numpy, available_cores, compiled, like, namespace
from coterie._src.kernels.order_statistics import cuda, machine_code
from coterie._src.kernels.order_statistics.fused import LANES, moves_of, play

SORTED = 1 << 26
"""Values that are sorted at once, on a device without a kernel for so many rows: sorting takes several times their
memory."""
NETWORK_ROWS = 2048
"""Up to this many rows the network wins; beyond, each column is sorted by itself."""
THREAD_ELEMENTS = 1 << 19
"""Values worth a thread of their own."""
WHOLE = 32
"""Lanes of a narrow block are a multiple of this: what SIMD takes at a time."""
PROGRAMS = machine_code.Programs()


@compiled
def _merge_exchange(rows: int) -> NDArray[np.int32]:
    """(comparators, 2): the whole network."""
    top = 1
    while top * 2 < rows:
        top *= 2
    size = 0
    pairs = np.empty((16, 2), dtype=np.int32)
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while True:
            for i in range(rows - d):
                if i & p == r:
                    if size == pairs.shape[0]:
                        longer = np.empty((2 * size, 2), dtype=np.int32)
                        longer[:size] = pairs
                        pairs = longer
                    pairs[size, 0], pairs[size, 1] = i, i + d
                    size += 1
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2
    return pairs[:size].copy()


@compiled
def _pruned(pairs: NDArray[np.int32], rows: int, low: int, high: int) -> NDArray[np.int32]:
    """The comparators that decide which values end in [low, high); not in which order, since they are summed.

    Backwards: one whose two values both end inside, or both outside, whatever it does, is not needed.
    """
    outside, inside, open_ = 0, 1, 2
    ends = np.full(rows, outside, dtype=np.int8)
    ends[low:high] = inside
    kept = np.empty_like(pairs)
    first = len(pairs)
    for c in range(len(pairs) - 1, -1, -1):
        a, b = pairs[c, 0], pairs[c, 1]
        if ends[a] != ends[b] or ends[a] == open_:
            ends[a] = ends[b] = open_
            first -= 1
            kept[first, 0], kept[first, 1] = a, b
    return kept[first:].copy()


@compiled
def _merge(wires: NDArray[np.int32], pairs: NDArray[np.int32], size: int) -> int:
    """Append Batcher's odd-even merge of the two sorted halves of `wires`, (a power of two,), and order them so.

    -1 stands for a value above all others, which needs no comparator.
    """
    half = len(wires) // 2
    distance = half
    while distance > 0:
        for start in range(0 if distance == half else distance, 2 * half - distance, 2 * distance):
            for i in range(start, start + distance):
                a, b = wires[i], wires[i + distance]
                if a < 0:
                    wires[i], wires[i + distance] = b, a
                elif b >= 0:
                    pairs[size, 0], pairs[size, 1] = a, b
                    size += 1
        distance //= 2
    return size


@compiled
def _trimming(rows: int, low: int, high: int) -> NDArray[np.int32]:
    """(comparators, 2): a network that parts the ranks below `low` and from `high` on from the rest.

    Groups of at least low + (rows − high) rows are sorted; then two groups at a time merge their lowest values and keep
    `low` of them, and their highest. What is left over on the way has enough values below and above it, and is not
    looked at again. Where few are cut off that takes half as many comparators as sorting.
    """
    top = rows - high
    groups, half, levels = rows // (low + top), 1, 1
    while half < max(low, top):
        half, levels = 2 * half, levels + 1
    largest = -(-rows // groups)
    pairs = np.empty((groups * (len(_merge_exchange(largest)) + 2 * half * levels), 2), dtype=np.int32)
    size = 0
    ends = np.full((groups, 2, half), -1, dtype=np.int32)  # of every group the lowest wires, and the highest
    for group in range(groups):
        first, last = group * rows // groups, (group + 1) * rows // groups
        for pair in _merge_exchange(last - first):
            pairs[size] = first + pair
            size += 1
        ends[group, 0, :low] = np.arange(first, first + low)
        ends[group, 1, :top] = np.arange(last - top, last)
    both = np.empty(2 * half, dtype=np.int32)
    while groups > 1:
        for group in range(groups // 2):
            for side, kept in ((0, low), (1, top)):
                both[:half], both[half:] = ends[2 * group, side], ends[2 * group + 1, side]
                size = _merge(both, pairs, size)
                ends[group, side, :kept] = both[side * kept : side * kept + kept]
        if groups % 2:
            ends[groups // 2] = ends[groups - 1]
        groups = (groups + 1) // 2
    # a row's place is its rank; which row begins where does not matter
    places, middle = np.full(rows, -1, dtype=np.int32), low
    for rank in range(low):
        places[ends[0, 0, rank]] = rank
    for rank in range(top):
        places[ends[0, 1, rank]] = high + rank
    for wire in range(rows):
        if places[wire] < 0:
            places[wire] = middle
            middle += 1
    for c in range(size):
        pairs[c, 0], pairs[c, 1] = places[pairs[c, 0]], places[pairs[c, 1]]
    return pairs[:size].copy()


@compiled
def _reduce(block: NDArray[Any], places: NDArray[np.int32], total: NDArray[np.float64], out: NDArray[Any]) -> None:
    """Mean of the rows block[places] per lane, summed in float64 around the first so that equal rows give that row."""
    count, width = len(places), out.shape[0]
    first = block[places[0]]
    if count == 1:
        for lane in range(width):
            out[lane] = first[lane]
        return
    total[:] = 0.0
    for i in range(1, count):
        row = block[places[i]]
        for lane in range(len(total)):
            total[lane] += np.float64(row[lane]) - np.float64(first[lane])
    odd = 0
    for lane in range(width):
        result = np.float64(first[lane]) + total[lane] / count
        out[lane] = result
        odd += result - result != 0.0
    if odd:  # infinite rows, or a spread beyond float64
        for lane in range(width):
            if not np.isfinite(np.float64(first[lane]) + total[lane] / count):
                result = np.float64(0.0)
                for i in range(count):
                    result += np.float64(block[places[i], lane]) / count
                out[lane] = result


@compiled
def _load(rows: NDArray[Any], members: Ints, start: int, stop: int, block: NDArray[Any], poison: NDArray[Any]) -> bool:
    """Copy the columns [start, stop) of some rows into the block; poison is NaN in lanes that hold one. True: some do.

    The rows are sliced one by one: only then does the compiler know that a row's values lie side by side.
    """
    count, width = len(members), stop - start
    poison[:] = 0
    for i in range(count):
        row = rows[members[i], start:stop]
        target = block[i]
        for lane in range(width):
            value = row[lane]
            target[lane] = value
            poison[lane] += value - value  # 0, or NaN if the value is not finite
    suspect = 0
    for lane in range(width):
        suspect += poison[lane] != poison[lane]
    if suspect:
        poison[:] = 0
        for i in range(count):
            for lane in range(width):
                if np.isnan(block[i, lane]):
                    poison[lane] = np.nan
    return suspect > 0


@compiled
def _sort(block: NDArray[Any], width: int) -> None:
    """Sort every lane by itself."""
    column = np.empty(block.shape[0], dtype=block.dtype)
    for lane in range(width):
        column[:] = block[:, lane]
        column.sort()
        block[:, lane] = column


@compiled
def _columns(
    rows: NDArray[Any],
    members: Ints,
    moves: NDArray[np.int32],
    places: NDArray[np.int32],
    sort: bool,
    columns: tuple[int, int],
    out: NDArray[Any],
) -> None:
    """out[c] = mean of what lies at `places` after the moves on rows[members, c], for a range of columns, in blocks."""
    lanes = min(LANES, max(1, -(-(columns[1] - columns[0]) // WHOLE)) * WHOLE)
    block = np.zeros((len(members), lanes), dtype=rows.dtype)
    poison = np.zeros(lanes, dtype=rows.dtype)
    total = np.zeros(lanes, dtype=np.float64)
    for start in range(columns[0], columns[1], lanes):
        stop = min(start + lanes, columns[1])
        suspect = _load(rows, members, start, stop, block, poison)
        play(block, moves)
        if sort:
            _sort(block, stop - start)
        part = out[start:stop]
        _reduce(block, places, total, part)
        if suspect:
            for lane in range(stop - start):
                if np.isnan(poison[lane]):
                    part[lane] = np.nan


@lru_cache(maxsize=4096)
def network(rows: int, low: int, high: int) -> NDArray[np.int32]:
    """The pruned network as (comparators, 2) row pairs; it brings the ranks [low, high) there, in any order."""
    if rows < 2 or rows > NETWORK_ROWS or high - low == rows:
        return np.empty((0, 2), dtype=np.int32)
    pairs: NDArray[np.int32] = _pruned(_merge_exchange(rows), rows, low, high)
    if 2 * (low + rows - high) > rows:
        return pairs
    fewer: NDArray[np.int32] = _pruned(_trimming(rows, low, high), rows, low, high)
    return fewer if len(fewer) < len(pairs) else pairs


@lru_cache(maxsize=4096)
def _moves_of(rows: int, low: int, high: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The pruned network as moves, and where the ranks [low, high) then are."""
    moves, places = moves_of(network(rows, low, high), rows)
    return moves, places[low:high].copy()


def sorting_network(rows: int) -> NDArray[np.int32]:
    """The whole network as (comparators, 2) row pairs: every rank ends in its place."""
    pairs: NDArray[np.int32] = _merge_exchange(rows)
    return pairs


@cache
def threads() -> ThreadPoolExecutor:
    """The threads that the kernels share."""
    return ThreadPoolExecutor(max_workers=available_cores(), thread_name_prefix="coterie")


def mean_of_members(rows: NDArray[Any], members: Ints, low: int, high: int, out: NDArray[Any]) -> None:
    """out (d,) = `mean_between_ranks` of the given rows of a float32 or float64 array; nothing is checked."""
    count, columns = len(members), rows.shape[1]
    pairs = network(count, low, high)
    sort = count > NETWORK_ROWS and high - low < count
    program = PROGRAMS.get(pairs, count, low, high, rows)
    kernel: Callable[..., None] = (
        partial(_columns, rows, members, *_moves_of(count, low, high), sort)
        if program is None
        else partial(machine_code.mean_of_columns, program, rows, members)
    )
    parts = 1 + count * columns // THREAD_ELEMENTS
    if parts > 1:
        parts = min(parts, available_cores())
    if parts == 1:
        kernel((0, columns), out)
        return
    step = -(-columns // parts // LANES) * LANES
    ranges = [(start, min(start + step, columns)) for start in range(0, columns, step)]
    for part in [threads().submit(kernel, own, out) for own in ranges]:
        part.result()


class Groups(NamedTuple):
    """What is done to groups of rows, one after the other: the moves of each, and where its ranks then are.

    counts: the rows of each. The other four: the moves, and where those of each group end; the places, and their ends.
    """

    counts: Ints
    moves: NDArray[np.int32]
    moves_end: Ints
    places: NDArray[np.int32]
    places_end: Ints

    @classmethod
    def of(cls, counts: Sequence[int], ranks: Sequence[tuple[int, int]]) -> Groups:
        """Of each group the mean of the ranks [low, high); an empty one is left alone."""
        each = [_moves_of(c, *r) if c else _moves_of(1, 0, 1) for c, r in zip(counts, ranks, strict=True)]
        moves, places = zip(*each, strict=True)
        moves_end, places_end = (np.cumsum([len(part) for part in parts]) for parts in (moves, places))
        return cls(np.array(counts), np.concatenate(moves), moves_end, np.concatenate(places), places_end)


@compiled
def _groups(
    rows: NDArray[Any],
    members: Ints,
    counts: Ints,
    moves: NDArray[np.int32],
    moves_end: Ints,
    places: NDArray[np.int32],
    places_end: Ints,
    out: NDArray[Any],
) -> None:
    first, move, place = 0, 0, 0
    for g in range(len(counts)):
        count = counts[g]
        if count:
            own, wanted = members[first : first + count], places[place : places_end[g]]
            sort = count > NETWORK_ROWS and len(wanted) < count
            _columns(rows, own, moves[move : moves_end[g]], wanted, sort, (0, rows.shape[1]), out[g])
        first, move, place = first + count, moves_end[g], places_end[g]


def mean_of_groups(rows: NDArray[Any], members: Ints, groups: Groups, out: NDArray[Any]) -> None:
    """out (g, d): `mean_of_members` of every group, the members of which stand one after the other."""
    _groups(rows, members, *groups, out)


def _on_cpu(rows: NDArray[Any], low: int, high: int, members: Ints) -> NDArray[Any]:
    out = np.empty(rows.shape[1], dtype=rows.dtype)
    mean_of_members(rows, members, low, high, out)
    return out


def mean_between_ranks(rows: Array, low: int, high: int, members: Ints | None = None) -> Array:
    """(rows, d) -> (d,): per column, the mean of the sorted values with rank low ≤ rank < high.

    Same kind, dtype and device out as in; whole numbers give float64. A column with a NaN gives NaN.
    Sums run in float64. members: these rows alone, which on a CPU are not copied.

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
        return like(_on_cpu(native(rows), low, high, np.arange(count) if members is None else members), rows)
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
    """The rows as float32 or float64 (what the kernel is compiled for), copied only if they are not."""
    if is_torch_array(rows) and rows.element_size() < 4:
        rows = rows.float()
    values = as_numpy(rows)
    if values.dtype in (np.float32, np.float64) and values.dtype.isnative:
        return values
    return values.astype(np.float32 if values.dtype == np.float16 else np.float64)
