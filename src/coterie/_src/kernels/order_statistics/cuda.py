"""The order-statistic kernels on an NVIDIA GPU (`coterie[gpu]`).

Up to REGISTER_ROWS rows (QUICK_ROWS where there are few values) a program is generated for the row count and the ranks:
one thread per column holds the rows in registers and orders them by the pruned sorting network of `order_statistics`.
Neighbouring threads read neighbouring columns, so the rows are read at the bandwidth of the memory.

With more rows 8 to 32 threads share a column. Each sorts a run of the rows in registers and stores it in shared memory;
the wanted rank is then searched among the runs. In every step each run proposes the value at the same fraction of its
remaining candidates, two proposals around the median of all are counted in every run by binary search (Floyd and
Rivest, Expected time bounds for selection, 1975), and the candidates between them remain. About three steps are enough;
every step removes at least its two pivots, so the result is exact for any values.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from coterie._src.arrays import Array
from coterie._src.kernels.cuda.runtime import available, kernel, launch, max_shared_bytes, source

REGISTER_ROWS = 224
"""Up to this many rows a column fits into a thread's 255 registers."""
QUICK_ROWS = 48
"""Up to this many rows a kernel compiles in well under a second; for more rows it takes seconds."""
MANY = 1 << 27
"""From this many values on, the seconds of compiling are worth it; fewer values are sorted in runs."""
THREADS = 128
HELD_BYTES = 320
"""The largest part of a column, in bytes, that one of several threads holds; longer columns are sorted by torch."""
ROUNDED = 2
"""The rows of a run are rounded up to a multiple of this."""
TYPES = {"torch.float32": "float", "torch.float64": "double"}


def _constants(dtype: str) -> dict[str, object]:
    return {"KIND": TYPES[dtype], "FLOAT": int(TYPES[dtype] == "float")}


def _comparators(pairs: Iterable[tuple[int, int]]) -> str:
    return "\n".join(f"  t = minimum(r{a}, r{b}); r{b} = maximum(r{a}, r{b}); r{a} = t;" for a, b in pairs)


def network_source(rows: int, low: int, high: int, pairs: Iterable[tuple[int, int]], dtype: str) -> str:
    """The CUDA program for `rows` rows and the ranks [low, high), with the comparators `pairs`.

    The mean is summed in double around the first rank, as on the CPU, so equal rows give that row.
    """
    return source(
        ["comparators.cu", "column_network.cu"],
        _constants(dtype),
        threads=THREADS,
        low=low,
        ranks=high - low,
        load="\n".join(f"  KIND r{i} = x[{i} * stride + c]; odd |= IS_ODD(r{i});" for i in range(rows)),
        sort=_comparators(pairs),
        add="\n".join(f"  total += (double)r{i} - base;" for i in range(low + 1, high)),
        plain=" + ".join(f"(double)r{i} / {high - low}" for i in range(low, high)),
    )


def runs_source(runs: int, held: int, columns: int, dtype: str) -> str:
    """The CUDA program for up to runs·held rows, and more than runs·(held − ROUNDED)."""
    from coterie._src.kernels.order_statistics.network import sorting_network

    filled = held - ROUNDED  # rows that every run has
    load = [
        f"    KIND r{i} = {'' if i < filled else f'run + {i * runs} >= rows ? BEYOND : '}from[{i} * step];"
        f" is_odd |= IS_ODD(r{i});"
        for i in range(held)
    ]
    return source(
        ["comparators.cu", "column_runs.cu"],
        _constants(dtype) | {"RUNS": runs, "HELD": held, "COLUMNS": columns},
        load="\n".join(load),
        sort=_comparators(sorting_network(held).tolist()),
        store="\n".join(f"    to[{i} * COLUMNS] = r{i};" for i in range(held)),
    )


@lru_cache(maxsize=512)
def _network_kernel(rows: int, low: int, high: int, dtype: str) -> Any:
    from coterie._src.kernels.order_statistics.network import network

    pairs = network(rows, low, high).tolist()
    return kernel(network_source(rows, low, high, pairs, dtype), "mean_between_ranks")


@lru_cache(maxsize=64)
def _runs_kernel(runs: int, held: int, columns: int, dtype: str) -> Any:
    return kernel(runs_source(runs, held, columns, dtype), "mean_between_ranks")


class Runs(NamedTuple):
    """How a column of many rows is divided: the number of runs, the rows of a run, and the columns of a block."""

    runs: int
    held: int
    columns: int

    def shared_bytes(self, bytes_each: int) -> int:
        """The shared memory of a block."""
        return self.runs * (self.held * self.columns + 32 // self.runs) * bytes_each


def runs_of(rows: int, bytes_each: int, max_bytes: int, wide: bool = False) -> Runs | None:
    """The division for blocks with at most `max_bytes` bytes of shared memory; None: there are too many rows.

    wide: there are more than two ranks. The rows of a run are rounded up, so that few programs serve all row counts.

    >>> runs_of(400, 4, 200_000), runs_of(1000, 4, 200_000), runs_of(3000, 4, 200_000)
    (Runs(runs=8, held=50, columns=16), Runs(runs=16, held=64, columns=16), None)
    """
    # long runs take longer to sort, many runs to search (twice as long for wide ranks): these were the fastest
    for runs, columns, share in ((8, 16, 1 if wide else 0.625), (16, 16, 1), (32, 16, 1), (32, 8, 1)):
        found = Runs(runs, -(-rows // (ROUNDED * runs)) * ROUNDED, columns)
        if found.held * bytes_each <= share * HELD_BYTES and found.shared_bytes(bytes_each) <= max_bytes:
            return found
    return None


def serves(rows: Array) -> bool:
    """Whether there is a kernel for these rows."""
    return rows.is_cuda and str(rows.dtype) in TYPES and available() and _division(rows) is not None


def _division(rows: Array, wide: bool = False) -> Runs | None:
    return runs_of(rows.shape[0], rows.element_size(), max_shared_bytes(rows.device, 1024), wide)


def mean_between_ranks(rows: Array, low: int, high: int) -> Array:
    """(rows, d) CUDA tensor -> (d,): as `order_statistics.mean_between_ranks`, on the tensor's device and stream."""
    import torch

    if rows.stride(1) != 1:
        rows = rows.contiguous()
    (count, columns), dtype = rows.shape, str(rows.dtype)
    if (low, high) == (0, count) and rows.dtype is torch.float32:
        return torch.mean(rows, dim=0, dtype=torch.float64).to(rows.dtype)
    out = torch.empty(columns, dtype=rows.dtype, device=rows.device)
    arguments = rows, rows.stride(0), columns
    if count <= REGISTER_ROWS and (count <= QUICK_ROWS or count * columns >= MANY):
        launch(_network_kernel(count, low, high, dtype), (-(-columns // THREADS),), THREADS, *arguments, out)
        return out
    shape = _division(rows, high - low > 2)
    assert shape is not None
    launch(
        _runs_kernel(*shape, dtype),
        (-(-columns // shape.columns),),
        shape.runs * shape.columns,
        *arguments,
        *map(np.int32, (count, low, high)),
        out,
        shared=shape.shared_bytes(rows.element_size()),
    )
    return out
