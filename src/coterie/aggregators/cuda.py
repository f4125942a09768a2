"""The order-statistic kernel on an NVIDIA GPU (`coterie[gpu]`).

Up to REGISTER_ROWS rows, CUDA source is generated per row count and ranks: one thread a column, the rows in
registers, the pruned sorting network of `order_statistics` unrolled into minima and maxima. Neighbouring threads read
neighbouring columns, so the rows stream at the speed of memory. With more rows several threads of a warp share a
column, still in registers, and bisect the ordered bit patterns of its values: after every halving both ends move on to
the next value that there is, so that some ten passes find an order statistic exactly, and never more than there are
bits. Compiled at first use by NVRTC and kept on disk by CuPy.
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
QUICK_ROWS = 48
"""Up to this many rows a kernel is compiled within a blink; for more it must pay."""
MANY = 1 << 27
"""Values that are worth the seconds for which a kernel of many rows is compiled; for fewer they are bisected."""
THREADS = 128
HELD_BYTES = 320
"""Of its column that a thread of the bisection holds at most; columns that do not fit a warp are sorted."""
BISECTING_THREADS = 256
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
#define ALL 0xffffffffu
#define COLUMNS (32 / SLICES)
__device__ __forceinline__ KEY ordered(KEY u) { return u ^ ((u >> (BITS - 1)) ? ~(KEY)0 : (KEY)1 << (BITS - 1)); }
__device__ __forceinline__ KIND value(KEY k) {
  k ^= (k >> (BITS - 1)) ? (KEY)1 << (BITS - 1) : ~(KEY)0;
  return AS_KIND(k);
}
__device__ __forceinline__ KEY least(KEY a, KEY b) { return a < b ? a : b; }
__device__ __forceinline__ KEY most(KEY a, KEY b) { return a < b ? b : a; }

// how many keys lie below `pivot`, the largest of them, and the smallest of the others, over all threads of a column
__device__ __forceinline__ int split(const KEY (&keys)[HELD], const KEY pivot, KEY& under, KEY& over) {
  int below = 0;
  under = 0;
  over = ~(KEY)0;
  #pragma unroll
  for (int j = 0; j < HELD; ++j) {
    const bool is_below = keys[j] < pivot;
    below += is_below;
    under = is_below ? most(under, keys[j]) : under;
    over = is_below ? over : least(over, keys[j]);
  }
  #pragma unroll
  for (int s = COLUMNS; s < 32; s <<= 1) {
    below += __shfl_xor_sync(ALL, below, s);
    under = most(under, __shfl_xor_sync(ALL, under, s));
    over = least(over, __shfl_xor_sync(ALL, over, s));
  }
  return below;
}

// the key of a rank, which lies in [low, high]; both are keys that there are
__device__ __forceinline__ KEY find(const KEY (&keys)[HELD], const int rank, KEY low, KEY high) {
  while (__any_sync(ALL, low < high)) {  // columns that are done wait for their neighbours
    KEY under, over;
    const int below = split(keys, low + ((high - low) >> 1) + 1, under, over);
    if (low < high) {
      if (below <= rank) { low = over; if (below == rank) high = over; }
      else { high = under; if (below == rank + 1) low = under; }
    }
  }
  return low;
}

// a warp: COLUMNS columns, SLICES threads each, HELD keys a thread
extern "C" __global__ void __launch_bounds__(BISECTING_THREADS)
bisect(const KIND* __restrict__ x, const long long stride, const long long columns, const int rows, const int low,
       const int high, KIND* __restrict__ out) {
  const int slice = (threadIdx.x & 31) / COLUMNS;
  const long long warp = (blockIdx.x * (long long)BISECTING_THREADS + threadIdx.x) >> 5;
  const long long place = warp * COLUMNS + (threadIdx.x & 31) % COLUMNS;
  const long long c = place < columns ? place : columns - 1;  // a warp stays together
  KEY keys[HELD], first = ~(KEY)0, last = 0;
  bool odd = false;
  #pragma unroll
  for (int j = 0; j < HELD; ++j) {
    const int i = slice + j * SLICES;
    keys[j] = ~(KEY)0;  // beyond all, where there is no row
    if (i < rows) {
      const KIND v = x[i * stride + c];
      odd |= v != v;
      keys[j] = ordered(AS_KEY(v));
      first = least(first, keys[j]);
      last = most(last, keys[j]);
    }
  }
  #pragma unroll
  for (int s = COLUMNS; s < 32; s <<= 1) {
    odd |= __shfl_xor_sync(ALL, (int)odd, s);
    first = least(first, __shfl_xor_sync(ALL, first, s));
    last = most(last, __shfl_xor_sync(ALL, last, s));
  }
  const KEY bottom = find(keys, low, first, last);
  const double base = (double)value(bottom);
  double total = 0.0;
  if (high - low > 1) {
    KEY top, under, over;
    if (high - low == 2) {  // the next one, unless the first stands there several times
      const int upto = split(keys, bottom + 1, under, over);
      top = upto > low + 1 ? bottom : over;
    } else {
      top = find(keys, high - 1, bottom, last);
    }
    int below = 0;
    #pragma unroll
    for (int j = 0; j < HELD; ++j) {
      below += keys[j] < top;
      if (keys[j] > bottom && keys[j] < top) total += (double)value(keys[j]) - base;
    }
    #pragma unroll
    for (int s = COLUMNS; s < 32; s <<= 1) {
      below += __shfl_xor_sync(ALL, below, s);
      total += __shfl_xor_sync(ALL, total, s);
    }
    if (top != bottom) total += (high - below) * ((double)value(top) - base);
  }
  if (slice == 0 && place < columns) out[place] = odd ? (KIND)nan("") : (KIND)(base + total / (high - low));
}
"""
BISECTION_TYPES = {
    "torch.float32": ("float", "unsigned int", 32, "__float_as_uint(v)", "__uint_as_float(v)"),
    "torch.float64": ("double", "unsigned long long", 64, "__double_as_longlong(v)", "__longlong_as_double(v)"),
}


