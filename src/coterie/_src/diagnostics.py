"""What a user should know before trusting a result: are the clusters apart, is the start unique, did the bound hold?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie._src.aggregators import SpectralFilter, shares_per_cluster
from coterie._src.algorithms import Algorithm, ClusteredDescent, State
from coterie._src.algorithms.consistency import held_to_first
from coterie._src.arrays import Floats, Ints, as_numpy
from coterie._src.init.asking import STRAY_CLIENTS
from coterie._src.intake import admit
from coterie._src.network import Network

MAD_TO_DEVIATION = 1.4826
"""The standard deviation of a normal variable, in median absolute deviations."""
CLEAR = math.log(19.0)
"""The log-odds from which on a client's cluster is clear: its second best cluster is then less likely than 5 %."""
WELL_APART = 3.0
"""From this separation on, a client is nearer to its own cluster in 999 of 1000 cases."""
BY_CHANCE = 1 / 40
"""The share of the clients that may stand out although they are honest: where the noise is not white, some do."""
MATTERS = 2.0
"""The standard errors by which the clients who stand out must have moved a centre in order to count. With Byzantine
clients beyond the bound it is 4 to 9 (the paper's attack and `phantom`, 10 and 15 % of 80 and 120 clients, 2 % told),
with the 42 patients of Parkinson's disease, of whom eight stand out in three clusters, 0.7."""
NAMED = 8
"""The number of clients that a line names."""


