"""First centres that the server finds by itself: it asks every client once, and clusters the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.random import Generator

from coterie._src.aggregators import TrimmedMean, floor_count, trim_count
from coterie._src.arrays import Array, Bools, Floats, Ints, as_numpy, like
from coterie._src.init.robust import BELOW_HALF, leading_directions
from coterie._src.intake import Replies, admit
from coterie._src.network import Network

Find = Callable[[Floats, int, float, Generator, bool, bool], Floats]
"""From one point per client, k, the Byzantine fraction and two ways to leave points out to (k, d) centres.

See `init.robust`: whether removed outliers count towards the fraction, and whether points are reconsidered.
"""
STRAY_CLIENTS = 2
"""Honest clients that may join a cluster of Byzantine ones by chance."""
HALF = (0, 1)
"""The samples in two parts: one to compute on, one to judge by."""
WIDE = 10_000
"""Columns from which on the answers are clustered along their leading directions alone."""
DIRECTIONS = 64


class Points(NamedTuple):
    """One point per client, and the map from centres among them to centres in all d dimensions."""

    points: Floats  # (clients, r)
    embed: Callable[[Floats], Floats]  # (k, r) -> (k, d)


@dataclass(frozen=True)
class RobustStart:
    """First centres from one round of answers, of which a fraction may be Byzantine.

    Parameters
    ----------
    find : how the answers are clustered.
    question : ask for the `gradient` at a common origin, from where a step against it over the curvature estimates a
        client's optimum, or for its own `minimiser`.
    byzantine_fraction : the largest fraction of Byzantine clients to expect; below the smallest cluster's.
    clusters : k, or None to find that out, up to `max_clusters`.
    curvature : that a gradient is divided by.
    ridge : of the minimisers.
    origin : (1, d), where gradients are asked for; None for 0.
    shared : so many leading coordinates get one value for all clusters (see `Server.shared`).
    """

    find: Find
    question: Literal["gradient", "minimiser"]
    byzantine_fraction: float
    clusters: int | None
    max_clusters: int = 20
    curvature: float = 2.0
    ridge: float = 0.0
    origin: Array | None = None
    shared: int = 0

    def __call__(self, network: Network, example: Array, rng: Generator) -> Array:
        """(k, d) centres of the kind and dtype of `example` (…, d).

        Two ways to leave points out give two candidates, and the clients' losses decide between them. If the better one
        has a cluster no larger than the Byzantine clients may be, it may be theirs, and two true ones share a centre;
        then there are two candidates more, from points that are not reconsidered once they are left out, if they have
        clearly smaller losses.
        """
        clusters = self._count(network, example, rng) if self.clusters is None else self.clusters
        points, byzantine = self._points(network, example, clusters), self._byzantine_count(network)
        candidates = self._candidates(points, clusters, byzantine, rng)
        judged = _candidate_losses(network, candidates, example)
        lowest = _lowest(_losses(judged), byzantine)
        best, smallest = candidates[lowest], judged[lowest].sizes.min()
        if clusters > 1 and byzantine and smallest <= byzantine + STRAY_CLIENTS:
            others = self._candidates(points, clusters, byzantine, rng, reconsider=False)
            losses = _losses(_candidate_losses(network, [best, *others], example))
            other = _lowest(losses[:, 1:], byzantine)
            gain = losses[:, 0] - losses[:, 1 + other]
            if _location(gain, byzantine) > _standard_error(gain, byzantine):
                best = others[other]
        if self.shared:
            best[:, : self.shared] = best[:, : self.shared].mean(axis=0)
        return like(best, example)

    def _byzantine_count(self, network: Network) -> int:
        """How many there may be; they answer, whoever else is silent or refused."""
        return floor_count(self.byzantine_fraction, network.count)

    def _candidates(
        self, points: Points, clusters: int, byzantine: int, rng: Generator, reconsider: bool = True
    ) -> list[Floats]:
        """One with removed outliers counted towards the Byzantine fraction, and one without."""
        settings = clusters, _fraction(byzantine, len(points.points)), rng
        found = [self.find(points.points, *settings, outliers_count, reconsider) for outliers_count in (True, False)]
        return [points.embed(centres) for centres in found]

    def _points(self, network: Network, example: Array, fewest: int, part: tuple[int, int] | None = None) -> Points:
        """One point for each well-formed answer."""
        origin = 0 * example[:1, :] if self.origin is None else self.origin
        by_gradient = self.question == "gradient"
        if by_gradient:
            replies = network.gradients(origin, -1, part=part)
        else:
            replies = network.minimisers(origin, self.ridge, part)
        accepted = admit(replies, clients=network.count, clusters=1, round=-1, like=origin)
        if len(accepted.clients) < fewest:
            raise ValueError(f"a robust start needs at least {fewest} well-formed answers, got {len(accepted.clients)}")
        middle = as_numpy(origin).astype(np.float64)
        if origin.shape[1] < WIDE:
            found = as_numpy(accepted.updates).astype(np.float64)
            return Points(middle - found / self.curvature if by_gradient else found, lambda centres: centres)
        clusters = self.max_clusters if self.clusters is None else self.clusters
        points, embed = leading_directions(accepted.updates, max(DIRECTIONS, 8 * clusters))
        return Points(points, (lambda centres: middle - embed(centres) / self.curvature) if by_gradient else embed)

    def _count(self, network: Network, example: Array, rng: Generator) -> int:
        """How many clusters there are, judged by samples that the centres were not made from.

        For k = 1, 2, … the centres come from one half of every client's samples; a client chooses one by that half,
        too, and the loss there on the other half counts. A number is allowed if every cluster holds more clients than
        may be Byzantine; of these it is the smallest that comes within one standard error of the lowest trimmed mean
        loss. So Byzantine clients that pretend to be a cluster get none: it is no larger than they are, and lowers
        no other client's loss. Where they have a centre all the same, a true cluster may be found only with one centre
        more; so for a number that is not allowed, what is left of more centres without the clusters that are too small
        is a candidate.
        """
        points, byzantine = self._points(network, example, 1, HALF), self._byzantine_count(network)
        largest = max(1, min(self.max_clusters, len(points.points) - byzantine))
        candidates = [found for k in range(1, largest + 1) for found in self._candidates(points, k, byzantine, rng)]
        small = byzantine + STRAY_CLIENTS if byzantine else 0
        judged = _candidate_losses(network, candidates, example, HALF)
        fewer = [one.without(one.sizes <= small) for one in judged if (one.sizes > small).any()]
        allowed = [one for one in judged if one.count == 1 or one.sizes.min() > small]
        known = {one.count for one in allowed}
        allowed += [one for one in fewer if one.count not in known and one.sizes.min() > small]
        allowed.sort(key=lambda one: one.count)
        losses = _losses(allowed)
        worse = losses - losses[:, [_lowest(losses, byzantine)]]
        near = [_location(more, byzantine) <= _standard_error(more, byzantine) for more in worse.T]
        return allowed[near.index(True)].count  # the best itself is no worse, so there is one


@dataclass(frozen=True)
class CandidateLosses:
    """The clients' losses at k candidate centres: (clients, k) to choose one by, and to judge that one by."""

    choosing: Floats
    judging: Floats

    @property
    def count(self) -> int:
        return int(self.choosing.shape[1])

    @cached_property
    def chosen(self) -> Ints:
        """(clients,): every client's best centre."""
        return np.asarray(self.choosing.argmin(axis=1))

    @property
    def losses(self) -> Floats:
        """(clients,): at the centre that was chosen."""
        return self.judging[np.arange(len(self.chosen)), self.chosen]

    @property
    def sizes(self) -> Ints:
        """(k,): how many chose each centre."""
        return np.bincount(self.chosen, minlength=self.count)

    def without(self, dropped: Bools) -> CandidateLosses:
        """The same clients without some of the centres, (k,)."""
        return CandidateLosses(self.choosing[:, ~dropped], self.judging[:, ~dropped])


