"""What a method should lie between: every client by itself, and the oracle that knows the truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from coterie._src.algorithms.base import Exchange, Network, State
from coterie._src.algorithms.descent import ClusteredDescent
from coterie._src.arrays import Array, Ints, namespace
from coterie._src.tasks import Task


@dataclass(frozen=True)
class _Immediate:
    """An algorithm that is done before the first round."""

    task: Task

    @property
    def rounds(self) -> int:
        return 0

    def step(self, state: State, network: Network, rng: Generator) -> tuple[State, Exchange]:
        raise ValueError("this method has no rounds")


@dataclass(frozen=True)
class LocalMinimisers(_Immediate):
    """No federation: one model per client, its own minimiser."""

    ridge: float = 0.0

    def init(self, network: Network, start: Array, rng: Generator) -> State:
        return State(0, self.task.minimisers(self.ridge), fixed=np.arange(self.task.clients.count))


@dataclass(frozen=True)
class Told:
    """A descent that is told the true clusters and hears only honest clients: what an oracle is where nobody can write
    down a minimiser.

    labels: (m,) true labels, -1 for a Byzantine client.
    """

    descent: ClusteredDescent
    labels: Ints

    @property
    def rounds(self) -> int:
        return self.descent.rounds

    def init(self, network: Network, start: Array, rng: Generator) -> State:
        return self.descent.init(network, start, rng)._replace(fixed=self.labels)

    def step(self, state: State, network: Network, rng: Generator) -> tuple[State, Exchange]:
        return self.descent.step(state, network, rng)


@dataclass(frozen=True)
class Oracle(_Immediate):
    """Per true cluster the minimiser of the pooled samples of its honest clients: the best there is.

    labels: (m,) true labels, -1 for a Byzantine client.
    """

    labels: Ints

    def init(self, network: Network, start: Array, rng: Generator) -> State:
        pooled = [
            self.task.on(self.task.clients.pool(np.flatnonzero(self.labels == j))).minimisers()
            for j in range(int(self.labels.max()) + 1)
        ]
        return State(0, namespace(start).concat(pooled), fixed=self.labels)
