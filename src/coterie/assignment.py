"""The client half of a round: from losses to a label, and the update at the chosen centre."""

from __future__ import annotations

import numpy as np

from coterie.arrays import Array, Ints, as_numpy
from coterie.tasks import Response, Task


def assign(losses: Array) -> Ints:
    """(m, k) -> (m,): the centre with the lowest loss, ĵ_i = argmin_j F_i(θ_j); ties go to the first.

    A loss that is not a number (a centre that ran away) is never chosen over one that is.

    >>> assign(np.array([[2.0, 1.0], [np.nan, 3.0]])).tolist()
    [1, 1]
    """
    values = as_numpy(losses)
    labels: Ints = np.where(np.isnan(values), np.inf, values).argmin(axis=1)
    return labels


def respond(task: Task, centres: Array, labels: Ints | None = None, part: tuple[int, int] | None = None) -> Response:
    """What honest clients answer to a broadcast of the (k, d) `centres`.

    labels: given where the server has fixed the clusters; else every client picks its own.
    part: (t, T) for the re-sampling variant of Section 5: round t of T chooses the label on part 2t and
    computes the gradient on part 2t + 1 of 2T disjoint parts of the client's samples.
    """
    if part is None and labels is None:
        return task.respond(centres, assign)
    choosing, computing = task, task
    if part is not None:
        t, rounds = part
        choosing = task.on(task.clients.part(2 * t, 2 * rounds))
        computing = task.on(task.clients.part(2 * t + 1, 2 * rounds))
    losses = None if labels is not None else choosing.losses(centres)
    chosen = assign(losses) if labels is None else labels
    return Response(losses, chosen, computing.gradients(centres, chosen))
