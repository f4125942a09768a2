"""First centres that the server computes by clustering one answer of every client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.optimize import linear_sum_assignment

from coterie._src.aggregators import SpectralFilter, TrimmedMean, floor_count, trim_count
from coterie._src.arrays import Array, Bools, Floats, Ints, as_numpy, like
from coterie._src.coordinates import Coordinates
from coterie._src.init.conditioning import (
    LONGEST,
    Conditioned,
    Conditioning,
    ask_conditioning,
    ask_sizes,
    selected_rows,
)
from coterie._src.init.local_models import LocalModels
from coterie._src.init.robust import BELOW_HALF, leading_directions
from coterie._src.init.sampling import Sample, draw_sample
from coterie._src.intake import Accepted, Replies, admit
from coterie._src.network import Network

Find = Callable[[Floats, int, float, Generator, bool, bool], Floats]
"""(points, k, byzantine_fraction, rng, outliers_count, reconsider) -> (k, d) centres, from one point per client.

The two booleans are explained in `init.robust`: whether removed outliers count towards the fraction, and whether the
second pass considers all points again.
"""
BATCH = 6
"""The numbers of clusters that are tried at once; the next ones only if the largest of these may not be enough."""
POLISHES = 3
"""Newton steps before two numbers of clusters are compared for the last time."""
STRAY_CLIENTS = 2
"""The number of honest clients that may choose the centre of Byzantine clients by chance, of 20 clients or more."""
HALF = (0, 1)
"""The `part` for one round: one half of the samples to compute centres from, the other to evaluate them on."""
WIDE = 10_000
"""Answers with at least this many columns are projected onto their leading directions before they are clustered."""
DIRECTIONS = 64
MAX_STEPS = 30
"""Steps towards one robust model for all clients, at most."""
CENTRED = 0.1
"""A median update of at most this share of the typical distance to it is small enough for the origin of a start."""


class Points(NamedTuple):
    """One point per client, and the map from centres of these points to centres in all d dimensions."""

    points: Floats  # (clients, r)
    embed: Callable[[Floats], Floats]  # (k, r) -> (k, d)
    models: LocalModels | None = None  # by which centres are refined and compared, if there are any

    def into(self, centres: Floats) -> Floats:
        """(k, d) -> (k, r): the coordinates of the models, around their origin."""
        assert self.models is not None
        coordinates = self.models.conditioning.coordinates
        return coordinates.points(centres - self.embed(np.zeros((1, coordinates.dim))))


class FirstCentres(NamedTuple):
    """What a robust start found."""

    centres: Array  # (k, d)
    agreement: float  # the share of the clients that its two best candidates put into matching clusters


class Asked(NamedTuple):
    """The point at which gradients are asked for, the coordinates, and the answers if they are known already."""

    origin: Array  # (1, d)
    conditioning: Conditioning | None
    accepted: Accepted | None


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
    conditioned : whether to ask for Hessians, and to cluster in coordinates in which these are alike.
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
    conditioned: Conditioned = "no"

    def __call__(self, network: Network, example: Array, rng: Generator) -> Array:
        """(k, d) centres of the kind and dtype of `example` (…, d)."""
        return self.search(network, example, rng).centres

    def search(
        self, network: Network, example: Array, rng: Generator, conditioning: Conditioning | None = None
    ) -> FirstCentres:
        """The centres, and how far the candidates agree; conditioning: if it is known already.

        Of very many clients only a sample is asked (`init.sampling`).
        Two candidates are computed, one with outliers counted towards the Byzantine fraction and one without, and the
        one with the lower trimmed mean of the clients' losses is selected. If it has a cluster no larger than the
        number of Byzantine clients may be, this cluster may be theirs while two true clusters share a centre. Then two
        more candidates are computed, with `reconsider=False`; the better of them is used if its loss is lower by more
        than one standard error. With models of the clients' losses, and nearly as many Byzantine clients as a cluster
        may have members, there are also the candidates for one cluster more without one of their centres, and the one
        with the `fewest_regrets` is used.
        """
        start, sample = self.on_sample(network, rng)
        if sample.clients is not None:
            known = None if conditioning is None else conditioning.among(sample.clients, sample.byzantine)
            return start.search(sample.network, example, rng, known)
        asked = self.ask(network, example, conditioning)
        clusters = self._count(network, example, rng, asked).count if self.clusters is None else self.clusters
        points, byzantine = self._points(network, example, clusters, asked), self._byzantine_count(network)
        candidates = self._candidates(points, clusters, byzantine, rng)
        judged = _candidate_losses(network, candidates, example)
        ranking = _ranked(_losses(judged), byzantine)
        lowest = ranking[0]
        agreement = agreement_of(judged[lowest].labels, judged[ranking[1]].labels) if len(ranking) > 1 else 1.0
        best, smallest = candidates[lowest], judged[lowest].sizes.min()
        if clusters > 1 and byzantine and smallest <= _small(byzantine, network.count):
            others = self._candidates(points, clusters, byzantine, rng, reconsider=False)
            models = points[0].models
            many = 2 * byzantine * (clusters + 1) >= network.count  # nearly as many as a cluster may have members
            if models is None or self.conditioned == "varying" or not many:
                losses = _losses(_candidate_losses(network, [best, *others], example))
                other = _lowest(losses[:, 1:], byzantine)
                gain = losses[:, 0] - losses[:, 1 + other]
                if _location(gain, byzantine) > _standard_error(gain, byzantine):
                    best = others[other]
            else:
                others += self._of_one_more(points, clusters, byzantine, rng)
                inside = [models.concentrated(points[0].into(one), byzantine) for one in (best, *others)]
                best = points[0].embed(min(inside, key=lambda one: models.fewest_regrets(one, byzantine)))
        if self.shared:
            best[:, : self.shared] = best[:, : self.shared].mean(axis=0)
        return FirstCentres(like(best, example), agreement)

    def on_sample(self, network: Network, rng: Generator) -> tuple[RobustStart, Sample]:
        """The clients from which the centres are computed, a sample of very many, and the start for these."""
        sample = draw_sample(network, self._byzantine_count(network), rng)
        return (self if sample.clients is None else replace(self, byzantine_fraction=sample.fraction)), sample

    def ask(self, network: Network, example: Array, conditioning: Conditioning | None = None) -> Asked:
        """The point at which gradients are asked for, and the coordinates; conditioning: if it is known already."""
        if conditioning is None and self.conditioned != "no":
            byzantine, origin = self._byzantine_count(network), 0 * example[:1, :]
            conditioning = ask_conditioning(network, origin, None, ask_sizes(network), byzantine)
        return self._origin(network, example, conditioning)

    def halved(self, network: Network, example: Array, rng: Generator, asked: Asked) -> CandidateLosses:
        """The best candidate from one half of every client's samples, evaluated on the other half."""
        if self.clusters is None:
            return self._count(network, example, rng, asked)
        points, byzantine = self._points(network, example, self.clusters, asked, HALF), self._byzantine_count(network)
        candidates = self._best_candidate(points, self.clusters, byzantine, rng)
        judged = _candidate_losses(network, candidates, example, HALF)
        return judged[_lowest(_losses(judged), byzantine)]

    def _byzantine_count(self, network: Network) -> int:
        """The largest number of Byzantine answers: a fraction of all clients, however many honest ones are silent."""
        return floor_count(self.byzantine_fraction, network.count)

    def _candidates(
        self, points: Sequence[Points], clusters: int, byzantine: int, rng: Generator, reconsider: bool = True
    ) -> list[Floats]:
        """Two candidates per set of points: with outliers counted towards the Byzantine fraction, and without."""
        found = []
        for one in points:
            settings = clusters, _fraction(byzantine, len(one.points)), rng
            both = [self.find(one.points, *settings, outliers_count, reconsider) for outliers_count in (True, False)]
            if one.models is not None:
                # the models of a loss that is not quadratic may mislead: then the losses decide
                both = one.models.all_refined(both, byzantine) + (both if self.conditioned == "varying" else [])
            found += [one.embed(centres) for centres in both]
        return found

    def _of_one_more(self, points: Sequence[Points], clusters: int, byzantine: int, rng: Generator) -> list[Floats]:
        """The candidates for one cluster more, without each of their centres in turn, and refined.

        If one of the clusters then consists of the Byzantine clients, the candidate without it is the true one.
        """
        found = []
        for one in points:
            assert one.models is not None
            if len(one.points) <= clusters:
                continue
            more = self.find(one.points, clusters + 1, _fraction(byzantine, len(one.points)), rng, True, True)
            fewer = [np.delete(more, j, axis=0) for j in range(clusters + 1)]
            found += [one.embed(centres) for centres in one.models.all_refined(fewer, byzantine)]
        return found

    def _best_candidate(self, points: Sequence[Points], clusters: int, byzantine: int, rng: Generator) -> list[Floats]:
        """The candidates; with local models only the one of lowest loss by these, which saves the clients' work."""
        candidates = self._candidates(points, clusters, byzantine, rng)
        models, asked = points[0].models, points[0]
        if models is None or self.conditioned == "varying":
            return candidates
        losses = [models.losses(asked.into(one)).min(axis=1) for one in candidates]
        return [candidates[_lowest(np.stack(losses, axis=1), byzantine)]]

    def _origin(self, network: Network, example: Array, conditioning: Conditioning | None) -> Asked:
        """The point at which gradients are asked for: with coordinates, near one robust model for all clients."""
        origin = 0 * example[:1, :] if self.origin is None else self.origin
        if conditioning is None or self.question != "gradient":
            return Asked(origin, None, None)
        coordinates = conditioning.coordinates
        for _ in range(MAX_STEPS):
            accepted = self._gradients(network, origin, coordinates, None)
            updates = coordinates.updates(as_numpy(accepted.updates))
            if not len(updates):
                break
            labels = np.zeros(len(updates), dtype=np.int64)
            newton = conditioning.newton(
                accepted.clients, labels, 1, conditioning.leverages[accepted.clients], standardise=False
            )
            updates = newton.rows(updates)
            centre = np.median(updates, axis=0)
            spread = float(np.median(np.linalg.norm(updates - centre, axis=1)))
            if np.linalg.norm(centre) <= CENTRED * spread:
                return Asked(origin, conditioning, accepted)
            step = newton.moves(centre[None])
            if self.conditioned == "varying":
                step *= min(1.0, LONGEST / max(float(np.linalg.norm(step)), 1e-300))
            origin = like(as_numpy(origin).astype(np.float64) - coordinates.parameters(step), origin)
            if self.conditioned == "varying":
                conditioning = conditioning.at(network, origin, np.zeros(network.count, dtype=np.int64))
        return Asked(origin, conditioning, None)

    def _gradients(
        self, network: Network, origin: Array, coordinates: Coordinates | None, part: tuple[int, int] | None
    ) -> Accepted:
        replies = network.gradients(origin, -1, part=part, coordinates=coordinates)
        return admit(replies, clients=network.count, clusters=1, round=-1, like=origin)

    def _points(
        self, network: Network, example: Array, fewest: int, asked: Asked, part: tuple[int, int] | None = None
    ) -> list[Points]:
        """One point per well-formed answer, or several sets of points."""
        origin, conditioning = asked.origin, asked.conditioning
        by_gradient = self.question == "gradient"
        if not by_gradient:
            replies = network.minimisers(origin, self.ridge, part)
            accepted = admit(replies, clients=network.count, clusters=1, round=-1, like=origin)
        elif asked.accepted is not None and part is None:
            accepted = asked.accepted
        else:
            accepted = self._gradients(
                network, origin, None if conditioning is None else conditioning.coordinates, part
            )
        if len(accepted.clients) < fewest:
            raise ValueError(f"a robust start needs at least {fewest} well-formed answers, got {len(accepted.clients)}")
        middle = as_numpy(origin).astype(np.float64)
        if conditioning is not None:  # then gradients were asked for
            return _conditioned_points(conditioning, accepted, middle)
        if origin.shape[1] < WIDE:
            found = as_numpy(accepted.updates).astype(np.float64)
            return [Points(middle - found / self.curvature if by_gradient else found, lambda centres: centres)]
        clusters = self.max_clusters if self.clusters is None else self.clusters
        points, embed = leading_directions(accepted.updates, max(DIRECTIONS, 8 * clusters))
        return [Points(points, (lambda centres: middle - embed(centres) / self.curvature) if by_gradient else embed)]

    def _count(self, network: Network, example: Array, rng: Generator, asked: Asked) -> CandidateLosses:
        """The candidate with the estimated number of clusters, from one half of every client's samples.

        For k = 1, 2, … centres are computed from one half of every client's samples. A client chooses its centre on the
        same half, and its loss there is evaluated on the other half. A number k is allowed if every cluster has more
        clients than may be Byzantine. The result is the smallest allowed k whose trimmed mean loss is within one
        standard error of the lowest. Byzantine clients that imitate a cluster therefore get no centre: their cluster is
        too small, and it lowers no other client's loss. If they do get one, a true cluster may appear only with one
        centre more; so for a number that is not allowed, larger candidates without their too small clusters are
        considered as well.
        """
        points, byzantine = self._points(network, example, 1, asked, HALF), self._byzantine_count(network)
        largest = max(1, min(self.max_clusters, len(points[0].points) - byzantine))
        judged: list[CandidateLosses] = []
        for first in range(1, largest + 1, BATCH):
            last = min(first + BATCH - 1, largest)
            candidates = [c for k in range(first, last + 1) for c in self._best_candidate(points, k, byzantine, rng)]
            judged += _candidate_losses(network, candidates, example, HALF)
            allowed = _allowed(judged, byzantine)
            best = _simplest(allowed, byzantine)
            if best.count < last - 1:  # more centres would not lower the loss
                break
        if asked.conditioning is None:
            return best
        # the candidates above come from models of the losses; with a few real steps a simpler one may do as well
        best = self._polished(network, best, example, asked.conditioning, byzantine)
        simpler = sorted((one for one in allowed if one.count < best.count), key=lambda one: -one.count)
        for one in simpler:
            other = self._polished(network, one, example, asked.conditioning, byzantine)
            if _simplest([other, best], byzantine) is best:
                break
            best = other
        return best

    def _polished(
        self, network: Network, candidate: CandidateLosses, example: Array, conditioning: Conditioning, byzantine: int
    ) -> CandidateLosses:
        """The candidate after `POLISHES` Newton steps on the half of the samples that centres are computed from.

        Centres that no more clients choose than may be Byzantine are dropped.
        """
        rule, small, first = SpectralFilter(byzantine), _small(byzantine, network.count), candidate
        for _ in range(POLISHES):
            clusters = candidate.count
            centres, labels = like(candidate.centres, example), candidate.labels
            if self.conditioned == "varying":
                conditioning = conditioning.at(network, centres, np.maximum(labels, 0))
            replies = network.gradients(centres, -1, labels, HALF, coordinates=conditioning.coordinates)
            accepted = admit(replies, clients=network.count, clusters=clusters, round=-1, like=centres)
            used = labels[accepted.clients] >= 0
            clients = accepted.clients[used]
            weights = conditioning.leverages[clients]
            newton = conditioning.newton(clients, labels[clients], clusters, weights)
            updates = conditioning.coordinates.updates(as_numpy(accepted.updates)[used])
            steps = selected_rows(conditioning, newton, rule, updates, weights).steps(clusters)
            moved = candidate.centres - conditioning.coordinates.parameters(steps)
            (candidate,) = _candidate_losses(network, [moved], example, HALF)
            if candidate.count > 1 and (few := candidate.sizes <= small).any() and not few.all():
                candidate = candidate.without(few)
        # steps may lead away, since half of the samples are few, or Byzantine clients many
        return [candidate, first][_lowest_in_pairs(_losses([candidate, first]), byzantine)]


