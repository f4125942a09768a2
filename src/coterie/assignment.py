"""The client half of a round: from losses to a label, and the update at the chosen centre."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np

from coterie.arrays import Array, Floats, Ints, as_numpy, compiled
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
class Planes:
    """What clients know of their losses without looking: what these cannot lie below.

    A convex loss lies above its tangent planes: F_i(θ) ≥ F_i(θ₀) + ⟨∇F_i(θ₀), θ − θ₀⟩. A centre whose plane, from when
    the client last looked there, still lies above the loss at the client's own centre is no rival, and needs no look;
    while it moves by δ the plane falls behind by O(‖δ‖²) alone. Nor is the plane looked up every time, since at most it
    falls by ‖∇F_i(θ₀)‖·‖δ‖. Elkan's idea for k-means (Using the triangle inequality to accelerate k-means, 2003), with
    planes in the place of distances.
    labels: (m,), the own centres. slopes, heights: (k, m, d) and (k, m), F_i(θ_j) ≥ height + ⟨slope, θ_j⟩. steepness:
    (k, m), ‖slope‖. least: (k, m), what F_i(θ_j) cannot lie below at these centres, (k, d).
    """

    labels: Ints
    slopes: Array
    heights: Floats
    steepness: Floats
    least: Floats
    centres: Array

    @classmethod
    def touching(cls, task: Revisited, labels: Ints, centres: Array) -> Planes:
        """Where everybody has just looked at all centres."""
        (k, d), m = centres.shape, len(labels)
        slopes = np.empty((k, m, d), dtype=centres.dtype)
        planes = cls(labels, slopes, np.empty((k, m)), np.empty((k, m)), np.empty((k, m)), centres.copy())
        step = max(1, TOGETHER // (k * d))
        for start in range(0, m, step):
            clients = np.arange(start, min(start + step, m))
            planes.touch(task, np.tile(np.arange(k), len(clients)), np.repeat(clients, k))
        return planes

    def touch(self, task: Revisited, others: Ints, clients: Ints) -> Array:
        """New planes, and the losses, for pairs of centres and clients."""
        losses, gradients = task.visit(self.centres, others, clients)
        self.slopes[others, clients] = gradients
        with np.errstate(all="ignore"):
            self.heights[others, clients] = losses - _rises(self.slopes, self.centres, others, clients)
            self.steepness[others, clients] = (1 + MARGIN) * np.linalg.norm(gradients, axis=1)
        self._look_up(others, clients)
        return losses

    def _look_up(self, others: Ints, clients: Ints) -> None:
        """How high the planes of pairs lie, with room for rounding."""
        with np.errstate(all="ignore"):
            heights, rises = self.heights[others, clients], _rises(self.slopes, self.centres, others, clients)
            self.least[others, clients] = heights + rises - MARGIN * (np.abs(heights) + np.abs(rises))

    def rivals(self, centres: Array, own: Array) -> tuple[Ints, Ints]:
        """Pairs of centres and clients, client by client, for which only a look tells whether the loss is above `own`.

        centres: where they are now. own: (m,), the losses at the own ones there.
        """
        with np.errstate(all="ignore"):  # a centre may have run away
            moved = np.linalg.norm(centres.astype(np.float64) - self.centres, axis=1)
            self.least -= self.steepness * moved[:, None]
            limit = own * (1 + MARGIN)
        self.centres = centres.copy()  # its owner may go on with it
        doubtful = ~(self.least > limit)  # what is not a number, too
        doubtful[self.labels, np.arange(len(own))] = False
        clients, others = np.nonzero(doubtful.T)
        self._look_up(others, clients)
        still = ~(self.least[others, clients] > limit[clients])
        return others[still], clients[still]


@dataclass
class Memory:
    """What clients keep from round to round, so that most need not look at all k centres again.

    The labels are those of `assign`, but for losses that are all rounding.
    """

    planes: Planes | None = None

    def respond(self, task: Task, centres: Array) -> Response:
        """As `Task.respond`, without the losses, since most clients compute one alone."""
        if not hasattr(task, "revisits"):
            return task.respond(centres, assign)
        revisited = cast(Revisited, task)
        numbers = centres.shape[0] * task.dim * task.clients.count
        if not revisited.revisits(centres) or numbers > ROOM * np.prod(task.clients.features.shape):
            return task.respond(centres, assign)
        shape, planes = (len(centres), task.clients.count, task.dim), self.planes
        if planes is None or planes.slopes.shape != shape or planes.slopes.dtype != centres.dtype:
            response = task.respond(centres, assign)
            self.planes = Planes.touching(revisited, response.labels, centres)
            return response
        return _go_on(revisited, centres, planes)


def _go_on(task: Revisited, centres: Array, planes: Planes) -> Response:
    everybody, labels = np.arange(len(planes.labels)), planes.labels
    own, updates = task.visit(centres, labels)
    others, clients = planes.rivals(centres, own)
    if len(clients):  # whose samples are in cache at their next look
        losses = np.full((len(labels), len(centres)), np.inf, dtype=own.dtype)
        losses[everybody, labels] = own
        losses[clients, others] = planes.touch(task, others, clients)
        labels = assign(losses)
        changed = np.flatnonzero(labels != planes.labels)
        updates[changed] = planes.slopes[labels[changed], changed]
        planes.labels = labels
    return Response(None, labels, updates)


@partial(compiled, reorder=True)
def _rises(slopes: Floats, centres: Floats, others: Ints, clients: Ints) -> Floats:
    """(p,): ⟨slopes[j, i], centres[j]⟩ for pairs of a centre j and a client i."""
    found = np.empty(len(others), dtype=np.float64)
    for p in range(len(others)):
        slope, centre = slopes[others[p], clients[p]], centres[others[p]]
        total = slope[0] * centre[0]
        for c in range(1, len(centre)):
            total += slope[c] * centre[c]
        found[p] = total
    return found


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
