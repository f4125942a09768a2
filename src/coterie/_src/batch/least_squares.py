"""Least squares of many clients at once: local minimisers, and the oracle that pools the clients of a cluster."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie._src.arrays import Ints
from coterie._src.batch.descent import Batch

POOLED_BYTES = 1 << 30
"""The size of the float64 copy of a cluster's samples, at most; more trials are taken in turns."""


def minimisers(batch: Batch, ridge: float, float32: bool = False) -> Tensor:
    """(T, m, d) float64: argmin (1/n)‖Xθ − y‖² + ridge·‖θ‖² of every client, of minimum norm.

    float32: by elimination on XᵀX in float32, which is singular where d ≥ n: the rounding error is then of the size
    that the paper's published baseline gets from its float32 (pseudo-)inverse.
    """
    return torch.stack([_solved(x, y, ridge, float32) for x, y in zip(batch.features, batch.targets, strict=True)])


def oracle(batch: Batch, labels: Ints) -> Tensor:
    """(T, k, d) float64: the least squares of the pooled samples of each label (m,) of 0 … k − 1, of minimum norm."""
    found = []
    for cluster in range(int(labels.max()) + 1):
        members = torch.from_numpy(np.flatnonzero(labels == cluster)).to(batch.features.device)
        several = max(1, POOLED_BYTES // (8 * len(members) * batch.features[0, 0].numel()))
        turns = [slice(first, first + several) for first in range(0, len(batch.features), several)]
        parts = [
            _solved(batch.features[turn][:, members].flatten(1, 2), batch.targets[turn][:, members].flatten(1, 2))
            for turn in turns
        ]
        found.append(torch.cat(parts))
    return torch.stack(found, dim=1)


def _solved(x: Tensor, y: Tensor, ridge: float = 0.0, float32: bool = False) -> Tensor:
    """(b, n, d), (b, n) -> (b, d) float64: the minimisers of b problems, by elimination on the smaller of XᵀX and XXᵀ.

    A singular matrix gives numbers that are large or not finite, not an error.
    """
    n, d = x.shape[1:]
    dtype = torch.float32 if float32 else torch.float64
    x, y = x.to(dtype), y.to(dtype)[..., None]
    if ridge == 0 and d == n and not float32:  # square: no need to square the condition number
        return _eliminated(x, y)[..., 0]
    wide = d >= n and not float32
    gram = x @ x.mT if wide else x.mT @ x
    gram = gram + n * ridge * torch.eye(gram.shape[1], dtype=dtype, device=x.device)
    solution = x.mT @ _eliminated(gram, y) if wide else _eliminated(gram, x.mT @ y)
    return solution[..., 0].double()


def _eliminated(matrices: Tensor, right: Tensor) -> Tensor:
    solution: Tensor = torch.linalg.solve_ex(matrices, right)[0]
    return solution
