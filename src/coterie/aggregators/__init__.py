"""Pure functions from rows to one row, and the same per cluster."""

from coterie.aggregators.distances import (
    bucketed,
    centred_clipping,
    geometric_median,
    krum,
    mixed,
    squared_distances,
)
from coterie.aggregators.filtering import filtered_mean
from coterie.aggregators.rules import (
    Aggregator,
    mean,
    mean_over,
    median,
    per_cluster,
    trim_count,
    trimmed_mean,
    trimmed_share,
)

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
