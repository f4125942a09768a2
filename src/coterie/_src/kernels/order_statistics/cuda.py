"""The order-statistic kernel on an NVIDIA GPU (`coterie[gpu]`).

Up to REGISTER_ROWS rows (QUICK_ROWS where the values are few), CUDA source is generated per row count and ranks: one
thread a column, the rows in registers, the pruned sorting network of `order_statistics` unrolled into minima and
maxima. Neighbouring threads read neighbouring columns, so the rows stream at the speed of memory. With more rows 8 to
32 threads share a column: each sorts a run of its rows by a network, in registers, too, and leaves it in shared
memory. The wanted rank is then found among the runs: each proposes the value that stands at the same share of what it
has open, two of the proposals around their median (Floyd and Rivest, Expected time bounds for selection, 1975) are
looked up in all runs by binary search, and only what lies between them stays open. Some three turns are enough, and
every turn takes away at least its two pivots, so the result is exact whatever the values. Compiled at first use by
NVRTC and kept on disk by CuPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from coterie._src.arrays import Array

REGISTER_ROWS = 224
"""Up to this many rows a column fits into a thread's 255 registers."""
QUICK_ROWS = 48
"""Up to this many rows a kernel is compiled within a blink; for more it must pay."""
MANY = 1 << 27
"""Values that are worth the seconds for which a kernel of many rows is compiled; fewer go through shorter runs."""
THREADS = 128
HELD_BYTES = 320
"""Of its column that a thread holds at most where several share it; longer columns are left to `torch.sort`."""
ROUNDED = 2
"""To a multiple of this the rows of a run are rounded up."""
TYPES = {"torch.float32": "float", "torch.float64": "double"}
COMPARATORS = """
#if FLOAT && __CUDA_ARCH__ >= 800
// a NaN makes both values of a comparator NaN, so it comes out wherever the network is asked: it costs nothing
__device__ __forceinline__ float least(float a, float b) {
  float c; asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c;
}
__device__ __forceinline__ float most(float a, float b) {
  float c; asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c;
}
#define IS_ODD(value) false
#else
__device__ __forceinline__ KIND least(KIND a, KIND b) { return a < b ? a : b; }
__device__ __forceinline__ KIND most(KIND a, KIND b) { return a < b ? b : a; }
#define IS_ODD(value) (value != value)
#endif
"""


def _prelude(dtype: str, **numbers: int) -> str:
    """KIND, `least`, `most`, and IS_ODD: what has to be asked of every value, so that no NaN is overlooked."""
    names = {"KIND": TYPES[dtype], "FLOAT": int(TYPES[dtype] == "float"), **numbers}
    return "".join(f"#define {name} {meaning}\n" for name, meaning in names.items()) + COMPARATORS


def _comparator(a: int, b: int) -> str:
    return f"  t = least(r{a}, r{b}); r{b} = most(r{a}, r{b}); r{a} = t;"


def source(rows: int, low: int, high: int, pairs: list[tuple[int, int]], dtype: str) -> str:
    """The CUDA program for `rows` rows and the ranks [low, high), with the comparators `pairs`.

    The mean is summed in double around the first of them, as on the CPU, so equal rows give that row.
    """
    load = "\n".join(f"  KIND r{i} = x[{i} * stride + c]; odd |= IS_ODD(r{i});" for i in range(rows))
    sort = "\n".join(_comparator(a, b) for a, b in pairs)
    add = "\n".join(f"  total += (double)r{i} - base;" for i in range(low + 1, high))
    plain = " + ".join(f"(double)r{i} / {high - low}" for i in range(low, high))
    return f"""{_prelude(dtype)}
extern "C" __global__ void __launch_bounds__({THREADS})
mean_between_ranks(const KIND* __restrict__ x, const long long stride, const long long columns,
                   KIND* __restrict__ out) {{
  const long long c = blockIdx.x * (long long){THREADS} + threadIdx.x;
  if (c >= columns) return;
  bool odd = false;
  KIND t;
{load}
{sort}
  const double base = (double)r{low};
  double total = 0.0;
{add}
  double result = base + total / {high - low};
  if (!isfinite(result)) result = {plain};
  out[c] = odd ? (KIND)nan("") : (KIND)result;
}}
"""