@dataclass(frozen=True)
class Diagnostics:
    """What a user should know before trusting a result of Algorithm 1.

    Attributes
    ----------
    separation : float
        The smallest distance of two clusters: the median amount by which a client's loss at the other cluster's centre
        exceeds that at its own, in robust standard deviations of that amount over the cluster's clients. Infinite for
        one cluster.
    closest : tuple of int
        These two clusters; empty for one cluster.
    uncertain : tuple of int
        The clients whose second best cluster has a probability of at least 5 %, if these amounts are normal.
    empty : tuple of int
        Clusters that no client chose.
    condition_number : float
        Of the features' second moments in units of their columns, which the coordinates remove; NaN if not asked for.
    left_out : int
        Directions of the parameters in which the features do not vary, so that nothing can be learnt about them.
    start_agreement : float
        The share of the clients that the two best candidates for the start put into matching clusters; NaN for a start
        without candidates.
    outliers : int
        Clients whose replies the aggregator left out at the end; -1 for a rule that leaves none out.
    max_byzantine : int
        The bound on the number of Byzantine clients.
    standing_out : int, default -1
        Clients whose replies the aggregator leaves out if it may leave out more than the bound (`wider_bound`); -1
        where this is not known.
    excess : int, default 0
        How many of these are more than may be Byzantine, and than stand out by chance; 0 for none.
    raised_from : int, default -1
        The stated bound, where more clients stood out and the larger one was used instead; otherwise -1.
    estimated : int, default 0
        1 if the bound was estimated, since "auto" was stated.
    too_small : tuple of int, default ()
        Clusters with so few clients that half of them or more may be Byzantine: then no server can tell who is.

    Examples
    --------
    >>> import coterie as ct
    >>> drawn = ct.tabular(0, clients=40, clusters=2, samples=50, dim=10, correlation=0.9, byzantine=0.0)
    >>> ct.fit(drawn, clusters=2).diagnostics.lines(drawn.clients.names)[0][:45]
    'separation: clusters 0 and 1, the nearest, ar'
    """

    separation: float
    closest: tuple[int, ...]
    uncertain: tuple[int, ...]
    empty: tuple[int, ...]
    condition_number: float
    left_out: int
    start_agreement: float
    outliers: int
    max_byzantine: int
    standing_out: int = -1
    excess: int = 0
    raised_from: int = -1
    estimated: int = 0
    too_small: tuple[int, ...] = ()

    @property
    def bound_exceeded(self) -> bool:
        """Whether more clients stand out than may be Byzantine, and than do so by chance."""
        return self.excess > 0

    @property
    def bound_reached(self) -> bool:
        """Whether as many replies were left out as clients may be Byzantine, so that the bound may be too small."""
        return 0 < self.max_byzantine <= self.outliers

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain values, None for what is not known."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__} | {
            "bound_reached": self.bound_reached
        }
        return {
            name: list(value) if isinstance(value, tuple) else None if _unknown(value) else value
            for name, value in found.items()
        }

    @classmethod
    def from_dict(cls, values: Any) -> Diagnostics:
        """The diagnostics that `as_dict` wrote, or a `ValueError` that says what is wrong with them."""
        names = [*cls.__dataclass_fields__]
        if isinstance(values, Mapping):  # files of earlier versions have no keys for what has a default
            defaults = {name: getattr(cls, name) for name in names if hasattr(cls, name)}
            plain = {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}
            values = plain | dict(values)
        if not isinstance(values, Mapping) or set(values) != {*names, "bound_reached"}:
            raise ValueError(f"diagnostics must have exactly the keys {', '.join([*names, 'bound_reached'])}")
        found: dict[str, Any] = {}
        for name in names:
            value, kind = values[name], cls.__dataclass_fields__[name].type
            if kind == "float":
                unknown = math.inf if name == "separation" else math.nan
                right, found[name] = value is None or _is_number(value), unknown if value is None else value
            elif kind == "int":
                right, found[name] = _is_whole(value), value
            else:
                right = isinstance(value, list) and all(_is_whole(one) for one in value)
                found[name] = tuple(value) if right else ()
            if not right:
                raise ValueError(f"diagnostics: {name} must not be {value!r}")
        return cls(**found)

    def lines(self, names: Sequence[object] | NDArray[Any]) -> list[str]:
        """At most five lines of text; names: of the clients."""
        found = []
        if self.closest:
            verdict = "well apart" if self.separation >= WELL_APART else "too near to tell all clients apart"
            one, other = self.closest
            found.append(f"separation: clusters {one} and {other}, the nearest, are {self.separation:.1f} deviations "
                         f"apart: {verdict}")  # fmt: skip
            if self.uncertain:
                shown = ", ".join(str(names[client]) for client in self.uncertain[:NAMED])
                more = ", …" if len(self.uncertain) > NAMED else ""
                found.append(f"uncertain: {len(self.uncertain)} of {len(names)} clients fit a second cluster nearly as "
                             f"well: {shown}{more}")  # fmt: skip
        if self.empty:
            found.append(f"empty: no client is in cluster {', '.join(map(str, self.empty))}; try fewer clusters")
        elif self.too_small:
            these = ", ".join(map(str, self.too_small[:NAMED])) + (", …" if len(self.too_small) > NAMED else "")
            found.append(f"too small: half of the clients of cluster {these} may be Byzantine, as {self.max_byzantine} "
                         "are allowed for; who is cannot be told")  # fmt: skip
        elif not math.isnan(self.start_agreement) and self.start_agreement < 0.9:
            found.append(f"start: its two best candidates agree on {100 * self.start_agreement:.0f} % of the clients; "
                         "another seed may give other clusters")  # fmt: skip
        if not math.isnan(self.condition_number):
            lost = f"; {self.left_out} directions without variation are left out" if self.left_out else ""
            found.append(f"features: condition number {self.condition_number:.1e}, removed by the coordinates{lost}")
        if self.outliers >= 0 and (self.max_byzantine or self.bound_exceeded or self.estimated):
            found.append(f"outliers: {self.outliers} replies left out, {self.max_byzantine} Byzantine clients allowed "
                         f"for{self._about_the_bound()}")  # fmt: skip
        return found[:5]

    def _about_the_bound(self) -> str:
        if self.bound_exceeded:
            return f"; {self.standing_out} stand out, so this is too few"
        if self.raised_from >= 0:
            return f" instead of the stated {self.raised_from}, since more stood out"
        if self.estimated:
            return ", as estimated"
        return "; the bound is reached, so there may be more" if self.bound_reached else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _unknown(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def diagnose(
    algorithm: Algorithm, network: Network, state: State, left_out: tuple[int, int] | None = None
) -> Diagnostics | None:
    """The diagnostics of a state, from two more questions: losses and updates; None for other algorithms.

    left_out: the result of `replies_left_out`, if it is known.

    The answers are not trusted: all numbers are medians, or counts to which a client contributes at most one.
    """
    if not isinstance(algorithm, ClusteredDescent):
        return None
    centres, clusters = state.centres, int(state.centres.shape[0])
    replies = admit(
        network.losses(centres), clients=network.count, clusters=1, round=-1, like=as_numpy(centres)[:, 0][None, :]
    )
    losses = as_numpy(replies.updates).astype(np.float64)
    labels = losses.argmin(axis=1) if state.fixed is None else np.maximum(state.fixed[replies.clients], 0)
    separation, closest, clear = separations(losses, labels)
    coordinates = None if state.conditioning is None else state.conditioning.coordinates
    outliers, standing_out = replies_left_out(algorithm, network, state) if left_out is None else left_out
    return Diagnostics(
        separation,
        closest,
        tuple(replies.clients[~clear].tolist()),
        tuple(np.flatnonzero(np.bincount(labels, minlength=clusters) == 0).tolist()),
        math.nan if state.conditioning is None else state.conditioning.number,
        0 if coordinates is None else int(centres.shape[1]) - coordinates.dim,
        state.start_agreement,
        outliers,
        algorithm.max_byzantine,
        standing_out,
        excess(standing_out, algorithm.max_byzantine, network.count),
        too_small=too_small(labels, clusters, algorithm.max_byzantine),
    )


def too_small(labels: Ints, clusters: int, max_byzantine: int) -> tuple[int, ...]:
    """The clusters, of those with clients, of which half of the clients or more may be Byzantine.

    >>> too_small(np.array([0, 0, 0, 1, 1, 2]), 4, 1)
    (1, 2)
    """
    sizes = np.bincount(labels, minlength=clusters)
    return tuple(np.flatnonzero((sizes > 0) & (sizes <= 2 * max_byzantine)).tolist())


def separations(
    losses: Floats, labels: Ints
) -> tuple[float, tuple[int, ...], np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """The smallest separation, its two clusters, and (rows,) whether a client's cluster is clear; see `Diagnostics`.

    losses: (rows, k). For a client of cluster j the gap F_i(θ_l) − F_i(θ_j) is about normal with mean z·s and deviation
    s if it belongs to j, and with mean −z·s if it belongs to l, so that a gap of g·s has log-odds 2zg.
    """
    rows, clusters = losses.shape
    smallest, closest, clear = math.inf, (), np.ones(rows, dtype=np.bool_)
    gaps = losses - losses[np.arange(rows), labels][:, None]
    for j in np.unique(labels).tolist():
        members = np.flatnonzero(labels == j)
        for other in range(clusters):
            if other == j:
                continue
            own = gaps[members, other]
            middle = float(np.median(own))
            deviation = MAD_TO_DEVIATION * float(np.median(np.abs(own - middle)))
            if deviation == 0:  # one member, or copies: nothing is known about the noise
                continue
            z = middle / deviation
            clear[members] &= 2 * z * own / deviation >= CLEAR
            if z < smallest and np.count_nonzero(labels == other):
                smallest, closest = z, tuple(sorted((j, other)))
    return smallest, closest, clear


def wider_bound(max_byzantine: int, clients: int) -> int:
    """The bound under which those are counted who stand out: twice the stated one, or a tenth of the clients more."""
    more = max(max_byzantine, math.ceil(clients / 10), STRAY_CLIENTS + 1)
    return min(max_byzantine + more, max(0, (clients - 1) // 2))


def excess(standing_out: int, max_byzantine: int, clients: int) -> int:
    """How many of the clients who stand out are more than may be Byzantine, and than do so by chance.

    >>> excess(15, 10, 200), excess(12, 4, 200), excess(-1, 0, 12)
    (0, 3, 0)
    """
    by_chance = max(STRAY_CLIENTS, math.ceil(BY_CHANCE * clients))
    return max(0, standing_out - max_byzantine - by_chance)


def replies_left_out(algorithm: ClusteredDescent, network: Network, state: State) -> tuple[int, int]:
    """The numbers of clients whose replies the rule leaves out at the final centres, and of those who stand out.

    These are left out, or their replies contradict their first updates, or they would be left out under a wider bound.
    The last do not count if they hardly matter: if without them every centre moves by no more than `MATTERS` of its
    standard errors, by the spread of the members that are kept. Honest clients that differ from each other are left
    out from both ends of the same distribution, so that the centre stays; too many Byzantine clients have moved it.

    -1 if the rule gives no shares, or if it takes no bound.
    """
    clusters, conditioning = int(state.centres.shape[0]), state.conditioning
    replies = network.gradients(
        state.centres, state.round, state.fixed, coordinates=None if conditioning is None else conditioning.coordinates
    )
    accepted = admit(replies, clients=network.count, clusters=clusters, round=state.round, like=state.centres)
    if not len(accepted.clients):
        return -1, -1
    labels = accepted.labels
    weights: Floats = np.ones(len(accepted.clients))
    if state.fixed is not None:
        labels = np.maximum(state.fixed[accepted.clients], 0)
    if state.weights is not None:
        weights = state.weights[accepted.clients]
    rows, inconsistent = accepted.updates, np.zeros(len(labels), dtype=np.bool_)
    if conditioning is not None:
        weights = weights * conditioning.leverages_of(accepted.clients)
        newton = conditioning.newton(accepted.clients, labels, clusters, weights)
        updates = conditioning.coordinates.updates(as_numpy(rows))
        points = conditioning.coordinates.points(as_numpy(state.centres))
        if state.first is not None:
            first = state.first.after(accepted.clients, points[labels], updates)
            updates, inconsistent = held_to_first(conditioning, first, accepted.clients, labels, points, updates)
        rows = newton.rows(updates)
        if (judged := newton.standardised(updates)) is not None:
            rows = judged
    rule = algorithm.server.aggregate
    if not isinstance(rule, SpectralFilter):
        found = shares_per_cluster(rule, rows, labels, clusters, weights)
        return -1 if found is None else int((found == 0).sum()), -1
    wider = replace(rule, max_byzantine=wider_bound(algorithm.max_byzantine, network.count))
    shares, fewer = np.ones((2, len(labels)))  # a cluster that is too small for the filter leaves nobody out
    for each, one in ((shares, rule), (fewer, wider)):
        pooled = one.pooled(rows, labels, weights)
        for j in np.unique(labels).tolist():
            own = np.flatnonzero(labels == j)
            if (known := pooled.shares(rows[own], weights[own])) is not None:
                each[own] = known
    standing_out = (shares == 0) | inconsistent
    if _matter(as_numpy(rows).astype(np.float64), labels, shares, fewer):
        standing_out |= fewer == 0
    return int((shares == 0).sum()), int(standing_out.sum())


def _matter(rows: Floats, labels: Ints, shares: Floats, fewer: Floats) -> bool:
    """Whether the mean of a cluster with the second shares is more than `MATTERS` standard errors from the other."""
    for j in np.unique(labels).tolist():
        own = rows[labels == j]
        one, other = (each[labels == j] / max(float(each[labels == j].sum()), 1e-300) for each in (shares, fewer))
        with np.errstate(over="ignore", invalid="ignore"):
            kept = own[other > 0] - other @ own
            error = np.sqrt((kept**2).sum() / max(1, len(kept)) / max(1, len(kept)))
            if np.linalg.norm((one - other) @ own) > MATTERS * error:
                return True
    return False
