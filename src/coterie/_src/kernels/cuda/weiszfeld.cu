// The geometric median of every cluster of every trial, by Weiszfeld's iteration from the values in `found`.
// Constants: MEDIAN_THREADS of a block, MAX_CLIENTS that a block can list.

// a block: one cluster of one trial. All of Weiszfeld's steps; the sums run in double
extern "C" __global__ void __launch_bounds__(MEDIAN_THREADS)
weiszfeld(const float* __restrict__ points, const int* __restrict__ labels, const double* __restrict__ floors,
          const int clusters, const int m, const int d, const int steps, double* __restrict__ found) {
  extern __shared__ double weights[];  // one per member, then the point (d)
  __shared__ unsigned short members[MAX_CLIENTS];
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
