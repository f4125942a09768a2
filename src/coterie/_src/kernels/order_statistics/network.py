"""Sorting networks that move the wanted ranks to their positions, and groups of their comparators.

Batcher's merge-exchange network (Knuth, TAOCP vol. 3, algorithm 5.2.2M), without the comparators that the wanted ranks
do not need; or, where few ranks are cut off, a network that only separates these from the others.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.int32]
Pairs = list[tuple[int, int]]

PAIR, TOP, BOTTOM, CROSS, BOTH = range(5)
"""Kinds of groups of comparators on rows a, b and perhaps c, d. All begin with a ≤ b, the last two also with c ≤ d.
Then TOP and CROSS compare b with c, BOTTOM a with c, BOTH a with c and b with d."""


@lru_cache(maxsize=4096)
def sorting_network(rows: int) -> Table:
    """(comparators, 2): the complete network, which sorts all rows."""
    top = 1
    while top * 2 < rows:
        top *= 2
    parts = [np.empty((0, 2), dtype=np.int32)]
    p = top if rows > 1 else 0
    while p > 0:
        q, r, d = top, 0, p
        while True:
            i = np.arange(rows - d, dtype=np.int32)
            i = i[i & p == r]
            parts.append(np.stack([i, i + np.int32(d)], axis=1))
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2
    return np.concatenate(parts)


@lru_cache(maxsize=4096)
def network(rows: int, low: int, high: int) -> Table:
    """(comparators, 2): the pruned network, which moves the values of rank [low, high) to these rows, in any order."""
    if rows < 2 or high - low == rows:
        return np.empty((0, 2), dtype=np.int32)
    pairs = _pruned(sorting_network(rows), rows, low, high)
    if 2 * (low + rows - high) > rows:
        return pairs
    fewer = _pruned(_separating_network(rows, low, high), rows, low, high)
    return fewer if len(fewer) < len(pairs) else pairs


def _pruned(pairs: Table, rows: int, low: int, high: int) -> Table:
    """The comparators that determine which values end in [low, high); their order does not matter, as they are summed.

    Going backwards, a comparator is not needed if its two values both end inside, or both outside, in any case.
    """
    outside, inside, undecided = range(3)
    ends = [outside] * low + [inside] * (high - low) + [outside] * (rows - high)
    kept = []
    for a, b in reversed(pairs.tolist()):
        if ends[a] != ends[b] or ends[a] == undecided:
            ends[a] = ends[b] = undecided
            kept.append((a, b))
    return np.array(kept[::-1], dtype=np.int32).reshape(-1, 2)


def _separating_network(rows: int, low: int, high: int) -> Table:
    """(comparators, 2): a network that separates the ranks below `low` and from `high` on from the rest.

    Groups of at least low + (rows − high) rows are sorted. Then two groups at a time merge their lowest values and keep
    `low` of them, and likewise their highest values. The other values have enough values below and above them, and are
    not compared again. Where few ranks are cut off, this needs half as many comparators as sorting.
    """
    top = rows - high
    groups, half = rows // (low + top), 1
    while half < max(low, top):
        half *= 2
    pairs: Pairs = []
    ends: list[tuple[list[int], list[int]]] = []  # per group, the wires of the lowest and of the highest values
    for group in range(groups):
        first, last = group * rows // groups, (group + 1) * rows // groups
        pairs += [(first + a, first + b) for a, b in sorting_network(last - first).tolist()]
        ends.append((list(range(first, first + low)), list(range(last - top, last))))
    while len(ends) > 1:
        merged = [
            (
                _merged(lowest, other_lowest, half, pairs)[:low],
                _merged(highest, other_highest, half, pairs)[top : 2 * top],
            )
            for (lowest, highest), (other_lowest, other_highest) in zip(ends[::2], ends[1::2], strict=False)
        ]
        ends = merged + ends[2 * len(merged) :]
    # number the wires by the ranks that they end with; the initial order of the rows does not matter
    positions = dict(zip(ends[0][0], range(low), strict=True)) | dict(zip(ends[0][1], range(high, rows), strict=True))
    middle = iter(range(low, high))
    ranks = [positions[wire] if wire in positions else next(middle) for wire in range(rows)]
    return np.array([(ranks[a], ranks[b]) for a, b in pairs], dtype=np.int32).reshape(-1, 2)


def _merged(one: list[int], other: list[int], half: int, pairs: Pairs) -> list[int]:
    """The wires of two sorted lists in order, by Batcher's odd-even merge, whose comparators are appended to `pairs`.

    Lists are padded to `half` wires by -1, a value above all others, which needs no comparator.
    """
    wires = [*one, *([-1] * (half - len(one))), *other, *([-1] * (half - len(other)))]
    distance = half
    while distance > 0:
        for start in range(0 if distance == half else distance, 2 * half - distance, 2 * distance):
            for i in range(start, start + distance):
                a, b = wires[i], wires[i + distance]
                if a < 0:
                    wires[i], wires[i + distance] = b, a
                elif b >= 0:
                    pairs.append((a, b))
        distance //= 2
    return wires


def fuse(pairs: Table, rows: int) -> tuple[Table, Table]:
    """Comparators that follow each other on up to four rows, in groups that read and write each row once.

    Returns (groups, 5), the kind and the rows a, b, c, d of each group, and (rows,), the final positions of the
    network's rows. Groups are formed greedily; every row meets the same comparators in the same order.
    """
    comparators = pairs.tolist()
    after, due = [[-1, -1] for _ in comparators], [-1] * rows
    for c in range(len(comparators) - 1, -1, -1):
        a, b = comparators[c]
        after[c] = [due[a], due[b]]
        due[a] = due[b] = c
    done, positions, groups = [False] * len(comparators), list(range(rows)), []
    for c in range(len(comparators)):
        if done[c]:
            continue
        kind, first, second, third, fourth = _next_group(c, comparators, after, due)
        group = [kind, positions[comparators[first][0]], positions[comparators[first][1]], 0, 0]
        if second >= 0:
            group[3], group[4] = positions[comparators[second][0]], positions[comparators[second][1]]
        elif third >= 0:
            own = comparators[first][1] if kind == TOP else comparators[first][0]
            group[3] = positions[comparators[third][0] + comparators[third][1] - own]
        if third >= 0:  # the results of the last comparators are at b, or a, and c; and at b and d
            positions[comparators[third][0]] = group[1] if kind in (BOTTOM, BOTH) else group[2]
            positions[comparators[third][1]] = group[3]
        if fourth >= 0:
            positions[comparators[fourth][0]], positions[comparators[fourth][1]] = group[2], group[4]
        for comparator in (first, second, third, fourth):
            if comparator >= 0:
                done[comparator] = True
                a, b = comparators[comparator]
                due[a], due[b] = after[comparator]
        groups.append(group)
    return np.array(groups, dtype=np.int32).reshape(-1, 5), np.array(positions, dtype=np.int32)


def _next_group(
    c: int, pairs: list[list[int]], after: list[list[int]], due: list[int]
) -> tuple[int, int, int, int, int]:
    """The kind of the group that begins at comparator c, and its comparators in their order; -1: none.

    after: the next comparator on either row of each. due: the next one on each row.
    """
    kind, join = PAIR, -1
    for side in (1, 0):  # the next comparator is on the row of the larger value, or of the smaller one
        following = after[c][side]
        if following < 0:
            continue
        other = pairs[following][0] + pairs[following][1] - pairs[c][side]
        before = due[other]
        if before == following:
            if kind == PAIR:
                kind, join = TOP if side else BOTTOM, following
            continue
        end = 0 if pairs[before][0] == other else 1
        if before == c or after[before][end] != following or due[pairs[before][1 - end]] != before:
            continue
        if end != side:
            return CROSS, c if side else before, before if side else c, following, -1
        if after[c][1 - side] >= 0 and after[c][1 - side] == after[before][1 - end]:
            return BOTH, c, before, after[c][0], after[c][1]
    return kind, c, -1, join, -1


@lru_cache(maxsize=4096)
def fused_network(rows: int, low: int, high: int) -> tuple[Table, Table]:
    """The groups of the pruned network, and the final positions of the ranks [low, high)."""
    groups, positions = fuse(network(rows, low, high), rows)
    return groups, positions[low:high].copy()
