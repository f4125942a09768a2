"""The CUDA kernels of the server in a batched round, and of Three-Stage's clustering.

A cluster's rows are gathered by one block per (trial, method, cluster, columns) and sorted in registers, one thread a
column.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie._src.aggregators import Aggregator
from coterie._src.aggregators.rules import RankRule, rank_rule
from coterie._src.kernels.order_statistics.cuda import available, most_shared, on_stream_of, with_shared
from coterie._src.kernels.order_statistics.network import sorting_network

SORTED_ROWS = (16, 48, 96)
"""Row counts for which a sorting network is generated; a larger cluster is bisected."""
THREADS = (32, 128)
"""Columns of a block, for few columns and for many."""
MOST_CLIENTS = 8192
"""Members of a cluster are listed in shared memory."""


def serves_aggregation(updates: Tensor, rules: Sequence[Aggregator]) -> bool:
    """Can the kernel take these updates and rules?"""
    known = all(rank_rule(rule) is not None for rule in rules)
    small = updates.shape[2] <= MOST_CLIENTS
    return bool(updates.is_cuda and updates.dtype == torch.float32 and small and known and available())


AGGREGATION = """
struct Rule { double trim; double over; };  // the median: a negative trim

__device__ __forceinline__ unsigned ordered(float v) {
  const unsigned u = __float_as_uint(v);
  return u ^ ((u >> 31) ? ~0u : 1u << 31);
}
__device__ __forceinline__ float value(unsigned k) { return __uint_as_float(k ^ ((k >> 31) ? 1u << 31 : ~0u)); }

// a large cluster: both ends of the ranks are found three bits at a time on the ordered bit patterns
template <typename Row>
__device__ float bisected(const float* x, Row row, int count, int low, int high) {
  unsigned found[2] = {0, 0};
  const int ranks[2] = {low, high - 1};
  for (int shift = 30; shift >= 0; shift -= 3) {
    int below[2][7] = {};
    #pragma unroll 8
    for (int i = 0; i < count; ++i) {
      const unsigned k = ordered(x[row(i)]);
      #pragma unroll
      for (int end = 0; end < 2; ++end)
        #pragma unroll
        for (int digit = 0; digit < 7; ++digit)
          below[end][digit] += k < (found[end] | ((unsigned long long)(digit + 1) << shift));
    }
    for (int end = 0; end < 2; ++end) {
      unsigned digit = 0;
      #pragma unroll
      for (int tried = 0; tried < 7; ++tried) digit += below[end][tried] <= ranks[end];
      found[end] |= digit << shift;
    }
  }
  const double base = value(found[0]);
  double total = 0.0;
  int below = 0;
  #pragma unroll 8
  for (int i = 0; i < count; ++i) {
    const float v = x[row(i)];
    const unsigned k = ordered(v);
    below += k < found[1];
    if (k > found[0] && k < found[1]) total += (double)v - base;
  }
  if (found[1] != found[0]) total += (high - below) * ((double)value(found[1]) - base);
  return (float)(base + total / (high - low));
}

// a block: one (trial, lane, cluster) and THREADS columns; the cluster's members are listed first, in order
extern "C" __global__ void __launch_bounds__(THREADS)
aggregate(const float* __restrict__ updates, const int* __restrict__ labels, const Rule* __restrict__ rules,
          const int lanes, const int clusters, const int m, const int d, float* __restrict__ out,
          int* __restrict__ sizes) {
  __shared__ unsigned short members[MOST_CLIENTS];
  __shared__ int warps[THREADS / 32 + 1];
  const int group = blockIdx.x / clusters, cluster = blockIdx.x % clusters;
  const Rule rule = rules[group % lanes];
  int count = 0;
  for (int first = 0; first < m; first += THREADS) {
    const int client = first + threadIdx.x;
    const bool in = client < m && labels[(long long)group * m + client] == cluster;
    const unsigned vote = __ballot_sync(~0u, in);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = __popc(vote);
    __syncthreads();
    int place = count;
    for (int w = 0; w < THREADS / 32; ++w) {
      if (w < threadIdx.x / 32) place += warps[w];
      count += warps[w];
    }
    if (in) members[place + __popc(vote & ((1u << (threadIdx.x % 32)) - 1))] = client;
    __syncthreads();
  }
  if (blockIdx.y == 0 && threadIdx.x == 0) sizes[blockIdx.x] = count;
  const int c = blockIdx.y * THREADS + threadIdx.x;
  if (c >= d) return;
  const float* x = updates + (long long)group * m * d + c;
  float result = 0.0f;
  auto row = [&](int i) { return (long long)members[i] * d; };
  int low = (count - 1) / 2, high = count / 2 + 1;
  if (rule.trim >= 0) {
    low = min((int)floor(rule.trim * count + 1e-9), (count - 1) / 2);
    high = count - low;
  }
  if (count == 0) {
  } else if (low == 0 && high == count) {
    const double base = x[row(0)];
    double total = 0.0;
    #pragma unroll 8
    for (int i = 1; i < count; ++i) total += (double)x[row(i)] - base;
    result = base + total / count;
  }
SORTED
  else {
    result = bisected(x, row, count, low, high);
  }
  if (rule.over > 0) result *= count / rule.over;
  out[(long long)blockIdx.x * d + c] = result;
}

