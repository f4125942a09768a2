"""The order-statistic kernel on an NVIDIA GPU (`coterie[gpu]`).

CUDA source is generated per row count and ranks: one thread a column, the rows in registers, the pruned sorting
network of `order_statistics` unrolled into minima and maxima. Neighbouring threads read neighbouring columns, so
the rows stream at the speed of memory. Compiled at first use by NVRTC and kept on disk by CuPy.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from coterie.arrays import Array

REGISTER_ROWS = 224
"""Up to this many rows a column fits into a thread's 255 registers; beyond, sorting takes over."""
THREADS = 128
TYPES = {"torch.float32": ("float", "fminf", "fmaxf"), "torch.float64": ("double", "fmin", "fmax")}


def source(rows: int, low: int, high: int, pairs: list[tuple[int, int]], dtype: str) -> str:
    """The CUDA program for `rows` rows and the ranks [low, high), with the comparators `pairs`.

    The mean is summed in double around the value of the lowest rank, as on the CPU, so equal rows give that row.
    """
    kind, least, most = TYPES[dtype]
    load = "\n".join(f"  {kind} r{i} = x[{i} * stride + c]; odd |= r{i} != r{i};" for i in range(rows))
    sort = "\n".join(f"  t = {least}(r{a}, r{b}); r{b} = {most}(r{a}, r{b}); r{a} = t;" for a, b in pairs)
    add = "\n".join(f"  total += (double)r{i} - base;" for i in range(low + 1, high))
    plain = " + ".join(f"(double)r{i} / {high - low}" for i in range(low, high))
    return f"""
extern "C" __global__ void __launch_bounds__({THREADS})
mean_between_ranks(const {kind}* __restrict__ x, const long long stride, const long long columns,
                   {kind}* __restrict__ out) {{
  const long long c = blockIdx.x * (long long){THREADS} + threadIdx.x;
  if (c >= columns) return;
  bool odd = false;
  {kind} t;
{load}
{sort}
  const double base = (double)r{low};
  double total = 0.0;
{add}
  double result = base + total / {high - low};
  if (!isfinite(result)) result = {plain};
  out[c] = odd ? ({kind})nan("") : ({kind})result;
}}
"""


@lru_cache(maxsize=512)
def _kernel(rows: int, low: int, high: int, dtype: str) -> Any:
    import cupy

    from coterie.aggregators.order_statistics import network

    pairs = [(int(a), int(b)) for a, b in network(rows, low, high)]
    return cupy.RawKernel(source(rows, low, high, pairs, dtype), "mean_between_ranks", options=("--std=c++14",))


@lru_cache(maxsize=1)
def available() -> bool:
    """Is there a CuPy to compile with?"""
    try:
        import cupy
    except ImportError:
        return False
    return bool(cupy.cuda.is_available())


def serves(rows: Array) -> bool:
    """Can this kernel take these rows?"""
    return rows.is_cuda and str(rows.dtype) in TYPES and rows.shape[0] <= REGISTER_ROWS and available()


def mean_between_ranks(rows: Array, low: int, high: int) -> Array:
    """(rows, d) CUDA tensor -> (d,): as `order_statistics.mean_between_ranks`, on the tensor's device and stream."""
    import cupy
    import torch

    if rows.stride(1) != 1:
        rows = rows.contiguous()
    count, columns = rows.shape
    out = torch.empty(columns, dtype=rows.dtype, device=rows.device)
    current = torch.cuda.current_stream(rows.device)
    adopt = getattr(cupy.cuda.Stream, "from_external", None)  # CuPy 14; before it, by the stream's address
    stream = adopt(current) if adopt else cupy.cuda.ExternalStream(current.cuda_stream, rows.device.index)
    with cupy.cuda.Device(rows.device.index), stream:
        _kernel(count, low, high, str(rows.dtype))(
            ((columns + THREADS - 1) // THREADS,),
            (THREADS,),
            (rows.data_ptr(), rows.stride(0), columns, out.data_ptr()),
        )
    return out
