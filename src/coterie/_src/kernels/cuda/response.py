"""The CUDA kernel of what clients answer in a round: labels, losses there and gradients there, for all methods.

One block per client reads its samples once: a tile of rows goes to shared memory, where warps make the scores of four
centres (one for each method), and threads, a column each, their gradients. Which centre is the nearest a client mostly
knows without a look at the others, from what it keeps between rounds (see `Memory`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie._src.client import MARGIN
from coterie._src.kernels.order_statistics.cuda import available, most_shared, on_stream_of, with_shared

CHOOSES, NOWHERE = -1, -2
"""In the place of a fixed label: the client chooses for itself, or counts in no cluster."""
THREADS = 128
BLOCKS = 8, 5
"""That a processor must have room for: with few columns and with many."""
TILE = 1 << 12
"""Numbers of a tile of samples, about; so several blocks share a processor, and one computes while another reads."""
ROUNDING = 2e-5
"""Of a path, relatively, and more than that of float32."""


class Memory(NamedTuple):
    """What clients keep from round to round: `coterie.assignment.Memory` for T trials and L methods.

    slopes: (T, L, m, k, d), ∇F_i where the client last looked at centre j. bounds: (T, L, m, k, 4), the height of that
    tangent plane, a lower bound of the loss at some time, ‖slope‖, and the centre's path up to that time. While a
    centre has moved by δ the bound has fallen by at most ‖slope‖·‖δ‖; only where that is too much the plane itself is
    asked, which gives a new bound, and only where that does not help the samples. paths: (T, L, k), how far each centre
    has moved in all. labels: (T, L, m).
    """

    labels: Tensor
    bounds: Tensor
    slopes: Tensor
    paths: Tensor


def nothing_known(features: Tensor, centres: Tensor) -> Memory:
    """The memory of clients (T, m, n, d) who have not seen any centres (T, L, k, d) yet."""
    trials, lanes, clusters, d = centres.shape
    m = features.shape[1]
    bounds = centres.new_zeros((trials, lanes, m, clusters, 4))
    bounds[..., :2] = -torch.inf
    return Memory(
        torch.zeros((trials, lanes, m), dtype=torch.int32, device=centres.device),
        bounds,
        centres.new_zeros((trials, lanes, m, clusters, d)),
        centres.new_zeros((trials, lanes, clusters)),
    )


RESPONSE = """
#define ALL 0xffffffffu
#define WARPS (THREADS / 32)
#define VECTORS (D / W)
#define WIDE ((VECTORS + 31) / 32 * 32)
#define TEAM (WIDE < THREADS ? WIDE : THREADS)  // threads that share the columns; the other teams take other rows
#define TEAMS (THREADS / TEAM)
#define EACH ((VECTORS + TEAM - 1) / TEAM)

struct Pass {
  const float* x;        // (n, D), this client's samples
  const float* y;        // (n,)
  const float* centres;  // (lanes * clusters, D), this trial's
  float scale;
  int n;
  float* errors;  // (ROWS, 4), shared
  float* tile;    // (BUFFERS, ROWS, D), shared
  float* theta;   // (4, D), shared
  double* sums;   // (THREADS,), shared
};

__device__ __forceinline__ void get(float (&to)[W], const float* from, const int u) {
  if (W == 4) {
    const float4 v = ((const float4*)from)[u];
    to[0] = v.x; to[1 % W] = v.y; to[2 % W] = v.z; to[3 % W] = v.w;
  } else {
    to[0] = from[u];
  }
}

// from global to shared memory, while the threads go on
__device__ __forceinline__ void fetch(float* to, const float* from, const int count) {
  for (int i = threadIdx.x; i < count / W; i += THREADS) {
#if __CUDA_ARCH__ >= 800
    const unsigned place = (unsigned)__cvta_generic_to_shared(to + i * W);
    if (W == 4) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(place), "l"(from + i * W));
    else asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(place), "l"(from + i * W));
#else
    for (int w = 0; w < W; ++w) to[i * W + w] = from[i * W + w];
#endif
  }
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;");
#endif
}
template <int OPEN> __device__ __forceinline__ void arrived() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" :: "n"(OPEN));
#endif
}

// sums over the lanes of a warp, many at once: every step halves what a lane still has to add up
template <int HALF> __device__ __forceinline__ void fold(float (&v)[16], const int lane) {
  const bool upper = lane & (2 * HALF);
  #pragma unroll
  for (int i = 0; i < HALF; ++i) {
    const float keep = upper ? v[i + HALF] : v[i], send = upper ? v[i] : v[i + HALF];
    v[i] = keep + __shfl_xor_sync(ALL, send, 2 * HALF);
  }
}

