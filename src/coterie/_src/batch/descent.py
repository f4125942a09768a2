"""Algorithm 1 on least squares for T trials and L methods ("lanes") at once; (T, L, k, d) centres."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie._src.aggregators import Aggregator, median, per_cluster
from coterie._src.arrays import Ints
from coterie._src.kernels.cuda import batch as kernels
from coterie._src.kernels.cuda import response
from coterie._src.kernels.cuda.response import Memory
from coterie._src.server import STEEPER, Projection, unconstrained

WARM_UP = 2
"""Times that work is done before it is captured as a CUDA graph: its kernels are compiled and loaded then."""


class Batch(NamedTuple):
    """The data of T trials with m clients of n samples each.

    scales: 1 for an honest client. A client of scale s works on s·θ in place of θ, in its choice and in its gradient:
    the Byzantine clients of the paper's experiments (s = 3).
    """

    features: Tensor  # (T, m, n, d)
    targets: Tensor  # (T, m, n)
    scales: Tensor  # (T, m)


class Lane(NamedTuple):
    """One method: the server's rule and projection, and the labels (T, m) where the server has fixed them.

    A client with the fixed label −1 counts in no cluster.
    """

    rule: Aggregator
    project: Projection = unconstrained
    fixed: Tensor | None = None


class Response(NamedTuple):
    """What the clients compute in one round."""

    labels: Tensor  # (T, L, m), int32
    losses: Tensor  # (T, L, m), at the label
    gradients: Tensor  # (T, L, m, d)


def respond(batch: Batch, centres: Tensor, lanes: Sequence[Lane], memory: Memory | None = None) -> Response:
    """Labels, losses there and gradients there of every client for the centres (T, L, k, d) of every lane.

    memory: what the clients know from the rounds before; it is brought up to date.
    """
    if response.serves(batch.features, centres):
        trials, m = batch.scales.shape
        fixed = torch.full((trials, len(lanes), m), response.CHOOSES, dtype=torch.int32, device=centres.device)
        for place, lane in enumerate(lanes):
            if lane.fixed is not None:
                fixed[:, place] = torch.where(lane.fixed < 0, response.NOWHERE, lane.fixed)
        known = memory or response.nothing_known(batch.features, centres)
        return Response(*response.respond(*batch, centres, fixed, known))
    answers = [_respond_one(batch, centres, lanes, trial) for trial in range(len(centres))]
    return Response(*(torch.stack(part) for part in zip(*answers, strict=True)))


def _respond_one(batch: Batch, centres: Tensor, lanes: Sequence[Lane], trial: int) -> tuple[Tensor, Tensor, Tensor]:
    x, y, scale = (tensor[trial] for tensor in batch)
    n = x.shape[1]
    errors = torch.einsum("mnd,lkd->lmnk", x, centres[trial]) * scale[:, None, None] - y[:, :, None]
    losses = (errors**2).double().mean(dim=2).to(x.dtype)  # (L, m, k)
    labels = torch.where(losses.isnan(), torch.inf, losses).argmin(dim=2)
    for place, lane in enumerate(lanes):
        if lane.fixed is not None:
            labels[place] = lane.fixed[trial]
    own = labels[:, :, None].clamp(min=0)
    chosen = errors.gather(3, own[:, :, None, :].expand(-1, -1, n, 1))[..., 0]  # (L, m, n)
    gradients = torch.einsum("mnd,lmn->lmd", x, chosen) * (2 / n)
    return labels.int(), losses.gather(2, own)[..., 0], gradients


def aggregate(updates: Tensor, labels: Tensor, clusters: int, lanes: Sequence[Lane]) -> tuple[Tensor, Tensor]:
    """(T, L, m, d), (T, L, m) -> one aggregate per cluster (T, L, k, d) and the clusters' sizes (T, L, k).

    A row with the label −1 counts nowhere; an empty cluster gets zeros.
    """
    if kernels.serves_aggregation(updates, [lane.rule for lane in lanes]):
        return kernels.aggregate(updates, labels, clusters, [lane.rule for lane in lanes])

    def one(rule: Aggregator, rows: Tensor, own: Ints) -> tuple[Tensor, Ints]:
        return per_cluster(rule, rows[own >= 0], own[own >= 0], clusters)

    claimed = labels.cpu().numpy()
    found = [
        [one(lane.rule, updates[t, place], claimed[t, place]) for t in range(len(updates))]
        for place, lane in enumerate(lanes)
    ]
    sizes = np.array([[counts for _, counts in lane] for lane in found])
    stacked = torch.stack([torch.stack([rows for rows, _ in lane]) for lane in found], dim=1)
    return stacked, torch.from_numpy(sizes).to(updates.device).transpose(0, 1)


def automatic_steps(curvatures: Tensor, labels: Tensor, clusters: int) -> Tensor:
    """(T, m, 2), (T, L, m) -> (T, L, k): `coterie.server.automatic_steps` for every trial and lane."""
    trials, lanes, m = labels.shape
    roots = curvatures.sqrt()[:, None].expand(trials, lanes, m, 2)
    medians, sizes = aggregate(roots, labels, clusters, [Lane(median)] * lanes)
    everyone, _ = aggregate(roots, torch.zeros_like(labels), 1, [Lane(median)] * lanes)
    steepest, excess = torch.where(sizes[..., None] > 0, medians, everyone).unbind(dim=3)
    pooled = (2 / math.pi * sizes).clamp(min=1.0)
    root = steepest - excess * (1 - pooled.rsqrt())
    return 1.0 / (STEEPER * torch.maximum(root, 1e-3 * steepest) ** 2)


class Descent:
    """The state of a batch between rounds, in place, so that a round can be replayed as a CUDA graph."""

    def __init__(
        self, batch: Batch, start: Tensor, lanes: Sequence[Lane], step: float | Tensor, stand_ins: Tensor | None = None
    ) -> None:
        self.batch, self.lanes, self.step, self.stand_ins = batch, lanes, step, stand_ins
        self.centres = start.clone(memory_format=torch.contiguous_format)
        self.round = torch.zeros((), dtype=torch.int64, device=start.device)
        serves = response.serves(batch.features, self.centres)
        self.memory = response.nothing_known(batch.features, self.centres) if serves else None
        self.walked = start.new_zeros(start.shape[:3], dtype=torch.float64)  # thousands of steps may add up

    def advance(self) -> None:
        """One round: respond, aggregate, step, project."""
        answer = respond(self.batch, self.centres, self.lanes, self.memory)
        updates, sizes = aggregate(answer.gradients, answer.labels, self.centres.shape[2], self.lanes)
        if self.stand_ins is not None:
            picked = self.stand_ins.index_select(0, self.round[None])[0]  # (T, L, k)
            updates = self._with_stand_ins(updates, sizes, picked)
        moved = self.centres - self._steps(answer.labels) * updates
        finite = moved.isfinite().all(dim=3, keepdim=True)
        for place, lane in enumerate(self.lanes):
            if lane.project is not unconstrained:
                moved[:, place] = lane.project(moved[:, place])
        moved = torch.where(finite, moved, self.centres)
        if self.memory is not None:
            self.walked += torch.linalg.vector_norm(moved - self.centres, dim=3)
            self.memory.paths.copy_(self.walked)
        self.centres.copy_(moved)
        self.round += 1

    def _steps(self, labels: Tensor) -> float | Tensor:
        if not isinstance(self.step, Tensor):
            return self.step
        return automatic_steps(self.step, labels, self.centres.shape[2])[..., None]

    def _with_stand_ins(self, updates: Tensor, sizes: Tensor, picked: Tensor) -> Tensor:
        """Where a cluster is empty, the gradient of one client at the cluster's own centre."""
        if kernels.serves_stand_ins(self.batch.features, sizes):
            return kernels.stand_in(*self.batch, self.centres, sizes, picked, updates)
        for trial, lane, cluster in (sizes == 0).nonzero().tolist():
            client = picked[trial, lane, cluster]
            x, y, scale = (tensor[trial, client] for tensor in self.batch)
            errors = scale * (x @ self.centres[trial, lane, cluster]) - y
            updates[trial, lane, cluster] = x.T @ errors * (2 / len(y))
        return updates


def repeated(work: Callable[[], None], times: int, replayed: bool) -> Iterator[None]:
    """Do `work`, which changes tensors in place, some times; replayed: mostly as a CUDA graph of it."""
    eager = min(times, WARM_UP) if replayed else times
    for _ in range(eager):
        work()
        yield
    if times > eager:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            work()
        for _ in range(times - eager):
            graph.replay()
            yield


def descend(
    batch: Batch,
    start: Tensor,
    lanes: Sequence[Lane],
    *,
    rounds: int,
    step: float | Tensor,
    stand_ins: Tensor | None = None,
    on_round: Callable[[], None] = lambda: None,
) -> Tensor:
    """Algorithm 1 from the centres `start` (T, L, k, d): the centres after `rounds` rounds.

    step: γ, or the curvatures (T, m, 2) that the clients report, for the automatic step. stand_ins: (rounds, T, L, k),
    the client that answers for a cluster which nobody chose; None: such a cluster keeps its centre. on_round is called
    after every round; on a CUDA device the work is then under way, not done.
    """
    state = Descent(batch, start, lanes, step, stand_ins)
    for _ in repeated(state.advance, rounds, start.is_cuda):
        on_round()
    return state.centres