// a block: one (trial, lane, cluster); the gradient of one client there if nobody chose the cluster
extern "C" __global__ void __launch_bounds__(THREADS)
stand_in(const float* __restrict__ features, const float* __restrict__ targets, const float* __restrict__ scales,
         const float* __restrict__ centres, const int* __restrict__ sizes, const long long* __restrict__ picked,
         const int lanes, const int clusters, const int m, const int n, const int d, float* __restrict__ out) {
  extern __shared__ float errors[];
  const int group = blockIdx.x;
  if (sizes[group] > 0) return;
  const long long client = (long long)(group / (lanes * clusters)) * m + picked[group];
  const float* x = features + client * n * d;
  const float* theta = centres + (long long)group * d;
  for (int row = threadIdx.x / 32; row < n; row += THREADS / 32) {
    float score = 0.0f;
    for (int c = threadIdx.x % 32; c < d; c += 32) score += x[(long long)row * d + c] * theta[c];
    for (int step = 16; step > 0; step /= 2) score += __shfl_xor_sync(~0u, score, step);
    if (threadIdx.x % 32 == 0) errors[row] = scales[client] * score - targets[client * n + row];
  }
  __syncthreads();
  for (int c = threadIdx.x; c < d; c += THREADS) {
    float total = 0.0f;
    for (int row = 0; row < n; ++row) total += x[(long long)row * d + c] * errors[row];
    out[(long long)group * d + c] = total * 2.0f / n;
  }
}
"""


def _sorted_source(rows: int) -> str:
    """The branch for clusters of at most `rows` rows: sorted in registers behind a padding of infinities."""
    load = "\n".join(f"    float r{i} = {i} < count ? x[row({i})] : __int_as_float(0x7f800000);" for i in range(rows))
    pairs = "\n".join(
        f"    t = fminf(r{a}, r{b}); r{b} = fmaxf(r{a}, r{b}); r{a} = t;" for a, b in sorting_network(rows)
    )
    base = "\n".join(f"    if ({i} == low) base = r{i};" for i in range(rows))
    total = "\n".join(f"    if ({i} > low && {i} < high) total += (double)r{i} - base;" for i in range(rows))
    return f"""  else if (count <= {rows}) {{
    float t;
{load}
{pairs}
    double base = 0.0, total = 0.0;
{base}
{total}
    result = base + total / (high - low);
  }}"""


@lru_cache(maxsize=2)
def _module(threads: int) -> Any:
    import cupy

    defined = {"THREADS": threads, "MOST_CLIENTS": MOST_CLIENTS}
    head = "".join(f"#define {name} {number}\n" for name, number in defined.items())
    branches = "\n".join(_sorted_source(rows) for rows in SORTED_ROWS)
    return cupy.RawModule(code=head + AGGREGATION.replace("SORTED", branches), options=("--std=c++14",))


def _threads(columns: int) -> int:
    return THREADS[columns > 2 * THREADS[0]]


@lru_cache(maxsize=64)
def _rules(ranks: tuple[RankRule, ...], device: torch.device) -> Tensor:
    """The rules as the kernel reads them."""
    rows = [[-1.0 if rule.trim is None else rule.trim, rule.over or 0] for rule in ranks]
    return torch.tensor(rows, dtype=torch.float64, device=device)


def aggregate(updates: Tensor, labels: Tensor, clusters: int, rules: Sequence[Aggregator]) -> tuple[Tensor, Tensor]:
    """See `descent.aggregate`."""
    trials, lanes, m, d = updates.shape
    ranks = tuple(found for rule in rules if (found := rank_rule(rule)) is not None)
    out = torch.empty((trials, lanes, clusters, d), dtype=updates.dtype, device=updates.device)
    sizes = torch.empty((trials, lanes, clusters), dtype=torch.int32, device=updates.device)
    threads = _threads(d)
    # bound to names: a copy must outlive the launch
    rows, own, table = updates.contiguous(), labels.contiguous(), _rules(ranks, updates.device)
    with on_stream_of(updates):
        _module(threads).get_function("aggregate")(
            (trials * lanes * clusters, -(-d // threads)),
            (threads,),
            (
                *(tensor.data_ptr() for tensor in (rows, own, table)),
                *(np.int32(number) for number in (lanes, clusters, m, d)),
                *(out.data_ptr(), sizes.data_ptr()),
            ),
        )
    return out, sizes


def serves_stand_ins(features: Tensor, sizes: Tensor) -> bool:
    """Can the kernel take these samples and these counts of members?"""
    if not (features.is_cuda and features.dtype == torch.float32 and sizes.dtype == torch.int32 and available()):
        return False
    return 4 * features.shape[2] <= most_shared(features.device)


def stand_in(
    features: Tensor, targets: Tensor, scales: Tensor, centres: Tensor, sizes: Tensor, picked: Tensor, updates: Tensor
) -> Tensor:
    """Overwrite the updates of empty clusters, in place; see `Descent`."""
    trials, lanes, clusters, d = centres.shape
    m, n = features.shape[1:3]
    threads = _threads(d)
    with on_stream_of(features):
        with_shared(_module(threads).get_function("stand_in"), 4 * n)(
            (trials * lanes * clusters,),
            (threads,),
            (
                *(tensor.data_ptr() for tensor in (features, targets, scales, centres, sizes, picked)),
                *(np.int32(number) for number in (lanes, clusters, m, n, d)),
                updates.data_ptr(),
            ),
            shared_mem=4 * n,
        )
    return updates


# --- clustering ---------------------------------------------------------------------------------------

WEISZFELD = """
// a block: one cluster of one trial. All of Weiszfeld's steps; the sums run in double
extern "C" __global__ void __launch_bounds__(MEDIAN_THREADS)
weiszfeld(const float* __restrict__ points, const int* __restrict__ labels, const double* __restrict__ floors,
          const int clusters, const int m, const int d, const int steps, double* __restrict__ found) {
  extern __shared__ double weights[];  // one per member, then the point (d)
  __shared__ unsigned short members[MOST_CLIENTS];
  __shared__ double parts[MEDIAN_THREADS / 32];
  __shared__ int count;
  const int trial = blockIdx.x / clusters, cluster = blockIdx.x % clusters;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) {  // the members, in order
    int size = 0;
    for (int first = 0; first < m; first += 32) {
      const bool in = first + lane < m && labels[(long long)trial * m + first + lane] == cluster;
      const unsigned vote = __ballot_sync(~0u, in);
      if (in) members[size + __popc(vote & ((1u << lane) - 1))] = first + lane;
      size += __popc(vote);
    }
    if (lane == 0) count = size;
  }
  __syncthreads();
  if (count == 0) return;
  double* point = weights + count;
  double* own = found + (long long)blockIdx.x * d;
  const float* x = points + (long long)trial * m * d;
  const double floor = fmax(floors[blockIdx.x], 1e-300);
  for (int c = threadIdx.x; c < d; c += MEDIAN_THREADS) point[c] = own[c];
  for (int step = 0; step < steps; ++step) {
    __syncthreads();
    for (int i = warp; i < count; i += MEDIAN_THREADS / 32) {
      const float* row = x + (long long)members[i] * d;
      double square = 0.0;
      for (int c = lane; c < d; c += 32) {
        const double difference = (double)row[c] - point[c];
        square += difference * difference;
      }
      for (int other = 16; other > 0; other /= 2) square += __shfl_xor_sync(~0u, square, other);
      if (lane == 0) weights[i] = 1.0 / fmax(sqrt(square), floor);
    }
    __syncthreads();
    double total = 0.0, shift = 0.0;
    for (int i = 0; i < count; ++i) total += weights[i];
    for (int c = threadIdx.x; c < d; c += MEDIAN_THREADS) {
      double moved = 0.0;
      #pragma unroll 4
      for (int i = 0; i < count; ++i) moved += weights[i] * x[(long long)members[i] * d + c];
      moved /= total;
      shift += (moved - point[c]) * (moved - point[c]);
      point[c] = moved;
    }
    for (int other = 16; other > 0; other /= 2) shift += __shfl_xor_sync(~0u, shift, other);
    if (lane == 0) parts[warp] = shift;
    __syncthreads();
    shift = 0.0;
    for (int w = 0; w < MEDIAN_THREADS / 32; ++w) shift += parts[w];
    if (sqrt(shift) <= floor) break;
  }
  __syncthreads();
  for (int c = threadIdx.x; c < d; c += MEDIAN_THREADS) own[c] = point[c];
}
"""
MEDIAN_THREADS = 256


def _median_bytes(clients: int, columns: int) -> int:
    return 8 * (clients + columns)


def serves_medians(points: Tensor) -> bool:
    """Can the kernel take the geometric medians of these points (T, m, d)?"""
    _, m, d = points.shape
    return points.is_cuda and m <= MOST_CLIENTS and available() and _median_bytes(m, d) <= most_shared(points.device)


@lru_cache(maxsize=1)
def _median_kernel() -> Any:
    import cupy

    head = f"#define MEDIAN_THREADS {MEDIAN_THREADS}\n#define MOST_CLIENTS {MOST_CLIENTS}\n"
    return cupy.RawKernel(head + WEISZFELD, "weiszfeld", options=("--std=c++14",))


def geometric_medians(points: Tensor, labels: Tensor, found: Tensor, floors: Tensor, steps: int) -> None:
    """Move `found` (T, k, d) float64, in place, to the geometric medians of the clusters; see `three_stage`.

    points: (T, m, d) float32, labels: (T, m) int32, floors: (T, k, 1) float64.
    """
    trials, clusters, d = found.shape
    m = points.shape[1]
    with on_stream_of(points):
        with_shared(_median_kernel(), _median_bytes(m, d))(
            (trials * clusters,),
            (MEDIAN_THREADS,),
            (
                *(tensor.data_ptr() for tensor in (points, labels, floors)),
                *(np.int32(number) for number in (clusters, m, d, steps)),
                found.data_ptr(),
            ),
            shared_mem=_median_bytes(m, d),
        )
