"""The client half of a round: from losses to a label, and the update at the chosen centre."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Array, Bools, Floats, Ints, as_numpy, compiled
from coterie.tasks import Response, Revisited, Task

MARGIN = 1e-4
"""How much smaller, relatively, the loss at the own centre must be for another to be no rival: more than rounding."""
ROOM = 0.15
"""What clients may remember of one server, as a share of their samples' memory."""
TOGETHER = 1 << 20
"""Numbers of planes that are made at a time."""
PAIR = 6
"""The numbers that a client keeps of a centre, beside the slope; in this order (see `Planes`):"""
UNIT, HEIGHT, STEEPNESS, MISSING, LEAST, WAY = range(PAIR)


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
    planes in the place of distances. A slope is kept in whole numbers from -127 to 127 times a unit, a quarter of its
    memory in float32; what that leaves out, e, the plane is lowered by: ‖e‖·‖δ‖.
    labels: (m,), the own centres. centres: (k, d), as they last were. steps: (k, m, d), slope = unit·steps. known:
    (k, m, 6), the numbers of a pair: its unit, its height, so that F_i(θ_j) ≥ height + ⟨slope, θ_j⟩ − ‖e‖·‖δ‖, its
    steepness ‖∇F_i(θ₀)‖, ‖e‖, what F_i(θ_j) cannot lie below now, and the way of the centre since the last look,
    which is no less than ‖δ‖.
    """

    labels: Ints
    centres: Array
    steps: NDArray[np.int8]
    known: Floats

    @classmethod
    def touching(cls, task: Revisited, labels: Ints, centres: Array) -> Planes:
        """Where everybody has just looked at all centres."""
        (k, d), m = centres.shape, len(labels)
        steps, known = np.empty((k, m, d), dtype=np.int8), np.empty((k, m, PAIR))
        planes = cls(labels, centres.copy(), steps, known)
        step = max(1, TOGETHER // (k * d))
        for start in range(0, m, step):
            clients = np.arange(start, min(start + step, m))
            planes.touch(task, np.tile(np.arange(k), len(clients)), np.repeat(clients, k))
        return planes

    @staticmethod
    def bytes_of(task: Task, centres: Array) -> int:
        """What the planes of a task's clients take."""
        return len(centres) * task.clients.count * (task.dim + 8 * PAIR)

    def fit(self, task: Task, centres: Array) -> bool:
        """Whether these are planes of such clients and centres."""
        shape = len(centres), task.clients.count, task.dim
        return self.steps.shape == shape and self.centres.dtype == centres.dtype

    def touch(self, task: Revisited, others: Ints, clients: Ints) -> tuple[Array, Array]:
        """New planes for pairs of centres and clients, and the losses and gradients there."""
        losses, gradients = task.visit(self.centres, others, clients)
        _touch(losses, gradients, others, clients, self.centres, self.steps, self.known)
        return losses, gradients

    def rivals(self, centres: Array, own: Array) -> tuple[Ints, Ints]:
        """Pairs of centres and clients, client by client, for which only a look tells whether the loss is above `own`.

        centres: where they are now. own: (m,), the losses at the own ones there.
        """
        with np.errstate(all="ignore"):  # a centre may have run away
            moved = (1 + MARGIN) * np.linalg.norm(centres.astype(np.float64) - self.centres, axis=1)
        self.centres = centres.copy()  # its owner may go on with it
        rival = np.zeros((len(own), len(centres)), dtype=np.bool_)
        if not _rivals(own, self.labels, self.centres, moved, self.steps, self.known, rival):
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        clients, others = np.nonzero(rival)
        return others, clients


@partial(compiled, reorder=True)
def _product(steps: NDArray[np.int8], centre: Floats) -> float:
    number = centre.dtype.type
    total = number(0)
    for c in range(len(centre)):
        total += number(steps[c]) * centre[c]
    return np.float64(total)


@partial(compiled, reorder=True)
def _touch(
    losses: Floats,
    gradients: Floats,
    others: Ints,
    clients: Ints,
    centres: Floats,
    steps: NDArray[np.int8],
    known: Floats,
) -> None:
    """Keep the planes of pairs of a centre and a client, from losses (p,) and gradients (p, d)."""
    for p in range(len(others)):
        j, i = others[p], clients[p]
        gradient, kept, pair, loss = gradients[p], steps[j, i], known[j, i], np.float64(losses[p])
        largest = 0.0
        for c in range(len(gradient)):
            largest = max(largest, abs(np.float64(gradient[c])))
        unit = largest / 127 if largest < np.inf else np.nan  # a plane that is not a number says nothing
        square, left = 0.0, 0.0
        for c in range(len(gradient)):
            value = np.float64(gradient[c])
            kept[c] = np.int8(np.rint(value / unit)) if unit > 0 else np.int8(0)
            square += value * value
            left += (value - unit * kept[c]) ** 2
        rise = unit * _product(kept, centres[j])
        height = loss - rise
        pair[UNIT], pair[HEIGHT] = unit, height
        pair[STEEPNESS], pair[MISSING] = (1 + MARGIN) * np.sqrt(square), np.sqrt(left)
        pair[LEAST], pair[WAY] = loss - MARGIN * (abs(height) + abs(rise)), 0.0


