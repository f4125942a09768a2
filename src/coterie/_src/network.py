"""The clients as the server sees them, simulated or real."""

from __future__ import annotations

from typing import Protocol

from coterie._src.arrays import Array, Ints
from coterie._src.intake import Replies


class Network(Protocol):
    """A set of clients that the server may ask; their replies are untrusted."""

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
    ) -> Replies:
        """Broadcast (k, d) centres; each client replies with its label and its update there (see `client.respond`).

        labels: (m,), the centres to answer for instead of the clients' own choice; -1: no answer is wanted.
        asked: the clients that take part in this round; None: all.
        """
        ...

    def minimisers(self, like: Array, ridge: float, part: tuple[int, int] | None = None) -> Replies:
        """Ask for every client's local minimiser, of the kind and dtype of `like`; part: as for `gradients`."""
        ...

    def losses(self, centres: Array, part: tuple[int, int] | None = None, computing: bool = False) -> Replies:
        """Ask for every client's k losses, finite ones.

        part: (t, T), on the samples by which it would choose in round t of T, or on which it would compute.
        """
        ...

    def sizes(self) -> Replies:
        """Ask for every client's number of samples, as a float64 NumPy row of one."""
        ...

    def curvatures(self, rounds: int | None = None) -> Replies:
        """Ask for the two numbers per client of `Task.curvatures`, as float64 NumPy rows.

        rounds: T where a round will use only one of 2T parts of the samples.
        """
        ...
