"""Whether a client's updates over the rounds fit one quadratic loss: where they do not, its first one counts.

For a squared loss a client's update is u_i(φ) = u_i(φ_0) + H_i(φ − φ_0), with the Hessian H_i that it reported. So
after its first update in the rounds nothing that it sends is news. A Byzantine client has this much freedom: it may
present itself as one client with some quadratic loss, once. What it sends later is either that, or shows that it is
Byzantine; then what follows from its first update is used in place of the reply. It cannot follow the centre with its
updates, choose in every round those which move the rule most, or change its mind.

Nothing is lost if a client is judged wrongly: its first update and its Hessian say the same as its reply. So where
sites add noise to their answers, a single one that differs from the others may be held to its first noise, but no
client is left out. Honest clients that compute in float32 differ by rounding errors, which are below `NEGLIGIBLE`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie._src.aggregators import median
from coterie._src.arrays import Bools, Floats, Ints, as_numpy
from coterie._src.init.conditioning import Conditioning

NEGLIGIBLE = 0.1
"""Differences of at most this many typical distances of an update to the median of its cluster do little harm: if b of
the c clients of a cluster differ all in one direction, its centre moves by b/c times that, in all rounds together. The
largest rounding error of honest clients that we have seen is 0.03, in float32 with columns whose means are ten times
their spread, and a condition number of 5·10⁴; it is 10⁻⁵ with columns of mean 0."""
TYPICAL = 5.0
"""So many times as inconsistent as the median client may a client be, since sites may add noise to what they send."""


class FirstUpdates(NamedTuple):
    """The first update of every client, in the coordinates of the federation.

    points: (m, r), φ_0, at which it was computed. updates: (m, r), u_i(φ_0). NaN for a client without one.
    """

    points: Floats
    updates: Floats

    @classmethod
    def none(cls, clients: int, dim: int) -> FirstUpdates:
        """No client has sent one yet."""
        return cls(np.full((clients, dim), np.nan), np.full((clients, dim), np.nan))

    def after(self, clients: Ints, points: Floats, updates: Floats) -> FirstUpdates:
        """With the updates (rows, r) at the points (rows, r), of clients (rows,) that had sent none before."""
        new = np.isnan(self.points[clients]).any(axis=1)
        if not new.any():
            return self
        found = FirstUpdates(self.points.copy(), self.updates.copy())
        found.points[clients[new]], found.updates[clients[new]] = points[new], updates[new]
        return found


def held_to_first(
    conditioning: Conditioning, first: FirstUpdates, clients: Ints, labels: Ints, points: Floats, updates: Floats
) -> tuple[Floats, Bools]:
    """(rows, r) the updates that count, and (rows,) which of them are not those that were sent.

    A reply is inconsistent if it differs from what the client's first update and its Hessian say by more than
    `NEGLIGIBLE` typical distances of an update to the median of its cluster, and by more than `TYPICAL` times as much
    as the reply of the median client. So at most half of the clients are held to their first updates.

    clients, labels: (rows,). points: (k, r), the centres. updates: (rows, r), as sent. first: with all of the clients.

    What α < ½ of false answers can do: a client that is not held differs by no more than the above from one quadratic
    loss, of its first update and its Hessian, in all rounds together.
    """
    moved = points[labels] - first.points[clients]
    everyone = len(clients) == len(conditioning.hessians)
    hessians = conditioning.hessians if everyone else conditioning.hessians[clients]
    turned = np.matmul(hessians, moved.astype(hessians.dtype)[:, :, None])[:, :, 0]
    with np.errstate(over="ignore", invalid="ignore"):
        expected = first.updates[clients] + turned.astype(np.float64)
        differences = np.linalg.norm(updates - expected, axis=1)
    differences = np.where(np.isfinite(differences), differences, np.inf)
    usual = TYPICAL * float(np.median(differences))
    suspects = differences > usual
    if suspects.any():
        distances = np.empty(len(clients))
        for j in np.unique(labels).tolist():
            rows = updates[labels == j]
            with np.errstate(over="ignore"):
                distances[labels == j] = np.linalg.norm(rows - as_numpy(median(rows)), axis=1)
        suspects &= differences > NEGLIGIBLE * float(np.median(distances))
    return (np.where(suspects[:, None], expected, updates) if suspects.any() else updates), suspects
