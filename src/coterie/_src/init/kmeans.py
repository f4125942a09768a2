"""Trimmed k-means: k-means++ seeds, local search, Lloyd's iteration."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.spatial.distance import cdist

from coterie._src.arrays import Bools, Floats, Ints

Centre = Callable[[Floats], Floats]
"""From the (c, d) points of one cluster to its (d,) centre."""


class Clusters(NamedTuple):
    """The result of a trimmed clustering."""

    centres: Floats  # (k, d)
    labels: Ints  # (m,), of all points
    kept: Bools  # (m,), False for the trimmed points, the farthest from all centres


def mean_point(points: Floats) -> Floats:
    """(c, d) -> (d,): the mean of the points."""
    found: Floats = points.mean(axis=0)
    return found


def trimmed_kmeans(
    points: Floats,
    clusters: int,
    kept: int,
    rng: Generator,
    *,
    starts: int,
    iterations: int,
    exchanges: int = 0,
    centre: Centre = mean_point,
    centres_of_all: bool = False,
    fewest: int | None = None,
    labels: Ints | None = None,
) -> Clusters:
    """The best of several runs of trimmed k-means over (m, d) points; it keeps the `kept` points nearest to a centre.

    Runs from k-means++ seeds are compared by their cost, the sum of the squared distances of the kept points to their
    nearest centres. If `fewest` is given, the run with the fewest clusters of at most that many points is preferred,
    whatever its cost.

    Parameters
    ----------
    exchanges : steps of local search per centre, each of which may replace a centre by a point if that lowers the cost
        (Lattanzi and Sohler, A better k-means++ algorithm via local search, 2019).
    centre : the centre of the points of one cluster.
    centres_of_all : a centre is computed from all points of its cluster, not only from those that are kept.
    labels : (m,), the labels to begin with instead of k-means++; -1: in no cluster. Then there is one run.
    """
    if not 1 <= clusters <= len(points):
        raise ValueError(f"clusters must be from 1 to the number of points ({len(points)}), got {clusters}")
    best: tuple[tuple[int, float], Clusters] | None = None
    for _ in range(starts if labels is None else 1):
        centres = points[plus_plus(points, clusters, kept, rng)]
        if exchanges:
            centres = _local_search(points, centres, kept, exchanges, rng)
        found = lloyd(points, centres, kept, iterations, centre, centres_of_all, labels)
        sizes = np.bincount(found.labels, minlength=clusters)
        small = 0 if fewest is None else int((sizes <= fewest).sum())
        nearest = cdist(points, found.centres, "sqeuclidean").min(axis=1)
        judged = small, float(np.sort(nearest)[:kept].sum())
        if best is None or judged < best[0]:
            best = judged, found
    assert best is not None
    return best[1]


def lloyd(
    points: Floats,
    centres: Floats,
    kept: int,
    iterations: int,
    centre: Centre = mean_point,
    centres_of_all: bool = False,
    labels: Ints | None = None,
) -> Clusters:
    """Alternate between centres and labels until the labels are stable; a centre without points is not moved."""
    found = _nearest(points, centres, kept)
    if labels is not None:
        found = found._replace(labels=labels)
    for _ in range(iterations):
        used = np.ones_like(found.kept) if centres_of_all else found.kept
        members = [used & (found.labels == j) for j in range(len(centres))]
        centres = np.stack([centre(points[own]) if own.any() else centres[j] for j, own in enumerate(members)])
        before, found = found.labels, _nearest(points, centres, kept)
        if np.array_equal(found.labels, before):
            break
    return found


def _nearest(points: Floats, centres: Floats, kept: int) -> Clusters:
    between = cdist(points, centres, "sqeuclidean")
    nearest = between.min(axis=1)
    return Clusters(centres, between.argmin(axis=1), nearest <= np.partition(nearest, kept - 1)[kept - 1])


def plus_plus(points: Floats, clusters: int, kept: int, rng: Generator) -> list[int]:
    """The indices of k-means++ seeds, each drawn with probability ∝ squared distance to the seeds before it.

    Only the `kept` points nearest to these seeds can be drawn; the others may be outliers.
    """
    chosen = [int(rng.integers(len(points)))]
    nearest = cdist(points, points[chosen], "sqeuclidean")[:, 0]
    while len(chosen) < clusters:
        chosen.append(_draw_point(nearest, kept, rng))
        nearest = np.minimum(nearest, cdist(points, points[chosen[-1:]], "sqeuclidean")[:, 0])
    return chosen


def _draw_point(nearest: Floats, kept: int, rng: Generator) -> int:
    """The index of a kept point, drawn with probability ∝ its squared distance to the nearest centre."""
    weights = np.where(nearest <= np.partition(nearest, kept - 1)[kept - 1], nearest, 0.0)
    total = weights.sum()
    if not total > 0:
        return int(rng.integers(len(nearest)))
    # as rng.choice, whose checks take longer than the draw
    up_to = np.cumsum(weights / total)
    return int((up_to / up_to[-1]).searchsorted(rng.random(), side="right"))


def _local_search(points: Floats, centres: Floats, kept: int, exchanges: int, rng: Generator) -> Floats:
    """The centres after repeatedly drawing a point and replacing the centre for which that lowers the cost most."""
    centres = centres.copy()
    between = cdist(points, centres, "sqeuclidean")
    each = np.arange(len(centres))[:, None]
    cost = np.sort(between.min(axis=1))[:kept].sum()
    changed = True
    for _ in range(exchanges * len(centres) if len(centres) > 1 else 0):
        if changed:
            nearest, second = np.partition(between, 1, axis=1)[:, :2].T
            without = np.where(between.argmin(axis=1) == each, second, nearest)  # (k, m): without each of the centres
        drawn = points[_draw_point(nearest, kept, rng)]
        to_drawn = cdist(points, drawn[None], "sqeuclidean")[:, 0]
        costs = np.partition(np.minimum(without, to_drawn), kept - 1, axis=1)[:, :kept].sum(axis=1)
        worst = int(costs.argmin())
        changed = bool(costs[worst] < cost)
        if changed:
            centres[worst], between[:, worst], cost = drawn, to_drawn, costs[worst]
    return centres
