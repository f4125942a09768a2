"""Where the first centres come from: guessed, given, near the truth, or found from what the clients say."""

from coterie._src.init.random import bernoulli, from_file, gaussian, warm
from coterie._src.init.robust import balls, densest_balls, erm, plus_plus, spectral, trimmed_clusters

__all__ = [
    "balls",
    "bernoulli",
    "densest_balls",
    "erm",
    "from_file",
    "gaussian",
    "plus_plus",
    "spectral",
    "trimmed_clusters",
    "warm",
]