@compiled
def _rivals(
    own: Floats,
    labels: Ints,
    centres: Floats,
    moved: Floats,
    steps: NDArray[np.int8],
    known: Floats,
    rival: Bools,
) -> int:
    """How many pairs are rivals, (m, k). Planes sink as centres move, and are looked up when they may be too low."""
    count = 0
    for j in range(len(centres)):
        for i in range(len(own)):
            pair, limit = known[j, i], (1 + MARGIN) * np.float64(own[i])
            pair[LEAST] -= pair[STEEPNESS] * moved[j]
            pair[WAY] += moved[j]
            if pair[LEAST] > limit or labels[i] == j:
                continue
            rise, height = pair[UNIT] * _product(steps[j, i], centres[j]), pair[HEIGHT]
            rounding = MARGIN * (abs(height) + abs(rise))
            pair[LEAST] = height + rise - pair[MISSING] * pair[WAY] - rounding
            if not pair[LEAST] > limit:  # nor if it is not a number
                rival[i, j] = True
                count += 1
    return count


class Found(NamedTuple):
    """What clients found at the centres that labels, (m,), name: losses (m,) and updates (m, d)."""

    centres: Array
    labels: Ints
    losses: Array
    updates: Array


@dataclass
class Memory:
    """What clients keep from round to round, so that most need not look at all k centres again.

    The labels are those of `assign`, but for losses that are all rounding. first: (m,), where the clients will look
    first in the next round; None where that is not known. ahead: what they found there already (`look_ahead`). told:
    the labels that were given last, if any were.
    """

    planes: Planes | None = None
    first: Ints | None = None
    ahead: Found | None = None
    told: Ints | None = None

    def respond(self, task: Task, centres: Array, labels: Ints | None = None) -> Response:
        """As `Task.respond`, without the losses, since most clients compute one alone. labels: if they are given."""
        if not hasattr(task, "revisits"):
            return _answer(task, centres, labels)
        revisited = cast(Revisited, task)
        if not revisited.revisits(centres):
            return _answer(task, centres, labels)
        if labels is not None:
            if self.planes is None:  # told twice the same: for good, and not for an empty cluster
                again = self.told is not None and np.array_equal(self.told, labels)
                self.first = labels if again else None
                self.told = labels
            return Response(None, labels, self._visit(revisited, centres, labels)[1])
        if Planes.bytes_of(task, centres) > ROOM * task.clients.features.nbytes:
            self.first = self.ahead = None
            return _answer(task, centres)
        if self.planes is None or not self.planes.fit(task, centres):
            response = task.respond(centres, assign)
            self.planes, self.first = Planes.touching(revisited, response.labels, centres), response.labels
            return response
        return self._go_on(revisited, centres, self.planes)

    def _go_on(self, task: Revisited, centres: Array, planes: Planes) -> Response:
        everybody, labels = np.arange(len(planes.labels)), planes.labels
        own, updates = self._visit(task, centres, labels)
        others, clients = planes.rivals(centres, own)
        if len(clients):  # whose samples are in cache at their next look
            losses = np.full((len(labels), len(centres)), np.inf, dtype=own.dtype)
            losses[everybody, labels] = own
            losses[clients, others], gradients = planes.touch(task, others, clients)
            labels = assign(losses)
            taken = labels[clients] == others  # never a client's cluster so far, which is no rival
            updates[clients[taken]] = gradients[taken]
            planes.labels = self.first = labels
        return Response(None, labels, updates)

    def _visit(self, task: Revisited, centres: Array, labels: Ints) -> tuple[Array, Array]:
        """What is there already, if it was for this question."""
        ahead, self.ahead = self.ahead, None
        if ahead and np.array_equal(ahead.labels, labels) and np.array_equal(ahead.centres, centres):
            return ahead.losses, ahead.updates
        return task.visit(centres, labels)


class Asking(NamedTuple):
    """A server that is about to ask its clients, what these remember of it, and the task that they have."""

    task: Task
    centres: Array
    memory: Memory


def look_ahead(servers: Sequence[Asking]) -> None:
    """One pass over the samples for the next round of several servers that ask the same clients.

    Where a client looks first is known: at its last cluster. What it finds is kept for when it is asked, so a round is
    as it would be without. Only for tasks that offer such a pass, `LinearModel.visits`.
    """
    known = [(server, server.memory.first) for server in servers if hasattr(server.task, "visits")]
    several = [(server, first) for server, first in known if first is not None]
    if len(several) < 2:
        return
    clients, dtype = several[0][0].task.clients, several[0][0].centres.dtype
    if any(server.task.clients is not clients or server.centres.dtype != dtype for server, _ in several):
        raise ValueError("only servers that ask the same clients, in the same precision, can share a pass")
    ends = np.cumsum([len(server.centres) for server, _ in several])
    centres = np.concatenate([server.centres for server, _ in several])
    begins = [0, *ends[:-1]]
    labels = np.stack([first + begin for (_, first), begin in zip(several, begins, strict=True)])
    task: Any = several[0][0].task
    losses, updates = task.visits(centres, labels)
    for q, (server, first) in enumerate(several):
        server.memory.ahead = Found(centres[begins[q] : ends[q]], first, losses[q], updates[q])


def _answer(task: Task, centres: Array, labels: Ints | None = None) -> Response:
    if labels is None:
        return task.respond(centres, assign)
    return Response(None, labels, task.gradients(centres, labels))


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
    if part is None:
        return _answer(task, centres, labels) if memory is None else memory.respond(task, centres, labels)
    t, rounds = part
    choosing = task.on(task.clients.part(2 * t, 2 * rounds))
    computing = task.on(task.clients.part(2 * t + 1, 2 * rounds))
    losses = None if labels is not None else choosing.losses(centres)
    chosen = assign(losses) if labels is None else labels
    return Response(losses, chosen, computing.gradients(centres, chosen))
