"""Which sites are worth a look: their losses, compared with those of the members of clusters that can be trusted."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from coterie._src.arrays import Bools, Floats, as_numpy, like
from coterie._src.fitting import Result
from coterie._src.membership import LEVEL, held_out_losses, loss_variances
from coterie._src.tasks import Task, assign


def trusted_clusters(labels: NDArray[np.int64], clusters: int, max_byzantine: int) -> Bools:
    """(k,): the clusters with more members than may be Byzantine; if there are none, those with members.

    >>> trusted_clusters(np.array([0, 0, 0, 1]), 3, 1).tolist()
    [True, False, False]
    """
    sizes = np.bincount(labels[labels >= 0], minlength=clusters)
    found: Bools = sizes > max_byzantine
    return found if found.any() else sizes > 0


def suspicion(task: Task, result: Result, max_byzantine: int) -> tuple[Floats, list[str]]:
    """How far every client of a fit stands out, (m,), and the reasons in words, "" for a client that does not.

    task: that of the clients, with the parameters of the result's centres.

    The score is −log₁₀ of the probability that a member of the cluster with as many samples would have the client's
    loss or a larger one, at a centre that was fitted without the client. A cluster with no more members than may be
    Byzantine says nothing for them: they are judged by the other cluster of lowest loss. NaN for a method that
    assigns no clients to clusters.
    """
    labels, count, clusters = result.labels, len(result.labels), len(result.centres)
    members = result.membership
    if members is None:
        return np.full(count, np.nan), [""] * count
    centres = like(result.centres, task.clients.features)
    trusted = trusted_clusters(labels, clusters, max_byzantine)
    losses = as_numpy(task.losses(centres)).astype(np.float64)
    inside = (labels >= 0) & trusted[labels]
    judged = np.where(inside, labels, assign(np.where(trusted, losses, np.inf)))
    values = np.where(inside, held_out_losses(task, centres, labels), losses[np.arange(count), judged])
    variances = loss_variances(task, centres, judged)
    sizes = np.bincount(labels[labels >= 0], minlength=clusters)
    scores, reasons = np.zeros(count), []
    for i, j in enumerate(judged.tolist()):
        one = np.where(np.arange(clusters) == j, values[i], np.inf)
        p = float(members.p_values(one, np.full(clusters, variances[i]), int(task.clients.sizes[i]))[j])
        scores[i] = -math.log10(max(p, 1e-300))
        found = []
        if p < LEVEL:
            ratio = values[i] / members.loss[j]
            found.append(f"its loss is {ratio:.3g} times the usual one of cluster {j} (p = {p:.1g})")
        if labels[i] >= 0 and sizes[labels[i]] <= max_byzantine:
            size = f"no more sites ({sizes[labels[i]]}) than may be Byzantine ({max_byzantine})"
            found.append(f"cluster {labels[i]} has {size}")
        if refused := float(result.audit[i]["refused"]):
            found.append(f"refused in {refused:.0%} of the rounds")
        reasons.append("; ".join(found))
    return scores + 0.0, reasons
