"""The client half of a round: from losses to a label, and the update at the chosen centre."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from coterie._src.arrays import Array, Floats, Ints, as_numpy, compiled, fill_row_distances
from coterie._src.kernels.squared_loss import Local, look, scratch, visit
from coterie._src.tasks import Response, Revisited, Task

MARGIN = 1e-4
"""How much smaller, relatively, the loss at the own centre must be for another to be no rival: more than rounding."""
ROOM = 0.15
"""What clients may remember of one server, as a share of their samples' memory."""
ROUNDING = 2.0**-21
"""By how much more, relatively, a bound moves in every round: more than float32 loses of it."""
FLAT = 1e-30
"""Units of a slope below which it is kept as 0."""
SMALLEST = 1e-37
"""Losses below which every rival is looked at: what float32 makes of so small numbers bounds nothing."""
UNDERFLOW = 1e-40
"""What may be missing of a slope because its parts are too small for float32."""
LEAST, STEEPNESS, WAY = range(3)
"""The numbers that a client keeps of its loss at a centre (see `Planes`)."""
UNIT, HEIGHT, MISSING = range(3)
"""Those of a tangent plane, beside its slope."""


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
    memory in float32; what that leaves out, e, the plane is lowered by: ‖e‖·‖δ‖. In Gram form, where a look costs
    little more than a plane, no plane is kept, only how far it can have fallen.
    local: the clients. labels: (m,), their own centres. centres: (k, d), as they last were. bounds: (m, 3, k), what
    F_i(θ_j) cannot lie below now, its steepness ‖∇F_i(θ₀)‖, and the way of the centre since the last look, which is no
    less than ‖δ‖; NaN where there was no look so far. planes: (m, k, 3), the unit, the height, so that F_i(θ_j) ≥
    height + ⟨slope, θ_j⟩ − ‖e‖·‖δ‖, and ‖e‖. steps: (m, k, d), slope = unit·steps. In Gram form (0, k, ·).
    """

    local: Local
    labels: Ints
    centres: Floats
    bounds: Floats
    planes: Floats
    steps: NDArray[np.int8]

    @classmethod
    def none(cls, local: Local, centres: Floats) -> Planes:
        """Before the first look."""
        (k, d), m = centres.shape, len(local.floors)
        sloped, kind = 0 if local.gram else m, centres.dtype
        bounds, planes = np.full((m, 3, k), np.nan, kind), np.full((sloped, k, 3), np.nan, kind)
        return cls(
            local, np.zeros(m, np.int64), centres.copy(), bounds, planes, np.zeros((sloped, k, d), dtype=np.int8)
        )

    @staticmethod
    def bytes_of(local: Local, centres: Floats) -> int:
        """What the planes of such clients and centres take."""
        three = 3 * centres.itemsize
        return int(len(centres) * len(local.floors) * (three if local.gram else 2 * three + centres.shape[1]))

    def fit(self, local: Local, centres: Floats) -> bool:
        """Whether these are planes of such clients and centres."""
        return self.local is local and self.centres.shape == centres.shape

    def follow(self, centres: Floats, found: tuple[Floats, Floats] | None = None) -> tuple[Ints, Floats]:
        """The labels, (m,), and the updates, (m, d), at the centres as they are now.

        found: (m,) and (m, d), what the clients have already found at the own centres; the updates are changed.
        """
        labels = self.labels.copy()
        losses, updates = found or (
            np.empty(len(labels), centres.dtype),
            np.empty((len(labels), centres.shape[1]), centres.dtype),
        )
        kept = self.bounds, self.planes, self.steps
        _follow(*self.local, centres, self.centres, labels, losses, updates, not found, *kept)
        self.labels = labels
        return labels.copy(), updates  # whose owner may go on with them


@partial(compiled, reorder=True)
def _product(steps: NDArray[np.int8], centre: Floats) -> float:
    number = centre.dtype.type
    total = number(0)
    for c in range(len(centre)):
        total += number(steps[c]) * centre[c]
    return np.float64(total)


@partial(compiled, reorder=True)
def _keep_bound(loss: float, gradient: Floats, centre: Floats, bound: Floats, j: int) -> None:
    """How high a client's loss stands at centre j, and how fast it can fall."""
    square, rise = 0.0, 0.0
    for c in range(len(gradient)):
        value = np.float64(gradient[c])
        square += value * value
        rise += value * np.float64(centre[c])
    bound[LEAST, j] = loss - MARGIN * (abs(loss - rise) + abs(rise))
    bound[STEEPNESS, j], bound[WAY, j] = (1 + MARGIN) * np.sqrt(square) + UNDERFLOW, 0


