"""The checks of all replies of a round, and their grouping by cluster, before they are aggregated."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie._src.kernels.dispatch import Kernel

Ints = NDArray[np.int64]


def well_formed_reference(
    senders: Ints, rounds: Ints, labels: Ints, updates: NDArray[Any], clusters: int, round: int
) -> bool:
    """Whether every client sent one reply of this round, in order, with an existing cluster and finite numbers.

    updates: (m, d). The numbers are checked by the sum of their squares; False also where that overflows.
    """
    if (senders != np.arange(len(senders))).any() or (rounds != round).any():
        return False
    if labels.min(initial=0) < 0 or labels.max(initial=0) >= clusters:
        return False
    values = updates.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.dot(values, values)))


def group_rows_reference(labels: Ints, order: Ints, counts: Ints) -> bool:
    """Write the rows in the order of their clusters to order (rows,), and the cluster sizes to counts (clusters,).

    Returns False, and writes nothing useful, if a label is out of range.
    """
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(counts):
        return False
    order[:] = np.argsort(labels, kind="stable")
    counts[:] = np.bincount(labels, minlength=len(counts))
    return True


well_formed = Kernel(well_formed_reference, "replies_numba:well_formed")
group_rows = Kernel(group_rows_reference, "replies_numba:group_rows")