// the losses of four centres; their gradients (4, D) are left in of.tile
__device__ __forceinline__ void look(const Pass& of, const int* cells, float (&losses)[4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, team = threadIdx.x / TEAM, member = threadIdx.x % TEAM;
  __syncthreads();
  fetch(of.tile, of.x, min(ROWS, of.n) * D);
  #pragma unroll
  for (int p = 0; p < 4; ++p)
    for (int c = threadIdx.x; c < D; c += THREADS)
      of.theta[p * D + c] = cells[p] < 0 ? 0.0f : of.centres[(long long)cells[p] * D + c];
  float sum[EACH][W][4] = {};
  double squares = 0.0;
  for (int first = 0, turn = 0; first < of.n; first += ROWS, ++turn) {
    const int rows = min(ROWS, of.n - first), next = first + ROWS;
    const float* tile = of.tile + turn % BUFFERS * ROWS * D;
    if (next < of.n) {
      fetch(of.tile + (turn + 1) % BUFFERS * ROWS * D, of.x + (long long)next * D, min(ROWS, of.n - next) * D);
      arrived<1>();
    } else {
      arrived<0>();
    }
    __syncthreads();
    for (int row = 4 * warp; row < rows; row += 4 * WARPS) {
      float v[16] = {};
      for (int u = lane; u < VECTORS; u += 32) {
        float theta[4][W];
        #pragma unroll
        for (int p = 0; p < 4; ++p) get(theta[p], of.theta + p * D, u);
        #pragma unroll
        for (int r = 0; r < 4; ++r) {
          float value[W];
          get(value, tile + min(row + r, rows - 1) * D, u);
          #pragma unroll
          for (int p = 0; p < 4; ++p)
            #pragma unroll
            for (int w = 0; w < W; ++w) v[4 * r + p] += value[w] * theta[p][w];
        }
      }
      fold<8>(v, lane);
      fold<4>(v, lane);
      fold<2>(v, lane);
      fold<1>(v, lane);
      v[0] += __shfl_xor_sync(ALL, v[0], 1);
      const int own = row + lane / 8, p = lane / 2 % 4;
      if (lane % 2 == 0 && own < rows) {
        const float error = of.scale * v[0] - of.y[first + own];
        of.errors[4 * own + p] = 2.0f / of.n * error;
        squares += (double)error * error;
      }
    }
    __syncthreads();
    #pragma unroll 4
    for (int row = team; row < rows; row += TEAMS) {
      const float4 error = ((const float4*)of.errors)[row];
      #pragma unroll
      for (int q = 0; q < EACH; ++q) {
        if (member + q * TEAM < VECTORS) {
          float value[W];
          get(value, tile + row * D, member + q * TEAM);
          #pragma unroll
          for (int w = 0; w < W; ++w) {
            sum[q][w][0] += value[w] * error.x;
            sum[q][w][1] += value[w] * error.y;
            sum[q][w][2] += value[w] * error.z;
            sum[q][w][3] += value[w] * error.w;
          }
        }
      }
    }
    __syncthreads();
  }
  for (int turn = 0; turn < TEAMS; ++turn) {  // team after team
    if (team == turn) {
      #pragma unroll
      for (int q = 0; q < EACH; ++q)
        #pragma unroll
        for (int w = 0; w < W; ++w)
          #pragma unroll
          for (int p = 0; p < 4; ++p) {
            const int c = W * (member + q * TEAM) + w;
            if (c < D) of.tile[p * D + c] = sum[q][w][p] + (turn ? of.tile[p * D + c] : 0.0f);
          }
    }
    __syncthreads();
  }
  of.sums[threadIdx.x] = squares;
  __syncthreads();
  if (threadIdx.x < 4) {
    double total = 0.0;
    for (int part = 0; part < 4 * WARPS; ++part) total += of.sums[8 * part + 2 * threadIdx.x];
    of.errors[threadIdx.x] = (float)(total / of.n);
  }
  __syncthreads();
  #pragma unroll
  for (int p = 0; p < 4; ++p) losses[p] = of.errors[p];
}

__device__ __forceinline__ float over_block(float value, float* parts) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(ALL, value, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0.0f;
  for (int w = 0; w < WARPS; ++w) value += parts[w];
  return value;
}

// a block: one client of one trial
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
respond(const float* __restrict__ features, const float* __restrict__ targets, const float* __restrict__ scales,
        const float* __restrict__ centres, const int* __restrict__ fixed, const float* __restrict__ paths,
        const int lanes, const int clusters, const int m, const int n, int* __restrict__ known,
        float4* __restrict__ bounds, float* __restrict__ slopes, int* __restrict__ labels, float* __restrict__ losses,
        float* __restrict__ gradients) {
  extern __shared__ float4 shared[];
  __shared__ double sums[THREADS];
  __shared__ float parts[WARPS];
  __shared__ int listed[4];
  const int cells = lanes * clusters, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const long long client = blockIdx.x;
  const int trial = client / m, place = client % m;
  float* errors = (float*)shared;
  float* tile = errors + 4 * ROWS;
  float* theta = tile + BUFFERS * ROWS * D;
  float* found = theta + 4 * D;           // (lanes, clusters): losses where the client looks
  int* open = (int*)(found + cells);      // (lanes, clusters): whether it must look there
  int* at = open + cells;                 // (lanes,): its centre, in the last round or by order
  const Pass pass = {features + client * n * D, targets + client * n, centres + (long long)trial * cells * D,
                     scales[client], n, errors, tile, theta, sums};
  const float* path = paths + (long long)trial * cells;
  auto row_of = [&](int l) { return ((long long)trial * lanes + l) * m + place; };
  float loss[4];

  for (int l = threadIdx.x; l < lanes; l += THREADS) {
    const int order = fixed[row_of(l)];
    at[l] = order >= 0 ? order : order == CHOOSES ? known[row_of(l)] : 0;
  }
  __syncthreads();
  for (int first = 0; first < lanes; first += 4) {  // the own centres
    __syncthreads();
    if (threadIdx.x < 4) {
      const int l = first + threadIdx.x;
      listed[threadIdx.x] = l < lanes ? l * clusters + at[l] : -1;
    }
    __syncthreads();
    look(pass, listed, loss);
    #pragma unroll
    for (int p = 0; p < 4; ++p) {
      if (first + p >= lanes) break;
      if (threadIdx.x == 0) found[listed[p]] = loss[p];
      for (int c = threadIdx.x; c < D; c += THREADS) gradients[row_of(first + p) * D + c] = tile[p * D + c];
    }
  }
  __syncthreads();
  bool any = false;
  for (int cell = threadIdx.x; cell < cells; cell += THREADS) {  // rivals, by how far their centres have moved
    const int l = cell / clusters, j = cell % clusters;
    const float4 bound = bounds[row_of(l) * clusters + j];
    const float moved = path[cell] - bound.w + ROUNDING * path[cell];
    const float low = bound.y - fabsf(pass.scale) * bound.z * moved - MARGIN * fabsf(bound.y);
    const bool rival = !(low > (1 + MARGIN) * found[l * clusters + at[l]]);  // what is not a number, too
    open[cell] = rival && j != at[l] && fixed[row_of(l)] == CHOOSES;
    any |= open[cell];
  }
  if (__syncthreads_or(any)) {
    for (int cell = warp; cell < cells; cell += WARPS) {  // by the plane
      if (!open[cell]) continue;
      const int l = cell / clusters, j = cell % clusters;
      const long long row = row_of(l) * clusters + j;
      float rise = 0.0f;
      #pragma unroll
      for (int u = lane; u < VECTORS; u += 32) {
        float slope[W], theta[W];
        get(slope, slopes + row * D, u);
        get(theta, pass.centres + (long long)cell * D, u);
        #pragma unroll
        for (int w = 0; w < W; ++w) rise += slope[w] * theta[w];
      }
      for (int step = 16; step > 0; step /= 2) rise += __shfl_xor_sync(ALL, rise, step);
      rise *= pass.scale;
      if (lane == 0) {
        float4 bound = bounds[row];
        const float low = bound.x + rise - MARGIN * (fabsf(bound.x) + fabsf(rise));
        if (low > (1 + MARGIN) * found[l * clusters + at[l]]) {
          bound.y = low;
          bound.w = path[cell];
          bounds[row] = bound;
          open[cell] = 0;
        }
      }
    }
    __syncthreads();
    for (int next = 0;;) {  // and by a look, at four at a time
      if (threadIdx.x == 0) {
        for (int p = 0; p < 4; ++p) {
          while (next < cells && !open[next]) ++next;
          listed[p] = next < cells ? next++ : -1;
        }
      }
      __syncthreads();
      if (listed[0] < 0) break;
      look(pass, listed, loss);
      #pragma unroll
      for (int p = 0; p < 4; ++p) {
        const int cell = listed[p];
        if (cell < 0) break;
        const long long row = row_of(cell / clusters) * clusters + cell % clusters;
        float square = 0.0f, rise = 0.0f;
        for (int c = threadIdx.x; c < D; c += THREADS) {
          const float slope = tile[p * D + c];
          slopes[row * D + c] = slope;
          square += slope * slope;
          rise += slope * theta[p * D + c];
        }
        square = over_block(square, parts);
        rise = pass.scale * over_block(rise, parts);
        if (threadIdx.x == 0) {
          found[cell] = loss[p];
          bounds[row] = make_float4(loss[p] - rise, loss[p], sqrtf(square), path[cell]);
        }
      }
      __syncthreads();
    }
    __syncthreads();
  }
  for (int l = threadIdx.x; l < lanes; l += THREADS) {
    const int order = fixed[row_of(l)];
    int best = at[l];
    if (order == CHOOSES) {
      best = -1;
      for (int j = 0; j < clusters; ++j) {
        const int cell = l * clusters + j;
        if (j != at[l] && !open[cell]) continue;
        if (best < 0 || found[cell] < found[l * clusters + best] ||
            (isnan(found[l * clusters + best]) && !isnan(found[cell]))) best = j;
      }
      known[row_of(l)] = best;
    }
    labels[row_of(l)] = order == NOWHERE ? -1 : best;
    losses[row_of(l)] = found[l * clusters + best];
    open[l * clusters] = best == at[l] ? -1 : best;
  }
  __syncthreads();
  for (int l = 0; l < lanes; ++l) {  // who has changed sends the gradient of the look
    const int best = open[l * clusters];
    if (best < 0) continue;
    for (int c = threadIdx.x; c < D; c += THREADS)
      gradients[row_of(l) * D + c] = slopes[(row_of(l) * clusters + best) * D + c];
  }
}
"""


class Shape(NamedTuple):
    """What the kernel is compiled for. rows: of a tile. vector: numbers that are read at a time."""

    dim: int
    rows: int
    buffers: int
    vector: int

    def shared_bytes(self, lanes: int, clusters: int) -> int:
        """What a block asks for."""
        return 4 * (self.buffers * self.rows * self.dim + 4 * (self.rows + self.dim) + 2 * lanes * clusters + lanes)


def shape_of(samples: int, dim: int, lanes: int, clusters: int, most: int) -> Shape | None:
    """For blocks that may ask for `most` bytes; None: a row does not fit.

    Sixteen rows are a turn of the warps. With fewer some are idle, and still a client's samples are read but once.
    """
    vector = 4 if dim % 4 == 0 else 1
    best = min(-(-samples // 16), max(1, TILE // dim // 16)) * 16
    for rows in (best, 16, 8, 4):
        shape = Shape(dim, rows, 1 + (rows < samples), vector)
        if shape.shared_bytes(lanes, clusters) <= most:
            return shape
    return None


@lru_cache(maxsize=64)
def _kernel(shape: Shape) -> Any:
    import cupy

    defined = {
        "D": shape.dim,
        "ROWS": shape.rows,
        "BUFFERS": shape.buffers,
        "W": shape.vector,
        "THREADS": THREADS,
        "BLOCKS": BLOCKS[shape.dim > TILE // 32],
        "MARGIN": f"{MARGIN}f",
        "ROUNDING": f"{ROUNDING}f",
        "CHOOSES": f"({CHOOSES})",
        "NOWHERE": f"({NOWHERE})",
    }
    head = "".join(f"#define {name} {number}\n" for name, number in defined.items())
    return cupy.RawKernel(head + RESPONSE, "respond", options=("--std=c++14",))


def serves(features: Tensor, centres: Tensor) -> bool:
    """Can the kernel take this response?"""
    _, lanes, clusters, dim = centres.shape
    if not (features.is_cuda and features.dtype == torch.float32 and available()):
        return False
    return shape_of(features.shape[2], dim, lanes, clusters, most_shared(features.device)) is not None


def respond(
    features: Tensor, targets: Tensor, scales: Tensor, centres: Tensor, fixed: Tensor, memory: Memory
) -> tuple[Tensor, Tensor, Tensor]:
    """See `descent.respond`. fixed: (T, L, m) int32, a label, CHOOSES or NOWHERE."""
    trials, m, n, d = features.shape
    lanes, clusters = centres.shape[1:3]
    labels = torch.empty((trials, lanes, m), dtype=torch.int32, device=features.device)
    losses = torch.empty((trials, lanes, m), dtype=features.dtype, device=features.device)
    gradients = torch.empty((trials, lanes, m, d), dtype=features.dtype, device=features.device)
    shape = shape_of(n, d, lanes, clusters, most_shared(features.device))
    assert shape is not None
    size = shape.shared_bytes(lanes, clusters)
    inputs = features, targets, scales, centres, fixed, memory.paths
    outputs = memory.labels, memory.bounds, memory.slopes, labels, losses, gradients
    with on_stream_of(features):
        with_shared(_kernel(shape), size)(
            (trials * m,),
            (THREADS,),
            (
                *(tensor.data_ptr() for tensor in inputs),
                *(np.int32(number) for number in (lanes, clusters, m, n)),
                *(tensor.data_ptr() for tensor in outputs),
            ),
            shared_mem=size,
        )
    return labels, losses, gradients