def _small(byzantine: int, clients: int) -> int:
    """The number of clients of a cluster that may consist of Byzantine clients and a few that choose it by chance.

    One in ten clients may choose it by chance, and at most `STRAY_CLIENTS`.
    """
    return byzantine + min(STRAY_CLIENTS, clients // 10) if byzantine else 0


def _allowed(judged: Sequence[CandidateLosses], byzantine: int) -> list[CandidateLosses]:
    """The candidates whose clusters all have more clients than may be Byzantine, by their number of clusters.

    For a number without such a candidate, larger ones without their too small clusters are considered.
    """
    small = _small(byzantine, len(judged[0].labels))
    fewer = [one.without(one.sizes <= small) for one in judged if (one.sizes > small).any()]
    allowed = [one for one in judged if one.count == 1 or one.sizes.min() > small]
    known = {one.count for one in allowed}
    allowed += [one for one in fewer if one.count not in known and one.sizes.min() > small]
    return sorted(allowed, key=lambda one: one.count)


def _simplest(allowed: Sequence[CandidateLosses], byzantine: int) -> CandidateLosses:
    """The first candidate whose trimmed mean loss is within one standard error of the lowest."""
    losses = _losses(allowed)
    worse = losses - losses[:, [_lowest_in_pairs(losses, byzantine)]]
    near = [_location(more, byzantine) <= _standard_error(more, byzantine) for more in worse.T]
    return allowed[near.index(True)]  # the best itself is no worse, so there is one


def _conditioned_points(conditioning: Conditioning, accepted: Accepted, origin: Floats) -> list[Points]:
    """Points around the origin in the coordinates: −g_i and, where the clients' Hessians differ, −(H_i + λI)⁻¹g_i."""
    coordinates = conditioning.coordinates
    updates = -coordinates.updates(as_numpy(accepted.updates))
    models = LocalModels(conditioning, accepted.clients, updates)

    def embed(centres: Floats) -> Floats:
        return origin + coordinates.parameters(centres)

    found = [Points(updates, embed, models)]
    if conditioning.specific:
        found.append(Points(models.shrunk_minimisers(), embed, models))
    return found


@dataclass(frozen=True)
class CandidateLosses:
    """The clients' losses at candidate centres (k, d), (m, k): `choosing` selects a centre, `judging` evaluates it.

    NaN: a client whose answer was refused.
    """

    centres: Floats
    choosing: Floats
    judging: Floats

    @property
    def count(self) -> int:
        return int(self.choosing.shape[1])

    @cached_property
    def answered(self) -> Bools:
        """(m,): which clients have answered."""
        return np.asarray(np.isfinite(self.choosing).all(axis=1) & np.isfinite(self.judging).all(axis=1))

    @cached_property
    def labels(self) -> Ints:
        """(m,): the centre of lowest loss for every client, -1 where it did not answer."""
        return np.where(self.answered, np.nan_to_num(self.choosing, nan=np.inf).argmin(axis=1), -1)

    @property
    def losses(self) -> Floats:
        """(m,): the loss at the chosen centre, NaN where a client did not answer."""
        found = self.judging[np.arange(len(self.labels)), np.maximum(self.labels, 0)]
        return np.where(self.answered, found, np.nan)

    @property
    def sizes(self) -> Ints:
        """(k,): the number of clients that chose each centre."""
        return np.bincount(self.labels[self.answered], minlength=self.count)

    def without(self, dropped: Bools) -> CandidateLosses:
        """The losses without some of the centres; dropped: (k,)."""
        return CandidateLosses(self.centres[~dropped], self.choosing[:, ~dropped], self.judging[:, ~dropped])


def _losses(judged: Sequence[CandidateLosses]) -> Floats:
    """(clients, candidates): the loss at the chosen centre of every candidate, for clients with all answers."""
    found = np.stack([one.losses for one in judged], axis=1)
    found = found[np.isfinite(found).all(axis=1)]
    if not len(found):
        raise ValueError("a robust start needs well-formed answers, got none")
    return found


def _candidate_losses(
    network: Network, candidates: Sequence[Floats], example: Array, part: tuple[int, int] | None = None
) -> list[CandidateLosses]:
    """The clients' losses at the centres of all candidates, each (k, d), from one question.

    What α of false losses can do at worst: select another of the candidates, none of which they have made. A candidate
    is selected by a trimmed mean, which they shift by no more than the spread of honest losses allows.

    With `part` a centre is chosen on the samples that the centres were computed from and evaluated on the others. If
    both used the same samples, every additional centre would lower the loss.
    """
    broadcast = like(np.concatenate(candidates), example)
    form = broadcast[:, 0][None, :]
    judging = _answers(network, network.losses(broadcast, part), form)
    choosing = judging if part is None else _answers(network, network.losses(broadcast, part, computing=True), form)
    ends = np.cumsum([len(centres) for centres in candidates])[:-1]
    parts = (np.split(answers, ends, axis=1) for answers in (choosing, judging))
    return [CandidateLosses(*both) for both in zip(candidates, *parts, strict=True)]


def chosen_centres(network: Network, centres: Array) -> Ints:
    """(m,): the centre of lowest loss for every client, -1 where it did not answer."""
    return _candidate_losses(network, [as_numpy(centres)], centres)[0].labels


def _answers(network: Network, replies: Replies, form: Array) -> Floats:
    """(m, …): the answers of all clients, NaN where one was refused."""
    accepted = admit(replies, clients=network.count, clusters=1, round=-1, like=form)
    found = np.full((network.count, form.shape[1]), np.nan)
    found[accepted.clients] = as_numpy(accepted.updates)
    return found


def _fraction(byzantine: int, answers: int) -> float:
    """The fraction of Byzantine answers, below one half."""
    return min(byzantine / answers, BELOW_HALF)


def _ranked(losses: Floats, byzantine: int) -> list[int]:
    """The columns by their trimmed means, the lowest first."""
    return [int(i) for i in np.argsort([_location(column, byzantine) for column in losses.T], kind="stable")]


def _lowest(losses: Floats, byzantine: int) -> int:
    """The index of the column with the lowest trimmed mean."""
    return _ranked(losses, byzantine)[0]


def _lowest_in_pairs(losses: Floats, byzantine: int) -> int:
    """As `_lowest`, of each client's losses around its median over the columns, which one large loss moves less."""
    return _lowest(losses - np.median(losses, axis=1, keepdims=True), byzantine)


def agreement_of(labels: Ints, others: Ints) -> float:
    """The share of the clients in matching clusters, under the best one-to-one matching; -1: not counted.

    >>> agreement_of(np.array([0, 0, 1, 1]), np.array([1, 1, 0, 1]))
    0.75
    """
    both = (labels >= 0) & (others >= 0)
    table = np.zeros((labels.max(initial=0) + 1, others.max(initial=0) + 1))
    np.add.at(table, (labels[both], others[both]), 1.0)
    return float(table[linear_sum_assignment(-table)].sum() / max(1, both.sum()))


def _location(values: Floats, byzantine: int) -> float:
    """The trimmed mean."""
    return float(TrimmedMean(_fraction(byzantine, len(values)))(values[:, None])[0])


def _standard_error(values: Floats, byzantine: int) -> float:
    """The standard error of the trimmed mean, from the winsorised variance, which trimmed values cannot inflate."""
    trim = _fraction(byzantine, len(values))
    ranked, cut = np.sort(values), trim_count(len(values), trim)
    low, high = ranked[cut], ranked[-1 - cut]
    return float(np.clip(values, low, high).std() / ((1 - 2 * trim) * np.sqrt(len(values))))
