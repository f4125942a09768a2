"""What a network costs on a CPU, where it can be had for less than by torch's operators.

- The first layer of samples that are mostly zeros, such as images of digits, without the products with zeros.
- The slopes of a perceptron's loss (a linear layer, ReLU, a linear layer, cross-entropy) in one pass over each client's
  rows: between the operators of a small network memory is read and written for as long as anything is computed.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from coterie._src.arrays import Array, Ints, compiled

SPARSE = 0.3
"""A share of numbers other than zero below which rows are worth taking apart (break-even is at about 0.4)."""
TURNED = 16
"""Inputs whose sums are turned round together: a line of the cache."""


class SparseRows(NamedTuple):
    """Row i has values[starts[i]:starts[i+1]] at those columns, and zeros elsewhere."""

    starts: Ints
    columns: Ints
    values: Array


class SparseSamples(NamedTuple):
    """The samples of c clients with n each: their rows (c·n, inputs), and their columns as rows (c·inputs, n)."""

    rows: SparseRows
    columns: SparseRows

    def first_layer(self, weights: Tensor, biases: Tensor) -> Tensor:
        """(k, width, inputs), (k, 1, width) -> (k, c·n, width): what k linear layers make of the samples."""
        found = torch.empty((len(weights), len(self.rows.starts) - 1, weights.shape[1]), dtype=weights.dtype)
        layers = weights.mT.contiguous().numpy(), biases[:, 0].contiguous().numpy()
        _first_layer(*self.rows, *layers, found.numpy())
        return found

    def weigh(self, weights: Tensor, out: Tensor) -> None:
        """(c, n, width) -> (c, width, inputs), weightsᵀ X of every client, flat in the first columns of `out`."""
        _weigh(*self.columns, weights.contiguous().numpy(), out.numpy())


def sparse_samples(features: Tensor) -> SparseSamples | None:
    """(c, n, inputs) -> its sparse form; None where that would not pay."""
    if features.device.type != "cpu" or features.dtype not in (torch.float32, torch.float64):
        return None
    full = features.numpy()
    if np.count_nonzero(full) > SPARSE * full.size:
        return None
    return SparseSamples(_sparse(full), _sparse(full.swapaxes(1, 2)))


def _sparse(full: Array) -> SparseRows:
    flat = full.reshape(-1, full.shape[-1])
    rows, columns = np.nonzero(flat)
    short = np.uint16 if flat.shape[1] <= 1 << 16 else np.int32  # a third of what is kept
    return SparseRows(np.searchsorted(rows, np.arange(len(flat) + 1)), columns.astype(short), flat[rows, columns])


def _add(sums: Array, columns: Ints, values: Array, dense: Array) -> None:
    """sums += Σ_q values[q] · dense[columns[q]]; eight at a time: sums are loaded and stored an eighth as often."""
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


_add_product = compiled(_add, reorder=True)


@compiled
def _first_layer(starts: Ints, columns: Ints, values: Array, weights: Array, biases: Array, found: Array) -> None:
    """weights (k, inputs, width), biases (k, width) -> found (k, rows, width).

    One layer at a time, so that its weights stay in the cache.
    """
    for j in range(len(weights)):
        for i in range(len(starts) - 1):
            found[j, i] = biases[j]
            own = slice(starts[i], starts[i + 1])
            _add_product(found[j, i], columns[own], values[own], weights[j])


@compiled
def _weigh(starts: Ints, columns: Ints, values: Array, weights: Array, out: Array) -> None:
    """Some inputs at a time, so that they are turned round while they are in the cache and written as whole lines."""
    width = weights.shape[2]
    inputs = (len(starts) - 1) // len(weights)
    sums = np.empty((TURNED, width), weights.dtype)
    for client in range(len(weights)):
        for begin in range(0, inputs, TURNED):
            many = min(TURNED, inputs - begin)
            sums[:] = 0
            for p in range(many):
                i = client * inputs + begin + p
                own = slice(starts[i], starts[i + 1])
                _add_product(sums[p], columns[own], values[own], weights[client])
            for c in range(width):
                for p in range(many):
                    out[client, c * inputs + begin + p] = sums[p, c]


def hooked(part: nn.Module) -> bool:
    """Whether somebody looks at, or changes, what goes through this part of a module."""
    return bool(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks)


def is_perceptron(model: nn.Module, loss: Any) -> bool:
    """Whether it is a linear layer, ReLU and another linear layer, with plain cross-entropy for each sample.

    >>> layers = nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)
    >>> is_perceptron(nn.Sequential(*layers), nn.CrossEntropyLoss(reduction="none"))
    True
    """
    if type(model) is not nn.Sequential or [type(part) for part in model] != [nn.Linear, nn.ReLU, nn.Linear]:
        return False
    if model[2].bias is None or any(hooked(part) for part in model.modules()):
        return False
    if isinstance(loss, partial):
        return loss.func is cross_entropy and not loss.args and loss.keywords == {"reduction": "none"}
    plain = nn.CrossEntropyLoss(reduction="none")
    return type(loss) is nn.CrossEntropyLoss and vars(loss) == vars(plain)


def perceptron_outputs(rest: Tensor, leaning: Tensor) -> Tensor:
    """(o·(h + 1),), (n, h) -> (n, o): what the last layer makes of pre-activations."""
    width = leaning.shape[-1]
    outputs = len(rest) // (width + 1)
    return linear(leaning.relu(), rest[: outputs * width].view(outputs, width), rest[outputs * width :])


def perceptron_slopes(rest: Tensor, leaning: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The slopes of each client's mean loss by its last layer (c, o·(h + 1)) and by its pre-activations (c, n, h).

    rest: (c, o·(h + 1)), the weights of the last layer and then its biases. targets: (c, n), classes.
    """
    outputs = rest.shape[1] // (leaning.shape[2] + 1)
    if targets.min() < 0 or targets.max() >= outputs:  # they may have changed; a kernel would write anywhere
        raise IndexError(f"targets: must be from 0 to {outputs - 1}")
    by_rest, by_leaning = torch.empty_like(rest), torch.empty_like(leaning)
    arrays = (one.contiguous().numpy() for one in (rest, leaning, targets))
    _perceptron_slopes(*arrays, by_rest.numpy(), by_leaning.numpy())
    return by_rest, by_leaning


def _slopes(rest: Array, leaning: Array, targets: Ints, by_rest: Array, by_leaning: Array) -> None:
    """See `perceptron_slopes`."""
    samples, width = leaning.shape[1:]
    outputs = rest.shape[1] // (width + 1)
    active, scores = np.empty(width, leaning.dtype), np.empty(outputs, leaning.dtype)
    for client in range(len(rest)):
        weights = rest[client, : outputs * width].reshape(outputs, width)
        biases = rest[client, outputs * width :]
        by_weights = by_rest[client, : outputs * width].reshape(outputs, width)
        by_biases = by_rest[client, outputs * width :]
        by_rest[client] = 0
        for i in range(samples):
            row, slope = leaning[client, i], by_leaning[client, i]
            for c in range(width):
                active[c] = 0 if row[c] <= 0 else row[c]  # what is not a number stays so
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


_perceptron_slopes = compiled(_slopes, reorder=True)
