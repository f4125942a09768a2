"""What an adversary sees, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.random import Generator

from coterie._src.arrays import Array, Bools, Ints
from coterie._src.client import Memory
from coterie._src.tasks import Task

Question = Literal["gradient", "minimiser", "loss", "curvature", "size"]


@dataclass(frozen=True)
class View:
    """What the adversary sees in one exchange between the server and the clients.

    round: the round, or -1 before the first. centres: (k, d) as broadcast, or None where the server asked
    for something else than a gradient (a local minimiser, a curvature). labels, updates: what all m clients
    would send if they were honest. byzantine: (m,). liars: the task on the Byzantine clients' own data.
    aggregate: the server's rule, if they know it. rng: the adversary's own randomness. fixed: the server has
    settled the labels, so that a claim means nothing. asked: what the server wants to know. memory: of the liars, who
    look at their own data in every round as honest clients do; None where these are others in every round.
    """

    round: int
    centres: Array | None
    labels: Ints
    updates: Array
    byzantine: Bools
    liars: Task
    aggregate: Callable[[Array], Array] | None
    rng: Generator
    fixed: bool = False
    asked: Question = "gradient"
    memory: Memory | None = None

    @property
    def clusters(self) -> int:
        return 1 if self.centres is None else int(self.centres.shape[0])

    @property
    def count(self) -> int:
        """The number of Byzantine clients."""
        return int(self.byzantine.sum())

    @property
    def claimed(self) -> Ints:
        """The clusters that the Byzantine clients claim."""
        return self.labels[self.byzantine]

    def honest_rows(self, cluster: int) -> Array:
        """What the honest clients of a cluster would send, or all honest clients where it has none.

        Where none at all is asked: what the Byzantine ones would send if they were honest.
        """
        if self.byzantine.all():
            return self.updates
        members = np.flatnonzero(~self.byzantine & (self.labels == cluster))
        return self.updates[members if len(members) else np.flatnonzero(~self.byzantine)]


class Forgery(NamedTuple):
    """The replies of the Byzantine clients, in their order; entries may be malformed on purpose."""

    labels: Sequence[Any] | Ints
    updates: Sequence[Any] | Array
    rounds: Sequence[Any] | None = None
    repeated: bool = False


Target = Callable[[View], Ints]
Payload = Callable[..., Forgery]
"""(view) -> forgery, or (view, scale) with the attack's strength; the default is the one that its authors give."""
