"""The interface through which the server asks the clients, simulated or real."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from coterie._src.arrays import Array, Ints
from coterie._src.coordinates import Coordinates
from coterie._src.intake import Replies, own_numbers


class Network(Protocol):
    """A set of clients that the server can ask; their replies are not trusted.

    asked, of every question: the clients that are asked; None: all. The work is then that of these clients.
    """

    @property
    def count(self) -> int:
        """m, the number of clients."""
        ...

    def gradients(
        self,
        centres: Array,
        round: int,
        labels: Ints | None = None,
        part: tuple[int, int] | None = None,
        asked: Ints | None = None,
        coordinates: Coordinates | None = None,
    ) -> Replies:
        """Broadcast (k, d) centres; each client replies with its label and its update there (see `client.respond`).

        labels: (m,), the clusters that the server has fixed, instead of the clients' own choice; -1: no reply is
        needed. asked: the clients that take part in this round; None: all. coordinates: in which the server will
        aggregate the replies, for a simulated adversary, who knows them; honest clients do not need them.
        """
        ...

    def minimisers(
        self, like: Array, ridge: float, part: tuple[int, int] | None = None, asked: Ints | None = None
    ) -> Replies:
        """Ask for every client's local minimiser, of the array type and dtype of `like`; part: as for `gradients`."""
        ...

    def losses(
        self,
        centres: Array,
        part: tuple[int, int] | None = None,
        computing: bool = False,
        asked: Ints | None = None,
    ) -> Replies:
        """Ask for every client's k losses; a loss that is not finite is replaced by the largest number.

        part: (t, T): on the samples of round t of T, those for choosing a cluster or, with `computing`, for updates.
        """
        ...

    def sizes(self, asked: Ints | None = None) -> Replies:
        """Ask for every client's number of samples, as float64 NumPy rows of length 1."""
        ...

    def curvatures(self, rounds: int | None = None, asked: Ints | None = None) -> Replies:
        """Ask for the two numbers per client of `Task.curvatures`, as float64 NumPy rows.

        rounds: T, if every round uses only one of 2T parts of the samples.
        """
        ...

    def hessians(self, centres: Array, labels: Ints, asked: Ints | None = None) -> Replies:
        """Ask for every client's Hessian at the centre that labels (m,), or (asked,), names, as float64 NumPy rows.

        A row is the upper triangle, row by row: d(d+1)/2 numbers.
        """
        ...


@dataclass(frozen=True)
class SomeClients:
    """Some clients of a network, (count,) ascending numbers, as a network in which they are 0, 1, …"""

    network: Network
    clients: Ints

    @property
    def count(self) -> int:
        return len(self.clients)

    def gradients(
        self,
        centres: Array,
        round: int,
        labels: Ints | None = None,
        part: tuple[int, int] | None = None,
        asked: Ints | None = None,
        coordinates: Coordinates | None = None,
    ) -> Replies:
        fixed = None
        if labels is not None:
            fixed = np.full(self.network.count, -1)
            fixed[self.clients] = labels
        return self._own(self.network.gradients(centres, round, fixed, part, self._outer(asked), coordinates))

    def minimisers(
        self, like: Array, ridge: float, part: tuple[int, int] | None = None, asked: Ints | None = None
    ) -> Replies:
        return self._own(self.network.minimisers(like, ridge, part, self._outer(asked)))

    def losses(
        self,
        centres: Array,
        part: tuple[int, int] | None = None,
        computing: bool = False,
        asked: Ints | None = None,
    ) -> Replies:
        return self._own(self.network.losses(centres, part, computing, self._outer(asked)))

    def sizes(self, asked: Ints | None = None) -> Replies:
        return self._own(self.network.sizes(self._outer(asked)))

    def curvatures(self, rounds: int | None = None, asked: Ints | None = None) -> Replies:
        return self._own(self.network.curvatures(rounds, self._outer(asked)))

    def hessians(self, centres: Array, labels: Ints, asked: Ints | None = None) -> Replies:
        return self._own(self.network.hessians(centres, labels, self._outer(asked)))

    def _outer(self, asked: Ints | None) -> Ints:
        return self.clients if asked is None else self.clients[asked]

    def _own(self, replies: Replies) -> Replies:
        """The replies with this network's numbers; -1 for a sender that is none of its clients."""
        return replace(replies, clients=own_numbers(replies.clients, self.clients))
