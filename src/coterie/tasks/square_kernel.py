"""The square loss on a CPU: scores, losses and gradients of a block of clients while it is in cache.

The same numbers as the array form of `LinearModel` up to rounding, without its temporary arrays; the losses
are summed in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Ints, compiled
from coterie.tasks.task import Choice


@compiled
def _losses(
    features: NDArray[Any], targets: NDArray[Any], weights: NDArray[Any], scores: NDArray[Any], out: NDArray[Any]
) -> None:
    """scores[i] = X_i W, out[i, j] = (1/n) Σ_l (scores[i, l, j] − y_il)²."""
    clients, samples, centres = scores.shape
    total = np.empty(centres, dtype=np.float64)
    for i in range(clients):
        np.dot(features[i], weights, scores[i])
        total[:] = 0.0
        for row in range(samples):
            for j in range(centres):
                error = np.float64(scores[i, row, j] - targets[i, row])
                total[j] += error * error
        for j in range(centres):
            out[i, j] = total[j] / samples


@compiled
def _gradients(
    features: NDArray[Any], targets: NDArray[Any], scores: NDArray[Any], labels: Ints, out: NDArray[Any]
) -> None:
    """out[i] = (2/n) X_iᵀ (scores[i, :, label_i] − y_i)."""
    clients, samples, _ = scores.shape
    slope = np.empty((1, samples), dtype=features.dtype)
    for i in range(clients):
        for row in range(samples):
            slope[0, row] = 2.0 * (scores[i, row, labels[i]] - targets[i, row]) / samples
        np.dot(slope, features[i], out[i : i + 1])


def respond(
    features: NDArray[Any], targets: NDArray[Any], weights: NDArray[Any], choose: Choice
) -> tuple[NDArray[Any], Ints, NDArray[Any]]:
    """(c, n, d), (c, n) and weights (d, k) -> losses (c, k), labels (c,), gradients (c, d)."""
    clients, samples, dim = features.shape
    scores = np.empty((clients, samples, weights.shape[1]), dtype=features.dtype)
    losses = np.empty((clients, weights.shape[1]), dtype=features.dtype)
    _losses(features, targets, weights, scores, losses)
    labels = choose(losses)
    gradients = np.empty((clients, dim), dtype=features.dtype)
    _gradients(features, targets, scores, labels, gradients)
    return losses, labels, gradients
