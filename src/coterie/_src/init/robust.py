"""First centres from one round of answers of which a minority may be anything.

All starts see one point per client: an unbiased but noisy sketch of its optimum (`spectral`, `balls`), or its own
minimiser (`erm`). They clip the points at a robust radius and look for k clusters among all but the `byzantine_fraction` share
of them, by a trimmed k-means that is allowed to move a centre elsewhere when that pays (Lattanzi and Sohler, A better
k-means++ algorithm via local search, 2019), or that begins at the densest balls.

What they assume: every cluster holds more than byzantine_fraction·m clients. An attacker who owns as many clients as a cluster
can pose as one. With fewer it may send huge points (left out, or clipped), identical points (which count once), a dense
ball (not worth a centre: it can be left out instead, and a cluster of that size counts only if there is no other way),
or points that spread the clipped variance over many directions (the first pass keeps twice as many directions as it
needs, and the second one looks for directions without those who were set aside).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from scipy.sparse.linalg import eigsh
from scipy.spatial.distance import cdist

from coterie._src.aggregators import floor_count, median
from coterie._src.aggregators.base import check_fraction
from coterie._src.aggregators.distance import reachable
from coterie._src.aggregators.products import PAIRS, averages, centred_blocks, copies_among, products_around
from coterie._src.arrays import Array, Floats, as_numpy, like
from coterie._src.init.kmeans import Clusters, lloyd, trimmed_kmeans

STARTS = 8
EXCHANGES = 4
"""Tries to move a centre, per centre and start."""
LLOYD_STEPS = 50
FAR = 2.0
REACH = 4.0
"""Median distances to the median that a row counts as at most, where the leading directions are looked for."""
BELOW_HALF = 0.5 - 1e-12
BALL = 1.6
"""A cluster reaches this many times as far as the typical point of a ball of half its size."""


Clustering = Callable[[Floats, int, float, Generator], "Clusters"]


def spectral(
    points: Floats,
    clusters: int,
    byzantine_fraction: float,
    rng: Generator,
    outliers_count: bool = True,
    reconsider: bool = True,
    cluster: Clustering | None = None,
) -> Floats:
    """(k, d) centres from the clients' sketches (m, d), by trimmed clustering along their leading directions.

    A sketch is the client's optimum plus noise of the same size in every direction, such as −∇F_i(0)/2 for the square
    loss on isotropic features. One sketch says little where d is large; the k directions in which the clusters differ
    stand out of all m of them together, and along these the noise is that of k numbers, not of d.
    The first of two passes looks along twice as many; the directions of the second are those of the points that the
    first has kept. The centres are means along these k directions: across them a mean in the full space, however
    robust, adds little but noise.
    outliers_count: see `plausible`. reconsider: the second pass looks at all points again. So a cluster that the first left out
    in place of liars comes back; but so do liars whom only a direction gave away that is gone. cluster: another way to
    cluster, see `balls`.
    """
    points, byzantine_fraction = plausible(points, byzantine_fraction, outliers_count, clusters)
    kept = np.ones(len(points), dtype=np.bool_)
    for directions in (2 * clusters, clusters):
        middle = points[kept].mean(axis=0)
        axes = np.linalg.svd(points[kept] - middle, full_matrices=False)[2][:directions]
        seen = points if reconsider or kept.sum() < clusters else points[kept]
        found = (cluster or trimmed_clusters)((seen - middle) @ axes.T, clusters, byzantine_fraction, rng)
        kept = found.kept
    centres: Floats = middle + found.centres @ axes
    return centres


def balls(
    points: Floats,
    clusters: int,
    byzantine_fraction: float,
    rng: Generator,
    outliers_count: bool = True,
    reconsider: bool = True,
) -> Floats:
    """(k, d) centres from the clients' sketches, like `spectral`, with the densest balls as seeds instead of chance.

    Nothing in it is random. A cluster is found if no other one is so much denser that a ball of half the average size
    holds parts of both; an attacker with more clients than such a ball can hold one.
    Reference: Jana, Fan and Kulkarni, A general theory for robust clustering via trimmed mean, 2024, whose
    initialisation searches all sizes of all balls; here the size is given, and the cost is that of the distances.
    """
    return spectral(points, clusters, byzantine_fraction, rng, outliers_count, reconsider, densest_balls)


def erm(
    points: Floats,
    clusters: int,
    byzantine_fraction: float,
    rng: Generator,
    outliers_count: bool = True,
    reconsider: bool = True,
) -> Floats:
    """(k, d) centres from the clients' own (m, d) minimisers, by trimmed clustering in all d directions.

    Exact where n_i is well above d; near d = n_i a minimiser is noise, unless it has a ridge. reconsider: of no matter
    here, since there is one pass.
    """
    points, byzantine_fraction = plausible(points, byzantine_fraction, outliers_count, clusters)
    return trimmed_clusters(points, clusters, byzantine_fraction, rng).centres


def leading_directions(rows: Array, directions: int) -> tuple[Floats, Callable[[Floats], Floats]]:
    """(m, d) rows of many columns -> (m, r) places along their leading directions, and the way back, (k, r) -> (k, d).

    Around the median. Rows beyond `REACH` times the median distance are pulled in first, so that they do not choose the
    directions. All distances are those of the rows but for what lies across all r directions, which is mostly noise.
    It takes the products of the rows, O(m² d), and nothing else of that size.
    """
    centre = median(rows)
    known, pull = reachable(rows, centre, REACH)
    inside = rows if len(known) == len(rows) else rows[known]
    gram = as_numpy(products_around(inside, centre, pull[known]))
    wanted = min(directions, len(gram) - 1)
    if wanted < 1 or not np.trace(gram) > 0:
        return np.zeros((len(rows), 1)), lambda found: np.tile(as_numpy(centre).astype(np.float64), (len(found), 1))
    values, vectors = eigsh(gram, k=wanted, v0=np.sqrt(np.diag(gram)) + 1e-300)
    values = np.maximum(values, 1e-12 * max(float(values.max()), 1e-300))
    places = np.zeros((len(rows), wanted))
    places[known] = vectors * np.sqrt(values)

    def back(found: Floats) -> Floats:
        shares = (found / np.sqrt(values)) @ vectors.T * pull[known]
        moves = [as_numpy(like(shares, block) @ block) for block in centred_blocks(inside, centre)]
        full: Floats = as_numpy(centre).astype(np.float64) + np.concatenate(moves, axis=1)
        return full

    return places, back


def plausible(points: Floats, byzantine_fraction: float, outliers_count: bool, least: int = 1) -> tuple[Floats, float]:
    """The points, clipped, copies as one, without those that lie far out, and the share that may still be left out.

    Far out is more than `FAR` times the median distance to the median; of these at most a share `byzantine_fraction` goes.
    outliers_count: what has gone counts towards that share. So a small cluster is not left out on top of liars that were
    easy to see; on the other hand honest clients with few samples, who lie far out as well, may use the share up.
    Where fewer than `least` points would stay, all do.
    """
    bounded = np.clip(np.asarray(points, dtype=np.float64), -1e100, 1e100)  # squares stay finite
    allowed = len(points) - _kept_count(len(points), byzantine_fraction)
    single = averages(copies_among(bounded, allowed + 1)) @ bounded  # and whom they copied
    away = np.linalg.norm(single - np.median(single, axis=0), axis=1)
    farthest = np.argsort(-away, kind="stable")[:allowed]
    far = farthest[away[farthest] > FAR * np.median(away)]
    inside = np.delete(single, far, axis=0)
    if len(inside) < least:
        return clipped(bounded, byzantine_fraction), byzantine_fraction
    left = max(0, allowed - (len(points) - len(inside))) if outliers_count else min(allowed, (len(inside) - 1) // 2)
    # half a point makes up for the rounding of a share of fewer points
    return clipped(inside, byzantine_fraction), min((left + 0.5) / len(inside), BELOW_HALF) if left else 0.0


def clipped(points: Floats, byzantine_fraction: float) -> Floats:
    """(m, d): the points, pulled in to the (1 − byzantine_fraction) quantile of the distances to their median.

    >>> clipped(np.array([[0.0], [1.0], [2.0], [1e9]]), 0.25).ravel().round(6).tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    points = np.clip(np.asarray(points, dtype=np.float64), -1e100, 1e100)
    middle = np.median(points, axis=0)
    away = np.linalg.norm(points - middle, axis=1)
    inside = np.sort(away)[_kept_count(len(points), byzantine_fraction) - 1]
    pulled: Floats = middle + (points - middle) * (inside / np.maximum(away, max(inside, 1e-300)))[:, None]
    return pulled


