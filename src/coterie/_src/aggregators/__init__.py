"""Pure functions from rows to one row, and the same per cluster."""

from coterie._src.aggregators.distance import (
    bucketed,
    centred_clipping,
    geometric_median,
    krum,
    mixed,
    squared_distances,
)
from coterie._src.aggregators.rules import (
    Aggregator,
    mean,
    mean_over,
    median,
    per_cluster,
    trim_count,
    trimmed_mean,
    trimmed_share,
)
from coterie._src.aggregators.spectral import filtered_mean

__all__ = [
    "Aggregator",
    "bucketed",
    "centred_clipping",
    "filtered_mean",
    "geometric_median",
    "krum",
    "mean",
    "mean_over",
    "median",
    "mixed",
    "per_cluster",
    "squared_distances",
    "trim_count",
    "trimmed_mean",
    "trimmed_share",
]
