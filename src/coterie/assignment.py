"""The client half of a round: from losses to a label, and the update at the chosen centre."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from coterie.arrays import Array, Floats, Ints, as_numpy
from coterie.tasks import Response, Revisited, Task

MARGIN = 1e-4
"""How much smaller, relatively, the loss at the own centre must be for another to be no rival: more than rounding."""
ROOM = 0.15
"""Numbers that clients may remember, as a share of their samples'."""
TOGETHER = 1 << 20
"""Numbers of planes that are made at a time."""


def assign(losses: Array) -> Ints:
    """(m, k) -> (m,): the centre with the lowest loss, ĵ_i = argmin_j F_i(θ_j); ties go to the first.

    A loss that is not a number (a centre that ran away) is never chosen over one that is.

    >>> assign(np.array([[2.0, 1.0], [np.nan, 3.0]])).tolist()
    [1, 1]
    """
    values = as_numpy(losses)
    labels: Ints = np.where(np.isnan(values), np.inf, values).argmin(axis=1)
    return labels


@dataclass
class Memory:
    """What clients keep from round to round, so that most need not look at all k centres again.

    A convex loss lies above its tangent planes: F_i(θ) ≥ F_i(θ₀) + ⟨∇F_i(θ₀), θ − θ₀⟩. A centre whose plane, from when
    the client last looked there, still lies above the loss at the client's own centre is no rival, and needs no look;
    while it moves by δ the plane falls behind by O(‖δ‖²) alone. The labels are those of `assign`, but for losses that
    are all rounding. Elkan's idea for k-means (Using the triangle inequality to accelerate k-means, 2003), with planes
    in the place of distances.
    labels: (m,). slopes, heights: (k, m, d) and (k, m), F_i(θ_j) ≥ height + ⟨slope, θ_j⟩.
    """

    labels: Ints | None = None
    slopes: Array | None = None
    heights: Floats | None = None

    def respond(self, task: Task, centres: Array) -> Response:
        """As `Task.respond`, without the losses, since most clients compute one alone."""
        if not hasattr(task, "revisits"):
            return task.respond(centres, assign)
        revisited = cast(Revisited, task)
        numbers = centres.shape[0] * task.dim * task.clients.count
        if not revisited.revisits(centres) or numbers > ROOM * np.prod(task.clients.features.shape):
            return task.respond(centres, assign)
        shape = len(centres), task.clients.count, task.dim
        if self.slopes is None or self.slopes.shape != shape or self.slopes.dtype != centres.dtype:
            return self._begin(task, revisited, centres)
        return self._go_on(revisited, centres)

    def _begin(self, task: Task, revisited: Revisited, centres: Array) -> Response:
        response = task.respond(centres, assign)
        k, m = len(centres), task.clients.count
        self.labels = response.labels
        self.slopes, self.heights = np.empty((k, m, task.dim), dtype=centres.dtype), np.empty((k, m))
        step = max(1, TOGETHER // (k * task.dim))
        for start in range(0, m, step):
            clients = np.arange(start, min(start + step, m))
            self._touch(revisited, centres, np.tile(np.arange(k), len(clients)), np.repeat(clients, k))
        return response

    def _touch(self, task: Revisited, centres: Array, others: Ints, clients: Ints) -> Array:
        """New planes, and the losses, for pairs of centres and clients."""
        assert self.slopes is not None
        assert self.heights is not None
        losses, gradients = task.visit(centres, others, clients)
        self.slopes[others, clients] = gradients
        with np.errstate(all="ignore"):
            rises = np.einsum("pd,pd->p", gradients, centres[others], dtype=np.float64)
            self.heights[others, clients] = losses - rises
        return losses

    def _go_on(self, task: Revisited, centres: Array) -> Response:
        assert self.labels is not None
        assert self.slopes is not None
        assert self.heights is not None
        everybody, labels = np.arange(len(self.labels)), self.labels
        own, updates = task.visit(centres, labels)
        with np.errstate(all="ignore"):  # a centre may have run away
            rises = (self.slopes @ centres[:, :, None])[:, :, 0]
            least = self.heights + rises - MARGIN * (np.abs(self.heights) + np.abs(rises))
            rivals = ~(least > own * (1 + MARGIN))  # what is not a number, too
        rivals[labels, everybody] = False
        others, clients = np.nonzero(rivals)
        if len(clients):
            order = np.argsort(clients, kind="stable")  # a client's samples are in cache at its next look
            others, clients = others[order], clients[order]
            losses = np.full((len(labels), len(centres)), np.inf, dtype=own.dtype)
            losses[everybody, labels] = own
            losses[clients, others] = self._touch(task, centres, others, clients)
            labels = assign(losses)
            changed = np.flatnonzero(labels != self.labels)
            updates[changed] = self.slopes[labels[changed], changed]
            self.labels = labels
        return Response(None, labels, updates)


def respond(
    task: Task,
    centres: Array,
    labels: Ints | None = None,
    part: tuple[int, int] | None = None,
    memory: Memory | None = None,
) -> Response:
    """What honest clients answer to a broadcast of the (k, d) `centres`.

    labels: given where the server has fixed the clusters; else every client picks its own.
    part: (t, T) for the re-sampling variant of Section 5: round t of T chooses the label on part 2t and
    computes the gradient on part 2t + 1 of 2T disjoint parts of the client's samples.
    memory: of the same clients and their last round, if they have one.
    """
    if part is None and labels is None:
        return task.respond(centres, assign) if memory is None else memory.respond(task, centres)
    choosing, computing = task, task
    if part is not None:
        t, rounds = part
        choosing = task.on(task.clients.part(2 * t, 2 * rounds))
        computing = task.on(task.clients.part(2 * t + 1, 2 * rounds))
    losses = None if labels is not None else choosing.losses(centres)
    chosen = assign(losses) if labels is None else labels
    return Response(losses, chosen, computing.gradients(centres, chosen))
