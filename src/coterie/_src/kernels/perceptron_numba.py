"""The sparse first layer and the gradients of a perceptron (Numba). Benchmark: `python -m benchmarks networks`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie._src.kernels.compiling import compiled

Array = NDArray[Any]
Ints = NDArray[Any]

CACHE_LINE = 16
"""Inputs whose sums are transposed together: the values of a cache line."""


@partial(compiled, reorder=True)
def _add_product(sums: Array, columns: Ints, values: Array, dense: Array) -> None:
    """sums += Σ_q values[q] · dense[columns[q]]; eight terms at a time, to load and store the sums less often."""
    whole = len(values) - len(values) % 8
    for q in range(0, whole, 8):
        x0, x1, x2, x3 = values[q], values[q + 1], values[q + 2], values[q + 3]
        x4, x5, x6, x7 = values[q + 4], values[q + 5], values[q + 6], values[q + 7]
        d0, d1, d2, d3 = dense[columns[q]], dense[columns[q + 1]], dense[columns[q + 2]], dense[columns[q + 3]]
        d4, d5, d6, d7 = dense[columns[q + 4]], dense[columns[q + 5]], dense[columns[q + 6]], dense[columns[q + 7]]
        for c in range(len(sums)):
            sums[c] += ((x0 * d0[c] + x1 * d1[c]) + (x2 * d2[c] + x3 * d3[c])) + (
                (x4 * d4[c] + x5 * d5[c]) + (x6 * d6[c] + x7 * d7[c])
            )
    for q in range(whole, len(values)):
        x0, d0 = values[q], dense[columns[q]]
        for c in range(len(sums)):
            sums[c] += x0 * d0[c]


@compiled
def first_layer(starts: Ints, columns: Ints, values: Array, weights: Array, biases: Array, found: Array) -> None:
    """See `perceptron.first_layer_reference`.

    One layer at a time, so that its weights stay in the cache.
    """
    for j in range(len(weights)):
        for i in range(len(starts) - 1):
            found[j, i] = biases[j]
            own = slice(starts[i], starts[i + 1])
            _add_product(found[j, i], columns[own], values[own], weights[j])


@compiled
def weigh(starts: Ints, columns: Ints, values: Array, weights: Array, out: Array) -> None:
    """See `perceptron.weigh_reference`.

    By groups of inputs, which are transposed in the cache and written as whole cache lines.
    """
    width = weights.shape[2]
    inputs = (len(starts) - 1) // len(weights)
    sums = np.empty((CACHE_LINE, width), weights.dtype)
    for client in range(len(weights)):
        for begin in range(0, inputs, CACHE_LINE):
            many = min(CACHE_LINE, inputs - begin)
            sums[:] = 0
            for p in range(many):
                i = client * inputs + begin + p
                own = slice(starts[i], starts[i + 1])
                _add_product(sums[p], columns[own], values[own], weights[client])
            for c in range(width):
                for p in range(many):
                    out[client, c * inputs + begin + p] = sums[p, c]


@partial(compiled, reorder=True)
def slopes(rest: Array, pre_activations: Array, targets: Ints, by_rest: Array, by_pre_activations: Array) -> None:
    """See `perceptron.slopes_reference`."""
    samples, width = pre_activations.shape[1:]
    outputs = rest.shape[1] // (width + 1)
    active, scores = np.empty(width, pre_activations.dtype), np.empty(outputs, pre_activations.dtype)
    for client in range(len(rest)):
        weights = rest[client, : outputs * width].reshape(outputs, width)
        biases = rest[client, outputs * width :]
        by_weights = by_rest[client, : outputs * width].reshape(outputs, width)
        by_biases = by_rest[client, outputs * width :]
        by_rest[client] = 0
        for i in range(samples):
            row, slope = pre_activations[client, i], by_pre_activations[client, i]
            for c in range(width):
                active[c] = 0 if row[c] <= 0 else row[c]  # a NaN stays NaN
            for o in range(outputs):
                own, score = weights[o], biases[o]
                for c in range(width):
                    score += own[c] * active[c]
                scores[o] = score
            top = scores.max()
            scores[:] = np.exp(scores - top)
            scores /= scores.sum()
            scores[targets[client, i]] -= 1
            scores /= samples
            slope[:] = 0
            for o in range(outputs):
                own, sums, share = weights[o], by_weights[o], scores[o]
                for c in range(width):
                    slope[c] += share * own[c]
                    sums[c] += share * active[c]
                by_biases[o] += share
            for c in range(width):
                slope[c] = 0 if row[c] <= 0 else slope[c]
