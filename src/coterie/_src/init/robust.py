"""First centres from one point per client, of which a minority may be Byzantine.

A point is a noisy estimate of the client's optimum (`spectral`, `balls`), or its own minimiser (`erm`). The points are
clipped to a robust radius. Then k clusters are fitted to all but a fraction `byzantine_fraction` of them by trimmed
k-means, with local search (Lattanzi and Sohler, A better k-means++ algorithm via local search, 2019) or from the
densest balls.

Assumption: every cluster has more than byzantine_fraction·m clients; an adversary with as many clients as a cluster can
imitate one. Defences against an adversary with fewer: huge points are removed or clipped; identical points count once;
a dense ball is cheaper to trim than to give a centre, and a run with a cluster of that size is used only if there is no
other; against points that spread the clipped variance over many directions, the first pass keeps twice as many
directions as needed, and the second computes its directions without the points that the first trimmed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from scipy.sparse.linalg import eigsh
from scipy.spatial.distance import cdist

from coterie._src.aggregators import floor_count, median
from coterie._src.aggregators.base import check_fraction
from coterie._src.aggregators.distance import clip_factors
from coterie._src.aggregators.products import PAIRS, centred_blocks, copies_among, group_means, products_around
from coterie._src.arrays import Array, Floats, as_numpy, like
from coterie._src.init.kmeans import Clusters, lloyd, trimmed_kmeans

STARTS = 8
EXCHANGES = 4
"""Steps of local search per centre and run."""
LLOYD_STEPS = 50
FAR = 2.0
"""Points farther than this many median distances from the median are outliers."""
LONGEST = 4.0
"""For the leading directions, rows are clipped to this many median distances from the median."""
BELOW_HALF = 0.5 - 1e-12
BALL = 1.6
"""The radius of a cluster, in median distances of a ball of half its size."""


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
    """(k, d) centres from points (m, d), by trimmed clustering along their leading principal directions.

    A point is the client's optimum plus noise of equal variance in every direction, such as −∇F_i(0)/2 for the square
    loss on isotropic features. For large d a single point is mostly noise, but the k directions in which the clusters
    differ have the largest variance over all m points, and along these the noise has k coordinates instead of d. The
    first of two passes clusters along 2k directions; the second along the k directions of the points that the first
    kept. The centres are means along these k directions: the other coordinates of a mean would add little but noise.

    What α of false points can do at worst, as long as every cluster has more than α·m members: move a centre within the
    spread of its cluster. Near that limit they may take a centre; `RobustStart.search` then compares other starts.

    Parameters
    ----------
    points : (m, d).
    outliers_count : see `without_outliers`.
    reconsider : whether the second pass clusters all points again, or only those that the first kept. If all, a cluster
        that the first pass trimmed is recovered, but so are Byzantine points that only the removed directions revealed.
    cluster : the clustering; default: `trimmed_clusters`.
    """
    points, byzantine_fraction = without_outliers(points, byzantine_fraction, outliers_count, clusters)
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
    """(k, d) centres as in `spectral`, with the densest balls as seeds instead of random ones.

    The result is deterministic. A cluster may be missed if another is so much denser that a ball of half the average
    cluster size contains parts of both; an adversary with more clients than such a ball can capture a centre.
    Reference: Jana, Fan and Kulkarni, A general theory for robust clustering via trimmed mean, 2024, whose
    initialisation searches all sizes of all balls; here the size is fixed, so that the cost is that of the distances.
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

    Accurate where n_i is well above d; for n_i near d a minimiser without ridge is mostly noise. What α of false
    minimisers can do at worst is what false points can in `spectral`, in all d directions. reconsider: unused,
    since there is one pass.
    """
    points, byzantine_fraction = without_outliers(points, byzantine_fraction, outliers_count, clusters)
    return trimmed_clusters(points, clusters, byzantine_fraction, rng).centres


def leading_directions(rows: Array, directions: int) -> tuple[Floats, Callable[[Floats], Floats]]:
    """(m, d) -> (m, r) coordinates along the leading directions around the median, and the map back, (k, r) -> (k, d).

    Rows farther than `LONGEST` median distances are clipped first, so that they do not determine the directions.
    Distances between rows are preserved except for their components outside the r directions, which are mostly noise.
    The cost is that of the inner products of the rows, O(m² d).
    """
    centre = median(rows)
    known, factors = clip_factors(rows, centre, LONGEST)
    inside = rows if len(known) == len(rows) else rows[known]
    gram = as_numpy(products_around(inside, centre, factors[known]))
    wanted = min(directions, len(gram) - 1)
    if wanted < 1 or not np.trace(gram) > 0:
        return np.zeros((len(rows), 1)), lambda found: np.tile(as_numpy(centre).astype(np.float64), (len(found), 1))
    values, vectors = eigsh(gram, k=wanted, v0=np.sqrt(np.diag(gram)) + 1e-300)
    values = np.maximum(values, 1e-12 * max(float(values.max()), 1e-300))
    coordinates = np.zeros((len(rows), wanted))
    coordinates[known] = vectors * np.sqrt(values)

    def back(found: Floats) -> Floats:
        shares = (found / np.sqrt(values)) @ vectors.T * factors[known]
        moves = [as_numpy(like(shares, block) @ block) for block in centred_blocks(inside, centre)]
        full: Floats = as_numpy(centre).astype(np.float64) + np.concatenate(moves, axis=1)
        return full

    return coordinates, back


def without_outliers(
    points: Floats, byzantine_fraction: float, outliers_count: bool, fewest: int = 1
) -> tuple[Floats, float]:
    """The points without outliers, clipped and with copies merged, and the fraction that may still be trimmed.

    Outliers are farther than `FAR` times the median distance from the median; at most a fraction `byzantine_fraction`
    of the points is removed, and none if fewer than `fewest` points would be left.

    outliers_count: whether removed points count towards the fraction. If so, a small cluster is not trimmed in addition
    to obvious Byzantine points; but honest clients with few samples, which are outliers too, may use up the fraction.
    """
    bounded = np.clip(np.asarray(points, dtype=np.float64), -1e100, 1e100)  # squares stay finite
    allowed = len(points) - _kept_count(len(points), byzantine_fraction)
    single = group_means(copies_among(bounded, allowed + 1)) @ bounded  # + 1: the honest point that they copy
    away = np.linalg.norm(single - np.median(single, axis=0), axis=1)
    farthest = np.argsort(-away, kind="stable")[:allowed]
    far = farthest[away[farthest] > FAR * np.median(away)]
    inside = np.delete(single, far, axis=0)
    if len(inside) < fewest:
        return clipped(bounded, byzantine_fraction), byzantine_fraction
    left = max(0, allowed - (len(points) - len(inside))) if outliers_count else min(allowed, (len(inside) - 1) // 2)
    # half a point, so that the fraction times the smaller number of points does not round down to one less
    return clipped(inside, byzantine_fraction), min((left + 0.5) / len(inside), BELOW_HALF) if left else 0.0


def clipped(points: Floats, byzantine_fraction: float) -> Floats:
    """(m, d): the points, clipped to the (1 − byzantine_fraction) quantile of the distances to their median.

    >>> clipped(np.array([[0.0], [1.0], [2.0], [1e9]]), 0.25).ravel().round(6).tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    points = np.clip(np.asarray(points, dtype=np.float64), -1e100, 1e100)
    middle = np.median(points, axis=0)
    away = np.linalg.norm(points - middle, axis=1)
    inside = np.sort(away)[_kept_count(len(points), byzantine_fraction) - 1]
    found: Floats = middle + (points - middle) * (inside / np.maximum(away, max(inside, 1e-300)))[:, None]
    return found


