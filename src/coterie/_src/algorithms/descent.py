"""Algorithm 1 of the paper: Byzantine-Robust IFCA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import Generator

from coterie._src.aggregators import median
from coterie._src.algorithms.base import Exchange, Network, State
from coterie._src.arrays import Array, Floats, Ints, as_numpy
from coterie._src.intake import Accepted, admit
from coterie._src.server import Server, automatic_steps, take_step

PATIENCE = 10
"""Rounds without a smaller move after which a descent that circles is done: a rule that leaves rows out may do that."""


@dataclass(frozen=True)
class ClusteredDescent:
    """Algorithm 1: broadcast, collect, aggregate per cluster, projected step.

    With the median as the server's rule it is Option I, with the trimmed mean Option II, with the mean IFCA,
    with one centre a single global model.
    size: γ, or None for a safe share of 1/L judged from the clients (`automatic_steps`). resample: the variant of
    Section 5, fresh samples in every round; needs n_i ≥ 2·rounds. empty: what becomes of a cluster that nobody
    chose: `keep` its centre, or ask one `random-client` for its gradient there and follow that alone, as the
    paper's published code does. tolerance: stop when no centre moves by more than this in a round; 0: never early.
    precision: stop when every move is less than this share of its own standard error, or when all are less than that
    error and no longer get smaller; 0: never. weighted: a client counts by its number of samples, but no more than
    the median client, since it may lie about that, too; needs a rule that takes weights. participation: the share of
    the clients that a round asks, drawn anew in each; who is not asked is silent.
    """

    server: Server
    rounds: int = 300
    size: float | None = None
    tolerance: float = 0.0
    resample: bool = False
    empty: Literal["keep", "random-client"] = "keep"
    precision: float = 0.0
    weighted: bool = False
    participation: float = 1.0

    def init(self, network: Network, start: Array, rng: Generator) -> State:
        rounds = self.rounds if self.resample and self.rounds else None
        curvatures = None if self.size is not None else ask_curvatures(network, rounds)
        return State(0, start, curvatures=curvatures, weights=ask_weights(network) if self.weighted else None)

    def step(self, state: State, network: Network, rng: Generator) -> tuple[State, Exchange]:
        part = (state.round, self.rounds) if self.resample else None
        accepted = _ask(network, state, state.fixed, part, self._asked(network.count, rng))
        stand_ins = self._stand_ins(network, state, accepted, part, rng)
        weights = None if state.weights is None else state.weights[accepted.clients]
        sizes = self._sizes(state, accepted)
        step = take_step(self.server, state.centres, accepted, sizes, stand_ins, weights, state.moments)
        movement = float(np.maximum.reduce(step.moves))  # not a number where one is not
        # a round in which nobody was heard says nothing about convergence
        heard = len(accepted.clients) > 0
        judged = self.precision > 0 and heard and not step.stuck.any()
        calm = self._calm(state.calm, step.moves, accepted, sizes) if judged else state.calm
        settled = heard and (
            0 < self.tolerance >= movement or calm[0] <= self.precision or (calm[1] >= PATIENCE and calm[0] < 1)
        )
        labels = accepted.by_client(accepted.labels, -1)
        trimmed = None if step.trimmed is None else accepted.by_client(step.trimmed, np.nan)
        stuck = int(np.count_nonzero(step.stuck))
        exchange = Exchange(
            labels, accepted.verdicts, trimmed, step.sizes, movement, stuck, accepted.strangers, settled
        )
        after = State(state.round + 1, step.centres, state.fixed, state.curvatures, state.weights, calm, step.moments)
        return after, exchange

    def _asked(self, clients: int, rng: Generator) -> Ints | None:
        """The clients of a round, in their order; None for all."""
        if self.participation >= 1:
            return None
        return np.sort(rng.choice(clients, max(1, round(self.participation * clients)), replace=False))

    def _calm(self, before: tuple[float, int], moves: Floats, accepted: Accepted, steps: Floats) -> tuple[float, int]:
        """The largest move in standard errors, if it is the least so far by a tenth; else what that was.

        A move of more than its error ends the patience: something has happened.
        """
        errors = standard_errors(accepted, steps)
        now = float(np.max(np.where(moves > 0, moves / np.maximum(errors, 1e-300), 0.0)))
        if now >= 1:
            return now, 0
        return (now, 0) if now < 0.9 * before[0] else (before[0], before[1] + 1)

    def _stand_ins(
        self, network: Network, state: State, accepted: Accepted, part: tuple[int, int] | None, rng: Generator
    ) -> Accepted | None:
        """One client each, at random, for the clusters that nobody chose."""
        if self.empty == "keep" or not len(accepted.clients):
            return None
        empty = np.flatnonzero(np.bincount(accepted.labels, minlength=state.centres.shape[0]) == 0)
        if not len(empty):
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


def _ask(
    network: Network,
    state: State,
    labels: Ints | None,
    part: tuple[int, int] | None,
    asked: Ints | None = None,
) -> Accepted:
    """One question to the clients and the replies that pass; given labels count instead of the claimed ones."""
    replies = network.gradients(state.centres, state.round, labels, part, asked)
    clusters = state.centres.shape[0]
    accepted = admit(replies, clients=network.count, clusters=clusters, round=state.round, like=state.centres)
    if labels is None:
        return accepted
    counted = labels[accepted.clients] >= 0
    clients = accepted.clients[counted]
    return accepted._replace(clients=clients, labels=labels[clients], updates=accepted.updates[counted])


def standard_errors(accepted: Accepted, steps: Floats) -> Floats:
    """(k,): γ_j √(q_j/c_j), with q_j the median squared distance of the c_j replies to their median.

    One reply shows no noise, nor do none: the q of the other clusters, their median, stands for their own.
    """
    counts, squares = np.bincount(accepted.labels, minlength=len(steps)), np.zeros(len(steps))
    updates = as_numpy(accepted.updates)
    for j in np.flatnonzero(counts > 1).tolist():
        rows = updates[accepted.labels == j]
        squares[j] = np.median(((rows - as_numpy(median(rows))) ** 2).sum(axis=1))
    if (counts > 1).any():
        squares[counts <= 1] = np.median(squares[counts > 1])
    errors: Floats = steps * np.sqrt(squares / np.maximum(counts, 1))
    return errors


def ask_weights(network: Network) -> Floats:
    """(m,): n_i over the median of all, at most 1; as little as possible where the reply was refused or is no size."""
    accepted = admit(network.sizes(), clients=network.count, clusters=1, round=-1, like=np.zeros((1, 1)))
    sizes = np.ones(network.count)
    sizes[accepted.clients] = np.maximum(as_numpy(accepted.updates)[:, 0], 1.0)
    weights: Floats = np.minimum(sizes / np.median(sizes), 1.0)
    return weights


def ask_curvatures(network: Network, rounds: int | None = None) -> Floats:
    """(m, 2): the curvatures that the clients report, NaN where the reply was refused."""
    form = np.zeros((1, 2))
    accepted = admit(network.curvatures(rounds), clients=network.count, clusters=1, round=-1, like=form)
    curvatures = np.full((network.count, 2), np.nan)
    curvatures[accepted.clients] = as_numpy(accepted.updates)
    return curvatures
