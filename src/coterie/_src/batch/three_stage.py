"""The first two stages of Three-Stage for T trials at once: local minimisers and trimmed k-means over them."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie._src.aggregators import median
from coterie._src.batch.descent import Batch, Lane, aggregate, repeated
from coterie._src.kernels.cuda import batch as kernels

FARTHEST = 1e30
"""Coordinates beyond this are clipped: they fit into float32, and their squares into float64."""
SETTLED_EVERY = 5
"""Iterations after which one looks whether the labels have changed: on a GPU a look costs more than an iteration."""
WEISZFELD_STEPS = 100
WEISZFELD_TOLERANCE = 1e-4


def minimisers(batch: Batch, ridge: float, float32: bool = False) -> Tensor:
    """(T, m, d) float64: every client's argmin (1/n)‖Xθ − y‖² + ridge·‖θ‖², of least norm.

    float32: by elimination on XᵀX in float32, which is singular where d ≥ n: the rounding error that comes out is of
    the size of what the paper's published baseline gets from its float32 (pseudo-)inverse.
    """
    return torch.stack([_minimisers(x, y, ridge, float32) for x, y in zip(batch.features, batch.targets, strict=True)])


def _minimisers(x: Tensor, y: Tensor, ridge: float, float32: bool) -> Tensor:
    n, d = x.shape[1:]
    dtype = torch.float32 if float32 else torch.float64
    x, y = x.to(dtype), y.to(dtype)[..., None]
    across = x.mT
    if ridge == 0 and d == n and not float32:  # square: no need to square the condition number
        return _solved(x, y)[..., 0]
    wide = d >= n and not float32
    small = x @ across if wide else across @ x
    small = small + n * ridge * torch.eye(small.shape[1], dtype=dtype, device=x.device)
    found = across @ _solved(small, y) if wide else _solved(small, across @ y)
    return found[..., 0].double()


def _solved(matrices: Tensor, right: Tensor) -> Tensor:
    """By elimination, without a complaint where a matrix is singular."""
    solution: Tensor = torch.linalg.solve_ex(matrices, right)[0]
    return solution


def trimmed_kmeans(
    points: Tensor, labels: Tensor, clusters: int, *, trim: float, iterations: int
) -> tuple[Tensor, Tensor]:
    """`coterie.algorithms.three_stage.trimmed_kmeans` from given labels: (T, m, d), (T, m) -> (T, k, d), (T, m).

    A point that is not finite belongs nowhere and gets the label −1, as if its message had been refused.
    """
    usable = points.isfinite().all(dim=2)
    points = torch.where(usable[..., None], points, 0.0).clamp(-FARTHEST, FARTHEST)
    state = Clustering(points, usable, torch.where(usable, labels, -1), clusters, trim)
    # without the kernel an iteration asks the device, on the way, how far it is, which a graph cannot
    replayed = kernels.serves_medians(state.distances.single)
    for turn, _ in enumerate(repeated(state.advance, iterations, replayed), 1):
        if turn % SETTLED_EVERY == 0 and bool(state.settled):
            break
    return state.centres, state.labels


class Clustering:
    """The state of trimmed k-means between iterations, in place, so that one can be replayed as a CUDA graph."""

    def __init__(self, points: Tensor, usable: Tensor, labels: Tensor, clusters: int, trim: float) -> None:
        self.points, self.usable, self.labels, self.trim = points, usable, labels, trim
        self.distances = Distances(points)
        self.centres = points.new_zeros((len(points), clusters, points.shape[2]))
        rows, own = self.distances.single[:, None], labels.int()[:, None]
        self.medians = aggregate(rows, own, clusters, [Lane(median)])[0][:, 0].to(points.dtype).contiguous()
        self.settled = torch.zeros((), dtype=torch.bool, device=points.device)

    def advance(self) -> None:
        """Medians, trimmed means around them, and the nearest of these for every point."""
        clusters = torch.arange(self.centres.shape[1], device=self.points.device)
        members = self.labels[:, None, :] == clusters[None, :, None]  # (T, k, m)
        self.medians.copy_(geometric_medians(self.distances, members, self.labels, self.medians))
        away = torch.where(members, self.distances(self.medians), torch.inf)
        found = _trimmed_centres(self.points, members, away, self.trim)
        self.centres.copy_(torch.where(members.any(dim=2, keepdim=True), found, self.centres))
        labels = torch.where(self.usable, self.distances(self.centres).argmin(dim=1), -1)
        self.settled.copy_((labels == self.labels).all())
        self.labels.copy_(labels)


class Distances:
    """Euclidean distances to fixed points in float64, by one matrix product; squared norms are taken once.

    The product form loses half of the digits where two points nearly coincide; in float64 eight are left.
    """

    def __init__(self, points: Tensor) -> None:
        self.points, self.single = points, points.float()
        self.squares = (points * points).sum(dim=2)[:, None, :]  # (T, 1, m)

    def __call__(self, centres: Tensor) -> Tensor:
        """(T, k, d) -> (T, k, m)."""
        squares = (centres * centres).sum(dim=2, keepdim=True)
        return torch.baddbmm(self.squares + squares, centres, self.points.mT, alpha=-2).clamp(min=0).sqrt()


def _trimmed_centres(points: Tensor, members: Tensor, distances: Tensor, trim: float) -> Tensor:
    """(T, k, d): the mean of a cluster's points within the (1 − trim) quantile of their distances (T, k, m)."""
    counts = members.sum(dim=2, keepdim=True)
    place = (counts - 1).clamp(min=0) * (1 - trim)
    ranked = distances.sort(dim=2).values
    below = place.floor().long()
    above = (below + 1).minimum((counts - 1).clamp(min=0))
    low, high = ranked.gather(2, below), ranked.gather(2, above)
    kept = members & (distances <= low + (place - below) * (high - low))
    return _weighted_mean(points, kept.to(points.dtype))


def geometric_medians(distances: Distances, members: Tensor, labels: Tensor, start: Tensor) -> Tensor:
    """`coterie.aggregators.geometric_median` per cluster, (T, k, d), by Weiszfeld's steps from `start`.

    members: (T, k, m), of the labels (T, m). An empty cluster keeps its start.
    """
    counts = members.sum(dim=2, keepdim=True)
    found = start.clone()
    ranked = torch.where(members, distances(found), torch.inf).sort(dim=2).values
    floor = WEISZFELD_TOLERANCE * ranked.gather(2, ((counts - 1) // 2).clamp(min=0)).nan_to_num(posinf=0.0)
    if kernels.serves_medians(distances.single):
        kernels.geometric_medians(distances.single, labels.int().contiguous(), found, floor, WEISZFELD_STEPS)
        return found
    for _ in range(WEISZFELD_STEPS):
        moved = _weighted_mean(distances.points, members / distances(found).maximum(floor).clamp(min=1e-300))
        moved = torch.where(counts > 0, moved, found)
        shift = (moved - found).norm(dim=2, keepdim=True)
        found = moved
        if bool((shift <= floor).all()):
            break
    return found


def _weighted_mean(points: Tensor, weights: Tensor) -> Tensor:
    return weights @ points / weights.sum(dim=2, keepdim=True).clamp(min=1e-300)
