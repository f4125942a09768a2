"""The clients' half of a batched round: labels, losses and gradients, for all methods at once.

One block of threads per client reads its samples once. A tile of rows goes to shared memory; warps compute the scores
of four centres (one of each method), and threads, a column each, their gradients. Most losses at other centres need not
be computed: lower bounds from earlier rounds show that they are larger (see `AssignmentCache`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie._src.kernels.cuda import reference
from coterie._src.kernels.cuda.reference import CHOOSES, NOWHERE
from coterie._src.kernels.cuda.runtime import available, kernel, launch, max_shared_bytes, source
from coterie._src.kernels.elkan import MARGIN

THREADS = 128
BLOCKS = 8, 5
"""The number of blocks that must fit on a multiprocessor: with few columns and with many."""
TILE = 1 << 12
"""The approximate number of values of a tile of samples, so that several blocks share a multiprocessor and one computes
while another reads."""
ROUNDING = 2e-5
"""The relative error of a path length, at most: more than that of float32."""


class AssignmentCache(NamedTuple):
    """Lower bounds of the losses at every centre, kept from round to round for T trials and L methods.

    A convex loss lies above its tangent planes: F_i(θ) ≥ F_i(θ₀) + ⟨∇F_i(θ₀), θ − θ₀⟩. When centre j moves by δ, a
    bound decreases by at most ‖∇F_i(θ₀)‖·‖δ‖. If that does not exclude the centre, the plane is evaluated, which gives
    a new bound, and if that does not either, the loss. The idea is Elkan's (Using the triangle inequality to accelerate
    k-means, 2003), with planes instead of distances.

    labels: (T, L, m) int32, of the last round. bounds: (T, L, m, k, 4), the height of the plane at θ = 0, a lower bound
    of the loss at some time, ‖slope‖, and the centre's path length at that time. slopes: (T, L, m, k, d), ∇F_i(θ₀).
    path_lengths: (T, L, k), how far each centre has moved in all rounds; the caller keeps them.
    """

    labels: Tensor
    bounds: Tensor
    slopes: Tensor
    path_lengths: Tensor


def empty_cache(features: Tensor, centres: Tensor) -> AssignmentCache:
    """The cache before the first round, for clients (T, m, n, d) and centres (T, L, k, d)."""
    trials, methods, clusters, d = centres.shape
    m = features.shape[1]
    bounds = centres.new_zeros((trials, methods, m, clusters, 4))
    bounds[..., :2] = -torch.inf
    return AssignmentCache(
        torch.zeros((trials, methods, m), dtype=torch.int32, device=centres.device),
        bounds,
        centres.new_zeros((trials, methods, m, clusters, d)),
        centres.new_zeros((trials, methods, clusters)),
    )


class Shape(NamedTuple):
    """What the kernel is compiled for. rows: of a tile. vector: how many numbers are read at a time."""

    dim: int
    rows: int
    buffers: int
    vector: int

    def shared_bytes(self, methods: int, clusters: int) -> int:
        """The shared memory of a block."""
        tiles, scores = self.buffers * self.rows * self.dim, 4 * (self.rows + self.dim)
        return 4 * (tiles + scores + 2 * methods * clusters + methods)


def shape_of(samples: int, dim: int, methods: int, clusters: int, max_bytes: int) -> Shape | None:
    """The shape for blocks with at most `max_bytes` bytes of shared memory; None: a row does not fit.

    The warps of a block take sixteen rows at a time; with fewer rows some of them are idle, but the samples of a client
    are still read only once.
    """
    vector = 4 if dim % 4 == 0 else 1
    best = min(-(-samples // 16), max(1, TILE // dim // 16)) * 16
    for rows in (best, 16, 8, 4):
        shape = Shape(dim, rows, 1 + (rows < samples), vector)
        if shape.shared_bytes(methods, clusters) <= max_bytes:
            return shape
    return None


@lru_cache(maxsize=64)
def _kernel(shape: Shape) -> Any:
    constants = {
        "D": shape.dim,
        "ROWS": shape.rows,
        "BUFFERS": shape.buffers,
        "W": shape.vector,
        "THREADS": THREADS,
        "BLOCKS": BLOCKS[shape.dim > TILE // 32],
        "MARGIN": f"{MARGIN}f",
        "ROUNDING": f"{ROUNDING}f",
        "CHOOSES": f"({CHOOSES})",
        "NOWHERE": f"({NOWHERE})",
    }
    return kernel(source(["response.cu"], constants), "respond")


def _shape(features: Tensor, centres: Tensor) -> Shape | None:
    if not (features.is_cuda and features.dtype == torch.float32 and available()):
        return None
    _, methods, clusters, d = centres.shape
    return shape_of(features.shape[2], d, methods, clusters, max_shared_bytes(features.device))


def serves(features: Tensor, centres: Tensor) -> bool:
    """Whether there is a kernel for these samples and centres."""
    return _shape(features, centres) is not None


def respond(
    features: Tensor,
    targets: Tensor,
    scales: Tensor,
    centres: Tensor,
    fixed: Tensor,
    cache: AssignmentCache | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The labels, losses and gradients of all clients; see `reference.respond`. The kernel updates the cache."""
    shape = _shape(features, centres)
    if shape is None:
        return reference.respond(features, targets, scales, centres, fixed)
    trials, m, n, d = features.shape
    methods, clusters = centres.shape[1:3]
    cache = cache or empty_cache(features, centres)
    labels = torch.empty((trials, methods, m), dtype=torch.int32, device=features.device)
    losses = torch.empty((trials, methods, m), dtype=features.dtype, device=features.device)
    gradients = torch.empty((trials, methods, m, d), dtype=features.dtype, device=features.device)
    launch(
        _kernel(shape),
        (trials * m,),
        THREADS,
        *(features, targets, scales, centres, fixed, cache.path_lengths),
        *map(np.int32, (methods, clusters, m, n)),
        *(cache.labels, cache.bounds, cache.slopes, labels, losses, gradients),
        shared=shape.shared_bytes(methods, clusters),
    )
    return labels, losses, gradients
