"""what an algorithm is: an `initial_state` and a `step` on the server, talking to clients it cannot see."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np
from numpy.random import Generator

from coterie._src.algorithms.consistency import FirstUpdates
from coterie._src.arrays import Array, Floats, Ints
from coterie._src.init.conditioning import Conditioning, NewtonSteps
from coterie._src.intake import Verdict
from coterie._src.network import Network
from coterie._src.server import ServerMemory


class State(NamedTuple):
    """Everything an algorithm carries from round to round."""

    round: int
    centres: Array  # (k, d)
    fixed: Ints | None = None  # (m,), labels that the server decided for good; -1: none
    curvatures: Floats | None = None  # (m, 2) as reported, NaN where refused; None with a given step size
    weights: Floats | None = None  # (m,), how much a client counts, at most 1; None: all the same
    smallest_move: float = math.inf  # the smallest move of a round so far, in standard errors
    rounds_since: int = 0  # the rounds since then
    memory: ServerMemory = ServerMemory()  # of the server's optimiser and rule
    conditioning: Conditioning | None = None  # the coordinates and Hessians; None: not asked, or to be asked again
    newton: NewtonSteps | None = None  # the maps of the last round's Newton steps
    moves: Floats | None = None  # (k,), the moves of the last round
    first: FirstUpdates | None = None  # of the clients, in the present coordinates; None: none yet, or not used
    start_agreement: float = math.nan  # the share of the clients on which the start's candidates agree
    typical_size: float = 0.0  # the median n_i of a sample, where a round asks its clients for theirs; 0: it does not
    distance_left: float = math.inf  # from the end of the descent, as far as the last moves tell, in standard errors


class RoundInfo(NamedTuple):
    """What the server saw in one round, for records and audit.

    Where not all clients were asked, the arrays (m,) hold those that were, (asked,); see `whole`.
    """

    labels: Ints  # (m,), the cluster each client was counted in, -1 where its reply was refused
    verdicts: Ints  # (m,), intake.Verdict
    trimmed: Floats | None  # (m,), share of its coordinates that was extreme, NaN where refused; None: not asked
    sizes: Ints  # (k,), accepted replies per cluster
    movement: float  # max_j ‖θ_j⁽ᵗ⁺¹⁾ − θ_j⁽ᵗ⁾‖
    rejected: int  # clusters whose step was not finite
    unknown_senders: int = 0  # replies under the name of no known client
    converged: bool = False  # nothing is left to gain by another round
    asked: Ints | None = None  # (asked,), the clients that were asked; None: all

    def whole(self, count: int) -> RoundInfo:
        """With a value for each of `count` clients, of which those that were not asked are silent."""
        if self.asked is None:
            return self
        labels, verdicts = np.full(count, -1), np.full(count, int(Verdict.SILENT))
        labels[self.asked], verdicts[self.asked] = self.labels, self.verdicts
        trimmed = None
        if self.trimmed is not None:
            trimmed = np.full(count, np.nan)
            trimmed[self.asked] = self.trimmed
        return self._replace(labels=labels, verdicts=verdicts, trimmed=trimmed, asked=None)


class Algorithm(Protocol):
    """A server-side program. The simulation and the federation know only this."""

    @property
    def rounds(self) -> int:
        """The number of rounds at most."""
        ...

    def initial_state(self, network: Network, start: Array, rng: Generator) -> State:
        """The state before the first round; `start` holds the first (k, d) centres."""
        ...

    def step(self, state: State, network: Network, rng: Generator) -> tuple[State, RoundInfo]:
        """One round."""
        ...
