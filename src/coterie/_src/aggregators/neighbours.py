"""Rows that are near each other, among so many that not all pairs can be compared.

The rows are dealt to the cells of a few randomly shifted grids along random directions (locality-sensitive hashing;
Datar, Immorlica, Indyk and Mirrokni, Locality-sensitive hashing scheme based on p-stable distributions, 2004). Within a
cell they are sorted along one more direction, and each is compared with the few that follow it. The work is therefore
bounded by (grids · window · rows · columns), whatever the rows are.

Every pair that is found is near: its distance is computed. A pair at distance δ shares a cell of one of the grids with
the probability given at `GRIDS`. Rows that all are within a small part of the distance are found all together. Whoever
sends rows such that some near pairs are missed could as well have sent rows that are not near. The directions depend on
all rows, so that nobody knows them who does not know all rows.
"""

from __future__ import annotations

import math
from zlib import crc32

import numpy as np
from numpy.random import default_rng
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from coterie._src.arrays import Floats, Ints

GRIDS = 8
"""The number of grids. With nine directions, as for 100,000 rows, a pair at distance δ is missed by all of them with a
probability of about 2 % for δ equal to the distance asked for, 0.04 % for half of it and 1e-8 for a tenth."""
CELL = 8.0
"""The width of a cell, in typical components of a difference that is as long as the distance asked for."""
SPREAD = 3.5
"""A direction divides the rows among about this many cells: so many directions are used that cells hold few rows."""
WINDOW = 4
"""The number of rows after it, within its cell, that a row is compared with."""
FARTHEST = 2.0**61
"""Rows farther than this many cells from the origin share the outermost cells."""
SAMPLED = 256
"""The rows whose distance to the nearest one is computed. In a random sample of 256 rows of which a share of at most
0.35 is false, these are half of it with a probability of less than 1e-5 (Hoeffding, 1963)."""
DISTANCES = 1 << 17
"""The number of distances that are computed at a time."""


def nearest_distances(points: Floats, most: int = SAMPLED) -> Floats:
    """(min(rows, most),): the squared distances of randomly drawn rows of (rows, d) to their nearest other rows."""
    rows = len(points)
    chosen = np.sort(_random(points).choice(rows, min(rows, most), replace=False))
    found, step = np.full(len(chosen), np.inf), max(1, DISTANCES // len(chosen))
    centred = points - np.median(points[chosen], axis=0)
    squares = np.einsum("ij,ij->i", centred, centred)
    nearest = np.zeros(len(chosen), dtype=np.int64)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        between = squares[chosen][:, None] + squares[part] - 2 * centred[chosen] @ centred[part].T
        inside = np.flatnonzero((chosen >= start) & (chosen < start + step))
        between[inside, chosen[inside] - start] = np.inf
        best = between.argmin(axis=1)
        lower = between[np.arange(len(chosen)), best] < found
        found = np.where(lower, between[np.arange(len(chosen)), best], found)
        nearest = np.where(lower, best + start, nearest)
    return _squared(points, chosen, nearest)  # by differences, which have no rounding errors of large products


def components(points: Floats, distance: float) -> Ints:
    """(rows,): the number of the component of every row, if near rows of (rows, d) are linked.

    Rows that are linked have a distance of less than `distance`; see the head of this module for those that are missed.

    >>> components(np.array([[0.0], [7.0], [0.5], [7.1], [3.0]]), 1.0).tolist()
    [0, 1, 0, 1, 2]
    """
    rows, dim = points.shape
    rng = _random(points)
    count = min(dim, max(1, math.ceil(math.log(max(rows, 2)) / math.log(SPREAD))))
    width = CELL * distance / math.sqrt(dim)
    firsts, seconds = [np.arange(0)], [np.arange(0)]
    for _ in range(GRIDS if distance > 0 else 0):
        axes = np.linalg.qr(rng.standard_normal((dim, count)))[0]
        along = points @ np.column_stack([axes, rng.standard_normal(dim)])
        cells = np.floor(np.clip(along[:, :-1] / width, -FARTHEST, FARTHEST) + rng.random(count))
        multipliers = rng.integers(1 << 62, size=count) | 1
        keys = (cells.astype(np.int64) * multipliers).sum(axis=1)  # modulo 2⁶⁴; equal by chance costs time alone
        order = np.lexsort((along[:, -1], keys))
        sorted_keys = keys[order]
        for shift in range(1, min(WINDOW, rows - 1) + 1):
            same = np.flatnonzero(sorted_keys[shift:] == sorted_keys[:-shift])
            one, other = order[same], order[same + shift]
            near = _squared(points, one, other) < distance**2
            firsts.append(one[near])
            seconds.append(other[near])
    ends = np.concatenate(firsts), np.concatenate(seconds)
    linked = csr_matrix((np.ones(len(ends[0]), dtype=np.int8), ends), (rows, rows))
    return np.asarray(connected_components(linked, directed=False)[1], dtype=np.int64)


def _random(points: Floats) -> np.random.Generator:
    return default_rng(crc32(points.tobytes()))


def _squared(points: Floats, some: Ints, others: Ints) -> Floats:
    """(pairs,): the squared distances of pairs of rows, some at a time."""
    found, step = np.empty(len(some)), max(1, DISTANCES // points.shape[1])
    for start in range(0, len(some), step):
        part = slice(start, start + step)
        away = points[some[part]] - points[others[part]]
        found[part] = np.einsum("ij,ij->i", away, away)
    return found
