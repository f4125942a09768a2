"""What Byzantine clients send instead.

An attack is two separate choices that compose: a *target* (which cluster the Byzantine clients claim)
and a *payload* (what they send there). Both see everything an omniscient adversary would, and only the
rows of Byzantine clients are rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import Generator

from coterie.arrays import Array, Bools, Ints, as_numpy, like
from coterie.assignment import assign
from coterie.tasks import Task


@dataclass(frozen=True)
class View:
    """What the adversary sees in one exchange between the server and the clients.

    round: the round, or -1 before the first. centres: (k, d) as broadcast, or None where the server asked
    for something else than a gradient (a local minimiser, a curvature). labels, updates: what all m clients
    would send if they were honest. byzantine: (m,). liars: the task on the Byzantine clients' own data.
    aggregate: the server's rule. rng: the adversary's own randomness. fixed: the server has settled the
    labels, so that a claim means nothing.
    """

    round: int
    centres: Array | None
    labels: Ints
    updates: Array
    byzantine: Bools
    liars: Task
    aggregate: Callable[[Array], Array]
    rng: Generator
    fixed: bool = False

    @property
    def clusters(self) -> int:
        return 1 if self.centres is None else int(self.centres.shape[0])

    @property
    def count(self) -> int:
        """The number of Byzantine clients."""
        return int(self.byzantine.sum())


@dataclass(frozen=True)
class Forgery:
    """The replies of the Byzantine clients, in their order; entries may be malformed on purpose."""

    labels: Sequence[Any] | Ints
    updates: Sequence[Any] | Array
    rounds: Sequence[Any] | None = None
    repeated: bool = False


Target = Callable[[View], Ints]
Payload = Callable[[View, float], Forgery]


# --- who is attacked ---------------------------------------------------------------------------------


def own(view: View, scale: float = 1.0) -> Ints:
    """Each claims the cluster that fits its own data best, argmin_j F_i(scale·θ_j).

    With scale 1 it is the honest choice. In the paper's experiments a Byzantine client works on 3·θ
    throughout: it chooses by the loss there, and sends the gradient there.
    """
    if view.centres is None or scale == 1.0:
        return view.labels[view.byzantine]
    return assign(view.liars.losses(scale * view.centres))


def smallest(view: View) -> Ints:
    """All gather on the cluster with the fewest honest clients (but some): what the theorems allow for."""
    honest = np.bincount(view.labels[~view.byzantine], minlength=view.clusters)
    return np.full(view.count, np.where(honest > 0, honest, honest.max() + 1).argmin())


def random(view: View) -> Ints:
    """Each draws a cluster anew in every round."""
    return view.rng.integers(view.clusters, size=view.count)


def hop(view: View) -> Ints:
    """All gather on one cluster and move on to the next in every round."""
    return np.full(view.count, max(view.round, 0) % view.clusters)


# --- what is sent there ------------------------------------------------------------------------------


def none(view: View, scale: float) -> Forgery:
    """The honest answer of their own (poisoned) data, for the cluster they claim."""
    return paper(view, 1.0)


def paper(view: View, scale: float) -> Forgery:
    """The gradient of their poisoned data at scale·θ instead of θ (the paper's experiments: scale 3)."""
    labels = view.labels[view.byzantine]
    if view.centres is None:
        return Forgery(labels, view.updates[view.byzantine])
    return Forgery(labels, view.liars.gradients(scale * view.centres, labels))


def sign_flip(view: View, scale: float) -> Forgery:
    """−scale × the mean honest update of the claimed cluster (of all honest clients where it has none)."""
    updates, honest = as_numpy(view.updates), ~view.byzantine
    claimed = view.labels[view.byzantine]
    everyone = updates[honest].mean(axis=0)
    mean = {
        j: updates[honest & (view.labels == j)].mean(axis=0) if (honest & (view.labels == j)).any() else everyone
        for j in np.unique(claimed).tolist()
    }
    flipped = [-scale * mean[j] for j in claimed.tolist()]
    return Forgery(claimed, like(np.stack(flipped), view.updates))


def gaussian(view: View, scale: float) -> Forgery:
    """Noise: independent N(0, scale²) in every coordinate."""
    noise = scale * view.rng.standard_normal((view.count, view.updates.shape[1]))
    return Forgery(view.labels[view.byzantine], like(noise, view.updates))


def constant(view: View, scale: float) -> Forgery:
    """Every coordinate is `scale`."""
    rows = np.full((view.count, view.updates.shape[1]), scale)
    return Forgery(view.labels[view.byzantine], like(rows, view.updates))


def garbage(view: View, scale: float) -> Forgery:
    """Every way to be malformed in turn: NaN, Inf, wrong length, wrong dtype, text, nothing, labels that
    do not exist, a stale round, and every reply twice."""
    honest = view.updates[view.byzantine]
    spoils: list[Callable[[Any], Any]] = [
        lambda row: row * float("nan"),
        lambda row: row + float("inf"),
        lambda row: row[:-1] if row.shape[0] > 1 else row[None],
        lambda row: as_numpy(row).astype(np.complex128),
        lambda row: "garbage",
        lambda row: None,
        lambda row: row,
    ]
    wrong_labels: list[Any] = [view.clusters, -1, 2**70, "0", None, 0.5, True]
    turn = [i + max(view.round, 0) for i in range(view.count)]
    updates = [spoils[t % len(spoils)](honest[i]) for i, t in enumerate(turn)]
    # a healthy update (the last spoil) comes with a wrong label or, every other time, a stale round
    healthy = [t % len(spoils) == len(spoils) - 1 for t in turn]
    stale = [h and (t // len(spoils)) % 2 == 1 for h, t in zip(healthy, turn, strict=True)]
    labels: list[Any] = view.labels[view.byzantine].tolist()
    for i, t in enumerate(turn):
        if healthy[i] and not stale[i]:
            labels[i] = wrong_labels[(t // len(spoils)) % len(wrong_labels)]
    rounds = [view.round - 1 if late else view.round for late in stale]
    return Forgery(labels, updates, rounds, repeated=True)


@dataclass(frozen=True)
class Attack:
    """A payload sent to a target; `scale` is the payload's one number (see each payload).

    >>> Attack(constant, smallest, scale=10.0).scale
    10.0
    """

    payload: Payload
    target: Target = own
    scale: float = 3.0

    def __call__(self, view: View) -> Forgery:
        labels = view.labels.copy()
        if view.centres is not None and not view.fixed:
            # the paper's Byzantine clients work on scale·θ throughout, their own choice included
            at_scale = self.payload is paper and self.target is own
            labels[view.byzantine] = own(view, self.scale) if at_scale else self.target(view)
        return self.payload(replace(view, labels=labels), self.scale)
