"""First centres that the server finds by itself: it asks, and clusters the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.random import Generator

from coterie._src.aggregators import trim_count, trimmed_mean
from coterie._src.algorithms.base import Exchange, Network, State
from coterie._src.algorithms.descent import ClusteredDescent
from coterie._src.arrays import Array, Bools, Floats, Ints, as_numpy, like
from coterie._src.init.robust import BELOW_HALF, narrowed
from coterie._src.intake import Replies, admit

Find = Callable[[Floats, int, float, Generator, bool, bool], Floats]
"""From one point per client, k, the Byzantine share, thrift and forgiveness to (k, d) centres; see `initialise`."""
STRAYS = 2
"""Honest clients who may join a cluster of liars by chance."""
HALF = (0, 1)
"""The samples in two parts: one to compute on, one to judge by."""


WIDE = 10_000
"""Columns from which on the answers are looked at along their leading directions alone."""
DIRECTIONS = 64


class Points(NamedTuple):
    """Where the clients stand, and the way from centres among them to centres in all d dimensions."""

    places: Floats  # (clients, r)
    back: Callable[[Floats], Floats]  # (k, r) -> (k, d)


@dataclass(frozen=True)
class RobustStart:
    """First centres from one round of answers, of which a share may be lies.

    find: how the answers are clustered. ask: for the `gradient` at a common origin, from where a step against it over
    the curvature sketches a client's optimum, or for its own `minimiser`. origin: (1, d), or None for 0. byzantine: the
    largest share of liars to expect; it must lie below the smallest cluster's. clusters: k, or None to find that out,
    up to `most`. shared: so many leading coordinates get one value for all clusters (see `Server.shared`).
    """

    find: Find
    ask: Literal["gradient", "minimiser"]
    byzantine: float
    clusters: int | None
    most: int = 20
    curvature: float = 2.0
    ridge: float = 0.0
    origin: Array | None = None
    shared: int = 0

    def __call__(self, network: Network, example: Array, rng: Generator) -> Array:
        """(k, d) centres of the kind and dtype of `example` (…, d).

        Two ways to leave points out give two candidates, and the clients' losses decide between them. If the better one
        has a cluster no larger than the liars may be, it may be theirs, and two true ones share a centre; then there
        are two candidates more, from points that once left out stay out, if they have clearly smaller losses.
        """
        clusters = self._count(network, example, rng) if self.clusters is None else self.clusters
        points, liars = self._points(network, example, clusters), self._liars(network)
        candidates = self._candidates(points, clusters, liars, rng)
        ballots = _ballots(network, candidates, example)
        least = _least(_losses(ballots), liars)
        best, smallest = candidates[least], ballots[least].sizes.min()
        if clusters > 1 and liars and smallest <= liars + STRAYS:
            others = self._candidates(points, clusters, liars, rng, forgiving=False)
            losses = _losses(_ballots(network, [best, *others], example))
            other = _least(losses[:, 1:], liars)
            gain = losses[:, 0] - losses[:, 1 + other]
            if _location(gain, liars) > _standard_error(gain, liars):
                best = others[other]
        if self.shared:
            best[:, : self.shared] = best[:, : self.shared].mean(axis=0)
        return like(best, example)

    def _liars(self, network: Network) -> int:
        """How many there may be; they answer, whoever else is silent or refused."""
        return int(self.byzantine * network.count + 1e-9)

    def _candidates(
        self, points: Points, clusters: int, liars: int, rng: Generator, forgiving: bool = True
    ) -> list[Floats]:
        settings = clusters, _share(liars, len(points.places)), rng
        found = [self.find(points.places, *settings, thrifty, forgiving) for thrifty in (True, False)]
        return [points.back(centres) for centres in found]

    def _points(self, network: Network, example: Array, least: int, part: tuple[int, int] | None = None) -> Points:
        """One point for each well-formed answer."""
        origin = 0 * example[:1, :] if self.origin is None else self.origin
        ask = self.ask == "gradient"
        replies = network.gradients(origin, -1, part=part) if ask else network.minimisers(origin, self.ridge, part)
        accepted = admit(replies, clients=network.count, clusters=1, round=-1, like=origin)
        if len(accepted.clients) < least:
            raise ValueError(f"a robust start needs at least {least} well-formed answers, got {len(accepted.clients)}")
        middle = as_numpy(origin).astype(np.float64)
        if origin.shape[1] < WIDE:
            found = as_numpy(accepted.updates).astype(np.float64)
            return Points(middle - found / self.curvature if ask else found, lambda centres: centres)
        most = self.most if self.clusters is None else self.clusters
        places, back = narrowed(accepted.updates, max(DIRECTIONS, 8 * most))
        return Points(places, (lambda centres: middle - back(centres) / self.curvature) if ask else back)

    def _count(self, network: Network, example: Array, rng: Generator) -> int:
        """How many clusters there are, judged by samples that the centres were not made from.

        For k = 1, 2, … the centres come from one half of every client's samples; a client chooses one by that half,
        too, and the loss there on the other half counts. A number is allowed if every cluster holds more clients than
        may be liars; of these it is the smallest that comes within one standard error of the least trimmed mean loss.
        So liars who pose as a cluster get none: it is no larger than they are, and saves nobody else a loss. Where they
        have a centre all the same, a true cluster may be found only with one centre more; so for a number that is not
        allowed, what is left of more centres without the clusters that are too small may stand.
        """
        points, liars = self._points(network, example, 1, HALF), self._liars(network)
        most = max(1, min(self.most, len(points.places) - liars))
        candidates = [found for k in range(1, most + 1) for found in self._candidates(points, k, liars, rng)]
        small = liars + STRAYS if liars else 0
        asked = _ballots(network, candidates, example, HALF)
        fewer = [ballot.without(ballot.sizes <= small) for ballot in asked if (ballot.sizes > small).any()]
        allowed = [ballot for ballot in asked if ballot.count == 1 or ballot.sizes.min() > small]
        known = {ballot.count for ballot in allowed}
        allowed += [ballot for ballot in fewer if ballot.count not in known and ballot.sizes.min() > small]
        allowed.sort(key=lambda ballot: ballot.count)
        losses = _losses(allowed)
        worse = losses - losses[:, [_least(losses, liars)]]
        near = [_location(more, liars) <= _standard_error(more, liars) for more in worse.T]
        return allowed[near.index(True)].count  # the best itself is no worse, so there is one


@dataclass(frozen=True)
class Ballot:
    """What the clients say to k centres: (clients, k) losses, by which they choose one, and by which that is judged."""

    choosing: Floats
    judging: Floats

    @property
    def count(self) -> int:
        return int(self.choosing.shape[1])

    @cached_property
    def chosen(self) -> Ints:
        """(clients,): everybody's best centre."""
        return np.asarray(self.choosing.argmin(axis=1))

    @property
    def losses(self) -> Floats:
        """(clients,): at the centre that was chosen."""
        return self.judging[np.arange(len(self.chosen)), self.chosen]

    @property
    def sizes(self) -> Ints:
        """(k,): how many chose each centre."""
        return np.bincount(self.chosen, minlength=self.count)

    def without(self, dropped: Bools) -> Ballot:
        """The same clients where some of the centres, (k,), are gone."""
        return Ballot(self.choosing[:, ~dropped], self.judging[:, ~dropped])


