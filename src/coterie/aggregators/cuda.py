"""The order-statistic kernel on an NVIDIA GPU (`coterie[gpu]`).

Up to REGISTER_ROWS rows, CUDA source is generated per row count and ranks: one thread a column, the rows in
registers, the pruned sorting network of `order_statistics` unrolled into minima and maxima. Neighbouring threads read
neighbouring columns, so the rows stream at the speed of memory. With more rows a column stays in shared memory, and
its order statistics are found bit by bit on the ordered bit patterns of its values, exactly. Compiled at first use by
NVRTC and kept on disk by CuPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from coterie.arrays import Array

REGISTER_ROWS = 224
"""Up to this many rows a column fits into a thread's 255 registers."""
SHARED_BYTES = 216 * 1024
"""For columns, of the 227 KiB that a block may have on Hopper; columns that do not fit are sorted."""
QUICK_ROWS = 48
"""Up to this many rows a kernel is compiled within a blink; for more it must pay."""
MANY = 1 << 27
"""Values that are worth the seconds for which a kernel of many rows is compiled; for fewer they are bisected."""
THREADS = 128
LANES, SLICES = 32, 16
"""Columns and threads per column of a block of the bisection."""
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


BISECTION = """
__device__ __forceinline__ KEY ordered(KEY u) { return u ^ ((u >> (BITS - 1)) ? ~(KEY)0 : (KEY)1 << (BITS - 1)); }
__device__ __forceinline__ KIND value(KEY k) {
  k ^= (k >> (BITS - 1)) ? (KEY)1 << (BITS - 1) : ~(KEY)0;
  return AS_KIND(k);
}

// LANES columns a block, SLICES threads a column: each counts its share of the rows
extern "C" __global__ void __launch_bounds__(LANES * SLICES)
bisect(const KIND* __restrict__ x, const long long stride, const long long columns, const int rows, const int low,
       const int high, KIND* __restrict__ out) {
  extern __shared__ KEY keys[];
  __shared__ int counts[2][SLICES][LANES];
  __shared__ double sums[SLICES][LANES];
  const int lane = threadIdx.x, slice = threadIdx.y;
  const long long place = blockIdx.x * (long long)LANES + lane;
  const long long c = place < columns ? place : columns - 1;  // nobody leaves before the last barrier
  KEY* own = keys + lane;
  int odd = 0;
  #pragma unroll 4
  for (int i = slice; i < rows; i += SLICES) {
    const KIND v = x[i * stride + c];
    odd |= v != v;
    own[i * LANES] = ordered(AS_KEY(v));
  }
  // the key of rank r is the largest one with at most r keys below it
  KEY found[2] = {0, 0};
  const int ranks[2] = {low, high - 1};
  const int wanted = high - low > 1 ? 2 : 1;
  int turn = 0;  // two sets of counts: a thread may be one barrier ahead of another
  for (int which = 0; which < wanted; ++which) {
    KEY prefix = 0;
    for (int bit = BITS - 1; bit >= 0; --bit) {
      const KEY next = prefix | ((KEY)1 << bit);
      int below = 0;
      #pragma unroll 8
      for (int i = slice; i < rows; i += SLICES) below += own[i * LANES] < next;
      counts[turn][slice][lane] = below;
      __syncthreads();
      below = 0;
      #pragma unroll
      for (int s = 0; s < SLICES; ++s) below += counts[turn][s][lane];
      if (below <= ranks[which]) prefix = next;
      turn ^= 1;
    }
    found[which] = prefix;
  }
  const double base = (double)value(found[0]);
  double part = 0.0;
  int below = 0;
  if (wanted == 2) {
    for (int i = slice; i < rows; i += SLICES) {
      const KEY k = own[i * LANES];
      below += k < found[1];
      if (k > found[0] && k < found[1]) part += (double)value(k) - base;
    }
  }
  counts[turn][slice][lane] = below;
  counts[turn ^ 1][slice][lane] = odd;
  sums[slice][lane] = part;
  __syncthreads();
  if (slice != 0 || place >= columns) return;
  double total = 0.0;
  below = odd = 0;
  for (int s = 0; s < SLICES; ++s) {
    total += sums[s][lane];
    below += counts[turn][s][lane];
    odd |= counts[turn ^ 1][s][lane];
  }
  if (wanted == 2 && found[1] != found[0]) total += (high - below) * ((double)value(found[1]) - base);
  out[place] = odd ? (KIND)nan("") : (KIND)(base + total / (high - low));
}
"""
BISECTION_TYPES = {
    "torch.float32": ("float", "unsigned int", 32, "__float_as_uint(v)", "__uint_as_float(v)"),
    "torch.float64": ("double", "unsigned long long", 64, "__double_as_longlong(v)", "__longlong_as_double(v)"),
}