def _kept_count(points: int, byzantine_fraction: float) -> int:
    return points - floor_count(check_fraction("byzantine_fraction", byzantine_fraction), points)


def trimmed_clusters(points: Floats, clusters: int, byzantine_fraction: float, rng: Generator) -> Clusters:
    """Trimmed k-means that leaves out the byzantine_fraction·m points that lie farthest from all centres.

    A start with clusters of no more points than may be Byzantine is taken only where there is no other.
    """
    kept = _kept_count(len(points), byzantine_fraction)
    fewest = len(points) - kept if byzantine_fraction else None
    return trimmed_kmeans(
        points, clusters, kept, rng, starts=STARTS, iterations=LLOYD_STEPS, exchanges=EXCHANGES, fewest=fewest
    )


def densest_balls(points: Floats, clusters: int, byzantine_fraction: float, rng: Generator) -> Clusters:
    """Trimmed k-means from the densest balls: the tightest with more than byzantine_fraction·m points, and so on without it.

    How tight is an order statistic of the distances from a point: to as many others as half an average cluster has.
    """
    kept = _kept_count(len(points), byzantine_fraction)
    left, seeds = np.arange(len(points)), np.empty((clusters, points.shape[1]))
    for j in range(clusters):
        members = min(len(left), max(len(points) - kept + 1, -(-len(left) // (2 * (clusters - j)))))
        if members == 0:  # all are taken: the farthest from the centres so far
            seeds[j] = points[cdist(points, seeds[:j]).min(axis=1).argmax()]
            continue
        near = _reaches(points[left], members)
        ball = points[left[cdist(points[left[[near.argmin()]]], points[left])[0] <= near.min()]]
        seeds[j] = ball.mean(axis=0)
        reach = BALL * float(np.median(np.linalg.norm(ball - seeds[j], axis=1)))
        left = left[np.linalg.norm(points[left] - seeds[j], axis=1) > reach]
    return lloyd(points, seeds, kept, LLOYD_STEPS)


def _reaches(points: Floats, members: int) -> Floats:
    """(m,): how far from each point its nearest `members` reach, itself included; some points at a time."""
    step = max(1, PAIRS // len(points))
    parts = (points[start : start + step] for start in range(0, len(points), step))
    return np.concatenate([np.partition(cdist(part, points), members - 1, axis=1)[:, members - 1] for part in parts])