def _losses(judged: Sequence[CandidateLosses]) -> Floats:
    """(clients, candidates)."""
    return np.stack([one.losses for one in judged], axis=1)


def _candidate_losses(
    network: Network, candidates: Sequence[Floats], example: Array, part: tuple[int, int] | None = None
) -> list[CandidateLosses]:
    """The clients' losses at each candidate, (k, d), asked for once for all.

    With a part the best centre is chosen on the samples that the centres were made from and judged on the others: a
    choice on the samples that judge it would make every further centre look like a gain.
    """
    broadcast = like(np.concatenate(candidates), example)
    form = broadcast[:, 0][None, :]
    judging = _answers(network, network.losses(broadcast, part), form)
    choosing = judging if part is None else _answers(network, network.losses(broadcast, part, computing=True), form)
    answered = np.isfinite(judging).all(axis=1) & np.isfinite(choosing).all(axis=1)
    if not answered.any():
        raise ValueError("a robust start needs well-formed answers, got none")
    ends = np.cumsum([len(centres) for centres in candidates])[:-1]
    parts = (np.split(answers[answered], ends, axis=1) for answers in (choosing, judging))
    return [CandidateLosses(*both) for both in zip(*parts, strict=True)]


def _answers(network: Network, replies: Replies, form: Array) -> Floats:
    """(m, …): the answers of all clients, not a number where one was refused."""
    accepted = admit(replies, clients=network.count, clusters=1, round=-1, like=form)
    found = np.full((network.count, form.shape[1]), np.nan)
    found[accepted.clients] = as_numpy(accepted.updates)
    return found


def _fraction(byzantine: int, answers: int) -> float:
    """Of so many answers, less than half."""
    return min(byzantine / answers, BELOW_HALF)


def _lowest(losses: Floats, byzantine: int) -> int:
    """Which column has the lowest trimmed mean."""
    return int(np.argmin([_location(column, byzantine) for column in losses.T]))


def _location(values: Floats, byzantine: int) -> float:
    return float(TrimmedMean(_fraction(byzantine, len(values)))(values[:, None])[0])


def _standard_error(values: Floats, byzantine: int) -> float:
    """Of a trimmed mean, by the winsorised variance: the values that are trimmed do not decide it, either."""
    trim = _fraction(byzantine, len(values))
    ranked, cut = np.sort(values), trim_count(len(values), trim)
    low, high = ranked[cut], ranked[-1 - cut]
    return float(np.clip(values, low, high).std() / ((1 - 2 * trim) * np.sqrt(len(values))))
