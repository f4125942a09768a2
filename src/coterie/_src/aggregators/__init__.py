"""Rules from the updates of one cluster to one update, as values, and the same per cluster."""

from coterie._src.aggregators.base import (
    Aggregates,
    Aggregator,
    as_aggregator,
    ceil_count,
    floor_count,
    per_cluster,
    shares_per_cluster,
    trim_count,
    trimmed_share,
)
from coterie._src.aggregators.coordinatewise import Mean, Median, TrimmedMean, mean, median
from coterie._src.aggregators.distance import CentredClipping, GeometricMedian, Krum, squared_distances
from coterie._src.aggregators.preaggregation import Bucketing, NearestNeighbourMixing
from coterie._src.aggregators.spectral import SpectralFilter

__all__ = [
    "Aggregates",
    "Aggregator",
    "Bucketing",
    "CentredClipping",
    "GeometricMedian",
    "Krum",
    "Mean",
    "Median",
    "NearestNeighbourMixing",
    "SpectralFilter",
    "TrimmedMean",
    "as_aggregator",
    "ceil_count",
    "floor_count",
    "mean",
    "median",
    "per_cluster",
    "shares_per_cluster",
    "squared_distances",
    "trim_count",
    "trimmed_share",
]