@partial(compiled, reorder=True)
def _keep_plane(loss: float, gradient: Floats, centre: Floats, plane: Floats, steps: NDArray[np.int8]) -> None:
    """The plane of a client's loss that touches it at a centre."""
    largest = 0.0
    for c in range(len(gradient)):
        largest = max(largest, abs(np.float64(gradient[c])))
    plane[UNIT] = largest / 127 if largest < np.inf else np.nan  # a plane that is not a number says nothing
    unit, left = np.float64(plane[UNIT]), 0.0
    for c in range(len(gradient)):
        value = np.float64(gradient[c])
        steps[c] = np.int8(np.rint(value / unit)) if unit > FLAT else np.int8(0)
        left += (value - unit * steps[c]) ** 2
    plane[HEIGHT], plane[MISSING] = loss - unit * _product(steps, centre), np.sqrt(left) + UNDERFLOW


@partial(compiled, inline=True)
def _fall(bound: Floats, moved: Floats, own: int, limit: Any) -> int:
    """The centres have moved; how many but the own one may now have a loss within the limit."""
    number, rivals = moved.dtype.type, 0
    for j in range(len(moved)):
        least = bound[LEAST, j]
        fallen = least - bound[STEEPNESS, j] * moved[j] - number(ROUNDING) * abs(least)
        bound[LEAST, j] = fallen
        bound[WAY, j] = (bound[WAY, j] + moved[j]) * number(1 + ROUNDING)
        rivals += not fallen > limit  # also where it is not a number
    return rivals - (not bound[LEAST, own] > limit)


@compiled
def _look_up(bound: Floats, j: int, plane: Floats, steps: NDArray[np.int8], centre: Floats) -> None:
    """What the loss at centre j cannot lie below by its plane."""
    height, rise = np.float64(plane[HEIGHT]), np.float64(plane[UNIT]) * _product(steps, centre)
    fallen = np.float64(plane[MISSING]) * np.float64(bound[WAY, j])
    bound[LEAST, j] = height + rise - fallen - MARGIN * (abs(height) + abs(rise))


@compiled
def _follow(
    rows: Floats,
    column: Floats,
    offsets: Ints,
    floors: Floats,
    gram: bool,
    centres: Floats,
    before: Floats,
    labels: Ints,
    losses: Floats,
    updates: Floats,
    unseen: bool,
    bounds: Floats,
    planes: Floats,
    steps: NDArray[np.int8],
) -> None:
    """One round of clients who remember: labels (m,), losses (m,) and updates (m, d) become those at the centres.

    Each looks at its own centre, and then, while its samples are in cache, at those that may be better. The first five:
    `Local`, which by itself would take longer to hand over. before: the centres in the last round, overwritten.
    """
    moved, room, gradient = np.empty_like(centres[:, 0]), scratch(rows, gram), np.empty_like(centres[0])
    fill_row_distances(centres, before, moved)
    for j in range(len(moved)):
        moved[j] *= 1 + MARGIN
    before[:] = centres
    for i in range(len(labels)):
        own, bound = labels[i], bounds[i]
        x, y = rows[offsets[i] : offsets[i + 1]], column[offsets[i] : offsets[i + 1]]
        if unseen:
            losses[i] = floors[i] + look(x, y, gram, centres[own], room, updates[i])
        limit = losses.dtype.type((1 + MARGIN) * losses[i])
        if abs(limit) < SMALLEST:
            limit = losses.dtype.type(SMALLEST)
        if not _fall(bound, moved, own, limit):
            continue
        best = np.inf if np.isnan(losses[i]) else losses[i]
        for j in range(len(centres)):
            if bound[LEAST, j] > limit or j == own:
                continue
            if not gram:
                _look_up(bound, j, planes[i, j], steps[i, j], centres[j])
                if bound[LEAST, j] > limit:
                    continue
            loss = losses.dtype.type(floors[i] + look(x, y, gram, centres[j], room, gradient))
            _keep_bound(np.float64(loss), gradient, centres[j], bound, j)
            if not gram:
                _keep_plane(np.float64(loss), gradient, centres[j], planes[i, j], steps[i, j])
            found = np.inf if np.isnan(loss) else loss
            if found < best or (found == best and j < labels[i]):  # as `assign` chooses
                best, labels[i] = found, j
                updates[i] = gradient


