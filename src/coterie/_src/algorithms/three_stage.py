"""The Three-Stage algorithm of Ghosh et al. (Robust federated learning in a heterogeneous environment, 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from scipy.spatial.distance import cdist

from coterie._src.aggregators import geometric_median, trim_count
from coterie._src.algorithms.base import Exchange, Network, State
from coterie._src.algorithms.descent import ClusteredDescent
from coterie._src.arrays import Array, Floats, Ints, as_numpy, like
from coterie._src.init import plus_plus
from coterie._src.intake import admit


@dataclass(frozen=True)
class ThreeStage:
    """Local minimisers, trimmed k-means over them, then descent with the labels fixed.

    descent: the third stage, with the trimmed mean as its rule. iterations: of k-means, at most.
    starts: trimmed k-means++ starts, of which the one with the least trimmed cost is taken.
    ridge: added to the local risk in the first stage. trim: β of the second stage. first: (m,), labels to
    begin k-means with instead of the starts (-1: none), such as the true ones, which the paper's published
    baseline is given.
    """

    descent: ClusteredDescent
    iterations: int = 100
    starts: int = 10
    ridge: float = 0.0
    trim: float = 0.05
    first: Ints | None = None

    @property
    def rounds(self) -> int:
        return self.descent.rounds

    def init(self, network: Network, start: Array, rng: Generator) -> State:
        replies = network.minimisers(start, self.ridge)
        accepted = admit(replies, clients=network.count, clusters=1, round=-1, like=start)
        state = self.descent.init(network, start, rng)
        fixed = np.full(network.count, -1)
        clusters = start.shape[0]
        if len(accepted.clients) < clusters:  # too few to cluster: nothing can be learnt
            return state._replace(fixed=fixed)
        points = as_numpy(accepted.updates).astype(np.float64)
        centres, labels = trimmed_kmeans(
            points,
            clusters,
            trim=self.trim,
            iterations=self.iterations,
            starts=self.starts,
            rng=rng,
            first=None if self.first is None else self.first[accepted.clients],
        )
        fixed[accepted.clients] = labels
        return state._replace(centres=like(centres, start), fixed=fixed)

    def step(self, state: State, network: Network, rng: Generator) -> tuple[State, Exchange]:
        return self.descent.step(state, network, rng)


def trimmed_kmeans(
    points: Floats,
    clusters: int,
    *,
    trim: float,
    iterations: int,
    starts: int,
    rng: Generator,
    first: Ints | None = None,
) -> tuple[Floats, Ints]:
    """k-means whose centres ignore outliers: (m, d) -> centres (k, d) and labels (m,).

    A cluster's centre is the mean of its points within the (1 − trim) quantile of the distances to its
    geometric median. Of the trimmed k-means++ starts the one with the least cost wins: the sum of the squared
    distances to the nearest centre over the nearest (1 − trim)·m points. With the labels `first` there is
    one start, from those.
    """
    points = np.clip(points, -1e100, 1e100)  # squared distances stay finite, whatever a Byzantine client sent
    best: tuple[float, Floats, Ints] | None = None
    kept = len(points) - trim_count(len(points), trim)
    for _ in range(starts if first is None else 1):
        centres = points[plus_plus(points, clusters, kept, rng)]
        labels = cdist(points, centres).argmin(axis=1) if first is None else first
        for _ in range(iterations):
            centres = np.stack(
                [
                    _trimmed_centre(points[labels == j], trim) if (labels == j).any() else centres[j]
                    for j in range(clusters)
                ]
            )
            previous, labels = labels, cdist(points, centres).argmin(axis=1)
            if np.array_equal(labels, previous):
                break
        cost = float(np.sort(cdist(points, centres, "sqeuclidean").min(axis=1))[:kept].sum())
        if best is None or cost < best[0]:
            best = cost, centres, labels
    assert best is not None
    return best[1], best[2]


def _trimmed_centre(points: Floats, trim: float) -> Floats:
    distances = np.linalg.norm(points - geometric_median(points, tolerance=1e-4), axis=1)
    centre: Floats = points[distances <= np.quantile(distances, 1 - trim)].mean(axis=0)
    return centre
