// The gradient of one client, picked[group], for every (trial, method, cluster) that no client has chosen.
// `lanes` is the number of methods. Constants: THREADS of a block.

// a block: one (trial, method, cluster)
extern "C" __global__ void __launch_bounds__(THREADS)
fill_empty_clusters(const float* __restrict__ features, const float* __restrict__ targets,
                    const float* __restrict__ scales, const float* __restrict__ centres, const int* __restrict__ sizes,
                    const long long* __restrict__ picked, const int lanes, const int clusters, const int m, const int n,
                    const int d, float* __restrict__ out) {
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
