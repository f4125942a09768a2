"""A federation simulated in one process: the clients with their adversary, and the loop over rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng

from coterie._src.aggregators import Aggregator
from coterie._src.algorithms import Algorithm, RoundInfo, State
from coterie._src.arrays import Array, Bools, Ints, as_numpy, cast, like, namespace
from coterie._src.attacks import Attack, Forgery, Prospect, Question, View
from coterie._src.client import AssignmentCache, assign, respond
from coterie._src.coordinates import Coordinates
from coterie._src.data import Truth
from coterie._src.intake import Replies
from coterie._src.metrics import agreement, cluster_distances
from coterie._src.network import Network
from coterie._src.tasks import Task


def stream(seed: int, trial: int, purpose: str) -> Generator:
    """The random generator of one trial for one purpose ("data", "start", …).

    Streams are keyed by name, so a result depends neither on which other streams were drawn from, nor on
    the order of the trials, nor on the number of workers.
    """
    return default_rng(SeedSequence(seed, spawn_key=(trial, crc32(purpose.encode()))))


@dataclass
class KnownServer:
    """What an adversary knows about the server: its algorithm, and its state before the present round.

    state: None before the first round. start: the first centres, from which the algorithm begins.
    """

    algorithm: Algorithm
    start: Array
    state: State | None = None


@dataclass(frozen=True)
class SimulatedNetwork:
    """m simulated clients; the attack replaces the replies of the Byzantine ones.

    Parameters
    ----------
    task : what the clients compute on their data, before an attack poisons those of the Byzantine ones.
    is_byzantine : (m,).
    attack : what the Byzantine clients send instead; None: their honest replies.
    rng : the adversary's random generator.
    aggregate : the server's rule, which the adversary knows; an attack of strength "worst" needs it.
    cache : the clients' assignment cache; None for clients that are asked once.
    truth : the true clusters and centres, if the adversary knows them.
    memory : what the attack keeps from question to question: every network has its own, and so every method of a trial.
    server : the server, if the adversary knows it.
    """

    task: Task
    is_byzantine: Bools
    attack: Attack | None
    rng: Generator
    aggregate: Aggregator | None = None
    cache: AssignmentCache | None = field(default_factory=AssignmentCache, repr=False, compare=False)
    truth: Truth | None = None
    memory: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    server: KnownServer | None = field(default=None, repr=False, compare=False)

    @cached_property
    def count(self) -> int:
        return self.task.clients.count

    @cached_property
    def working_task(self) -> Task:
        """What the clients compute, the Byzantine ones on the data that the attack gives them."""
        return self.task if self.attack is None else self.attack.poisoned(self.task, self.is_byzantine)

    @cached_property
    def _everyone(self) -> Ints:
        return np.arange(self.count)

    @cached_property
    def _byzantine(self) -> Ints:
        return np.flatnonzero(self.is_byzantine)

    @cached_property
    def _byzantine_task(self) -> Task:
        return self.working_task.on(self.working_task.clients.take(self._byzantine))

    @cached_property
    def _byzantine_cache(self) -> AssignmentCache | None:
        return None if self.cache is None else AssignmentCache()

    def gradients(
        self,
        centres: Array,
        round: int,
        labels: Ints | None = None,
        part: tuple[int, int] | None = None,
        asked: Ints | None = None,
        coordinates: Coordinates | None = None,
    ) -> Replies:
        if asked is not None:
            own = None if labels is None else labels[asked]
            return self._renamed(self._few(asked).gradients(centres, round, own, part, None, coordinates), asked)
        fixed = None if labels is None else np.maximum(labels, 0)
        honest = respond(self.working_task, centres, fixed, part, self.cache)
        updates = cast(honest.updates, centres)
        return self._send(round, centres, honest.labels, updates, part, labels is not None, coordinates=coordinates)

    def minimisers(
        self, like: Array, ridge: float, part: tuple[int, int] | None = None, asked: Ints | None = None
    ) -> Replies:
        if asked is not None:
            return self._renamed(self._few(asked).minimisers(like, ridge, part), asked)
        return self._report(cast(self._on(part, 1).minimisers(ridge), like), "minimiser")

    def losses(
        self,
        centres: Array,
        part: tuple[int, int] | None = None,
        computing: bool = False,
        asked: Ints | None = None,
    ) -> Replies:
        if asked is not None:
            return self._renamed(self._few(asked).losses(centres, part, computing), asked)
        task = self._on(part, int(computing))
        found = task.losses(centres)
        xp = namespace(found)
        largest = float(xp.finfo(found.dtype).max)
        found = xp.where(xp.isfinite(found), found, xp.full_like(found, largest))
        return self._report(found, "loss", centres, None if part is None else task)

    def curvatures(self, rounds: int | None = None, asked: Ints | None = None) -> Replies:
        if asked is not None:
            return self._renamed(self._few(asked).curvatures(rounds), asked)
        return self._report(self._on(None if rounds is None else (0, rounds), 1).curvatures(), "curvature")

    def hessians(self, centres: Array, labels: Ints, asked: Ints | None = None) -> Replies:
        if asked is not None:
            return self._renamed(self._few(asked).hessians(centres, labels), asked)
        return self._report(self.working_task.hessians(centres, np.maximum(labels, 0)), "hessian")

    def sizes(self, asked: Ints | None = None) -> Replies:
        if asked is not None:
            return self._renamed(self._few(asked).sizes(), asked)
        return self._report(self.task.clients.sizes[:, None].astype(np.float64), "size")

    def rehearse(self, attack: Callable[[View], Forgery], rounds: int) -> Prospect:
        """Where the server would be after some more rounds under another attack; the real one learns nothing of it.

        The server's random numbers are not known: those of the rehearsal are always the same.
        """
        assert self.server is not None
        assert self.truth is not None
        other = replace(self, attack=Attack(attack), rng=default_rng(0), server=None, memory={}, cache=None)
        rng, algorithm = default_rng(0), self.server.algorithm
        state = self.server.state or algorithm.initial_state(other, self.server.start, rng)
        converged, movement = False, math.inf
        for _ in range(rounds):
            if converged or state.round >= algorithm.rounds:
                break
            state, info = algorithm.step(state, other, rng)
            converged, movement = info.converged, info.movement
        labels = choices(self.task, state)
        found = cluster_distances(state.centres, self.truth.centres)
        left = state.distance_left if math.isfinite(state.distance_left) else movement
        ari = agreement(labels, self.truth)["ari"]
        return Prospect(float(found.mean()), float(found.max()), ari, left, converged)

    def _few(self, asked: Ints) -> SimulatedNetwork:
        """The clients that are asked as a network; they keep no bounds, and the adversary cannot rehearse with them."""
        chosen = self.task.on(self.task.clients.take(asked))
        truth = None if self.truth is None else replace(self.truth, labels=self.truth.labels[asked])
        byzantine = self.is_byzantine[asked]
        return replace(self, task=chosen, is_byzantine=byzantine, cache=None, truth=truth, server=None)

    def _renamed(self, replies: Replies, asked: Ints) -> Replies:
        """The replies of `_few` under the numbers that their senders have here."""
        senders = asked[np.asarray(replies.clients)]
        return replace(replies, clients=senders if isinstance(replies.clients, np.ndarray) else senders.tolist())

    def _on(self, part: tuple[int, int] | None, half: int) -> Task:
        """The task on the samples of round t of T: those for choosing a cluster (half 0), or for updates (half 1)."""
        task = self.working_task
        return task if part is None else task.on(task.clients.part(2 * part[0] + half, 2 * part[1]))

    def _report(
        self, rows: Array, question: Question, losses_at: Array | None = None, on: Task | None = None
    ) -> Replies:
        """on: the task on a part of the samples, where the question is about one."""
        labels = np.zeros(self.count, dtype=np.int64)
        return self._send(-1, None, labels, rows, question=question, losses_at=losses_at, on=on)

    def _send(
        self,
        round: int,
        centres: Array | None,
        labels: Ints,
        updates: Array,
        part: tuple[int, int] | None = None,
        fixed: bool = False,
        question: Question = "gradient",
        coordinates: Coordinates | None = None,
        losses_at: Array | None = None,
        on: Task | None = None,
    ) -> Replies:
        clients, byzantine = self._everyone, self._byzantine
        rounds = np.empty_like(clients)
        rounds.fill(round)
        if self.attack is None or not len(byzantine):
            return Replies(clients, rounds, labels, updates)
        task, cache = self._byzantine_task, self._byzantine_cache
        if part is not None:  # Byzantine clients also compute on the samples of this round
            task, cache = task.on(task.clients.part(2 * part[0] + 1, 2 * part[1])), None
        if on is not None:
            task, cache = on.on(on.clients.take(byzantine)), None
        seen = updates if coordinates is None else coordinates.updates(as_numpy(updates))
        view = View(
            round, centres, labels, seen, self.is_byzantine, task, self.aggregate, self.rng, fixed, question, cache,
            coordinates=coordinates, truth=self.truth, memory=self.memory,
            rehearse=None if self.server is None else self.rehearse, losses_at=losses_at,
        )  # fmt: skip
        forged = self.attack(view)
        if coordinates is not None:
            forged = _in_parameters(forged, coordinates, updates)
        if isinstance(forged.updates, type(updates)) and isinstance(forged.labels, np.ndarray):
            # labels and gradients are new arrays; other answers may be cached by the task, and are copied
            if question != "gradient":
                updates = namespace(updates).asarray(updates, copy=True)
            labels[byzantine], updates[byzantine] = forged.labels, forged.updates
            return Replies(clients, rounds, labels, updates)
        # malformed replies: one message per client, as from a network
        messages: list[list[Any]] = [clients.tolist(), rounds.tolist(), labels.tolist(), list(updates)]
        sent = [forged.rounds or [round] * len(byzantine), forged.labels, forged.updates]
        for column, values in zip(messages[1:], sent, strict=True):
            for client, value in zip(byzantine.tolist(), values, strict=True):
                column[client] = value
        if forged.repeated:
            for column in messages:
                column.extend([column[client] for client in byzantine.tolist()])
        return Replies(*messages)


def _in_parameters(forged: Forgery, coordinates: Coordinates, example: Array) -> Forgery:
    """Forged updates of the server's coordinates as gradients like those of the example; malformed ones unchanged."""
    if isinstance(forged.updates, np.ndarray):
        with np.errstate(invalid="ignore", over="ignore"):
            return forged._replace(updates=like(coordinates.gradients(forged.updates), example))

    def back(row: Any) -> Any:
        well_formed = isinstance(row, np.ndarray) and row.dtype.kind == "f" and row.shape == (coordinates.dim,)
        return like(coordinates.gradients(row[None])[0], example) if well_formed else row

    with np.errstate(invalid="ignore", over="ignore"):  # not finite on purpose
        return forged._replace(updates=[back(row) for row in forged.updates])


class Round(NamedTuple):
    """The state after a round, and the server's information about it (None for round 0, the start)."""

    state: State
    info: RoundInfo | None


def play(
    algorithm: Algorithm, network: Network, start: Array, rng: Generator, state: State | None = None
) -> Iterator[Round]:
    """Run an algorithm on a network, and yield every round, until its last round or convergence.

    state: the state to continue from; None: the start.
    """
    if state is None:
        state = algorithm.initial_state(network, start, rng)
        yield Round(state, None)
    for _ in range(state.round, algorithm.rounds):
        state, info = algorithm.step(state, network, rng)
        current = Round(state, info)
        yield current
        if done(algorithm, current):
            return


def done(algorithm: Algorithm, current: Round) -> bool:
    """Whether this was the last round."""
    converged = current.info is not None and current.info.converged
    return converged or current.state.round >= algorithm.rounds


def choices(task: Task, state: State) -> Ints:
    """(m,): the cluster of every client under the final centres: its own choice, or the server's fixed one."""
    return assign(task.losses(state.centres)) if state.fixed is None else state.fixed
