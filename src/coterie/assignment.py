"""The client half of a round: from losses to a label, and the update at the chosen centre."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from coterie.arrays import Array, Floats, Ints, as_numpy
from coterie.tasks import Response, Revisited, Task

MARGIN = 1e-4
"""How much nearer, in √F, the own centre must be for another one to be no rival: far more than rounding."""
SLACK = 1e-5
"""The same as a share of what a centre's scores may be."""


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

    √F_i is Lipschitz in θ for the square loss, with s_i = √λ_max(XᵀX/n): a centre that has moved by Δ is no nearer than
    its distance then less s_i·Δ. Whatever lies farther away by that than a client's own centre is no rival, and needs
    no look. The labels are those of `assign`; it is Elkan's idea for k-means (Using the triangle inequality to
    accelerate k-means, 2003).
    centres: (k, d) of the last round. labels: (m,). least: (m, k), lower bounds on √F_i(θ_j).
    """

    centres: Array | None = None
    labels: Ints | None = None
    least: Floats | None = None

    def respond(self, task: Task, centres: Array) -> Response:
        """As `Task.respond`, without the losses where most clients did not compute them."""
        revisited = cast(Revisited, task) if hasattr(task, "steepness") and isinstance(centres, np.ndarray) else None
        known = self.centres is not None and self.centres.shape == centres.shape
        steepness = revisited.steepness(centres) if revisited and known else None
        if revisited and steepness is not None:
            return self._revisit(revisited, centres, steepness)
        response = task.respond(centres, assign)
        if revisited:
            self.centres, self.labels, self.least = centres.copy(), response.labels, _roots(response.losses)
        return response

    def _revisit(self, task: Revisited, centres: Array, steepness: Floats) -> Response:
        assert self.labels is not None
        assert self.least is not None
        everybody, labels = np.arange(len(self.labels)), self.labels
        moved = np.linalg.norm((centres - self.centres).astype(np.float64), axis=1)
        least = self.least - steepness[:, None] * moved
        own, updates = task.visit(centres, labels)
        slack = SLACK * steepness * np.linalg.norm(centres.astype(np.float64), axis=1).max()
        least[everybody, labels] = np.inf
        rivals = ~(least > (_roots(own) * (1 + MARGIN) + slack)[:, None])  # what is not a number, too
        rivals[everybody, labels] = False
        least[everybody, labels] = _roots(own)
        clients, others = np.nonzero(rivals)
        if len(clients):
            found = task.visit(centres, others, clients, updates=False)[0]
            least[clients, others] = _roots(found)
            losses = np.full(least.shape, np.inf, dtype=own.dtype)
            losses[everybody, labels], losses[clients, others] = own, found
            labels = assign(losses)
            changed = np.flatnonzero(labels != self.labels)
            if len(changed):
                updates[changed] = task.visit(centres, labels[changed], changed)[1]
        self.centres, self.labels, self.least = centres.copy(), labels, least
        return Response(None, labels, updates)


def _roots(losses: Array) -> Floats:
    return np.sqrt(np.asarray(losses, dtype=np.float64))


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
