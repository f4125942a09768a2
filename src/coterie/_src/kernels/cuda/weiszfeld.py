"""Geometric medians of all clusters at once: one block of threads makes all of Weiszfeld's steps for one cluster."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from torch import Tensor

from coterie._src.kernels.cuda import reference
from coterie._src.kernels.cuda.aggregation import MAX_CLIENTS
from coterie._src.kernels.cuda.runtime import available, kernel, launch, max_shared_bytes, source

MEDIAN_THREADS = 256


@lru_cache(maxsize=1)
def _kernel() -> Any:
    constants = {"MEDIAN_THREADS": MEDIAN_THREADS, "MAX_CLIENTS": MAX_CLIENTS}
    return kernel(source(["weiszfeld.cu"], constants), "weiszfeld")


def _shared_bytes(clients: int, columns: int) -> int:
    return 8 * (clients + columns)


def serves(points: Tensor) -> bool:
    """Whether there is a kernel for these points (T, m, d)."""
    _, m, d = points.shape
    if not points.is_cuda or m > MAX_CLIENTS or not available():
        return False
    return _shared_bytes(m, d) <= max_shared_bytes(points.device)


def move_to_medians(points: Tensor, labels: Tensor, medians: Tensor, floors: Tensor, steps: int) -> None:
    """Move `medians` (T, k, d) to the geometric medians of the clusters; see `reference.move_to_medians`."""
    if not serves(points):
        reference.move_to_medians(points, labels, medians, floors, steps)
        return
    (trials, clusters, d), m = medians.shape, points.shape[1]
    launch(
        _kernel(),
        (trials * clusters,),
        MEDIAN_THREADS,
        *(points, labels, floors),
        *map(np.int32, (clusters, m, d, steps)),
        medians,
        shared=_shared_bytes(m, d),
    )
