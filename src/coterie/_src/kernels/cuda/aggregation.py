"""The server's half of a batched round: one aggregate per cluster, and a gradient for every cluster without clients.

A block of threads lists the clients of one (trial, method, cluster); each thread then sorts one column of their updates
in registers or, in a large cluster, finds the two ends of the ranks by bisection.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie._src.kernels.cuda import reference
from coterie._src.kernels.cuda.reference import Ranks
from coterie._src.kernels.cuda.runtime import available, kernel, launch, max_shared_bytes, source
from coterie._src.kernels.order_statistics.network import sorting_network

SORTED_ROWS = (16, 48, 96)
"""Cluster sizes for which a sorting network is generated; a larger cluster is bisected."""
THREADS = (32, 128)
"""Columns of a block, for few columns and for many."""
MAX_CLIENTS = 8192
"""The largest number of clients of a trial: those of a cluster are listed in shared memory."""


def _sorted_cluster(rows: int) -> str:
    """The branch for clusters of at most `rows` clients."""
    wires, pairs = range(rows), sorting_network(rows).tolist()
    return source(
        ["sorted_cluster.cu"],
        {},
        rows=rows,
        load="\n".join(f"    float r{i} = {i} < count ? x[row({i})] : __int_as_float(0x7f800000);" for i in wires),
        sort="\n".join(f"    t = fminf(r{a}, r{b}); r{b} = fmaxf(r{a}, r{b}); r{a} = t;" for a, b in pairs),
        base="\n".join(f"    if ({i} == low) base = r{i};" for i in wires),
        total="\n".join(f"    if ({i} > low && {i} < high) total += (double)r{i} - base;" for i in wires),
    )


@lru_cache(maxsize=4)
def _kernel(name: str, threads: int) -> Any:
    program = source(
        ["aggregate.cu", "empty_clusters.cu"],
        {"THREADS": threads, "MAX_CLIENTS": MAX_CLIENTS},
        sorted="\n".join(map(_sorted_cluster, SORTED_ROWS)),
    )
    return kernel(program, name)


def _threads(columns: int) -> int:
    return THREADS[columns > 2 * THREADS[0]]


@lru_cache(maxsize=64)
def _rules(ranks: tuple[Ranks, ...], device: torch.device) -> Tensor:
    """(methods, 2): trim, −1 for the median, and over, 0 for none."""
    rows = [[-1.0 if trim is None else trim, over or 0] for trim, over in ranks]
    return torch.tensor(rows, dtype=torch.float64, device=device)


def serves_aggregate(updates: Tensor) -> bool:
    """Whether there is a kernel for these updates."""
    small = updates.shape[2] <= MAX_CLIENTS
    return updates.is_cuda and updates.dtype == torch.float32 and small and available()


def aggregate(updates: Tensor, labels: Tensor, clusters: int, ranks: Sequence[Ranks]) -> tuple[Tensor, Tensor]:
    """The aggregates (T, L, k, d) and sizes (T, L, k) int32 of all clusters; see `reference.aggregate`."""
    if not serves_aggregate(updates):
        return reference.aggregate(updates, labels, clusters, ranks)
    trials, methods, m, d = updates.shape
    out = torch.empty((trials, methods, clusters, d), dtype=updates.dtype, device=updates.device)
    sizes = torch.empty((trials, methods, clusters), dtype=torch.int32, device=updates.device)
    threads = _threads(d)
    launch(
        _kernel("aggregate", threads),
        (trials * methods * clusters, -(-d // threads)),
        threads,
        updates.contiguous(),
        labels.contiguous(),
        _rules(tuple(ranks), updates.device),
        *map(np.int32, (methods, clusters, m, d)),
        out,
        sizes,
    )
    return out, sizes


def serves_empty_clusters(features: Tensor) -> bool:
    """Whether there is a kernel for these samples: a block keeps one error per sample in shared memory."""
    if not (features.is_cuda and features.dtype == torch.float32 and available()):
        return False
    return 4 * features.shape[2] <= max_shared_bytes(features.device)


def fill_empty_clusters(
    features: Tensor, targets: Tensor, scales: Tensor, centres: Tensor, sizes: Tensor, clients: Tensor, updates: Tensor
) -> None:
    """Overwrite the updates of empty clusters by the gradient of one client; see `reference.fill_empty_clusters`."""
    if not serves_empty_clusters(features):
        reference.fill_empty_clusters(features, targets, scales, centres, sizes, clients, updates)
        return
    trials, methods, clusters, d = centres.shape
    m, n = features.shape[1:3]
    threads = _threads(d)
    launch(
        _kernel("fill_empty_clusters", threads),
        (trials * methods * clusters,),
        threads,
        *(features, targets, scales, centres, sizes, clients),
        *map(np.int32, (methods, clusters, m, n, d)),
        updates,
        shared=4 * n,
    )