RUNS_SOURCE = """
#define ALL 0xffffffffu
#define BEYOND ((KIND)__int_as_float(0x7f800000))
#define STRIDE (HELD * COLUMNS + 32 / RUNS)  // between two runs: a warp's values lie in different banks of memory

// the first place in [from, to) of an ascending run whose value is not below the pivot
__device__ __forceinline__ int place_of(const KIND* run, int from, int to, const KIND pivot) {
  while (from < to) {
    const int middle = (from + to) / 2;
    if (run[middle * COLUMNS] < pivot) from = middle + 1; else to = middle;
  }
  return from;
}

__device__ __forceinline__ int after(const KIND* run, int place, const int to, const KIND pivot) {
  while (place < to && run[place * COLUMNS] == pivot) ++place;
  return place;
}

template <class Number> __device__ __forceinline__ Number over_runs(Number number) {
  #pragma unroll
  for (int s = 1; s < RUNS; s *= 2) number += __shfl_xor_sync(ALL, number, s);
  return number;
}

// one value of each thread, in ascending order over the threads of a column
__device__ __forceinline__ KIND in_order(KIND value, const int thread) {
  #pragma unroll
  for (int k = 2; k <= RUNS; k *= 2) {
    #pragma unroll
    for (int s = k / 2; s > 0; s /= 2) {
      const KIND other = __shfl_xor_sync(ALL, value, s);
      const bool smaller = ((thread & k) == 0) == ((thread & s) == 0);
      value = smaller ? least(value, other) : most(value, other);
    }
  }
  return value;
}

// the value of a rank among all runs of a column; each thread has one of them
__device__ KIND find(const KIND* run, const int thread, int rank, bool done) {
  int from = 0, to = HELD, left = RUNS * HELD;  // what is open: of this run, and of all
  KIND answer = 0;
  while (__any_sync(ALL, !done)) {  // columns that are done wait for their neighbours
    const int open = to - from;
    const unsigned group = (RUNS == 32 ? ALL : (1u << RUNS) - 1) << (threadIdx.x % 32 / RUNS * RUNS);
    const int runs = __popc(__ballot_sync(ALL, open > 0) & group);
    const float share = __fdividef((float)rank, (float)left);
    const KIND own = open > 0 ? run[(from + min(open - 1, (int)(share * open))) * COLUMNS] : BEYOND;
    const KIND guess = in_order(own, thread);
    const bool last = runs == left;  // one value of each run is open: this is their order
    const int middle = last ? rank : min(runs - 1, (int)(share * runs)), gap = last ? 0 : 1 + runs / 12;
    const KIND p = __shfl_sync(ALL, guess, max(middle - gap, 0), RUNS);
    const KIND q = __shfl_sync(ALL, guess, max(min(middle + gap, runs - 1), 0), RUNS);
    if (last && !done) { answer = p; done = true; }
    if (__all_sync(ALL, done)) break;
    const int p_from = place_of(run, from, to, p), p_to = after(run, p_from, to, p);
    const int q_from = place_of(run, p_from, to, q), q_to = after(run, q_from, to, q);
    const int at_p = over_runs((p_from - from) | (p_to - from) << 16);  // two counts in one number
    const int at_q = over_runs((q_from - from) | (q_to - from) << 16);
    if (done) continue;
    if (rank < (at_p & 0xffff)) { to = p_from; left = at_p & 0xffff; }
    else if (rank < at_p >> 16) { answer = p; done = true; }
    else if (rank < (at_q & 0xffff)) {
      from = p_to; to = q_from; left = (at_q & 0xffff) - (at_p >> 16); rank -= at_p >> 16;
    }
    else if (rank < at_q >> 16) { answer = q; done = true; }
    else { from = q_to; left -= at_q >> 16; rank -= at_q >> 16; }
  }
  return answer;
}

// a block: COLUMNS columns of RUNS runs; run i of a column has its rows i, i + RUNS, i + 2 RUNS, ...
extern "C" __global__ void __launch_bounds__(RUNS * COLUMNS)
mean_between_ranks(const KIND* __restrict__ x, const long long stride, const long long columns, const int rows,
                   const int low, const int high, KIND* __restrict__ out) {
  extern __shared__ double shared[];
  __shared__ int odd[COLUMNS];
  KIND* sorted = (KIND*)shared;
  if (threadIdx.x < COLUMNS) odd[threadIdx.x] = 0;
  __syncthreads();
  {  // neighbouring threads: neighbouring columns
    const int run = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS;
    const long long c = min((long long)blockIdx.x * COLUMNS + column, columns - 1);
    const KIND* from = x + run * stride + c;
    const long long step = RUNS * stride;
    bool is_odd = false;
    KIND t;
LOAD
SORT
    KIND* to = sorted + run * STRIDE + column;
STORE
    if (is_odd || r0 != r0) odd[column] = 1;
  }
  __syncthreads();
  // neighbouring threads: the runs of one column
  const int thread = threadIdx.x % RUNS, column = threadIdx.x / RUNS;
  const long long place = (long long)blockIdx.x * COLUMNS + column;
  const bool is_odd = odd[column];
  const KIND* run = sorted + thread * STRIDE + column;
  const KIND bottom = find(run, thread, low, is_odd);
  double result = (double)bottom;
  if (high - low > 1) {
    const int start = after(run, place_of(run, 0, HELD, bottom), HELD, bottom), upto = over_runs(start);
    KIND top;
    if (high - low == 2) {  // the next one, unless the first stands there several times
      KIND next = start < HELD ? run[start * COLUMNS] : BEYOND;
      #pragma unroll
      for (int s = 1; s < RUNS; s *= 2) next = least(next, __shfl_xor_sync(ALL, next, s));
      top = upto > low + 1 ? bottom : next;
    } else {
      top = find(run, thread, high - 1, is_odd);
    }
    const int stop = place_of(run, start, HELD, top), below = over_runs(stop);
    const double each = 1.0 / (high - low), base = bottom;
    double total = 0.0;
    for (int i = start; i < stop; ++i) total += ((double)run[i * COLUMNS] - base) * each;
    total = over_runs(total);
    if (top != bottom) result = base + total + (high - below) * each * ((double)top - base);
    if (__any_sync(ALL, !isfinite(result))) {  // infinite rows, or a spread beyond float64: around 0
      total = 0.0;
      for (int i = start; i < stop; ++i) total += (double)run[i * COLUMNS] * each;
      total = over_runs(total);
      if (top != bottom && !isfinite(result))
        result = total + (upto - low) * each * (double)bottom + (high - below) * each * (double)top;
    }
  }
  if (thread == 0 && place < columns) out[place] = is_odd ? (KIND)nan("") : (KIND)result;
}
"""


