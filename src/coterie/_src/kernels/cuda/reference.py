"""The CUDA kernels of a batched round in plain torch, with the same signatures: they say what the kernels compute.

T trials, L methods, m clients of n samples in d columns, k clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from coterie._src.kernels.order_statistics import mean_between_ranks

CHOOSES, NOWHERE = -1, -2
"""Values of `fixed` that are no label: the client chooses its cluster itself, or is in no cluster."""

Ranks = tuple[float | None, int | None]
"""(trim, over) of a mean of order statistics. trim: the fraction cut off at each end, None for the median. over: the
number of clients to divide the sum by instead of the number of remaining rows, or None."""


def respond(
    features: Tensor, targets: Tensor, scales: Tensor, centres: Tensor, fixed: Tensor, cache: object = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The labels (T, L, m) int32 of all clients, and their losses (T, L, m) and gradients (T, L, m, d) there.

    Client i has the loss F_i(θ) = (1/n)‖s X θ − y‖² and the gradient (2/n) Xᵀ(s X θ − y), with s its scale. Its label
    is argmin_j F_i(θ_j); a loss that is NaN is never chosen over one that is not.

    features: (T, m, n, d), targets: (T, m, n), scales: (T, m), centres: (T, L, k, d). fixed: (T, L, m), a label,
    CHOOSES or NOWHERE; with NOWHERE the label is −1, and loss and gradient are those at centre 0. cache: unused here.
    """
    n, found = features.shape[2], []
    for x, y, scale, theta, own in zip(features, targets, scales, centres, fixed, strict=True):
        errors = torch.einsum("mnd,lkd->lmnk", x, theta) * scale[:, None, None] - y[:, :, None]
        losses = (errors**2).double().mean(dim=2).to(x.dtype)  # (L, m, k)
        chosen = torch.where(losses.isnan(), torch.inf, losses).argmin(dim=2)
        labels = torch.where(own == CHOOSES, chosen, own.clamp(min=-1))
        at = torch.where(own == NOWHERE, 0, labels)[:, :, None]
        residuals = errors.gather(3, at[:, :, None, :].expand(-1, -1, n, 1))[..., 0]  # (L, m, n)
        gradients = torch.einsum("mnd,lmn->lmd", x, residuals) * (2 / n)
        found.append((labels.int(), losses.gather(2, at)[..., 0], gradients))
    labels, losses, gradients = (torch.stack(part) for part in zip(*found, strict=True))
    return labels, losses, gradients


def aggregate(updates: Tensor, labels: Tensor, clusters: int, ranks: Sequence[Ranks]) -> tuple[Tensor, Tensor]:
    """The aggregates (T, L, k, d) and the sizes (T, L, k) int32 of all clusters.

    updates: (T, L, m, d), labels: (T, L, m); a row with the label −1 is in no cluster. ranks: L of them. An empty
    cluster gets zeros. Updates must not be NaN, which the kernel does not check.
    """
    trials, methods, _, d = updates.shape
    out = updates.new_zeros((trials, methods, clusters, d))
    sizes = torch.zeros((trials, methods, clusters), dtype=torch.int32, device=updates.device)
    for t, method, j in product(range(trials), range(methods), range(clusters)):
        rows, (trim, over) = updates[t, method][labels[t, method] == j], ranks[method]
        sizes[t, method, j] = count = len(rows)
        if count:
            middle = (count - 1) // 2
            cut = middle if trim is None else min(int(trim * count + 1e-9), middle)
            out[t, method, j] = mean_between_ranks(rows, cut, count - cut) * (count / over if over else 1)
    return out, sizes


def fill_empty_clusters(
    features: Tensor, targets: Tensor, scales: Tensor, centres: Tensor, sizes: Tensor, clients: Tensor, updates: Tensor
) -> None:
    """Where a cluster is empty, overwrite its update by the gradient of one client at the cluster's centre.

    sizes, clients: (T, L, k), the number of clients of the cluster, and the client whose gradient is used if it is 0.
    updates: (T, L, k, d), changed in place; the other arguments as in `respond`.
    """
    for t, method, j in (sizes == 0).nonzero().tolist():
        x, y, scale = (part[t, clients[t, method, j]] for part in (features, targets, scales))
        updates[t, method, j] = x.T @ (scale * (x @ centres[t, method, j]) - y) * (2 / len(y))


def move_to_medians(points: Tensor, labels: Tensor, medians: Tensor, floors: Tensor, steps: int) -> None:
    """Move `medians` (T, k, d), in place, towards the geometric medians of the clusters by Weiszfeld's iteration.

    A step replaces the median z of a cluster by Σ w_i x_i / Σ w_i over its points, with w_i = 1/max(‖x_i − z‖, floor).
    It is the last one if z moves by no more than `floor`, or after `steps` of them. An empty cluster stays.

    points: (T, m, d) float32, labels: (T, m) int32, −1 for no cluster, medians: (T, k, d) float64, floors: (T, k, 1)
    float64.
    """
    clusters = torch.arange(medians.shape[1], device=medians.device)
    members = labels[:, None, :] == clusters[:, None]  # (T, k, m)
    rows, floors = points.double(), floors.clamp(min=1e-300)
    moving = members.any(dim=2, keepdim=True)
    for _ in range(steps):
        distances = torch.cdist(medians, rows, compute_mode="donot_use_mm_for_euclid_dist")
        weights = members / distances.maximum(floors)
        moved = torch.where(moving, weights @ rows / weights.sum(dim=2, keepdim=True), medians)
        moving = moving & ((moved - medians).norm(dim=2, keepdim=True) > floors)
        medians.copy_(moved)
        if not moving.any():
            break
