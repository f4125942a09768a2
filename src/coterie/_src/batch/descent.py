"""Algorithm 1 on least squares for T trials and L methods at once, with the centres (T, L, k, d)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from coterie._src.aggregators import Aggregator, Mean, Median, TrimmedMean, median
from coterie._src.batch.replay import repeated
from coterie._src.kernels.cuda import aggregation, response
from coterie._src.kernels.cuda.reference import CHOOSES, NOWHERE, Ranks
from coterie._src.kernels.cuda.response import AssignmentCache
from coterie._src.projections import Projection, Unconstrained
from coterie._src.step_sizes import STEEPER, curvature_roots


class Batch(NamedTuple):
    """The data of T trials with m clients of n samples each.

    scales: 1 for an honest client. A client of scale s works on s·θ in place of θ, in its choice and in its gradient:
    the Byzantine clients of the paper's experiments (s = 3).
    """

    features: Tensor  # (T, m, n, d)
    targets: Tensor  # (T, m, n)
    scales: Tensor  # (T, m)


class BatchedMethod(NamedTuple):
    """One of the methods that a batch compares: the server's aggregator and projection, and labels that it has fixed.

    fixed_labels: (T, m), or None where the clients choose; a client with the label −1 counts in no cluster.
    """

    aggregator: Aggregator
    project: Projection = Unconstrained()
    fixed_labels: Tensor | None = None


class Response(NamedTuple):
    """What the clients compute in one round."""

    labels: Tensor  # (T, L, m), int32
    losses: Tensor  # (T, L, m), at the label
    gradients: Tensor  # (T, L, m, d), at the label


def respond(
    batch: Batch, centres: Tensor, methods: Sequence[BatchedMethod], cache: AssignmentCache | None = None
) -> Response:
    """Labels, losses and gradients of every client for the centres (T, L, k, d); the cache is brought up to date."""
    trials, m = batch.scales.shape
    fixed = torch.full((trials, len(methods), m), CHOOSES, dtype=torch.int32, device=centres.device)
    for index, method in enumerate(methods):
        if method.fixed_labels is not None:
            fixed[:, index] = torch.where(method.fixed_labels < 0, NOWHERE, method.fixed_labels)
    return Response(*response.respond(*batch, centres, fixed, cache))


def aggregate(
    updates: Tensor, labels: Tensor, clusters: int, aggregators: Sequence[Aggregator]
) -> tuple[Tensor, Tensor]:
    """(T, L, m, d), (T, L, m) -> one aggregate per cluster (T, L, k, d), and the clusters' sizes (T, L, k).

    A row with the label −1 is in no cluster; an empty cluster gets zeros.
    """
    return aggregation.aggregate(updates, labels, clusters, [_ranks(aggregator) for aggregator in aggregators])


def _ranks(aggregator: Aggregator) -> Ranks:
    """An aggregator as the numbers that the kernel takes."""
    if isinstance(aggregator, Median):
        return None, None
    if isinstance(aggregator, TrimmedMean):
        return aggregator.trim, None
    if isinstance(aggregator, Mean):
        return 0.0, aggregator.divisor
    raise ValueError(f"aggregator: in a batch must be a mean between ranks, got {aggregator}")


def automatic_steps(curvatures: Tensor, labels: Tensor, clusters: int) -> Tensor:
    """(T, m, 2), (T, L, m) -> (T, L, k): `coterie._src.step_sizes.automatic_steps` for every trial and method.

    The curvatures in a batch are honest, and all clients have as many samples. Checks against false ones change nothing
    then, and are left out.
    """
    trials, methods, m = labels.shape
    roots = curvatures.sqrt()[:, None].expand(trials, methods, m, 2)
    medians, sizes = aggregate(roots, labels, clusters, [median] * methods)
    overall, _ = aggregate(roots, torch.zeros_like(labels), 1, [median] * methods)
    steepest, excess = torch.where(sizes[..., None] > 0, medians, overall).unbind(dim=3)
    root: Tensor = curvature_roots(steepest, excess, sizes)
    return 1.0 / (STEEPER * root**2)


def descend(
    batch: Batch,
    start: Tensor,
    methods: Sequence[BatchedMethod],
    *,
    rounds: int,
    step: float | Tensor,
    substitutes: Tensor | None = None,
    on_round: Callable[[], None] = lambda: None,
) -> Tensor:
    """Algorithm 1 from the centres `start` (T, L, k, d): the centres after `rounds` rounds.

    step: γ, or the curvatures (T, m, 2) that the clients report, for the automatic step. substitutes: (rounds, T, L,
    k), the client whose gradient is taken for a cluster that no client has chosen; None: such a cluster keeps its
    centre. on_round is called after every round; on a CUDA device the round may then still be under way.
    """
    clusters, aggregators = start.shape[2], [method.aggregator for method in methods]
    centres = start.clone(memory_format=torch.contiguous_format)
    round = torch.zeros((1,), dtype=torch.int64, device=start.device)
    cache = response.empty_cache(batch.features, centres) if response.serves(batch.features, centres) else None
    path_lengths = start.new_zeros(start.shape[:3], dtype=torch.float64)  # sums of thousands of moves

    def advance() -> None:
        """One round: respond, aggregate, step, project. It changes tensors in place: a CUDA graph can replay it."""
        reply = respond(batch, centres, methods, cache)
        updates, sizes = aggregate(reply.gradients, reply.labels, clusters, aggregators)
        if substitutes is not None:
            clients = substitutes.index_select(0, round)[0]  # (T, L, k)
            aggregation.fill_empty_clusters(*batch, centres, sizes, clients, updates)
        step_sizes = step
        if isinstance(step, Tensor):
            step_sizes = automatic_steps(step, reply.labels, clusters)[..., None]
        moved = centres - step_sizes * updates
        finite = moved.isfinite().all(dim=3, keepdim=True)
        for index, method in enumerate(methods):
            if method.project != Unconstrained():
                moved[:, index] = method.project(moved[:, index])
        moved = torch.where(finite, moved, centres)
        if cache is not None:
            path_lengths.add_(torch.linalg.vector_norm(moved - centres, dim=3))
            cache.path_lengths.copy_(path_lengths)
        centres.copy_(moved)
        round.add_(1)

    for _ in repeated(advance, rounds, start.is_cuda):
        on_round()
    return centres
