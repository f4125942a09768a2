"""Server-side programs: Algorithm 1, Three-Stage, and the points of reference."""

from coterie._src.algorithms.base import Algorithm, Exchange, Network, State
from coterie._src.algorithms.descent import ClusteredDescent
from coterie._src.algorithms.reference_points import LocalMinimisers, Oracle, Told
from coterie._src.algorithms.start import RobustStart, SelfStarting
from coterie._src.algorithms.three_stage import ThreeStage, trimmed_kmeans

__all__ = [
    "Algorithm",
    "ClusteredDescent",
    "Exchange",
    "LocalMinimisers",
    "Network",
    "Oracle",
    "RobustStart",
    "SelfStarting",
    "State",
    "ThreeStage",
    "Told",
    "trimmed_kmeans",
]
