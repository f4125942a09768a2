"""Step sizes from the curvatures that the clients report."""

from __future__ import annotations

import numpy as np

from coterie._src.arrays import Array, Floats, Ints, as_numpy, namespace
from coterie._src.intake import admit
from coterie._src.network import Network

STEEPER = 3.0
"""A safety factor: the automatic step does not overshoot on replies up to this many times as steep as honest ones."""
POSSIBLE = 1.001
"""The largest trace/n relative to λ_max, with a margin for rounding in float32."""


def ask_curvatures(network: Network, rounds: int | None = None) -> Floats:
    """(m, 2): the curvatures that the clients report, NaN where the reply was refused."""
    form = np.zeros((1, 2))
    accepted = admit(network.curvatures(rounds), clients=network.count, clusters=1, round=-1, like=form)
    curvatures = np.full((network.count, 2), np.nan)
    curvatures[accepted.clients] = as_numpy(accepted.updates)
    return curvatures


def automatic_steps(curvatures: Floats, labels: Ints, clusters: int) -> Floats:
    """(clusters,): γ_j = 1/(3 L_j), with L_j estimated from the curvatures that the members of the cluster report.

    A client's own curvature λ_max overestimates that of a cluster of c clients, whose mean has c times the samples: by
    the Marchenko–Pastur edge √L(c) = √λ_max − √(trace/n)·(1 − 1/√c). A small cluster with d ≥ n therefore gets a short
    step and a large one a long step. The values are medians over the members, so that a Byzantine minority cannot
    determine the step; c is replaced by 2c/π, the efficiency of a median. The factor 3 is for clusters that consist of
    Byzantine clients in an early round: replies up to three times as steep as honest ones (the paper's attack) then do
    not make the centre diverge, so that honest clients can still choose it later. A cluster without values gets those
    of all clients.

    The two medians can come from different clients, and their difference from none. Therefore √L(c) is at least half
    the median of what the single members say, so that a minority determines no step above 4/(3 L_j) with L_j that of an
    honest member; below 2/L_j a step does not diverge. Pairs that no data have are ignored: both must be at least 0 and
    λ_max positive, and trace/n is at most λ_max, since the rank is at most n.

    curvatures: (rows, 2) as in `Task.curvatures`. labels: (rows,).
    """
    usable = (curvatures[:, 0] > 0) & (curvatures[:, 1] >= 0) & (curvatures[:, 1] <= POSSIBLE * curvatures[:, 0])
    if not usable.any():
        return np.zeros(clusters)
    roots, known, counts = np.sqrt(curvatures[usable]), labels[usable], np.bincount(labels, minlength=clusters)
    steepest, excess = (_medians(roots[:, column], known, clusters) for column in range(2))
    single = _medians(curvature_roots(roots[:, 0], roots[:, 1], counts[known]), known, clusters)
    together = np.maximum(curvature_roots(steepest, excess, counts), single / 2)
    return np.array([1.0 / (STEEPER * root**2) for root in together])


def curvature_roots(steepest: Array, excess: Array, counts: Array) -> Array:
    """√L(c) of clusters of c clients, by the Marchenko–Pastur edge (see `automatic_steps`), and at least 0.001·√λ_max.

    steepest, excess: √λ_max and √(trace/n) of a typical client. counts: c. All of one shape.
    """
    xp = namespace(steepest)
    pooled = 2 * counts / np.pi
    root = steepest - excess * (1 - 1 / xp.sqrt(xp.maximum(pooled, xp.ones_like(pooled))))
    return xp.maximum(root, 1e-3 * steepest)


def _medians(values: Floats, labels: Ints, clusters: int) -> Floats:
    """(clusters,): the median of the values under each label; where there are none, that of all values."""
    counts = np.bincount(labels, minlength=clusters)
    ranked, first = values[np.lexsort((values, labels))], np.cumsum(counts) - counts
    low, high = (ranked.take(first + rank // 2, mode="clip") for rank in (counts - 1, counts))
    middle: Floats = (low + high) / 2
    return middle if counts.all() else np.where(counts > 0, middle, np.median(values))