@lru_cache(maxsize=2)
def _bisection(dtype: str) -> Any:
    import cupy

    kind, key, bits, as_key, as_kind = BISECTION_TYPES[dtype]
    defined = {"KIND": kind, "KEY": key, "BITS": bits, "LANES": LANES, "SLICES": SLICES}
    head = "".join(f"#define {name} {text}\n" for name, text in defined.items())
    head += f"#define AS_KEY(v) ((KEY){as_key})\n#define AS_KIND(v) {as_kind}\n"
    kernel = cupy.RawKernel(head + BISECTION, "bisect", options=("--std=c++14",))
    kernel.max_dynamic_shared_size_bytes = SHARED_BYTES
    return kernel


def _shared_bytes(rows: Array) -> int:
    return int(rows.shape[0]) * LANES * int(rows.element_size())


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


@contextmanager
def on_stream_of(tensor: Array) -> Iterator[None]:
    """CuPy works on the tensor's device, in torch's current stream there."""
    import cupy
    import torch

    current = torch.cuda.current_stream(tensor.device)
    adopt = getattr(cupy.cuda.Stream, "from_external", None)  # CuPy 14; before it, by the stream's address
    stream = adopt(current) if adopt else cupy.cuda.ExternalStream(current.cuda_stream, tensor.device.index)
    with cupy.cuda.Device(tensor.device.index), stream:
        yield


def serves(rows: Array) -> bool:
    """Can this kernel take these rows?"""
    small = rows.shape[0] <= REGISTER_ROWS or _shared_bytes(rows) <= SHARED_BYTES
    return rows.is_cuda and str(rows.dtype) in TYPES and small and available()


def mean_between_ranks(rows: Array, low: int, high: int) -> Array:
    """(rows, d) CUDA tensor -> (d,): as `order_statistics.mean_between_ranks`, on the tensor's device and stream."""
    import torch

    if rows.stride(1) != 1:
        rows = rows.contiguous()
    count, columns = rows.shape
    if (low, high) == (0, count) and rows.dtype is torch.float32:
        return torch.mean(rows, dim=0, dtype=torch.float64).to(rows.dtype)
    out = torch.empty(columns, dtype=rows.dtype, device=rows.device)
    worth = count <= QUICK_ROWS or count * columns >= MANY or _shared_bytes(rows) > SHARED_BYTES
    with on_stream_of(rows):
        if count <= REGISTER_ROWS and worth:
            _kernel(count, low, high, str(rows.dtype))(
                (-(-columns // THREADS),),
                (THREADS,),
                (rows.data_ptr(), rows.stride(0), columns, out.data_ptr()),
            )
        else:
            numbers = (np.int32(count), np.int32(low), np.int32(high))
            _bisection(str(rows.dtype))(
                (-(-columns // LANES),),
                (LANES, SLICES),
                (rows.data_ptr(), rows.stride(0), columns, *numbers, out.data_ptr()),
                shared_mem=_shared_bytes(rows),
            )
    return out
