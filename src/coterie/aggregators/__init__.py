"""Pure functions from rows to one row, and the same per cluster."""

from coterie.aggregators.rules import (
    Aggregator,
    geometric_median,
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
    "geometric_median",
    "mean",
    "mean_over",
    "median",
    "per_cluster",
    "trim_count",
    "trimmed_mean",
    "trimmed_share",
]
