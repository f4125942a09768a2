"""The first centres: random, near the true centres, read from a file, or computed from answers of the clients."""

from coterie._src.init.asking import RobustStart
from coterie._src.init.kmeans import trimmed_kmeans
from coterie._src.init.random import bernoulli, from_file, gaussian, warm
from coterie._src.init.robust import balls, densest_balls, erm, spectral, trimmed_clusters

__all__ = [
    "RobustStart",
    "balls",
    "bernoulli",
    "densest_balls",
    "erm",
    "from_file",
    "gaussian",
    "spectral",
    "trimmed_clusters",
    "trimmed_kmeans",
    "warm",
]
