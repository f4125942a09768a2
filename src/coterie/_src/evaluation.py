"""How good a model is for the client that uses it, on samples that no method has seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie._src.arrays import Array, Bools, Floats, Ints, as_numpy, namespace
from coterie._src.data import Clients, HeldOut
from coterie._src.metrics import NOT_APPLICABLE, Metrics
from coterie._src.tasks import LinearModel, Loss, Quadratic, Task, assign, squared_loss

WORST = 0.1
"""The share of clients over which the scores of the worst clients are averaged."""


@dataclass(frozen=True)
class Scores:
    """The scores of one model per client on its held-out samples; NaN for a client without such samples.

    Attributes
    ----------
    losses : (m,), the mean loss of a client: squared error, log-loss, or that of the task.
    r2 : (m,), for squared error: 1 − loss_i/V with one V for all clients, the mean squared deviation of the held-out
        targets from their mean, so that the clients' numbers can be compared and averaged.
    accuracies : (m,), for classes.
    auc : for two classes: the area under the ROC curve of all held-out samples together; else NaN.
    samples : the losses of the single samples, one array per client; empty where they are not known.
    """

    losses: Floats
    r2: Floats
    accuracies: Floats
    auc: float
    samples: tuple[Floats, ...]

    @property
    def main(self) -> Floats:
        """(m,): the score to show for a client: R² or accuracy, larger is better; the negative loss without either."""
        for found in (self.r2, self.accuracies):
            if np.isfinite(found).any():
                return found
        return -self.losses


def held_out_scores(task: Task, held_out: HeldOut, models: Array, counted: Bools) -> Scores:
    """The scores of (m, dim) models, one per client, on the clients' held-out samples.

    counted: (m,), the clients by which the spread of the targets and the area under the ROC curve are judged: the
    honest ones.
    """
    clients, owners, m = held_out.clients, held_out.owners, len(models)
    losses, r2, accuracies = (np.full(m, np.nan) for _ in range(3))
    samples: list[Floats] = [np.zeros(0)] * m
    predicted: list[tuple[Floats, Floats]] = []
    loss = _loss(task)
    for index, owner in enumerate(owners.tolist()):
        model = models[owner : owner + 1, :]
        x, y = clients.samples(index)
        if loss is not None:
            values, outputs = _sample_losses(loss, x, y, model, clients.dim)
            samples[owner] = values
            losses[owner] = values.mean()
            if not loss.square:
                accuracies[owner] = np.mean(as_numpy(loss.predict(outputs)) == as_numpy(y))
                if loss.outputs == 1 and counted[owner]:
                    predicted.append((as_numpy(outputs)[:, 0], as_numpy(y)))
        else:
            one: Any = task.on(clients.take([index]))
            if hasattr(one, "sample_losses"):
                (samples[owner],) = one.sample_losses(model)
                losses[owner] = samples[owner].mean()
            else:
                losses[owner] = as_numpy(one.losses(model))[0, 0]
            if hasattr(one, "accuracies"):
                accuracies[owner] = as_numpy(one.accuracies(model))[0, 0]
    if loss is not None and loss.square:
        spread = _target_spread(clients, counted[owners])
        r2 = 1.0 - losses / spread if spread > 0 else r2
    known = loss is not None or hasattr(task, "sample_losses")
    return Scores(losses, r2, accuracies, _area(predicted), tuple(samples) if known else ())


def _loss(task: Task) -> Loss | None:
    """The loss ℓ of a linear model; None for another task."""
    if isinstance(task, LinearModel):
        return task.loss
    return squared_loss() if isinstance(task, Quadratic) and task.clients.targets is not None else None


def _sample_losses(loss: Loss, x: Array, y: Array | None, model: Array, columns: int) -> tuple[Floats, Array]:
    """(n,), (n, outputs): the losses and the scores x·W of single samples, in float64."""
    assert y is not None
    weights = namespace(model).reshape(model, (columns, loss.outputs))
    outputs = as_numpy(x).astype(np.float64) @ as_numpy(weights).astype(np.float64)
    return as_numpy(loss.value(outputs, as_numpy(y).astype(np.float64))), outputs


def _target_spread(clients: Clients, counted: Bools) -> float:
    """The mean over the counted clients of the mean squared deviation of their targets from the mean of the clients."""
    own = [as_numpy(clients.samples(int(i))[1]).astype(np.float64) for i in np.flatnonzero(counted)]
    if not own:
        return 0.0
    middle = np.mean([y.mean() for y in own])
    return float(np.mean([((y - middle) ** 2).mean() for y in own]))


def _area(predicted: Sequence[tuple[Floats, Floats]]) -> float:
    """The probability that a sample of class 1 has a larger score than one of class 0 (ties count one half)."""
    if not predicted:
        return NOT_APPLICABLE
    scores, classes = (np.concatenate(parts) for parts in zip(*predicted, strict=True))
    positive = classes == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not (ones and zeros) or not np.isfinite(scores).all():
        return NOT_APPLICABLE
    _, order, ties = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[order]  # the mean rank of equal scores
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def held_out_metrics(scores: Scores, counted: Bools) -> Metrics:
    """The metrics of the table: means over the counted clients, and over the worst tenth of them.

    test_loss, test_r2, test_worst_r2, test_accuracy, test_worst_accuracy, test_auc; NaN where one is not defined.
    """
    judged = counted & np.isfinite(scores.losses)

    def mean(values: Floats) -> float:
        return float(values[judged].mean()) if judged.any() else NOT_APPLICABLE

    def worst(values: Floats) -> float:
        own = np.sort(values[judged])
        return float(own[: math.ceil(WORST * len(own))].mean()) if len(own) else NOT_APPLICABLE

    return {
        "test_loss": mean(scores.losses),
        "test_r2": mean(scores.r2),
        "test_worst_r2": worst(scores.r2),
        "test_accuracy": mean(scores.accuracies),
        "test_worst_accuracy": worst(scores.accuracies),
        "test_auc": scores.auc,
    }


def cluster_models(task: Task, centres: Array, labels: Ints) -> Array:
    """(k, dim), (m,) -> (m, dim): the model of every client's cluster.

    A client in no cluster (label -1) uses the centre where its own loss is lowest.
    """
    if (labels < 0).any():
        labels = np.where(labels < 0, assign(task.losses(centres)), labels)
    return centres[labels]


@dataclass(frozen=True)
class Comparison:
    """For how many clients one model is better or worse than another, on held-out samples.

    A client counts as better or worse where the two mean losses differ by more than one standard error of their
    difference, which is over the same samples.
    """

    better: int
    worse: int
    clients: int

    def sentence(self, than: str) -> str:
        """In words; than: what the other model is.

        >>> Comparison(112, 9, 139).sentence("alone")
        '112 of 139 clients are better off than alone, 9 worse, 18 within one standard error'
        """
        level = self.clients - self.better - self.worse
        return (
            f"{self.better} of {self.clients} clients are better off than {than}, {self.worse} worse, "
            f"{level} within one standard error"
        )


def compare(scores: Scores, other: Scores, counted: Bools) -> Comparison:
    """The comparison of the first scores with the other ones, over the counted clients with held-out samples."""
    judged = np.flatnonzero(counted & np.isfinite(other.losses))
    better = worse = 0
    for client in judged.tolist():
        difference = scores.losses[client] - other.losses[client]
        error = 0.0
        if scores.samples and other.samples and len(scores.samples[client]) > 1:
            each = scores.samples[client] - other.samples[client]
            error = float(each.std(ddof=1) / math.sqrt(len(each)))
        better += bool(difference < -error)
        worse += bool(difference > error or math.isnan(difference))
    return Comparison(better, worse, len(judged))
