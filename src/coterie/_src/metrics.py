"""Measures of the error of estimated centres and labels, given the true ones."""

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
    """The mean distance of an estimate to its nearest true centre, as in the authors' code.

    Several estimates may have the same nearest true centre. The paper's (1/k) Σ_j ‖θ̂_j − θ*_j‖ compares by index, which
    is `matched_distance` under the best numbering of the clusters.
    """
    return _nearest(distances(centres, truth))


def _nearest(between: Floats) -> float:
    return float(between.min(axis=1).mean())


def matched_distance(centres: Array, truth: Array) -> float:
    """The smallest mean distance under a one-to-one matching of estimates and true centres (Hungarian algorithm).

    The mean is over the true centres; one without a match, where there are fewer estimates, counts with its nearest
    estimate.

    >>> matched_distance(np.array([[0.0], [0.1]]), np.array([[0.0], [1.0]]))
    0.45
    """
    return _matched(distances(centres, truth))


def _matched(between: Floats) -> float:
    return float(_matched_distances(between).mean())


def _matched_distances(between: Floats) -> Floats:
    """(k,): the distance of every true centre to its matched estimate or, where there is none, to the nearest one."""
    estimates, truths = linear_sum_assignment(np.minimum(between, 1e300))  # the solver refuses infinities
    found: Floats = between.min(axis=0)
    found[truths] = between[estimates, truths]
    return found


def cluster_distances(centres: Array, truth: Array) -> Floats:
    """(k,): the distance of every true centre to its matched estimate; `matched_distance` is their mean.

    >>> cluster_distances(np.array([[1.0], [0.1]]), np.array([[0.0], [1.0]])).tolist()
    [0.1, 0.0]
    """
    return _matched_distances(distances(centres, truth))


def contingency(labels: Ints, truth: Ints) -> Ints:
    """(labels, true labels): the number of clients with each pair of labels."""
    if min(labels.min(), truth.min()) < 0:
        raise ValueError("labels: must be at least 0; leave out clients with label -1 (in no cluster)")
    shape = int(labels.max()) + 1, int(truth.max()) + 1
    return np.bincount(labels * shape[1] + truth, minlength=shape[0] * shape[1]).reshape(shape)


def adjusted_rand_index(labels: Ints, truth: Ints) -> float:
    """The agreement of two partitions: 1 if they are equal, 0 on average for random ones (Hubert and Arabie, 1985)."""
    table = contingency(labels, truth)

    def pairs(counts: Ints) -> float:
        return float((counts * (counts - 1) // 2).sum())

    both, rows, columns = pairs(table), pairs(table.sum(axis=1)), pairs(table.sum(axis=0))
    total = len(labels) * (len(labels) - 1) / 2
    expected = rows * columns / total if total else 0.0
    highest = (rows + columns) / 2
    return 1.0 if highest == expected else (both - expected) / (highest - expected)


def misclustered_fraction(labels: Ints, truth: Ints) -> float:
    """The fraction of clients outside the best one-to-one matching of labels and true clusters."""
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
    """The metrics dist, matched_dist, ari, misclustered and clusters (the number of centres).

    ari and misclustered are those of `agreement`. Distances are NaN where there are no true centres.
    local: whether there is one model per client. Then only the distances are defined, over the honest clients: dist to
    the nearest true centre, matched_dist to that of the client's own cluster.
    known: `agreement` of these labels, if it is known.
    """
    honest = np.flatnonzero(~truth.is_byzantine & (labels >= 0))
    dim = truth.centres.shape[1]
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
        between = distances(centres, truth.centres)
        metrics |= {"dist": _nearest(between), "matched_dist": _matched(between)}
    return metrics


def cluster_accuracies(right: Floats, labels: Ints, truth: Truth) -> Floats:
    """(k,): per true cluster, the mean over its honest clients of the test accuracy of the model that the client uses.

    right: (k, models), the accuracy of every model on the test samples of every true cluster; NaN for a model that no
    client uses there. labels: (m,), the model of every client; a client without one (-1) counts with accuracy 0.

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
    """(clusters,): the fraction of Byzantine clients among the clients of each cluster; 0 where it is empty."""
    counted = labels >= 0
    sizes = np.bincount(labels[counted], minlength=clusters)
    byzantine_counts = np.bincount(labels[counted & byzantine], minlength=clusters)
    return byzantine_counts / np.maximum(sizes, 1)
