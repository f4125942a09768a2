"""Models of the clients' own, which a client computes after the rounds; nothing of them leaves it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie._src.arrays import Array, Floats, Ints, like
from coterie._src.tasks import Task


class Personal(NamedTuple):
    """The personal models of m clients."""

    models: Array  # (m, dim), like the centres
    shrinkage: Floats  # (m,), from 0 (the client's own fit) to 1 (the anchor unchanged)
    anchors: tuple[str, ...]  # (m,), "cluster" or "own": what the client shrank towards


def personalise(task: Task, centres: Array | None = None, labels: Ints | None = None) -> Personal:
    """A model of each client's own, shrunk towards the centre of its cluster as far as its own rows advise.

    If the parameter of a client is θ_i ~ N(θ_j, τ²S) around the centre of its cluster and its n rows have noise σ², the
    best fit to the rows is the one with the penalty λ‖θ − θ_j‖²_{S⁻¹}, λ = σ²/(nτ²): for τ = 0 the centre itself, for
    large n·τ² the client's own fit. τ and σ are not known, so λ is a mean over a grid, weighted by the marginal
    likelihood of the client's rows (empirical Bayes, of which the estimator of James and Stein, 1961, is the simplest
    case; Ditto, Li et al., 2021, has the same penalty with one λ for all clients). The intercept and the slopes have a
    penalty each, the slopes that of the client's standardised columns. What it costs where τ = 0 is of the order of
    σ²/n, and not d·σ²/n as the own fit. A client compares this fit, by the losses of left-out rows, with one that is
    shrunk towards its own mean; so a centre that is wrong by far does hardly any harm. What its rows cannot judge, such
    as the coefficient of a level that the client does not have, is bounded by the spread of its targets, since in a
    direction that few clients know the centre may be what Byzantine clients made it; of a client with one row, all is
    taken from the centre. Nothing leaves the client.

    The result does not depend on the units of the columns and of the target nor, with an intercept (a column that is 1
    in all rows), on the origin of the columns; it depends on their rotation, since the columns are standardised, and on
    which columns are indicators, 0 or 1.

    Parameters
    ----------
    task : the clients' data and loss. A network is trained with a penalty λ/2·‖θ − θ_j‖² (Ditto's form) for a few
        values of λ, of which the client's validation samples choose one, or the cluster's model, or a network of the
        client's own (`tasks.proximal`). With a task without a method `personalised` clients keep the models of their
        clusters, and a client without one has its local minimiser.
    centres : (k, dim), or None for the fits that are shrunk towards the clients' own means alone.
    labels : (m,), the cluster of each client, -1 for none.

    Returns
    -------
    Personal
        Models, shrinkage and anchors of the clients.
    """
    count = task.clients.count
    if (centres is None) != (labels is None):
        raise ValueError("labels must be given with centres, and not without them")
    if centres is not None and labels is not None:
        labels = np.asarray(labels)
        if tuple(centres.shape[1:]) != (task.dim,):
            raise ValueError(f"centres must have shape (k, {task.dim}), got {tuple(centres.shape)}")
        if labels.shape != (count,) or labels.dtype.kind not in "iu":
            raise ValueError(f"labels must be {count} whole numbers, one per client, got shape {labels.shape}")
        if labels.min() < -1 or labels.max() >= len(centres):
            raise ValueError(f"labels must be from -1 to {len(centres) - 1}, got {labels.min()} to {labels.max()}")
    personalised = getattr(task, "personalised", None)
    if personalised is not None:
        with np.errstate(over="ignore", invalid="ignore"):  # of an absurd centre, which is then not chosen
            return Personal(*personalised(centres, labels))
    kept = np.full(count, -1) if labels is None else labels
    models = like(np.zeros((count, task.dim)), task.clients.features if centres is None else centres)
    if (kept < 0).any():
        models[kept < 0] = task.minimisers()[kept < 0]
    if centres is not None:
        models[kept >= 0] = centres[kept[kept >= 0]]
    return Personal(models, (kept >= 0).astype(np.float64), tuple("own" if j < 0 else "cluster" for j in kept))
