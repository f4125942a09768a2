// One aggregate per (trial, method, cluster): the mean of the order statistics between two ranks, per column.
// `lanes` is the number of methods. Constants: THREADS of a block, MAX_CLIENTS that a block can list.
// Inserted text: `sorted`, a branch of sorted_cluster.cu for every size of its sorting networks.

struct Rule { double trim; double over; };  // trim < 0: the median; over = 0: none

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

// a block: one (trial, method, cluster) and THREADS columns; the cluster's members are listed first, in order
extern "C" __global__ void __launch_bounds__(THREADS)
aggregate(const float* __restrict__ updates, const int* __restrict__ labels, const Rule* __restrict__ rules,
          const int lanes, const int clusters, const int m, const int d, float* __restrict__ out,
          int* __restrict__ sizes) {
  __shared__ unsigned short members[MAX_CLIENTS];
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
    int offset = count;
    for (int w = 0; w < THREADS / 32; ++w) {
      if (w < threadIdx.x / 32) offset += warps[w];
      count += warps[w];
    }
    if (in) members[offset + __popc(vote & ((1u << (threadIdx.x % 32)) - 1))] = client;
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
$sorted
  else {
    result = bisected(x, row, count, low, high);
  }
  if (rule.over > 0) result *= count / rule.over;
  out[(long long)blockIdx.x * d + c] = result;
}