def _losses(ballots: Sequence[Ballot]) -> Floats:
    """(clients, ballots)."""
    return np.stack([ballot.losses for ballot in ballots], axis=1)


def _ballots(
    network: Network, candidates: Sequence[Floats], example: Array, part: tuple[int, int] | None = None
) -> list[Ballot]:
    """What the clients say to each candidate, (k, d), asked once for all.

    With a part the best centre is chosen on the samples that the centres were made from and judged on the others: a
    choice on the samples that judge it would make every further centre look like a gain.
    """
    broadcast = like(np.concatenate(candidates), example)
    form = broadcast[:, 0][None, :]
    judging = _answers(network, network.losses(broadcast, part), form)
    choosing = judging if part is None else _answers(network, network.losses(broadcast, part, computing=True), form)
    heard = np.isfinite(judging).all(axis=1) & np.isfinite(choosing).all(axis=1)
    if not heard.any():
        raise ValueError("a robust start needs well-formed answers, got none")
    ends = np.cumsum([len(centres) for centres in candidates])[:-1]
    parts = (np.split(answers[heard], ends, axis=1) for answers in (choosing, judging))
    return [Ballot(*both) for both in zip(*parts, strict=True)]


def _answers(network: Network, replies: Replies, form: Array) -> Floats:
    """(m, …): the answers of all clients, not a number where one was refused."""
    accepted = admit(replies, clients=network.count, clusters=1, round=-1, like=form)
    found = np.full((network.count, form.shape[1]), np.nan)
    found[accepted.clients] = as_numpy(accepted.updates)
    return found


def _share(liars: int, answers: int) -> float:
    """Of so many answers, less than half."""
    return min(liars / answers, BELOW_HALF)


def _least(losses: Floats, liars: int) -> int:
    """Which column has the least trimmed mean."""
    return int(np.argmin([_location(column, liars) for column in losses.T]))


def _location(values: Floats, liars: int) -> float:
    return float(trimmed_mean(values[:, None], _share(liars, len(values)))[0])


def _standard_error(values: Floats, liars: int) -> float:
    """Of a trimmed mean, by the winsorised variance: whoever is trimmed has no say in it, either."""
    trim = _share(liars, len(values))
    ranked, cut = np.sort(values), trim_count(len(values), trim)
    low, high = ranked[cut], ranked[-1 - cut]
    return float(np.clip(values, low, high).std() / ((1 - 2 * trim) * np.sqrt(len(values))))


@dataclass(frozen=True)
class SelfStarting:
    """A descent that finds its own first centres; the ones that it is given tell only the kind of array.

    With the filter as its rule, weights, an automatic step and an automatic stop it is the method `coterie`.
    """

    descent: ClusteredDescent
    start: RobustStart

    @property
    def rounds(self) -> int:
        return self.descent.rounds

    def init(self, network: Network, start: Array, rng: Generator) -> State:
        return self.descent.init(network, self.start(network, start, rng), rng)

    def step(self, state: State, network: Network, rng: Generator) -> tuple[State, Exchange]:
        return self.descent.step(state, network, rng)
