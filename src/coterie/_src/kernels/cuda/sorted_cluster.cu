  // a cluster of at most `rows` rows: sorted in registers, behind a padding of infinities
  else if (count <= $rows) {
    float t;
$load
$sort
    double base = 0.0, total = 0.0;
$base
$total
    result = base + total / (high - low);
  }