@lru_cache(maxsize=64)
def _bisection(dtype: str, slices: int, held: int) -> Any:
    import cupy

    kind, key, bits, as_key, as_kind = BISECTION_TYPES[dtype]
    defined = {"KIND": kind, "KEY": key, "BITS": bits, "SLICES": slices, "HELD": held}
    head = "".join(f"#define {name} {text}\n" for name, text in defined.items())
    head += f"#define AS_KEY(v) ((KEY){as_key})\n#define AS_KIND(v) {as_kind}\n"
    head += f"#define BISECTING_THREADS {BISECTING_THREADS}\n"
    return cupy.RawKernel(head + BISECTION, "bisect", options=("--std=c++14",))


def shares(rows: int, bytes_each: int) -> tuple[int, int] | None:
    """How many threads of a warp share a column of the bisection, and how many rows each of them holds; None: too many.

    The rows are rounded up, so that few programs serve all row counts.

    >>> shares(300, 4), shares(1200, 4), shares(1200, 8), shares(3000, 4)
    ((4, 80), (16, 80), (32, 40), None)
    """
    for slices in (4, 8, 16, 32):
        held = -(-rows // (8 * slices)) * 8
        if held * bytes_each <= HELD_BYTES:
            return slices, held
    return None


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


RESERVED_SHARED = 20 * 1024
"""Bytes of shared memory that a kernel's own arrays may take, beside what it asks for at its launch."""


@lru_cache(maxsize=8)
def most_shared(device: Any) -> int:
    """Bytes of shared memory that a block may ask for on this device."""
    import cupy

    return int(cupy.cuda.Device(device.index).attributes["MaxSharedMemoryPerBlockOptin"]) - RESERVED_SHARED


def with_shared(kernel: Any, size: int) -> Any:
    """The kernel, allowed to ask for `size` bytes of shared memory."""
    kernel.max_dynamic_shared_size_bytes = max(kernel.max_dynamic_shared_size_bytes, size)
    return kernel


def serves(rows: Array) -> bool:
    """Can this kernel take these rows?"""
    if not (rows.is_cuda and str(rows.dtype) in TYPES):
        return False
    return (rows.shape[0] <= REGISTER_ROWS or shares(rows.shape[0], rows.element_size()) is not None) and available()


def mean_between_ranks(rows: Array, low: int, high: int) -> Array:
    """(rows, d) CUDA tensor -> (d,): as `order_statistics.mean_between_ranks`, on the tensor's device and stream."""
    import torch

    if rows.stride(1) != 1:
        rows = rows.contiguous()
    count, columns = rows.shape
    if (low, high) == (0, count) and rows.dtype is torch.float32:
        return torch.mean(rows, dim=0, dtype=torch.float64).to(rows.dtype)
    out = torch.empty(columns, dtype=rows.dtype, device=rows.device)
    worth = count <= QUICK_ROWS or count * columns >= MANY
    with on_stream_of(rows):
        if count <= REGISTER_ROWS and worth:
            _kernel(count, low, high, str(rows.dtype))(
                (-(-columns // THREADS),),
                (THREADS,),
                (rows.data_ptr(), rows.stride(0), columns, out.data_ptr()),
            )
        else:
            found = shares(count, rows.element_size())
            assert found is not None
            numbers = (np.int32(count), np.int32(low), np.int32(high))
            _bisection(str(rows.dtype), *found)(
                (-(-columns * found[0] // BISECTING_THREADS),),
                (BISECTING_THREADS,),
                (rows.data_ptr(), rows.stride(0), columns, *numbers, out.data_ptr()),
            )
    return out
