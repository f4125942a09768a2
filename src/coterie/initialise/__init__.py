"""Where the first centres come from: guessed, given, near the truth, or found from what the clients say."""

from coterie.initialise.robust import balls, densest_balls, erm, plus_plus, spectral, trimmed_clusters
from coterie.initialise.simple import bernoulli, from_file, gaussian, warm

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
