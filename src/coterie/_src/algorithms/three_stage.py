"""The Three-Stage algorithm of Ghosh et al. (Robust federated learning in a heterogeneous environment, 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from coterie._src.aggregators import GeometricMedian, trim_count
from coterie._src.algorithms.base import RoundInfo, State
from coterie._src.algorithms.descent import ClusteredDescent
from coterie._src.arrays import Array, Floats, Ints, as_numpy, like
from coterie._src.init.kmeans import trimmed_kmeans
from coterie._src.intake import admit
from coterie._src.network import Network

LARGEST = 1e100
"""Coordinates are clipped here: squared distances stay finite, whatever a Byzantine client sent."""


@dataclass(frozen=True)
class ThreeStage:
    """Local minimisers, trimmed k-means over them, then descent with the labels fixed.

    Parameters
    ----------
    descent : the third stage, with the trimmed mean as its rule.
    iterations : of k-means, at most.
    starts : trimmed k-means++ starts, of which the one with the lowest trimmed cost is taken.
    ridge : added to the local risk in the first stage.
    trim : β of the second stage: a cluster's centre is the mean of its points within the (1 − β) quantile of the
        distances to its geometric median.
    first : (m,), labels to begin k-means with instead of the starts (-1: none), such as the true ones, which the
        paper's published baseline is given.
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

    def initial_state(self, network: Network, start: Array, rng: Generator) -> State:
        replies = network.minimisers(start, self.ridge)
        accepted = admit(replies, clients=network.count, clusters=1, round=-1, like=start)
        state = self.descent.initial_state(network, start, rng)
        fixed = np.full(network.count, -1)
        clusters = start.shape[0]
        if len(accepted.clients) < clusters:  # too few to cluster: nothing can be learnt
            return state._replace(fixed=fixed)
        points = np.clip(as_numpy(accepted.updates).astype(np.float64), -LARGEST, LARGEST)
        found = trimmed_kmeans(
            points,
            clusters,
            len(points) - trim_count(len(points), self.trim),
            rng,
            starts=self.starts,
            iterations=self.iterations,
            centre=self._trimmed_centre,
            centres_of_all=True,
            labels=None if self.first is None else self.first[accepted.clients],
        )
        fixed[accepted.clients] = found.labels
        return state._replace(centres=like(found.centres, start), fixed=fixed)

    def _trimmed_centre(self, points: Floats) -> Floats:
        distances = np.linalg.norm(points - GeometricMedian(tolerance=1e-4)(points), axis=1)
        centre: Floats = points[distances <= np.quantile(distances, 1 - self.trim)].mean(axis=0)
        return centre

    def step(self, state: State, network: Network, rng: Generator) -> tuple[State, RoundInfo]:
        return self.descent.step(state, network, rng)
