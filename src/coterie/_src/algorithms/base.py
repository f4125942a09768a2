"""What an algorithm is: an `init` and a `step` on the server, talking to clients it cannot see."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from numpy.random import Generator

from coterie._src.arrays import Array, Floats, Ints
from coterie._src.intake import Replies
from coterie._src.server import Moments


class Network(Protocol):
    """The clients as the server sees them: it may ask, and gets untrusted replies. Simulated or real."""

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
        """Broadcast (k, d) centres; each client replies with its label and its gradient there (see `respond`).

        labels: (m,), the centres to answer for instead of the clients' own choice; -1: no answer is wanted.
        asked: the clients who take part in this round; None: all.
        """
        ...

    def minimisers(self, like: Array, ridge: float, part: tuple[int, int] | None = None) -> Replies:
        """Ask for every client's local minimiser, of the kind and dtype of `like`; part: as for `gradients`."""
        ...

    def losses(self, centres: Array, part: tuple[int, int] | None = None, computing: bool = False) -> Replies:
        """Ask for every client's k losses, finite ones.

        part: (t, T), on the samples that it would choose by in round t of T, or on those it would compute on.
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


class State(NamedTuple):
    """Everything an algorithm carries from round to round."""

    round: int
    centres: Array  # (k, d)
    fixed: Ints | None = None  # (m,), labels that the server decided for good; -1: none
    curvatures: Floats | None = None  # (m, 2) as reported, NaN where refused; None with a given step
    weights: Floats | None = None  # (m,), how much a client counts, at most 1; None: all the same
    calm: tuple[float, int] = (math.inf, 0)  # the least move so far in standard errors, and the rounds since
    moments: Moments | None = None  # what the server's optimiser remembers


class Exchange(NamedTuple):
    """What the server saw in one round, for records and audit."""

    labels: Ints  # (m,), the cluster each client was counted in, -1 where its reply was refused
    verdicts: Ints  # (m,), intake.Verdict
    trimmed: Floats | None  # (m,), share of its coordinates that stood outside, NaN where refused; None: not asked
    sizes: Ints  # (k,)
    movement: float  # max_j ‖θ_j⁽ᵗ⁺¹⁾ − θ_j⁽ᵗ⁾‖
    stuck: int  # clusters whose step was not finite
    strangers: int = 0  # replies under the name of no known client
    settled: bool = False  # nothing is left to gain by another round


class Algorithm(Protocol):
    """A server-side program. `simulate` knows only this."""

    @property
    def rounds(self) -> int:
        """The number of rounds at most."""
        ...

    def init(self, network: Network, start: Array, rng: Generator) -> State:
        """The state before the first round; `start` holds the first (k, d) centres."""
        ...

    def step(self, state: State, network: Network, rng: Generator) -> tuple[State, Exchange]:
        """One round."""
        ...
