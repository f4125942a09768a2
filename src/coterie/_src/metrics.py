"""How good the estimates are, against the truth."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from coterie._src.arrays import Array, Bools, Floats, Ints, as_numpy
from coterie._src.data import Truth

Metrics = dict[str, float]

NOT_APPLICABLE = math.nan


def distances(centres: Array, truth: Array) -> Floats:
    """(k̂, k): ‖θ̂_i − θ*_j‖ in float64; infinite where an estimate is not finite."""
    between = cdist(as_numpy(centres).astype(np.float64), as_numpy(truth).astype(np.float64))
    return np.asarray(np.where(np.isnan(between), np.inf, between))


def nearest_distance(centres: Array, truth: Array) -> float:
    """Each estimate to its nearest truth, averaged, as in the authors' code; two estimates on one truth cost nothing.

    The paper writes (1/k) Σ_j ‖θ̂_j − θ*_j‖, by index, which `matched_distance` is under the best naming of clusters.
    """
    return _nearest(distances(centres, truth))


def _nearest(between: Floats) -> float:
    return float(between.min(axis=1).mean())


def matched_distance(centres: Array, truth: Array) -> float:
    """The least mean distance under a one-to-one matching of estimates and truths (Hungarian algorithm).

    Over the truths: one that too few estimates leave without a partner counts with its nearest estimate.

    >>> matched_distance(np.array([[0.0], [0.1]]), np.array([[0.0], [1.0]]))
    0.45
    """
    return _matched(distances(centres, truth))


def _matched(between: Floats) -> float:
    return float(_with_partners(between).mean())


def _with_partners(between: Floats) -> Floats:
    """(k,): every truth's distance to its partner or, where there is none, to the nearest estimate."""
    estimates, truths = linear_sum_assignment(np.minimum(between, 1e300))  # the solver refuses infinities
    found: Floats = between.min(axis=0)
    found[truths] = between[estimates, truths]
    return found


def cluster_distances(centres: Array, truth: Array) -> Floats:
    """(k,): the distance of every true centre to its estimate; what `matched_distance` is the mean of.

    One model stands for all.

    >>> cluster_distances(np.array([[1.0], [0.1]]), np.array([[0.0], [1.0]])).tolist()
    [0.1, 0.0]
    """
    if centres.shape[0] == 1:
        centres = as_numpy(centres).repeat(truth.shape[0], axis=0)
    return _with_partners(distances(centres, truth))


def contingency(labels: Ints, truth: Ints) -> Ints:
    """Counts of clients by (label, true label), from 0."""
    if min(labels.min(), truth.min()) < 0:
        raise ValueError("labels: -1 (nowhere) is no cluster; leave such clients out")
    shape = int(labels.max()) + 1, int(truth.max()) + 1
    return np.bincount(labels * shape[1] + truth, minlength=shape[0] * shape[1]).reshape(shape)


def adjusted_rand_index(labels: Ints, truth: Ints) -> float:
    """Agreement of two partitions, 1 for the same and 0 on average for chance (Hubert and Arabie, 1985)."""
    table = contingency(labels, truth)

    def pairs(counts: Ints) -> float:
        return float((counts * (counts - 1) // 2).sum())

    both, rows, columns = pairs(table), pairs(table.sum(axis=1)), pairs(table.sum(axis=0))
    total = len(labels) * (len(labels) - 1) / 2
    expected = rows * columns / total if total else 0.0
    highest = (rows + columns) / 2
    return 1.0 if highest == expected else (both - expected) / (highest - expected)


def misclustered_fraction(labels: Ints, truth: Ints) -> float:
    """The fraction outside the best one-to-one matching of labels and true clusters."""
    table = contingency(labels, truth)
    return 1.0 - float(table[linear_sum_assignment(-table)].sum()) / len(labels)


def agreement(labels: Ints, truth: Truth) -> Metrics:
    """ari and misclustered over the honest clients that are in a cluster."""
    honest = np.flatnonzero(~truth.is_byzantine & (labels >= 0))
    if not len(honest):
        return {"ari": NOT_APPLICABLE, "misclustered": NOT_APPLICABLE}
    pair = labels[honest], truth.labels[honest]
    return {"ari": adjusted_rand_index(*pair), "misclustered": misclustered_fraction(*pair)}


def evaluate(centres: Array, labels: Ints, truth: Truth, local: bool = False, known: Metrics | None = None) -> Metrics:
    """dist, matched_dist, ari, misclustered and clusters (how many); ari and misclustered over the honest clients.

    local: one model per client, judged over the honest clients alone: dist to the nearest truth,
    matched_dist to the client's own, and no clustering to speak of.
    One model for all stands for every cluster. A client whose replies are refused (label -1) is left out. Where there
    are no true centres, there is no distance to them. known: `agreement` of these labels, if it is known.
    """
    honest = np.flatnonzero(~truth.is_byzantine & (labels >= 0))
    k, dim = truth.centres.shape
    if local:
        metrics = dict.fromkeys(("dist", "matched_dist", "ari", "misclustered", "clusters"), NOT_APPLICABLE)
        if dim:
            between = distances(centres, truth.centres)[honest]
            own = between[np.arange(len(honest)), truth.labels[honest]]
            metrics |= {"dist": float(between.min(axis=1).mean()), "matched_dist": float(own.mean())}
        return metrics
    metrics = {"dist": NOT_APPLICABLE, "matched_dist": NOT_APPLICABLE, **(known or agreement(labels, truth))}
    metrics["clusters"] = float(centres.shape[0])
    if dim:
        alone = centres.shape[0] == 1
        between = distances(as_numpy(centres).repeat(k, axis=0) if alone else centres, truth.centres)
        metrics |= {"dist": _nearest(between), "matched_dist": _matched(between)}
    return metrics


def cluster_accuracies(right: Floats, labels: Ints, truth: Truth) -> Floats:
    """(k,): per true cluster the accuracy on its test samples of the models that its honest clients use, on average.

    right: (k, models), the share of right answers of every model on the test samples of every true cluster; a model
    that is not needed may be missing (NaN). labels: (m,), the model of every client; who has none (-1) is always wrong.

    >>> truth = Truth(np.zeros((2, 0)), np.array([0, 0, 1, -1]))
    >>> cluster_accuracies(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([0, 1, 1, 0]), truth).tolist()
    [0.5, 0.8]
    """
    found = np.zeros(len(right))
    for j in range(len(right)):
        models = labels[truth.labels == j]
        found[j] = np.where(models >= 0, right[j, np.maximum(models, 0)], 0.0).mean()
    return found


def contamination(labels: Ints, byzantine: Bools, clusters: int) -> Floats:
    """(clusters,): the true Byzantine share among the clients counted in each cluster; 0 where it is empty."""
    counted = labels >= 0
    sizes = np.bincount(labels[counted], minlength=clusters)
    liars = np.bincount(labels[counted & byzantine], minlength=clusters)
    return liars / np.maximum(sizes, 1)
