// The label, loss and gradient of every client for the centres of every method, by one pass over its samples.
// `lanes` is the number of methods, a cell one centre of one method. Constants: D columns, ROWS of a tile, BUFFERS for
// tiles, W numbers per read, THREADS of a block, BLOCKS per processor, MARGIN and ROUNDING of the bounds, and CHOOSES
// and NOWHERE, the values of `fixed` where the server has fixed no label, and where a client is in no cluster.

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

// copies from global to shared memory; the threads need not wait until `arrived`
__device__ __forceinline__ void fetch(float* to, const float* from, const int count) {
  for (int i = threadIdx.x; i < count / W; i += THREADS) {
#if __CUDA_ARCH__ >= 800
    const unsigned address = (unsigned)__cvta_generic_to_shared(to + i * W);
    if (W == 4) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(address), "l"(from + i * W));
    else asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(address), "l"(from + i * W));
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

// sums over the threads of a warp, 16 at once: every step halves the numbers that a thread still has to add up
template <int HALF> __device__ __forceinline__ void fold(float (&v)[16], const int lane) {
  const bool upper = lane & (2 * HALF);
  #pragma unroll
  for (int i = 0; i < HALF; ++i) {
    const float keep = upper ? v[i + HALF] : v[i], send = upper ? v[i] : v[i + HALF];
    v[i] = keep + __shfl_xor_sync(ALL, send, 2 * HALF);
  }
}

// the losses of four centres; their gradients (4, D) are left in of.tile
__device__ __forceinline__ void evaluate(const Pass& of, const int* cells, float (&losses)[4]) {
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
  const int trial = client / m, index = client % m;
  float* errors = (float*)shared;
  float* tile = errors + 4 * ROWS;
  float* theta = tile + BUFFERS * ROWS * D;
  float* found = theta + 4 * D;           // (lanes, clusters): the losses that have been computed
  int* open = (int*)(found + cells);      // (lanes, clusters): whether the loss must be computed
  int* at = open + cells;                 // (lanes,): the label of the last round, or the fixed one
  const Pass pass = {features + client * n * D, targets + client * n, centres + (long long)trial * cells * D,
                     scales[client], n, errors, tile, theta, sums};
  const float* path = paths + (long long)trial * cells;
  auto row_of = [&](int l) { return ((long long)trial * lanes + l) * m + index; };
  float loss[4];

  for (int l = threadIdx.x; l < lanes; l += THREADS) {
    const int order = fixed[row_of(l)];
    at[l] = order >= 0 ? order : order == CHOOSES ? known[row_of(l)] : 0;
  }
  __syncthreads();
  for (int first = 0; first < lanes; first += 4) {  // losses and gradients at the present labels
    __syncthreads();
    if (threadIdx.x < 4) {
      const int l = first + threadIdx.x;
      listed[threadIdx.x] = l < lanes ? l * clusters + at[l] : -1;
    }
    __syncthreads();
    evaluate(pass, listed, loss);
    #pragma unroll
    for (int p = 0; p < 4; ++p) {
      if (first + p >= lanes) break;
      if (threadIdx.x == 0) found[listed[p]] = loss[p];
      for (int c = threadIdx.x; c < D; c += THREADS) gradients[row_of(first + p) * D + c] = tile[p * D + c];
    }
  }
  __syncthreads();
  bool any = false;
  for (int cell = threadIdx.x; cell < cells; cell += THREADS) {  // other centres: the bound by their paths
    const int l = cell / clusters, j = cell % clusters;
    const float4 bound = bounds[row_of(l) * clusters + j];
    const float moved = path[cell] - bound.w + ROUNDING * path[cell];
    const float low = bound.y - fabsf(pass.scale) * bound.z * moved - MARGIN * fabsf(bound.y);
    const bool rival = !(low > (1 + MARGIN) * found[l * clusters + at[l]]);  // true for NaN, too
    open[cell] = rival && j != at[l] && fixed[row_of(l)] == CHOOSES;
    any |= open[cell];
  }
  if (__syncthreads_or(any)) {
    for (int cell = warp; cell < cells; cell += WARPS) {  // then the bound by the tangent plane
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
    for (int next = 0;;) {  // then the losses themselves, of four centres at a time
      if (threadIdx.x == 0) {
        for (int p = 0; p < 4; ++p) {
          while (next < cells && !open[next]) ++next;
          listed[p] = next < cells ? next++ : -1;
        }
      }
      __syncthreads();
      if (listed[0] < 0) break;
      evaluate(pass, listed, loss);
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
  for (int l = 0; l < lanes; ++l) {  // where the label has changed, the gradient at the new one
    const int best = open[l * clusters];
    if (best < 0) continue;
    for (int c = threadIdx.x; c < D; c += THREADS)
      gradients[row_of(l) * D + c] = slopes[(row_of(l) * clusters + best) * D + c];
  }
}
