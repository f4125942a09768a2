"""Two computations of a perceptron on a CPU that are faster than with torch's operators.

- The first layer for samples that are mostly zeros, such as images of digits, without the products with zeros.
- The gradients of a perceptron's loss (a linear layer, ReLU, a linear layer, cross-entropy) in one pass over each
  client's rows; with separate operators, a small network spends as much time on memory access as on arithmetic.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn.functional import linear

from coterie._src.kernels.dispatch import Kernel

Array = NDArray[Any]
Ints = NDArray[Any]

SPARSE = 0.3
"""If a smaller share of the values is nonzero, the sparse form is used (it is faster up to about 0.4)."""


def first_layer_reference(
    starts: Ints, columns: Ints, values: Array, weights: Array, biases: Array, found: Array
) -> None:
    """found (k, rows, width) = sparse rows (rows, inputs) times weights (k, inputs, width), plus biases (k, width)."""
    rows = csr_matrix((values, columns, starts), (len(starts) - 1, weights.shape[1]))
    for j in range(len(weights)):
        found[j] = rows @ weights[j] + biases[j]


def weigh_reference(starts: Ints, columns: Ints, values: Array, weights: Array, out: Array) -> None:
    """out[c, : width·inputs] = weightsᵀ X of client c, flat; the sparse rows are the clients' columns (c·inputs, n).

    weights: (c, n, width).
    """
    clients, samples, width = weights.shape
    inputs = (len(starts) - 1) // clients
    rows = csr_matrix((values, columns, starts), (clients * inputs, samples))
    for c in range(clients):
        out[c, : width * inputs] = (rows[c * inputs : (c + 1) * inputs] @ weights[c]).T.ravel()


def slopes_reference(
    rest: Array, pre_activations: Array, targets: Ints, by_rest: Array, by_pre_activations: Array
) -> None:
    """The gradients of each client's mean cross-entropy by its last layer and by its pre-activations.

    rest: (c, o·(h + 1)), the weights of the last layer and then its biases. pre_activations: (c, n, h). targets: (c,
    n).
    """
    clients, samples, width = pre_activations.shape
    outputs = rest.shape[1] // (width + 1)
    for c in range(clients):
        weights, biases = rest[c, : outputs * width].reshape(outputs, width), rest[c, outputs * width :]
        active = np.where(pre_activations[c] <= 0, 0, pre_activations[c])
        scores = active @ weights.T + biases
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        shares[np.arange(samples), targets[c]] -= 1
        shares /= samples
        by_rest[c] = np.concatenate([(shares.T @ active).ravel(), shares.sum(axis=0)])
        by_pre_activations[c] = np.where(pre_activations[c] <= 0, 0, shares @ weights)


_first_layer = Kernel(first_layer_reference, "perceptron_numba:first_layer")
_weigh = Kernel(weigh_reference, "perceptron_numba:weigh")
_slopes = Kernel(slopes_reference, "perceptron_numba:slopes")


class SparseRows(NamedTuple):
    """CSR rows: row i has values[starts[i]:starts[i+1]] at columns[starts[i]:starts[i+1]], and zeros elsewhere."""

    starts: Ints
    columns: Ints
    values: Array


class SparseSamples(NamedTuple):
    """The samples of c clients with n each: their rows (c·n, inputs), and their columns as rows (c·inputs, n)."""

    rows: SparseRows
    columns: SparseRows

    def first_layer(self, weights: Tensor, biases: Tensor) -> Tensor:
        """(k, width, inputs), (k, 1, width) -> (k, c·n, width): the outputs of k linear layers."""
        found = torch.empty((len(weights), len(self.rows.starts) - 1, weights.shape[1]), dtype=weights.dtype)
        layers = weights.mT.contiguous().numpy(), biases[:, 0].contiguous().numpy()
        _first_layer(*self.rows, *layers, found.numpy())
        return found

    def weigh(self, weights: Tensor, out: Tensor) -> None:
        """(c, n, width) -> (c, width, inputs), weightsᵀ X of every client, flat in the first columns of `out`."""
        _weigh(*self.columns, weights.contiguous().numpy(), out.numpy())


def sparse_samples(features: Tensor) -> SparseSamples | None:
    """(c, n, inputs) -> the sparse form; None where it would not be faster."""
    if features.device.type != "cpu" or features.dtype not in (torch.float32, torch.float64):
        return None
    full = features.numpy()
    if np.count_nonzero(full) > SPARSE * full.size:
        return None
    return SparseSamples(_sparse(full), _sparse(full.swapaxes(1, 2)))


def _sparse(full: Array) -> SparseRows:
    flat = full.reshape(-1, full.shape[-1])
    rows, columns = np.nonzero(flat)
    short = np.uint16 if flat.shape[1] <= 1 << 16 else np.int32  # column numbers take a third of the memory
    return SparseRows(np.searchsorted(rows, np.arange(len(flat) + 1)), columns.astype(short), flat[rows, columns])


def perceptron_outputs(rest: Tensor, pre_activations: Tensor) -> Tensor:
    """(o·(h + 1),), (n, h) -> (n, o): the outputs of the last layer."""
    width = pre_activations.shape[-1]
    outputs = len(rest) // (width + 1)
    return linear(pre_activations.relu(), rest[: outputs * width].view(outputs, width), rest[outputs * width :])


def perceptron_slopes(rest: Tensor, pre_activations: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of each client's mean loss by its last layer (c, o·(h + 1)) and by its pre-activations (c, n, h).

    rest: (c, o·(h + 1)), the weights of the last layer and then its biases. targets: (c, n), classes.
    """
    outputs = rest.shape[1] // (pre_activations.shape[2] + 1)
    if targets.min() < 0 or targets.max() >= outputs:  # the kernel does not check bounds
        raise IndexError(f"targets: must be from 0 to {outputs - 1}")
    by_rest, by_pre_activations = torch.empty_like(rest), torch.empty_like(pre_activations)
    arrays = (one.contiguous().numpy() for one in (rest, pre_activations, targets))
    _slopes(*arrays, by_rest.numpy(), by_pre_activations.numpy())
    return by_rest, by_pre_activations
