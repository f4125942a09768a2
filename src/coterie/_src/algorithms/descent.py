"""Algorithm 1 of the paper: Byzantine-Robust IFCA."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.random import Generator

from coterie._src.algorithms.base import RoundInfo, State
from coterie._src.algorithms.consistency import FirstUpdates, held_to_first
from coterie._src.algorithms.convergence import PATIENCE, progress
from coterie._src.algorithms.newton import SHARE, newton_step
from coterie._src.arrays import Array, Floats, Ints, as_numpy, like
from coterie._src.init.asking import RobustStart, chosen_centres
from coterie._src.init.conditioning import (
    LONGEST,
    MAX_NUMBERS,
    Conditioned,
    Conditioning,
    ask_conditioning,
    ask_sizes,
)
from coterie._src.init.sampling import Sample, draw_sample
from coterie._src.intake import Accepted, Verdict, admit, admit_asked
from coterie._src.network import Network, SomeClients
from coterie._src.server import Server, Step, take_step
from coterie._src.step_sizes import ask_curvatures, automatic_steps


@dataclass(frozen=True)
class ClusteredDescent:
    """Algorithm 1: broadcast, collect, aggregate per cluster, projected step.

    With the median as the server's rule it is Option I, with the trimmed mean Option II, with the mean IFCA, with one
    centre a single global model, with a spectral filter and a robust start the method `coterie`.

    Parameters
    ----------
    server : the rule and what else the server does with the replies of a round.
    rounds : T, at most.
    step_size : γ, or None for a safe share of 1/L judged from the clients (`step_sizes.automatic_steps`).
    tolerance : stop when no centre moves by more than this in a round; 0: never early.
    resample : the variant of Section 5, fresh samples in every round; needs n_i ≥ 2·rounds.
    empty : what becomes of a cluster that no client chose: `keep` its centre, or ask one `random-client` for its
        gradient there and follow that alone, as the paper's published code does.
    precision : stop when every centre is nearer to its end than this share of the standard error of a move, or when all
        moves are less than that error and no longer get smaller; 0: never.
    weighted : a client counts by its number of samples, but no more than the median client, since it may report a
        false one; needs a rule that takes weights.
    participation : the share of the clients that a round asks, drawn anew in each; the others are silent. The work and
        the memory of a round are those of the clients that it asks.
    max_age : replies that are up to so many rounds late count (see `fleet.Fleet`); in a rule that takes weights by
        1/√(1 + age).
    init : finds the first centres by asking the clients; the given ones tell only the kind of array. None: the given.
    labels : (m,), clusters that are known and fixed, -1 for a client that counts in none; None: clients choose.
    conditioned : whether the server asks for Hessians, and takes Newton steps in coordinates in which these are alike
        (`init.conditioning`): "no"; "constant" asks once, "varying" again and again, as for a loss that is not
        quadratic.
    max_byzantine : bound on the number of Byzantine clients, for these coordinates.
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
    max_age: int = 0
    init: RobustStart | None = None
    labels: Ints | None = None
    conditioned: Conditioned = "no"
    max_byzantine: int = 0

    def __post_init__(self) -> None:
        if self.max_age < 0 or (self.max_age and self.conditioned != "no"):
            raise ValueError(f"max_age must be at least 0, and 0 where conditioned, got {self.max_age}")

    def initial_state(self, network: Network, start: Array, rng: Generator) -> State:
        first = self._asked_first(network, start, rng)
        sizes = ask_sizes(first.network) if self.weighted or self.conditioned != "no" else None
        conditioning = None
        if self.conditioned != "no":
            assert sizes is not None
            conditioning = ask_conditioning(first.network, 0 * start[:1, :], None, sizes, first.byzantine)
        agreement = math.nan
        if self.init is not None:
            init = self.init if first.clients is None else replace(self.init, byzantine_fraction=first.fraction)
            start, agreement = init.search(first.network, start, rng, conditioning)
        rounds = self.rounds if self.resample and self.rounds else None
        asked = self.step_size is None and conditioning is None
        state = State(
            0,
            start,
            self.labels,
            ask_curvatures(network, rounds) if asked else None,
            conditioning=self._for_all(conditioning, first, network, start, rng),
            start_agreement=agreement,
        )
        if not self.weighted or sizes is None:
            return state
        if first.clients is None:
            return state._replace(weights=bounded_weights(sizes))
        if self.participation < 1:
            return state._replace(typical_size=float(np.median(sizes)))
        return state._replace(weights=bounded_weights(ask_sizes(network)))

    def _asked_first(self, network: Network, centres: Array, rng: Generator) -> Sample:
        """The clients that are asked for sizes and Hessians: a sample where these are too many, or come only once."""
        numbers = network.count * int(centres.shape[1]) ** 2
        if self.conditioned == "constant" and (self.participation < 1 or numbers > MAX_NUMBERS):
            return draw_sample(network, self.max_byzantine, rng)
        return Sample(network, None, self.max_byzantine)

    def step(self, state: State, network: Network, rng: Generator) -> tuple[State, RoundInfo]:
        # broadcast the centres; clients choose one and reply with their update; admit what is well-formed
        part = (state.round, self.rounds) if self.resample else None
        if self.conditioned != "no" and state.conditioning is None and state.curvatures is None:
            state = self._conditioned_again(state, network, rng)
        participants = self._participants(network.count, rng)
        accepted = _collect(network, state, state.fixed, part, participants, self.max_age)
        if state.conditioning is not None:
            return self._newton_step(state, network, accepted)
        substitutes = self._substitutes(network, state, accepted, part, rng)
        # aggregate per cluster and take a projected step
        weights, step_sizes = self._weights(state, accepted), self._step_sizes(state, accepted)
        step = take_step(self.server, state.centres, accepted, step_sizes, substitutes, weights, state.memory)
        after = self._after(state, step, accepted, step_sizes)
        return after, self._info(after, step, accepted)

    def _for_all(
        self, conditioning: Conditioning | None, first: Sample, network: Network, centres: Array, rng: Generator
    ) -> Conditioning | None:
        """The conditioning of the clients that were asked first as one of all clients."""
        if conditioning is None or first.clients is None:
            return conditioning
        if self.participation < 1:  # the others are asked for nothing before they take part
            return conditioning.of_clusters(chosen_centres(first.network, centres), int(centres.shape[0]))
        return conditioning.of_everyone(network, centres, chosen_centres(network, centres), rng)

    def _conditioned_again(self, state: State, network: Network, rng: Generator) -> State:
        """The state with coordinates; with curvatures where no Hessian can be used. After a restart, for example."""
        first = self._asked_first(network, state.centres, rng)
        sizes = ask_sizes(first.network)
        found = ask_conditioning(first.network, 0 * state.centres[:1, :], None, sizes, first.byzantine)
        curvatures = ask_curvatures(network) if found is None else None
        once = self.weighted and self.participation < 1 and first.clients is not None
        typical = float(np.median(sizes)) if once else 0.0
        conditioning = self._for_all(found, first, network, state.centres, rng)
        return state._replace(conditioning=conditioning, curvatures=curvatures, typical_size=typical, first=None)

    def _newton_step(self, state: State, network: Network, accepted: Accepted) -> tuple[State, RoundInfo]:
        """One step with the Hessians of the accepted clients, which are asked for again where they vary."""
        conditioning = state.conditioning
        assert conditioning is not None
        # in rounds 1, 3, 7, …, after a restart, and where the steps do not get shorter
        due = state.newton is None or (state.round + 1) & state.round == 0 or state.rounds_since > 0
        if self.conditioned == "varying" and state.round and due:
            labels = np.zeros(network.count, dtype=np.int64)
            labels[accepted.clients] = accepted.labels
            conditioning = conditioning.at(network, state.centres, labels)
            state = state._replace(conditioning=conditioning, newton=None)
        elif self.conditioned == "constant" and not self.resample and conditioning.means is None:
            state, accepted = _consistent(state, conditioning, accepted)
        step_size = SHARE if self.step_size is None else self.step_size
        longest = LONGEST if self.conditioned == "varying" else math.inf
        by_size = _by_size(network, state, accepted.clients)
        step, newton, rows = newton_step(self.server, state, accepted, step_size, longest, by_size)
        step_sizes = np.full(state.centres.shape[0], step_size)
        after = self._after(state, step, accepted._replace(updates=rows), step_sizes)._replace(newton=newton)
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

    def _weights(self, state: State, accepted: Accepted) -> Floats | None:
        """(rows,): by the numbers of samples and the ages; None: all the same."""
        weights = None if state.weights is None else state.weights[accepted.clients]
        if accepted.ages is None or not self.server.aggregate.takes_weights:
            return weights
        discounts: Floats = 1 / np.sqrt(1.0 + accepted.ages)
        return discounts if weights is None else weights * discounts

    def _step_sizes(self, state: State, accepted: Accepted) -> Floats:
        clusters = state.centres.shape[0]
        if state.curvatures is None:
            assert self.step_size is not None
            return np.array([self.step_size] * clusters)
        return automatic_steps(state.curvatures[accepted.clients], accepted.labels, clusters)

    def _after(self, state: State, step: Step, accepted: Accepted, step_sizes: Floats) -> State:
        """The state after a step."""
        smallest, since, left = state.smallest_move, state.rounds_since, math.inf
        if self.precision > 0:
            smallest, since, left = progress(state, step, accepted, step_sizes)
        return state._replace(
            round=state.round + 1,
            centres=step.centres,
            smallest_move=smallest,
            rounds_since=since,
            memory=step.memory,
            moves=step.moves,
            distance_left=left,
        )

    def _info(self, after: State, step: Step, accepted: Accepted) -> RoundInfo:
        movement = float(np.maximum.reduce(step.moves))  # not a number where one is not
        at_rest = 0 < self.tolerance >= movement
        precise = after.distance_left <= self.precision
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
            asked=accepted.asked,
        )


