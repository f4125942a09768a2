// The mean of the order statistics between two ranks, for many rows: RUNS threads share a column. Each sorts a run of
// HELD rows in registers and stores it in shared memory; the ranks are then searched among the sorted runs.
// Follows comparators.cu. Constants: RUNS, HELD, and COLUMNS of a block. Inserted text: `load`, `sort` and `store`, one
// line per row r0, r1, ... of a run or per comparator.

#define ALL 0xffffffffu
#define BEYOND ((KIND)__int_as_float(0x7f800000))
#define STRIDE (HELD * COLUMNS + 32 / RUNS)  // between runs: a warp reads different banks of memory

// the first index in [from, to) of an ascending run whose value is not below the pivot
__device__ __forceinline__ int first_not_below(const KIND* run, int from, int to, const KIND pivot) {
  while (from < to) {
    const int middle = (from + to) / 2;
    if (run[middle * COLUMNS] < pivot) from = middle + 1; else to = middle;
  }
  return from;
}

__device__ __forceinline__ int after(const KIND* run, int index, const int to, const KIND pivot) {
  while (index < to && run[index * COLUMNS] == pivot) ++index;
  return index;
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
      value = smaller ? minimum(value, other) : maximum(value, other);
    }
  }
  return value;
}

// the value of a rank among all runs of a column, of which each thread has one
__device__ KIND find(const KIND* run, const int thread, int rank, bool done) {
  int from = 0, to = HELD, left = RUNS * HELD;  // candidates [from, to) of this run; `left` counts those of all runs
  KIND answer = 0;
  while (__any_sync(ALL, !done)) {  // columns of a warp finish together
    const int open = to - from;
    const unsigned group = (RUNS == 32 ? ALL : (1u << RUNS) - 1) << (threadIdx.x % 32 / RUNS * RUNS);
    const int runs = __popc(__ballot_sync(ALL, open > 0) & group);
    const float share = __fdividef((float)rank, (float)left);
    const KIND own = open > 0 ? run[(from + min(open - 1, (int)(share * open))) * COLUMNS] : BEYOND;
    const KIND guess = in_order(own, thread);
    const bool last = runs == left;  // every run has one candidate: `guess` is their order
    const int middle = last ? rank : min(runs - 1, (int)(share * runs)), gap = last ? 0 : 1 + runs / 12;
    const KIND p = __shfl_sync(ALL, guess, max(middle - gap, 0), RUNS);
    const KIND q = __shfl_sync(ALL, guess, max(min(middle + gap, runs - 1), 0), RUNS);
    if (last && !done) { answer = p; done = true; }
    if (__all_sync(ALL, done)) break;
    const int p_from = first_not_below(run, from, to, p), p_to = after(run, p_from, to, p);
    const int q_from = first_not_below(run, p_from, to, q), q_to = after(run, q_from, to, q);
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
$load
$sort
    KIND* to = sorted + run * STRIDE + column;
$store
    if (is_odd || r0 != r0) odd[column] = 1;
  }
  __syncthreads();
  // neighbouring threads: the runs of one column
  const int thread = threadIdx.x % RUNS, column = threadIdx.x / RUNS;
  const long long c = (long long)blockIdx.x * COLUMNS + column;
  const bool is_odd = odd[column];
  const KIND* run = sorted + thread * STRIDE + column;
  const KIND bottom = find(run, thread, low, is_odd);
  double result = (double)bottom;
  if (high - low > 1) {
    const int start = after(run, first_not_below(run, 0, HELD, bottom), HELD, bottom), upto = over_runs(start);
    KIND top;
    if (high - low == 2) {  // the next larger value, or the same one if it occurs several times
      KIND next = start < HELD ? run[start * COLUMNS] : BEYOND;
      #pragma unroll
      for (int s = 1; s < RUNS; s *= 2) next = minimum(next, __shfl_xor_sync(ALL, next, s));
      top = upto > low + 1 ? bottom : next;
    } else {
      top = find(run, thread, high - 1, is_odd);
    }
    const int stop = first_not_below(run, start, HELD, top), below = over_runs(stop);
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
  if (thread == 0 && c < columns) out[c] = is_odd ? (KIND)nan("") : (KIND)result;
}
