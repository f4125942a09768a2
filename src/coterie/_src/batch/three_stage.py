"""The second stage of Three-Stage for T trials at once: trimmed k-means over the clients' local minimisers."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie._src.aggregators import median
from coterie._src.batch.descent import aggregate
from coterie._src.batch.replay import repeated
from coterie._src.kernels.cuda import weiszfeld

FARTHEST = 1e30
"""Coordinates beyond this are clipped: they fit into float32, and their squares into float64."""
SETTLED_EVERY = 5
"""Iterations between two tests whether the labels have changed: on a GPU a test costs more than an iteration."""
WEISZFELD_STEPS = 100
WEISZFELD_TOLERANCE = 1e-4


def trimmed_kmeans(
    points: Tensor, labels: Tensor, clusters: int, *, trim: float, iterations: int
) -> tuple[Tensor, Tensor]:
    """`algorithms.three_stage.trimmed_kmeans` from given labels: (T, m, d), (T, m) -> centres (T, k, d), labels (T, m).

    A point that is not finite is in no cluster and gets the label −1, as if its message had been refused.
    """
    usable = points.isfinite().all(dim=2)
    points = torch.where(usable[..., None], points, 0.0).clamp(-FARTHEST, FARTHEST)
    state = Clustering(points, usable, torch.where(usable, labels, -1), clusters, trim)
    # the kernel's reference reads numbers from the device, which a graph cannot do
    replayed = weiszfeld.serves(state.single)
    for turn, _ in enumerate(repeated(state.advance, iterations, replayed), 1):
        if turn % SETTLED_EVERY == 0 and bool(state.settled):
            break
    return state.centres, state.labels


class Clustering:
    """The state of trimmed k-means; an iteration changes it in place, so that a CUDA graph can replay it."""

    def __init__(self, points: Tensor, usable: Tensor, labels: Tensor, clusters: int, trim: float) -> None:
        self.points, self.usable, self.labels, self.trim = points, usable, labels, trim
        self.single, self.squares = points.float(), (points * points).sum(dim=2)[:, None, :]
        self.centres = points.new_zeros((len(points), clusters, points.shape[2]))
        medians, _ = aggregate(self.single[:, None], labels.int()[:, None], clusters, [median])
        self.medians = medians[:, 0].to(points.dtype).contiguous()
        self.settled = torch.zeros((), dtype=torch.bool, device=points.device)

    def advance(self) -> None:
        """Geometric medians, the trimmed means around them, and for every point the nearest of these."""
        clusters = torch.arange(self.centres.shape[1], device=self.points.device)
        members = self.labels[:, None, :] == clusters[None, :, None]  # (T, k, m)
        counts = members.sum(dim=2, keepdim=True)
        ranked = torch.where(members, self._distances(self.medians), torch.inf).sort(dim=2).values
        floors = WEISZFELD_TOLERANCE * ranked.gather(2, ((counts - 1) // 2).clamp(min=0)).nan_to_num(posinf=0.0)
        own = self.labels.int().contiguous()
        weiszfeld.move_to_medians(self.single, own, self.medians, floors, WEISZFELD_STEPS)
        distances = torch.where(members, self._distances(self.medians), torch.inf)
        found = _trimmed_centres(self.points, members, distances, self.trim)
        self.centres.copy_(torch.where(counts > 0, found, self.centres))
        labels = torch.where(self.usable, self._distances(self.centres).argmin(dim=1), -1)
        self.settled.copy_((labels == self.labels).all())
        self.labels.copy_(labels)

    def _distances(self, centres: Tensor) -> Tensor:
        """(T, k, d) -> (T, k, m): Euclidean distances to the points in float64, by one matrix product.

        The product form loses half of the digits where two points nearly coincide; eight are left.
        """
        squares = self.squares + (centres * centres).sum(dim=2, keepdim=True)
        return torch.baddbmm(squares, centres, self.points.mT, alpha=-2).clamp(min=0).sqrt()


def _trimmed_centres(points: Tensor, members: Tensor, distances: Tensor, trim: float) -> Tensor:
    """(T, k, d): means of the members (T, k, m) within the (1 − trim) quantile of their distances (T, k, m)."""
    last = (members.sum(dim=2, keepdim=True) - 1).clamp(min=0)
    place = last * (1 - trim)
    ranked = distances.sort(dim=2).values
    below = place.floor().long()
    low, high = ranked.gather(2, below), ranked.gather(2, (below + 1).minimum(last))
    kept = (members & (distances <= low + (place - below) * (high - low))).to(points.dtype)
    return kept @ points / kept.sum(dim=2, keepdim=True).clamp(min=1e-300)
