"""Updates whose columns are not in memory at once: in files, or on the machines of a Ray cluster."""

from coterie._src.sharding.aggregate import FileAggregates, aggregate_files

__all__ = ["FileAggregates", "aggregate_files"]
