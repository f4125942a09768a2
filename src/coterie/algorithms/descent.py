"""Algorithm 1 of the paper: Byzantine-Robust IFCA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import Generator

from coterie.algorithms.base import Exchange, Network, State
from coterie.arrays import Array, Floats, Ints, as_numpy, namespace
from coterie.intake import Accepted, admit
from coterie.server import Server, automatic_steps, take_step


@dataclass(frozen=True)
class ClusteredDescent:
    """Algorithm 1: broadcast, collect, aggregate per cluster, projected step.

    With the median as the server's rule it is Option I, with the trimmed mean Option II, with the mean IFCA,
    with one centre a single global model.
    size: γ, or None for a safe share of 1/L judged from the clients (`automatic_steps`). resample: the variant of
    Section 5, fresh samples in every round; needs n_i ≥ 2·rounds. empty: what becomes of a cluster that nobody
    chose: `keep` its centre, or ask one `random-client` for its gradient there and follow that alone, as the
    paper's published code does.
    """

    server: Server
    rounds: int = 300
    size: float | None = None
    tolerance: float = 0.0
    resample: bool = False
    empty: Literal["keep", "random-client"] = "keep"

    def init(self, network: Network, start: Array, rng: Generator) -> State:
        rounds = self.rounds if self.resample and self.rounds else None
        return State(0, start, curvatures=None if self.size is not None else ask_curvatures(network, rounds))

    def step(self, state: State, network: Network, rng: Generator) -> tuple[State, Exchange]:
        part = (state.round, self.rounds) if self.resample else None
        accepted = _ask(network, state, state.fixed, part)
        stand_ins = self._stand_ins(network, state, accepted, part, rng)
        step = take_step(self.server, state.centres, accepted, self._sizes(state, accepted), stand_ins)
        xp = namespace(step.centres)
        movement = float(xp.max(xp.linalg.vector_norm(step.centres - state.centres, axis=1)))
        labels = np.full(network.count, -1)
        labels[accepted.clients] = accepted.labels
        trimmed = np.full(network.count, np.nan)
        trimmed[accepted.clients] = step.trimmed
        exchange = Exchange(
            labels, accepted.verdicts, trimmed, step.sizes, movement, int(step.stuck.sum()), accepted.strangers
        )
        return state._replace(round=state.round + 1, centres=step.centres), exchange

    def _stand_ins(
        self, network: Network, state: State, accepted: Accepted, part: tuple[int, int] | None, rng: Generator
    ) -> Accepted | None:
        """One client each, at random, for the clusters that nobody chose."""
        empty = np.setdiff1d(np.arange(state.centres.shape[0]), accepted.labels)
        if self.empty == "keep" or not len(empty) or not len(accepted.clients):
            return None
        asked = rng.permutation(accepted.clients)[: len(empty)]
        labels = np.full(network.count, -1)
        labels[asked] = empty[: len(asked)]
        return _ask(network, state, labels, part)

    def _sizes(self, state: State, accepted: Accepted) -> Floats:
        clusters = state.centres.shape[0]
        if state.curvatures is None:
            assert self.size is not None
            return np.full(clusters, self.size)
        return automatic_steps(state.curvatures[accepted.clients], accepted.labels, clusters)


def _ask(network: Network, state: State, labels: Ints | None, part: tuple[int, int] | None) -> Accepted:
    """One question to the clients and the replies that pass; given labels count instead of the claimed ones."""
    replies = network.gradients(state.centres, state.round, labels, part)
    clusters = state.centres.shape[0]
    accepted = admit(replies, clients=network.count, clusters=clusters, round=state.round, like=state.centres)
    if labels is None:
        return accepted
    counted = labels[accepted.clients] >= 0
    clients = accepted.clients[counted]
    return accepted._replace(clients=clients, labels=labels[clients], updates=accepted.updates[counted])


def ask_curvatures(network: Network, rounds: int | None = None) -> Floats:
    """(m, 2): the curvatures that the clients report, NaN where the reply was refused."""
    form = np.zeros((1, 2))
    accepted = admit(network.curvatures(rounds), clients=network.count, clusters=1, round=-1, like=form)
    curvatures = np.full((network.count, 2), np.nan)
    curvatures[accepted.clients] = as_numpy(accepted.updates)
    return curvatures
