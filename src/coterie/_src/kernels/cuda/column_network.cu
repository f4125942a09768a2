// The mean of the order statistics between two ranks, for few rows: one thread per column holds its rows in registers,
// and a pruned sorting network orders them. Follows comparators.cu.
// Inserted text: `load` and `sort`, one line per row r0, r1, ... or per comparator; `low`, the first rank, and `ranks`,
// how many there are; `add`, which sums the distances of the other ranks from the first; `plain`, the mean without that
// shift, for infinite values; `threads` of a block.

extern "C" __global__ void __launch_bounds__($threads)
mean_between_ranks(const KIND* __restrict__ x, const long long stride, const long long columns,
                   KIND* __restrict__ out) {
  const long long c = blockIdx.x * (long long)$threads + threadIdx.x;
  if (c >= columns) return;
  bool odd = false;
  KIND t;
$load
$sort
  const double base = (double)r$low;
  double total = 0.0;
$add
  double result = base + total / $ranks;
  if (!isfinite(result)) result = $plain;
  out[c] = odd ? (KIND)nan("") : (KIND)result;
}
