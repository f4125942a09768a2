"""Which clients are worth a look: their losses, compared with those of the members of clusters that can be trusted."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from coterie._src.arrays import Array, Bools, Floats, Ints, as_numpy
from coterie._src.membership import LEVEL, Membership, held_out_losses, loss_variances
from coterie._src.tasks import Task, assign

TOO_SMALL = "no more members"
"""What the reasons say of a client whose cluster may consist of Byzantine clients."""


class Suspicion(NamedTuple):
    """How far every client stands out: evidence, no verdict.

    losses : (m,), the mean loss at the model of its own cluster; NaN for a client in no cluster.
    scores : (m,), −log₁₀ of the probability that a member of the cluster would have such a loss or a larger one.
    reasons : in words; "" for a client that does not stand out.
    """

    losses: Floats
    scores: Floats
    reasons: tuple[str, ...]


def trusted_clusters(labels: Ints, clusters: int, max_byzantine: int) -> Bools:
    """(k,): the clusters with more members than may be Byzantine; if there are none, those with members.

    >>> trusted_clusters(np.array([0, 0, 0, 1]), 3, 1).tolist()
    [True, False, False]
    """
    sizes = np.bincount(labels[labels >= 0], minlength=clusters)
    found: Bools = sizes > max_byzantine
    return found if found.any() else sizes > 0


def suspicion(
    task: Task, centres: Array, labels: Ints, members: Membership, refused: Floats, max_byzantine: int
) -> Suspicion:
    """How far every client of a task stands out.

    A client is judged by its loss at a centre that was fitted without it, and by its number of samples. A cluster with
    no more members than may be Byzantine says nothing for them: they are judged by the other cluster of lowest loss.

    Parameters
    ----------
    task : the clients; with the parameters of the centres.
    centres : (k, d).
    labels : (m,), the clusters; -1 for none.
    members : what the losses of the members of each cluster are like.
    refused : (m,), the shares of the rounds in which the replies were refused.
    max_byzantine : the bound on the number of Byzantine clients.
    """
    count, clusters = len(labels), len(centres)
    trusted = trusted_clusters(labels, clusters, max_byzantine)
    losses = as_numpy(task.losses(centres)).astype(np.float64)
    inside = (labels >= 0) & trusted[labels]
    judged = np.where(inside, labels, assign(np.where(trusted, losses, np.inf)))
    values = np.where(inside, held_out_losses(task, centres, labels), losses[np.arange(count), judged])
    variances = loss_variances(task, centres, judged)
    sizes = np.bincount(labels[labels >= 0], minlength=clusters)
    scores, reasons = np.zeros(count), []
    for i, j in enumerate(judged.tolist()):
        p = members.p_value(j, values[i], variances[i], int(task.clients.sizes[i]))
        scores[i] = -math.log10(max(p, 1e-300))
        found = []
        if p < LEVEL:
            ratio = values[i] / members.loss[j]
            found.append(f"its loss is {ratio:.3g} times the usual one of cluster {j} (p = {p:.1g})")
        if labels[i] >= 0 and sizes[labels[i]] <= max_byzantine:
            size = f"{TOO_SMALL} ({sizes[labels[i]]}) than may be Byzantine ({max_byzantine})"
            found.append(f"cluster {labels[i]} has {size}")
        if refused[i]:
            found.append(f"refused in {refused[i]:.0%} of the rounds")
        reasons.append("; ".join(found))
    own = np.where(labels >= 0, losses[np.arange(count), np.maximum(labels, 0)], np.nan)
    return Suspicion(own, scores + 0.0, tuple(reasons))