def _consistent(state: State, conditioning: Conditioning, accepted: Accepted) -> tuple[State, Accepted]:
    """The replies, and for clients whose reply contradicts their first one what follows from that; see `consistency`.

    The state has the first updates of the clients that sent one for the first time.
    """
    coordinates, clients, labels = conditioning.coordinates, accepted.clients, accepted.labels
    points, updates = coordinates.points(as_numpy(state.centres)), coordinates.updates(as_numpy(accepted.updates))
    first = state.first or FirstUpdates.none(len(conditioning.hessians), coordinates.dim)
    first = first.after(clients, points[labels], updates)
    state = state._replace(first=first)
    counted, held = held_to_first(conditioning, first, clients, labels, points, updates)
    if not held.any():
        return state, accepted
    rows, verdicts = as_numpy(accepted.updates).copy(), accepted.verdicts.copy()
    with np.errstate(over="ignore"):
        rows[held] = coordinates.gradients(counted[held])
    senders = clients[held]
    verdicts[senders if accepted.asked is None else np.searchsorted(accepted.asked, senders)] = Verdict.INCONSISTENT
    return state, accepted._replace(updates=like(rows, accepted.updates), verdicts=verdicts)


def _collect(
    network: Network,
    state: State,
    labels: Ints | None,
    part: tuple[int, int] | None,
    participants: Ints | None = None,
    max_age: int = 0,
) -> Accepted:
    """One broadcast to the clients and the replies that pass; given labels count instead of the claimed ones."""
    coordinates = None if state.conditioning is None else state.conditioning.coordinates
    replies = network.gradients(state.centres, state.round, labels, part, participants, coordinates)
    clusters = state.centres.shape[0]
    expected: dict[str, Any] = {"clusters": clusters, "round": state.round, "like": state.centres}
    if participants is None or max_age:  # late replies are those of other clients, too
        accepted = admit(replies, clients=network.count, max_age=max_age, **expected)
    else:
        accepted = admit_asked(replies, participants, **expected)
    if labels is None:
        return accepted
    counted = labels[accepted.clients] >= 0
    clients, ages = accepted.clients[counted], None if accepted.ages is None else accepted.ages[counted]
    return accepted._replace(clients=clients, labels=labels[clients], updates=accepted.updates[counted], ages=ages)


def _by_size(network: Network, state: State, clients: Ints) -> Floats | None:
    """(rows,): how much the clients of a round count by their numbers of samples; None where the state knows that."""
    if not state.typical_size or not len(clients):
        return None
    return bounded_weights(ask_sizes(SomeClients(network, clients)), state.typical_size)


def bounded_weights(sizes: Floats, typical: float | None = None) -> Floats:
    """(m,): n_i over the median of all, at most 1; typical: the median, if it is known.

    What a share α < ½ of false sizes can do at worst: the median is one between honest sizes, so that a client that
    claims 10¹² samples counts as the median client does, and honest clients with more samples than that count no less.
    """
    weights: Floats = np.minimum(sizes / (np.median(sizes) if typical is None else typical), 1.0)
    return weights


def ask_weights(network: Network) -> Floats:
    """(m,): the weights of the clients by their reported numbers of samples."""
    return bounded_weights(ask_sizes(network))