def _kept_count(points: int, byzantine_fraction: float) -> int:
    return points - floor_count(check_fraction("byzantine_fraction", byzantine_fraction), points)


def trimmed_clusters(points: Floats, clusters: int, byzantine_fraction: float, rng: Generator) -> Clusters:
    """Trimmed k-means that trims the byzantine_fraction·m points farthest from all centres.

    A run with a cluster of no more points than may be Byzantine is used only if there is no other.
    """
    kept = _kept_count(len(points), byzantine_fraction)
    fewest = len(points) - kept if byzantine_fraction else None
    return trimmed_kmeans(
        points, clusters, kept, rng, starts=STARTS, iterations=LLOYD_STEPS, exchanges=EXCHANGES, fewest=fewest
    )


def densest_balls(points: Floats, clusters: int, byzantine_fraction: float, rng: Generator) -> Clusters:
    """Trimmed k-means from the densest balls.

    A ball is the smallest around a point that contains half as many points as an average cluster, and more than
    byzantine_fraction·m. The densest one gives a seed; its cluster is removed before the next ball is searched.
    """
    kept = _kept_count(len(points), byzantine_fraction)
    left, seeds = np.arange(len(points)), np.empty((clusters, points.shape[1]))
    for j in range(clusters):
        members = min(len(left), max(len(points) - kept + 1, -(-len(left) // (2 * (clusters - j)))))
        if members == 0:  # no point is left: the point farthest from the seeds so far
            seeds[j] = points[cdist(points, seeds[:j]).min(axis=1).argmax()]
            continue
        radii = _ball_radii(points[left], members)
        ball = points[left[cdist(points[left[[radii.argmin()]]], points[left])[0] <= radii.min()]]
        seeds[j] = ball.mean(axis=0)
        radius = BALL * float(np.median(np.linalg.norm(ball - seeds[j], axis=1)))
        left = left[np.linalg.norm(points[left] - seeds[j], axis=1) > radius]
    return lloyd(points, seeds, kept, LLOYD_STEPS)


def _ball_radii(points: Floats, members: int) -> Floats:
    """(m,): the distance from each point to the farthest of its `members` nearest, itself included."""
    step = max(1, PAIRS // len(points))
    parts = (points[start : start + step] for start in range(0, len(points), step))
    return np.concatenate([np.partition(cdist(part, points), members - 1, axis=1)[:, members - 1] for part in parts])
