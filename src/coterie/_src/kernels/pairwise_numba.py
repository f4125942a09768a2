"""Squared distances between rows (Numba): four rows against four. Benchmark: `python -m benchmarks cpu` (krum)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie._src.kernels.compiling import compiled
from coterie._src.kernels.pairwise import BLOCK

Four = tuple[Any, Any, Any, Any]


@partial(compiled, reorder=True)
def _with_squares(sums: Four, x: Any, y0: Any, y1: Any, y2: Any, y3: Any) -> Four:
    """The four sums plus (x − y)² each."""
    d0, d1, d2, d3 = x - y0, x - y1, x - y2, x - y3
    return sums[0] + d0 * d0, sums[1] + d1 * d1, sums[2] + d2 * d2, sums[3] + d3 * d3


@partial(compiled, reorder=True)
def add_squared_distances(
    rows: NDArray[Any], others: NDArray[Any], columns: tuple[int, int], below: bool, out: NDArray[np.float64]
) -> None:
    """See `pairwise.add_squared_distances_reference`.

    Every value that is loaded is used for four distances, and sixteen sums stay in registers. Beyond the last row the
    last one is repeated, and not counted. Rows are sliced one by one, so that the compiler knows that they are
    contiguous.
    """
    last, end, zero = len(rows) - 1, len(others) - 1, rows.dtype.type(0)
    for start in range(columns[0], columns[1], BLOCK):
        stop = min(start + BLOCK, columns[1])
        for i in range(0, last + 1, 4):
            a0, a1 = rows[i, start:stop], rows[min(i + 1, last), start:stop]
            a2, a3 = rows[min(i + 2, last), start:stop], rows[min(i + 3, last), start:stop]
            for j in range(0, min(i + 3, last) if below else end + 1, 4):
                b0, b1 = others[j, start:stop], others[min(j + 1, end), start:stop]
                b2, b3 = others[min(j + 2, end), start:stop], others[min(j + 3, end), start:stop]
                s0 = s1 = s2 = s3 = (zero, zero, zero, zero)
                for c in range(a0.shape[0]):
                    y0, y1, y2, y3 = b0[c], b1[c], b2[c], b3[c]
                    s0 = _with_squares(s0, a0[c], y0, y1, y2, y3)
                    s1 = _with_squares(s1, a1[c], y0, y1, y2, y3)
                    s2 = _with_squares(s2, a2[c], y0, y1, y2, y3)
                    s3 = _with_squares(s3, a3[c], y0, y1, y2, y3)
                sums = s0, s1, s2, s3
                for p in range(4):
                    for q in range(4):
                        if i + p <= last and j + q <= (i + p - 1 if below else end):
                            out[i + p, j + q] += sums[p][q]


@compiled
def squared_products(gram: NDArray[np.float64], rows: NDArray[np.int64], out: NDArray[np.float64]) -> None:
    """See `pairwise.squared_products_reference`."""
    size = 0
    for i in range(len(rows)):
        own = gram[rows[i]]
        for j in range(i + 1, len(rows)):
            out[size] = own[rows[j]] * own[rows[j]]
            size += 1