def local_of(task: Task, centres: Array) -> Local | None:
    """What the compiled kernels read of a task's clients; None where there are none for it (see `Revisited`)."""
    return cast(Revisited, task).kernel_data(centres) if hasattr(task, "kernel_data") else None


class Found(NamedTuple):
    """What clients found at the centres that labels, (m,), name: losses (m,) and updates (m, d)."""

    local: Local
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
        local = local_of(task, centres)
        if local is None:
            return _answer(task, centres, labels)
        if labels is not None:
            if self.planes is None:  # told twice the same: for good, and not for an empty cluster
                again = self.told is not None and np.array_equal(self.told, labels)
                self.told = labels.copy()
                self.first = self.told if again else None
            found = self._found(local, centres, labels)
            return Response(None, labels, task.gradients(centres, labels) if found is None else found[1])
        if self.planes is None or not self.planes.fit(local, centres):
            if Planes.bytes_of(local, centres) > ROOM * task.clients.features.nbytes:
                self.planes = self.first = self.ahead = None
                return _answer(task, centres)
            self.planes = Planes.none(local, centres)
        chosen, updates = self.planes.follow(centres, self._found(local, centres, self.planes.labels))
        self.first = self.planes.labels
        return Response(None, chosen, updates)

    def _found(self, local: Local, centres: Array, labels: Ints) -> tuple[Array, Array] | None:
        """What is there already, if it was for this question."""
        ahead, self.ahead = self.ahead, None
        if (
            ahead
            and ahead.local is local
            and np.array_equal(ahead.labels, labels)
            and np.array_equal(ahead.centres, centres)
        ):
            return ahead.losses, ahead.updates
        return None


class Asking(NamedTuple):
    """A server that is about to ask its clients, what these remember of it, and the task that they have."""

    task: Task
    centres: Array
    memory: Memory

    def samples(self) -> Local | None:
        """What a pass over the clients' samples reads, if there will be one, and it is known where they look first."""
        local, first = local_of(self.task, self.centres), self.memory.first
        if local is None or local.gram or first is None or not first.max() < len(self.centres):
            return None
        return local


def look_ahead(servers: Sequence[Asking]) -> None:
    """One pass over the samples for the next round of several servers that ask the same clients.

    Where a client looks first is known: at its last cluster. What it finds is kept for when it is asked, so a round is
    as it would be without. Not in Gram form, where the clients' statistics are small enough to be in cache anyway.
    """
    if len(servers) < 2:
        return
    several = [(server, local) for server in servers if (local := server.samples()) is not None]
    if len(several) < 2:
        return
    clients, dtype = several[0][0].task.clients, several[0][0].centres.dtype
    if any(server.task.clients is not clients or server.centres.dtype != dtype for server, _ in several):
        raise ValueError("only servers that ask the same clients, in the same precision, can share a pass")
    ends = np.cumsum([len(server.centres) for server, _ in several])
    centres = np.concatenate([server.centres for server, _ in several])
    begins, firsts = [0, *ends[:-1]], [cast(Ints, server.memory.first) for server, _ in several]
    labels = np.stack([first + begin for first, begin in zip(firsts, begins, strict=True)])
    losses, updates = visit(several[0][1], centres, labels, np.arange(clients.count))
    for q, (server, local) in enumerate(several):
        server.memory.ahead = Found(local, centres[begins[q] : ends[q]], firsts[q], losses[q], updates[q])


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
