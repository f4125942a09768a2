"""A client's own network: trained near that of its cluster, with a penalty that the client's own samples choose.

A client minimises F_i(θ) + λ/2·‖θ − θ_j‖², θ_j the model of its cluster (Ditto: Li et al., Fair and robust federated
learning through personalization, 2021, with one λ for each client instead of one for all). The clients of a task are
trained together, so a fit here is of (c, dim) models.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie._src.arrays import Array, Bools, Floats, Ints, as_numpy
from coterie._src.data import Clients, HeldOut
from coterie._src.tasks.shrinkage import FOLDS, TOLERANCE, Anchor, folds_of

PENALTIES = (1.0, 0.1, 0.01, 0.0)
"""λ, beside ∞, which is the cluster's model, and beside a fit of the client's own that does not use that model."""
EPOCHS = 30
"""Passes over a client's samples in a fit."""
KEEP, OWN = -1, len(PENALTIES)
"""In the place of an index of `PENALTIES`: the cluster's model, and the client's own."""


class Split(NamedTuple):
    """The samples of clients, split for validation."""

    rest: Clients
    validation: HeldOut | None


def validation_split(clients: Clients) -> Split:
    """A fold of every client's samples for validation, and the rest; for one with fewer than `FOLDS` samples no fold.

    It depends on nothing but the client's own samples.
    """
    targets = as_numpy(clients.targets)
    is_held = np.concatenate(
        [folds_of(targets[a:b]) == FOLDS - 1 for a, b in zip(clients.offsets[:-1], clients.offsets[1:], strict=True)]
    )
    counts = np.add.reduceat(is_held.astype(np.int64), clients.offsets[:-1])
    owners = np.flatnonzero(counts)
    rest = clients.of_samples(np.flatnonzero(~is_held), clients.sizes - counts, clients.names)
    if not len(owners):
        return Split(rest, None)
    names = tuple(clients.names[i] for i in owners)
    return Split(rest, HeldOut(clients.of_samples(np.flatnonzero(is_held), counts[owners], names), owners))


def chosen(losses: list[Floats]) -> int:
    """KEEP, OWN or an index of `PENALTIES`; losses: of one client's validation samples under each, in this order.

    Of the fits near the cluster's model the one with the lowest loss; the cluster's model itself unless that is better
    by more than `TOLERANCE` standard errors of the difference; and the client's own if it is better by as much again.
    """
    kept, own, fits = losses[0], losses[-1], losses[1:-1]
    best = int(np.argmin([_total(each) for each in fits]))
    found, current = (best, fits[best]) if _is_better(fits[best], kept) else (KEEP, kept)
    return OWN if _is_better(own, current) else found


def _total(losses: Floats) -> float:
    total = float(losses.mean())
    return total if np.isfinite(total) else np.inf


def _is_better(losses: Floats, than: Floats) -> bool:
    """Whether the mean loss is lower by more than `TOLERANCE` standard errors of the difference."""
    if not np.isfinite(_total(losses)):
        return False
    if not np.isfinite(_total(than)):
        return True
    gain = than - losses
    return bool(gain.mean() > TOLERANCE * gain.std() / np.sqrt(len(gain)))


def shrinkage_of(choices: Ints) -> Floats:
    """λ/(1 + λ): from 0 for the client's own fit to 1 for the cluster's model."""
    penalties = np.array([*PENALTIES, 0.0, np.inf])[choices]  # KEEP is the last, OWN the one before
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(penalties), 1.0, penalties / (1.0 + penalties))


def anchors_of(choices: Ints) -> tuple[Anchor, ...]:
    return tuple("own" if choice == OWN else "cluster" for choice in choices.tolist())


def in_a_cluster(centres: Array, labels: Ints) -> Bools:
    """(m,): the clients with a cluster whose model is finite."""
    finite: NDArray[np.bool_] = np.isfinite(as_numpy(centres)).all(axis=1)
    return (labels >= 0) & finite[np.maximum(labels, 0)]
