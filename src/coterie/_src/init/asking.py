"""First centres that the server computes by clustering one answer of every client."""

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
"""(points, k, byzantine_fraction, rng, outliers_count, reconsider) -> (k, d) centres, from one point per client.

The two booleans are explained in `init.robust`: whether removed outliers count towards the fraction, and whether the
second pass considers all points again.
"""
STRAY_CLIENTS = 2
"""The number of honest clients that may choose the centre of Byzantine clients by chance."""
HALF = (0, 1)
"""The `part` for one round: one half of the samples to compute centres from, the other to evaluate them on."""
WIDE = 10_000
"""Answers with at least this many columns are projected onto their leading directions before they are clustered."""
DIRECTIONS = 64


class Points(NamedTuple):
    """One point per client, and the map from centres of these points to centres in all d dimensions."""

    points: Floats  # (clients, r)
    embed: Callable[[Floats], Floats]  # (k, r) -> (k, d)


@dataclass(frozen=True)
class RobustStart:
    """First centres from one round of answers, of which a fraction may be Byzantine.

    Parameters
    ----------
    find : the function that clusters the answers.
    question : what the clients send: the `gradient` at a common origin, so that origin − gradient/curvature estimates a
        client's optimum, or its own `minimiser`.
    byzantine_fraction : bound on the fraction of Byzantine clients; it must be below that of the smallest cluster.
    clusters : k, or None to estimate it, up to `max_clusters`.
    curvature : the number that a gradient is divided by.
    ridge : the ridge penalty of the minimisers.
    origin : (1, d), the point at which gradients are computed; None for 0.
    shared : the number of leading coordinates that are equal for all clusters (see `Server.shared`).
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

        Two candidates are computed, one with outliers counted towards the Byzantine fraction and one without, and the
        one with the lower trimmed mean of the clients' losses is selected. If it has a cluster no larger than the
        number of Byzantine clients may be, this cluster may be theirs while two true clusters share a centre. Then two
        more candidates are computed, with `reconsider=False`; the better of them is used if its loss is lower by more
        than one standard error.
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
        """The largest number of Byzantine answers: a fraction of all clients, however many honest ones are silent."""
        return floor_count(self.byzantine_fraction, network.count)

    def _candidates(
        self, points: Points, clusters: int, byzantine: int, rng: Generator, reconsider: bool = True
    ) -> list[Floats]:
        """Two candidates: with removed outliers counted towards the Byzantine fraction, and without."""
        settings = clusters, _fraction(byzantine, len(points.points)), rng
        found = [self.find(points.points, *settings, outliers_count, reconsider) for outliers_count in (True, False)]
        return [points.embed(centres) for centres in found]

    def _points(self, network: Network, example: Array, fewest: int, part: tuple[int, int] | None = None) -> Points:
        """One point per well-formed answer."""
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
        """The estimated number of clusters.

        For k = 1, 2, … centres are computed from one half of every client's samples. A client chooses its centre on the
        same half, and its loss there is evaluated on the other half. A number k is allowed if every cluster has more
        clients than may be Byzantine. The result is the smallest allowed k whose trimmed mean loss is within one
        standard error of the lowest. Byzantine clients that imitate a cluster therefore get no centre: their cluster is
        too small, and it lowers no other client's loss. If they do get one, a true cluster may appear only with one
        centre more; so for a number that is not allowed, larger candidates without their too small clusters are
        considered as well.
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
    """The clients' losses at k candidate centres, (clients, k): `choosing` selects a centre, `judging` evaluates it."""

    choosing: Floats
    judging: Floats

    @property
    def count(self) -> int:
        return int(self.choosing.shape[1])

    @cached_property
    def chosen(self) -> Ints:
        """(clients,): the centre of lowest loss for every client."""
        return np.asarray(self.choosing.argmin(axis=1))

    @property
    def losses(self) -> Floats:
        """(clients,): the loss at the chosen centre."""
        return self.judging[np.arange(len(self.chosen)), self.chosen]

    @property
    def sizes(self) -> Ints:
        """(k,): the number of clients that chose each centre."""
        return np.bincount(self.chosen, minlength=self.count)

    def without(self, dropped: Bools) -> CandidateLosses:
        """The losses without some of the centres; dropped: (k,)."""
        return CandidateLosses(self.choosing[:, ~dropped], self.judging[:, ~dropped])


def _losses(judged: Sequence[CandidateLosses]) -> Floats:
    """(clients, candidates): the loss at the chosen centre of every candidate."""
    return np.stack([one.losses for one in judged], axis=1)


def _candidate_losses(
    network: Network, candidates: Sequence[Floats], example: Array, part: tuple[int, int] | None = None
) -> list[CandidateLosses]:
    """The clients' losses at the centres of all candidates, each (k, d), from one question.

    With `part` a centre is chosen on the samples that the centres were computed from and evaluated on the others. If
    both used the same samples, every additional centre would lower the loss.
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
    """(m, …): the answers of all clients, NaN where one was refused."""
    accepted = admit(replies, clients=network.count, clusters=1, round=-1, like=form)
    found = np.full((network.count, form.shape[1]), np.nan)
    found[accepted.clients] = as_numpy(accepted.updates)
    return found


def _fraction(byzantine: int, answers: int) -> float:
    """The fraction of Byzantine answers, below one half."""
    return min(byzantine / answers, BELOW_HALF)


def _lowest(losses: Floats, byzantine: int) -> int:
    """The index of the column with the lowest trimmed mean."""
    return int(np.argmin([_location(column, byzantine) for column in losses.T]))


def _location(values: Floats, byzantine: int) -> float:
    """The trimmed mean."""
    return float(TrimmedMean(_fraction(byzantine, len(values)))(values[:, None])[0])


def _standard_error(values: Floats, byzantine: int) -> float:
    """The standard error of the trimmed mean, from the winsorised variance, which trimmed values cannot inflate."""
    trim = _fraction(byzantine, len(values))
    ranked, cut = np.sort(values), trim_count(len(values), trim)
    low, high = ranked[cut], ranked[-1 - cut]
    return float(np.clip(values, low, high).std() / ((1 - 2 * trim) * np.sqrt(len(values))))
