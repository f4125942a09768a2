"""The rules that can be named where updates are in files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coterie._src.aggregators import (
    Aggregator,
    CentredClipping,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    NearestNeighbourMixing,
    SpectralFilter,
    TrimmedMean,
)
from coterie._src.registry import Registry


@dataclass(frozen=True)
class NamedRule:
    """A rule by name; build: from the largest fraction of Byzantine updates to the rule."""

    name: str
    summary: str
    build: Callable[[float], Aggregator]
    aliases: tuple[str, ...] = ()


RULES = Registry(
    "rule",
    [
        NamedRule("filter", "spectral filter", SpectralFilter),
        NamedRule("median", "coordinate-wise median", lambda fraction: Median()),
        NamedRule("trimmed-mean", "coordinate-wise trimmed mean", TrimmedMean),
        NamedRule("geometric-median", "geometric median", lambda fraction: GeometricMedian()),
        NamedRule("krum", "Krum", Krum),
        NamedRule("multi-krum", "mean of the half with the lowest scores of Krum", lambda f: Krum(f, selected=0.5)),
        NamedRule("clipping", "centred clipping", lambda fraction: CentredClipping()),
        NamedRule("mixing", "median after mixing of nearest neighbours", lambda f: NearestNeighbourMixing(Median(), f)),
        NamedRule("mean", "mean, which is not robust", lambda fraction: Mean()),
    ],
)
"""The records of the rules."""
