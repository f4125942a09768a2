"""Checks and grouping of replies (Numba); with NumPy they take as long as a small round. Benchmark: `simulation`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie._src.kernels.compiling import compiled

Ints = NDArray[np.int64]


@partial(compiled, reorder=True)
def well_formed(senders: Ints, rounds: Ints, labels: Ints, updates: NDArray[Any], clusters: int, round: int) -> Any:
    """See `replies.well_formed_reference`."""
    for i in range(len(senders)):
        if senders[i] != i or rounds[i] != round or labels[i] < 0 or labels[i] >= clusters:
            return False
    squares = updates.dtype.type(0)
    for i in range(updates.shape[0]):
        row = updates[i]
        for c in range(updates.shape[1]):
            squares += row[c] * row[c]
    return squares - squares == 0


@compiled
def group_rows(labels: Ints, order: Ints, counts: Ints) -> bool:
    """See `replies.group_rows_reference`."""
    for j in range(len(counts)):
        counts[j] = 0
    for i in range(len(labels)):
        if labels[i] < 0 or labels[i] >= len(counts):
            return False
        counts[labels[i]] += 1
    first = 0
    for j in range(len(counts)):
        size = counts[j]
        counts[j] = first
        first += size
    for i in range(len(labels)):
        order[counts[labels[i]]] = i
        counts[labels[i]] += 1
    for j in range(len(counts) - 1, 0, -1):  # from ends back to sizes
        counts[j] -= counts[j - 1]
    return True
