"""Algorithm 1 of the paper: Byzantine-Robust IFCA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import Generator

from coterie._src.aggregators import median
from coterie._src.algorithms.base import RoundInfo, State
from coterie._src.arrays import Array, Floats, Ints, as_numpy
from coterie._src.init.asking import RobustStart
from coterie._src.intake import Accepted, admit
from coterie._src.network import Network
from coterie._src.server import Server, Step, automatic_steps, take_step

PATIENCE = 10
"""Rounds without a smaller move after which a descent that oscillates has converged: a rule that removes rows may."""


@dataclass(frozen=True)
class ClusteredDescent:
    """Algorithm 1: broadcast, collect, aggregate per cluster, projected step.

    With the median as the server's rule it is Option I, with the trimmed mean Option II, with the mean IFCA, with one
    centre a single global model, with a spectral filter and a robust start the method `coterie`.

    Parameters
    ----------
    server : the rule and what else the server does with the replies of a round.
    rounds : T, at most.
    step_size : γ, or None for a safe share of 1/L judged from the clients (`server.automatic_steps`).
    tolerance : stop when no centre moves by more than this in a round; 0: never early.
    resample : the variant of Section 5, fresh samples in every round; needs n_i ≥ 2·rounds.
    empty : what becomes of a cluster that no client chose: `keep` its centre, or ask one `random-client` for its
        gradient there and follow that alone, as the paper's published code does.
    precision : stop when every move is less than this share of its own standard error, or when all are less than that
        error and no longer get smaller; 0: never.
    weighted : a client counts by its number of samples, but no more than the median client, since it may report a
        false one; needs a rule that takes weights.
    participation : the share of the clients that a round asks, drawn anew in each; the others are silent.
    init : finds the first centres by asking the clients; the given ones tell only the kind of array. None: the given.
    labels : (m,), clusters that are known and fixed, -1 for a client that counts in none; None: clients choose.
    """

    server: Server
    rounds: int = 300
    step_size: float | None = None
    tolerance: float = 0.0
    resample: bool = False
    empty: Literal["keep", "random-client"] = "keep"
    precision: float = 0.0
    weighted: bool = False
    participation: float = 1.0
    init: RobustStart | None = None
    labels: Ints | None = None

    def initial_state(self, network: Network, start: Array, rng: Generator) -> State:
        if self.init is not None:
            start = self.init(network, start, rng)
        rounds = self.rounds if self.resample and self.rounds else None
        curvatures = None if self.step_size is not None else ask_curvatures(network, rounds)
        weights = ask_weights(network) if self.weighted else None
        return State(0, start, self.labels, curvatures, weights)

    def step(self, state: State, network: Network, rng: Generator) -> tuple[State, RoundInfo]:
        # broadcast the centres; clients choose one and reply with their update; admit what is well-formed
        part = (state.round, self.rounds) if self.resample else None
        accepted = _collect(network, state, state.fixed, part, self._participants(network.count, rng))
        substitutes = self._substitutes(network, state, accepted, part, rng)
        # aggregate per cluster and take a projected step
        weights = None if state.weights is None else state.weights[accepted.clients]
        step_sizes = self._step_sizes(state, accepted)
        step = take_step(self.server, state.centres, accepted, step_sizes, substitutes, weights, state.memory)
        after = self._with_progress(state, step, accepted, step_sizes)
        return after, self._info(after, step, accepted)

    def _participants(self, clients: int, rng: Generator) -> Ints | None:
        """The clients of a round, in their order; None for all."""
        if self.participation >= 1:
            return None
        return np.sort(rng.choice(clients, max(1, round(self.participation * clients)), replace=False))

    def _substitutes(
        self, network: Network, state: State, accepted: Accepted, part: tuple[int, int] | None, rng: Generator
    ) -> Accepted | None:
        """One client each, at random, for the clusters that no client chose."""
        if self.empty == "keep" or not len(accepted.clients):
            return None
        empty = np.flatnonzero(np.bincount(accepted.labels, minlength=state.centres.shape[0]) == 0)
        if not len(empty):
            return None
        drawn = rng.permutation(accepted.clients)[: len(empty)]
        labels = np.full(network.count, -1)
        labels[drawn] = empty[: len(drawn)]
        return _collect(network, state, labels, part)

    def _step_sizes(self, state: State, accepted: Accepted) -> Floats:
        clusters = state.centres.shape[0]
        if state.curvatures is None:
            assert self.step_size is not None
            return np.full(clusters, self.step_size)
        return automatic_steps(state.curvatures[accepted.clients], accepted.labels, clusters)

    def _with_progress(self, state: State, step: Step, accepted: Accepted, step_sizes: Floats) -> State:
        """The state after a step; the largest move in standard errors counts if it is the smallest so far by a tenth.

        A move of more than its error begins the count of rounds anew: something has happened.
        """
        smallest, since = state.smallest_move, state.rounds_since
        if self.precision > 0 and len(accepted.clients) and not step.rejected.any():
            errors = standard_errors(accepted, step_sizes)
            move = float(np.max(np.where(step.moves > 0, step.moves / np.maximum(errors, 1e-300), 0.0)))
            smallest, since = (move, 0) if move >= 1 or move < 0.9 * smallest else (smallest, since + 1)
        return state._replace(
            round=state.round + 1,
            centres=step.centres,
            smallest_move=smallest,
            rounds_since=since,
            memory=step.memory,
        )

    def _info(self, after: State, step: Step, accepted: Accepted) -> RoundInfo:
        movement = float(np.maximum.reduce(step.moves))  # not a number where one is not
        at_rest = 0 < self.tolerance >= movement
        precise = after.smallest_move <= self.precision
        oscillates = after.rounds_since >= PATIENCE and after.smallest_move < 1
        return RoundInfo(
            labels=accepted.by_client(accepted.labels, -1),
            verdicts=accepted.verdicts,
            trimmed=None if step.trimmed is None else accepted.by_client(step.trimmed, np.nan),
            sizes=step.sizes,
            movement=movement,
            rejected=int(np.count_nonzero(step.rejected)),
            unknown_senders=accepted.unknown_senders,
            # a round without a reply says nothing about convergence
            converged=len(accepted.clients) > 0 and (at_rest or precise or oscillates),
        )


def _collect(
    network: Network,
    state: State,
    labels: Ints | None,
    part: tuple[int, int] | None,
    participants: Ints | None = None,
) -> Accepted:
    """One broadcast to the clients and the replies that pass; given labels count instead of the claimed ones."""
    replies = network.gradients(state.centres, state.round, labels, part, participants)
    clusters = state.centres.shape[0]
    accepted = admit(replies, clients=network.count, clusters=clusters, round=state.round, like=state.centres)
    if labels is None:
        return accepted
    counted = labels[accepted.clients] >= 0
    clients = accepted.clients[counted]
    return accepted._replace(clients=clients, labels=labels[clients], updates=accepted.updates[counted])


def standard_errors(accepted: Accepted, step_sizes: Floats) -> Floats:
    """(k,): γ_j √(q_j/c_j), with q_j the median squared distance of the c_j replies to their median.

    One reply shows no noise, nor do none: the q of the other clusters, their median, stands for their own.
    """
    counts, squares = np.bincount(accepted.labels, minlength=len(step_sizes)), np.zeros(len(step_sizes))
    updates = as_numpy(accepted.updates)
    for j in np.flatnonzero(counts > 1).tolist():
        rows = updates[accepted.labels == j]
        squares[j] = np.median(((rows - as_numpy(median(rows))) ** 2).sum(axis=1))
    if (counts > 1).any():
        squares[counts <= 1] = np.median(squares[counts > 1])
    errors: Floats = step_sizes * np.sqrt(squares / np.maximum(counts, 1))
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