def runs_source(runs: int, held: int, columns: int, dtype: str) -> str:
    """The CUDA program for up to runs·held rows, and more than runs·(held − ROUNDED)."""
    from coterie._src.kernels.order_statistics.network import sorting_network

    sure = held - ROUNDED
    load = [
        f"    KIND r{i} = {'' if i < sure else f'run + {i * runs} >= rows ? BEYOND : '}from[{i} * step];"
        f" is_odd |= IS_ODD(r{i});"
        for i in range(held)
    ]
    sort = [_comparator(a, b) for a, b in sorting_network(held).tolist()]
    store = [f"    to[{i} * COLUMNS] = r{i};" for i in range(held)]
    text = _prelude(dtype, RUNS=runs, HELD=held, COLUMNS=columns) + RUNS_SOURCE
    for name, lines in {"LOAD": load, "SORT": sort, "STORE": store}.items():
        text = text.replace(f"\n{name}\n", "\n" + "\n".join(lines) + "\n")
    return text


@lru_cache(maxsize=64)
def _runs_kernel(runs: int, held: int, columns: int, dtype: str) -> Any:
    import cupy

    return cupy.RawKernel(runs_source(runs, held, columns, dtype), "mean_between_ranks", options=("--std=c++14",))


class Runs(NamedTuple):
    """How a column of many rows is shared out: runs, rows of a run, columns of a block."""

    runs: int
    held: int
    columns: int

    def shared_bytes(self, bytes_each: int) -> int:
        """What a block asks for."""
        return self.runs * (self.held * self.columns + 32 // self.runs) * bytes_each


def runs_of(rows: int, bytes_each: int, most: int, wide: bool = False) -> Runs | None:
    """For blocks that may ask for `most` bytes of shared memory; None: too many rows. wide: the ranks are many.

    The rows of a run are rounded up, so that few programs serve all row counts.

    >>> runs_of(400, 4, 200_000), runs_of(1000, 4, 200_000), runs_of(3000, 4, 200_000)
    (Runs(runs=8, held=50, columns=16), Runs(runs=16, held=64, columns=16), None)
    """
    # long runs cost more to sort, many runs more to search, which wide ranks do twice: these came out fastest
    for runs, columns, share in ((8, 16, 1 if wide else 0.625), (16, 16, 1), (32, 16, 1), (32, 8, 1)):
        found = Runs(runs, -(-rows // (ROUNDED * runs)) * ROUNDED, columns)
        if found.held * bytes_each <= share * HELD_BYTES and found.shared_bytes(bytes_each) <= most:
            return found
    return None


@lru_cache(maxsize=512)
def _kernel(rows: int, low: int, high: int, dtype: str) -> Any:
    import cupy

    from coterie._src.kernels.order_statistics.network import network

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


@lru_cache(maxsize=16)
def most_shared(device: Any, reserved: int = RESERVED_SHARED) -> int:
    """Bytes of shared memory that a block may ask for on this device, beside what is reserved."""
    import cupy

    return int(cupy.cuda.Device(device.index).attributes["MaxSharedMemoryPerBlockOptin"]) - reserved


def with_shared(kernel: Any, size: int) -> Any:
    """The kernel, allowed to ask for `size` bytes of shared memory."""
    kernel.max_dynamic_shared_size_bytes = max(kernel.max_dynamic_shared_size_bytes, size)
    return kernel


def serves(rows: Array) -> bool:
    """Can this kernel take these rows?"""
    if not (rows.is_cuda and str(rows.dtype) in TYPES):
        return False
    return available() and _runs(rows) is not None


def _runs(rows: Array, wide: bool = False) -> Runs | None:
    return runs_of(rows.shape[0], rows.element_size(), most_shared(rows.device, 1024), wide)


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
            shape, dtype = _runs(rows, high - low > 2), str(rows.dtype)
            assert shape is not None
            size = shape.shared_bytes(rows.element_size())
            with_shared(_runs_kernel(*shape, dtype), size)(
                (-(-columns // shape.columns),),
                (shape.runs * shape.columns,),
                (rows.data_ptr(), rows.stride(0), columns, *map(np.int32, (count, low, high)), out.data_ptr()),
                shared_mem=size,
            )
    return out
