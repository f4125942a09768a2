"""The comparators of a sorting network a few at a time.

A comparator on two rows of a block costs little beside reading the rows and writing them back. So up to four that
follow each other on up to four rows are one move, which reads and writes each of the rows once: 1.3 rows for a
comparator instead of 2. A move leaves its values where it found room; `places` says where a row of the network is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie._src.arrays import compiled

LANES = 256
"""Columns of a block at most."""
PAIR, TOP, BOTTOM, CROSS, BOTH = range(5)
"""Moves of rows a, b and perhaps c, d. All begin with a ≤ b, the last two also with c ≤ d. Then TOP and CROSS compare b
with c, BOTTOM a with c, BOTH a with c and b with d."""

Table = NDArray[np.int32]


@compiled
def _next_move(c: int, pairs: Table, after: Table, due: Table) -> tuple[int, int, int, int, int]:
    """What to do at comparator c: the kind of a move, and its comparators in their order; -1: none.

    after: the next comparator on either row of each. due: the next one on each row.
    """
    kind, join = PAIR, -1
    for side in (1, 0):  # the larger value goes on, or the smaller one
        following = after[c, side]
        if following < 0:
            continue
        other = pairs[following, 0] + pairs[following, 1] - pairs[c, side]
        before = due[other]
        if before == following:
            if kind == PAIR:
                kind, join = TOP if side else BOTTOM, following
            continue
        end = 0 if pairs[before, 0] == other else 1
        if before == c or after[before, end] != following or due[pairs[before, 1 - end]] != before:
            continue
        if end != side:
            return CROSS, c if side else before, before if side else c, following, -1
        if after[c, 1 - side] >= 0 and after[c, 1 - side] == after[before, 1 - end]:
            return BOTH, c, before, after[c, 0], after[c, 1]
    return kind, c, -1, join, -1


@compiled
def moves_of(pairs: Table, rows: int) -> tuple[Table, Table]:
    """(moves, 5), the kind and the rows a, b, c, d of each, and (rows,), the places of the network's rows at the end.

    Greedily, in an order in which every row still meets the same comparators one after the other.
    """
    after, due = np.full(pairs.shape, -1, dtype=np.int32), np.full(rows, -1, dtype=np.int32)
    for c in range(len(pairs) - 1, -1, -1):
        after[c, 0], after[c, 1] = due[pairs[c, 0]], due[pairs[c, 1]]
        due[pairs[c, 0]] = due[pairs[c, 1]] = c
    done, places = np.zeros(len(pairs), dtype=np.bool_), np.arange(rows).astype(np.int32)
    moves = np.zeros((len(pairs), 5), dtype=np.int32)
    size = 0
    for c in range(len(pairs)):
        if done[c]:
            continue
        kind, first, second, third, fourth = _next_move(c, pairs, after, due)
        move = moves[size]
        size += 1
        move[0], move[1], move[2] = kind, places[pairs[first, 0]], places[pairs[first, 1]]
        if second >= 0:
            move[3], move[4] = places[pairs[second, 0]], places[pairs[second, 1]]
        elif third >= 0:
            own = pairs[first, 1] if kind == TOP else pairs[first, 0]
            move[3] = places[pairs[third, 0] + pairs[third, 1] - own]
        if third >= 0:  # what the last comparators order lies at b, or a, and at c; and at b and d
            places[pairs[third, 0]] = move[1] if kind in (BOTTOM, BOTH) else move[2]
            places[pairs[third, 1]] = move[3]
        if fourth >= 0:
            places[pairs[fourth, 0]], places[pairs[fourth, 1]] = move[2], move[4]
        for comparator in (first, second, third, fourth):
            if comparator >= 0:
                done[comparator] = True
                due[pairs[comparator, 0]], due[pairs[comparator, 1]] = after[comparator, 0], after[comparator, 1]
    return moves[:size].copy(), places


@compiled
def play(block: NDArray[Any], moves: Table) -> None:
    """Do the moves on the rows of a block, (rows, lanes).

    A loop for each kind, without a branch in it: such as the compiler turns into SIMD.
    """
    lanes = block.shape[1]
    for i in range(moves.shape[0]):
        kind = moves[i, 0]
        a, b, c, d = block[moves[i, 1]], block[moves[i, 2]], block[moves[i, 3]], block[moves[i, 4]]
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
                least, most = z if z < w else w, w if z < w else z
                a[lane] = small if small < least else least
                b[lane] = large if large < most else most
                c[lane] = least if small < least else small
                d[lane] = most if large < most else large
