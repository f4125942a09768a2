"""Reference methods to compare with: every client alone, and the oracle, which is given the true clusters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from coterie._src.algorithms.base import RoundInfo, State
from coterie._src.arrays import Array, Ints, namespace
from coterie._src.network import Network
from coterie._src.tasks import Task


@dataclass(frozen=True)
class _Immediate:
    """An algorithm that is done before the first round."""

    task: Task

    @property
    def rounds(self) -> int:
        return 0

    def step(self, state: State, network: Network, rng: Generator) -> tuple[State, RoundInfo]:
        raise ValueError("this method has no rounds")


@dataclass(frozen=True)
class LocalMinimisers(_Immediate):
    """No federation: one model per client, its own minimiser."""

    ridge: float = 0.0

    def initial_state(self, network: Network, start: Array, rng: Generator) -> State:
        return State(0, self.task.minimisers(self.ridge), fixed=np.arange(self.task.clients.count))


@dataclass(frozen=True)
class Oracle(_Immediate):
    """Per true cluster the minimiser of the pooled samples of its honest clients: the best there is.

    labels: (m,) true labels, -1 for a Byzantine client.
    """

    labels: Ints

    def initial_state(self, network: Network, start: Array, rng: Generator) -> State:
        pooled = [
            self.task.on(self.task.clients.pool(np.flatnonzero(self.labels == j))).minimisers()
            for j in range(int(self.labels.max()) + 1)
        ]
        return State(0, namespace(start).concat(pooled), fixed=self.labels)
