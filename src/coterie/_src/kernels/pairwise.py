"""Squared Euclidean distances between rows, from differences, so that two near rows far from 0 lose no digits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie._src.kernels.dispatch import Kernel

BLOCK = 2048
"""Columns whose squares are summed in the rows' precision; the sums of blocks are added in float64."""
FEW = 1 << 24
"""Up to this many differences NumPy is fast enough; for more, the compiled form repays its compiling."""


def add_squared_distances_reference(
    rows: NDArray[Any], others: NDArray[Any], columns: tuple[int, int], below: bool, out: NDArray[np.float64]
) -> None:
    """out[i, j] += ‖x_i − y_j‖² over a range of columns; below: for j < i alone."""
    for start in range(columns[0], columns[1], BLOCK):
        stop = min(start + BLOCK, columns[1])
        for i, row in enumerate(rows):
            last = i if below else len(others)
            with np.errstate(over="ignore", invalid="ignore"):  # rows may be infinite, or too far apart for a number
                differences = others[:last, start:stop] - row[start:stop]
                out[i, :last] += np.einsum("ij,ij->i", differences, differences)


def _worth(rows: NDArray[Any], others: NDArray[Any], columns: tuple[int, int], *_: Any) -> bool:
    return len(rows) * len(others) * (columns[1] - columns[0]) >= FEW


add_squared_distances = Kernel(add_squared_distances_reference, "pairwise_numba:add_squared_distances", _worth)

FEW_ROWS = 128
"""Rows up to which NumPy's copies of a matrix of products cost little."""


def squared_products_reference(gram: NDArray[np.float64], rows: NDArray[np.int64], out: NDArray[np.float64]) -> None:
    """out (c·(c − 1)/2,) = G_ij² of the pairs i < j of c rows."""
    out[:] = gram[np.ix_(rows, rows)][np.triu_indices(len(rows), 1)] ** 2


squared_products = Kernel(
    squared_products_reference, "pairwise_numba:squared_products", lambda gram, rows, out: len(rows) > FEW_ROWS
)
