"""The client's half of Algorithm 1: choose the best centre, and compute the update there."""

from __future__ import annotations

from coterie._src.arrays import Array, Ints
from coterie._src.kernels.elkan import AssignmentCache
from coterie._src.tasks import Response, Task, assign

__all__ = ["AssignmentCache", "Response", "assign", "respond"]


def respond(
    task: Task,
    centres: Array,
    labels: Ints | None = None,
    part: tuple[int, int] | None = None,
    cache: AssignmentCache | None = None,
) -> Response:
    """What honest clients answer to a broadcast of the (k, d) centres: ĵ_i = argmin_j F_i(θ_j) and ∇F_i(θ_ĵ).

    Parameters
    ----------
    labels : (m,), where the server has fixed the clusters; else every client chooses its own.
    part : (t, T) for the re-sampling variant of Section 5: round t of T chooses the label on part 2t and computes the
        update on part 2t + 1 of 2T disjoint parts of the client's samples.
    cache : of the same clients from their last round, if there is one; it saves time and changes nothing else.
    """
    if part is not None:
        t, rounds = part
        if labels is None:
            labels = assign(task.on(task.clients.part(2 * t, 2 * rounds)).losses(centres))
        return Response(labels, task.on(task.clients.part(2 * t + 1, 2 * rounds)).gradients(centres, labels))
    if labels is not None:
        return Response(labels, task.gradients(centres, labels))
    return task.respond(centres, cache)
