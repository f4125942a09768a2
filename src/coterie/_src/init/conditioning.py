"""Coordinates from the clients' Hessians, and Newton steps for every cluster.

The Hessian of a squared loss is twice the second moments of the features. The server asks every client for its Hessian
H_i once, and computes coordinates θ = Bφ in which a typical client has the Hessian I: there the features are
uncorrelated and of equal spread, whatever they were. In these coordinates a cluster's step is a share of a Newton step
with the mean Hessian of its members.

What Byzantine clients can reach by false Hessians is bounded. The coordinates stay invertible, and any invertible
coordinates lead to the same fixed points: a false Hessian costs rounds. A Hessian that is not positive semidefinite is
ignored. A client with a Hessian above `LARGEST` times the typical norm counts less, with its Hessian and with its
updates alike. With a share β < ½ of false Hessians in a cluster the mean is at least (1 − β) times the honest one, so
that the step is at most 1/(1 − β) < 2 times as long as a Newton step in any direction, of which `SHARE` is taken.

If the clients' Hessians differ by more than chance (`Conditioning.specific`), an update is judged by the noise that the
client's own Hessian allows. What Byzantine clients gain by a Hessian that is large along a common direction is bounded
by a test of all of them together (`leverage`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import spotrf

from coterie._src.aggregators import Aggregator, Mean, per_cluster, shares_per_cluster
from coterie._src.arrays import Array, Bools, Floats, Ints, as_numpy
from coterie._src.coordinates import Coordinates
from coterie._src.init.axes import RANK, robust_axes, without_negative
from coterie._src.init.leverage import bounded_leverage
from coterie._src.init.sampling import SAMPLE
from coterie._src.intake import admit
from coterie._src.network import Network, SomeClients
from coterie._src.packed import PackedMatrices, triangle

LARGEST = 2.0
"""A client whose Hessian has a norm of q times this many typical ones, q > 1, counts 1/q²: then a huge Hessian has no
influence on the mean of its cluster, and the most influential one is just as large as this."""
HUGE, FLOAT32 = 1e6, 1e30
"""A Hessian that is larger than this many times `LARGEST` is scaled down to that, and one that float32 might not hold
to this."""
LONGEST = 1.0
"""The length of a step for a loss that is not quadratic, in coordinates in which the Hessian at 0 is I: the scores of
logistic regression change by about 2. A Hessian tells little about farther points, and where the loss is flat it would
allow steps that get longer and longer."""
SPECIFIC = 0.3
"""If at least this share of the differences between the Hessians is not explained by the finite samples, then the
noise of an update is judged by the client's own Hessian."""
MAX_NUMBERS = 1 << 25
"""Hessians are asked for if they have at most this many entries in all: 256 MB."""

Conditioned = Literal["no", "constant", "varying"]
"""Whether the server asks for Hessians: not at all, once, or again and again since they vary with the parameters."""


@dataclass(frozen=True)
class Conditioning:
    """The coordinates of a federation, and the clients' Hessians in them.

    Attributes
    ----------
    coordinates : of the parameters, r ≤ d of them.
    hessians : (m, r, r) in float32, which is precise enough for the length of a step; I for a client without a usable
        answer.
    leverages : (m,), in (0, 1]: how much a client counts because of its Hessian.
    specific : in [0, 1], the share of the differences between the Hessians that the finite samples do not explain; 0
        where it is less than `SPECIFIC`.
    samples : the median number of samples of a client.
    number : the condition number of the second moments that the coordinates remove.
    byzantine : at most so many clients are Byzantine.
    means : (k, r, r), the mean Hessians of the clusters, where those of all clients are too many to be kept. Then
        `hessians` holds no client, and the noise of all updates is taken to be alike; `leverages` holds no client
        either where only a sample was asked, so that all clients count the same.
    """

    coordinates: Coordinates
    hessians: Floats
    leverages: Floats
    specific: float
    samples: float
    number: float = 1.0
    byzantine: int = 0
    means: Floats | None = None

    def leverages_of(self, clients: Ints) -> Floats:
        """(rows,): how much these clients count because of their Hessians."""
        return self.leverages[clients] if len(self.leverages) else np.ones(len(clients))

    def among(self, clients: Ints, byzantine: int) -> Conditioning:
        """For some of the clients, of which at most so many are Byzantine."""
        return replace(self, hessians=self.hessians[clients], leverages=self.leverages[clients], byzantine=byzantine)

    def of_clusters(self, labels: Ints, clusters: int) -> Conditioning:
        """For all clients, where these are a sample of them: with the mean Hessians of its clusters.

        labels: (m,), of the sample; -1: in none. The Hessian of a cluster without a client is I, the typical one.
        """
        members = [np.flatnonzero(labels == j) for j in range(clusters)]
        return self._with_means(np.stack([self._mean(own, self.leverages[own]) for own in members]), np.ones(0))

    def of_everyone(self, network: Network, centres: Array, labels: Ints, rng: Generator) -> Conditioning:
        """For all clients of a network, of which these are a sample, asked some at a time in a random order.

        Only the mean Hessians of the clusters are kept. These must be as precise as the mean update of a cluster, or
        the noise of many updates would not look white in coordinates by them. The clients that are asked together are
        as a sample (`init.sampling`), so that the typical size of a Hessian is that of honest ones in each.

        labels: (m,), the centre of each client; -1: none.
        """
        dim, clusters, count = self.coordinates.dim, int(centres.shape[0]), network.count
        leverages, totals, sums = np.ones(count), np.zeros(clusters), np.zeros((clusters, dim, dim))
        for part in np.array_split(rng.permutation(count), math.ceil(count / SAMPLE)):
            asked = np.sort(part)
            own = labels[asked]
            clients, matrices = ask_hessians(SomeClients(network, asked), centres, np.maximum(own, 0))
            inner = _in_coordinates(clients, matrices, self.coordinates.basis, len(asked))
            leverages[asked] = inner.leverages
            for j in range(clusters):
                members = np.flatnonzero(own == j)
                shares = inner.leverages[members]
                sums[j] += np.tensordot(shares.astype(np.float32), inner.hessians[members], axes=1)
                totals[j] += shares.sum()
        known = totals > 0
        sums[known] /= totals[known, None, None]
        return self._with_means(np.where(known[:, None, None], sums, np.eye(dim)), leverages)

    def _with_means(self, means: Floats, leverages: Floats) -> Conditioning:
        nobody = np.zeros((0, *means.shape[1:]), dtype=np.float32)
        return replace(self, hessians=nobody, leverages=leverages, specific=0.0, means=means)

    def _mean(self, clients: Ints, weights: Floats) -> Floats:
        """(r, r): the weighted mean of the Hessians of some clients in their precision, I where there are none."""
        if not len(clients):
            return np.eye(self.coordinates.dim)
        shares = weights / weights.sum()
        return np.asarray(np.tensordot(shares.astype(np.float32), self.hessians[clients], axes=1))

    def at(self, network: Network, centres: Array, labels: Ints) -> Conditioning:
        """The same coordinates with the Hessians at other centres, each client's at the centre that labels names.

        The weights of the clients stay, so that the end of a descent does not move with them; a Hessian that would give
        its client a smaller weight is scaled down instead.
        """
        clients, matrices = ask_hessians(network, centres, labels)
        inner = _in_coordinates(clients, matrices, self.coordinates.basis, len(self.leverages))
        return replace(self, hessians=inner.hessians * inner.leverages[:, None, None].astype(np.float32))

    def newton(
        self, clients: Ints, labels: Ints, clusters: int, weights: Floats, standardise: bool = True
    ) -> NewtonSteps:
        """The maps of Newton steps for the accepted clients (rows,), their labels and weights.

        standardise: whether to compute the maps of `NewtonSteps.standardised`, if these are needed.
        """
        dim = self.coordinates.dim
        identity, roots = np.eye(dim), np.empty((clusters, dim, dim))
        own = np.empty((len(clients), dim, dim)) if self.specific and standardise else None
        for j in range(clusters):
            members = np.flatnonzero(labels == j)
            mean = self._mean(clients[members], weights[members]) if self.means is None else self.means[j]
            # what a finite sample may lack in some directions; it only shortens steps
            lacking = 0.1 * np.sqrt(dim / (self.samples * max(len(members), 1))) * np.trace(mean) / dim
            mean = mean.astype(np.float64) + max(lacking, 1e-5) * identity
            roots[j] = _inverse_root(mean)
            if own is not None:
                for i in members.tolist():
                    own[i] = _inverse_root(mean + self.specific * (self.hessians[clients[i]] - mean))
        return NewtonSteps(clients, labels, roots, own)


@dataclass(frozen=True)
class NewtonSteps:
    """The maps of one round: with R_j = `roots[j]`, R_jᵀR_j is the inverse of the mean Hessian of cluster j.

    clients, labels: (rows,), for which they were computed. own: (rows, r, r), R_i of the Hessian of every client, where
    these differ; None where they do not.
    """

    clients: Ints
    labels: Ints
    roots: Floats
    own: Floats | None

    def fits(self, clients: Ints, labels: Ints) -> bool:
        """Whether these are the clients and labels for which the maps were computed."""
        return np.array_equal(clients, self.clients) and np.array_equal(labels, self.labels)

    def rows(self, updates: Floats) -> Floats:
        """R_j u_i for (rows, r) updates u_i with the labels j."""
        found = np.empty_like(updates)
        for j in np.unique(self.labels).tolist():
            members = np.flatnonzero(self.labels == j)
            found[members] = updates[members] @ self.roots[j].T
        return found

    def standardised(self, updates: Floats) -> Floats | None:
        """R_i u_i, whose noise is the same for all clients; None where that of `rows` already is."""
        if self.own is None:
            return None
        found: Floats = np.einsum("irs,is->ir", self.own, updates)
        return found

    def moves(self, steps: Floats) -> Floats:
        """R_jᵀ s_j: (k, r) steps in the coordinates of `rows`, in the coordinates of the federation."""
        found: Floats = np.einsum("krs,kr->ks", self.roots, steps)
        return found


class SelectedRows(NamedTuple):
    """The rows of a round that count, the rule that aggregates them, and the maps by which its result is a step."""

    rule: Aggregator
    clients: Ints  # (rows,)
    labels: Ints  # (rows,)
    rows: Floats  # (rows, r)
    weights: Floats  # (rows,)
    newton: NewtonSteps

    def steps(self, clusters: int) -> Floats:
        """(k, r): the aggregates of all clusters as Newton steps, to be subtracted from the centres."""
        return self.newton.moves(per_cluster(self.rule, self.rows, self.labels, clusters, self.weights).updates)


def selected_rows(
    conditioning: Conditioning, newton: NewtonSteps, rule: Aggregator, updates: Floats, weights: Floats
) -> SelectedRows:
    """The rows R_j u_i, or those which the rule keeps when it judges R_i u_i, where the clients' Hessians differ.

    Of these, clients with much information that differ together from the others along one direction are left out, too
    (`leverage`). Then the Newton step is that of the kept rows, with the mean Hessian of these.
    """
    clusters, judged = len(newton.roots), newton.standardised(updates)
    shares = None if judged is None else shares_per_cluster(rule, judged, newton.labels, clusters, weights)
    if judged is None or shares is None:
        return SelectedRows(rule, newton.clients, newton.labels, newton.rows(updates), weights, newton)
    for j in range(clusters):
        members = np.flatnonzero((newton.labels == j) & (shares > 0))
        if len(members):
            noise = float(np.median(shares[members] * (judged[members] ** 2).sum(axis=1))) / judged.shape[1]
            hessians = conditioning.hessians[newton.clients[members]]
            shares[members] = bounded_leverage(
                hessians, updates[members], shares[members], noise, conditioning.byzantine
            )
    kept = np.flatnonzero(shares)
    clients, labels, counts = newton.clients[kept], newton.labels[kept], shares[kept]
    maps = conditioning.newton(clients, labels, clusters, counts, standardise=False)
    return SelectedRows(Mean(), clients, labels, maps.rows(updates[kept]), counts, maps)


def _inverse_root(matrix: Floats) -> Floats:
    """R with RᵀR = matrix⁻¹."""
    found: Floats = solve_triangular(np.linalg.cholesky(matrix), np.eye(len(matrix)), lower=True, check_finite=False)
    return found


def ask_sizes(network: Network) -> Floats:
    """(m,): the reported numbers of samples, at least 1; 1 where the reply was refused."""
    accepted = admit(network.sizes(), clients=network.count, clusters=1, round=-1, like=np.zeros((1, 1)))
    sizes = np.ones(network.count)
    sizes[accepted.clients] = np.maximum(as_numpy(accepted.updates)[:, 0], 1.0)
    return sizes


def ask_conditioning(
    network: Network, centres: Array, labels: Ints | None, sizes: Floats, byzantine: int
) -> Conditioning | None:
    """The coordinates from the clients' Hessians at centres (k, d); None where no answer can be used.

    labels: (m,), the centre for each client; None: the first. sizes: (m,), reported. byzantine: at most so many clients
    are.
    """
    asked = np.zeros(network.count, dtype=np.int64) if labels is None else labels
    clients, matrices = ask_hessians(network, centres, asked)
    return condition(matrices, clients, sizes, byzantine, RANK.get(str(as_numpy(centres).dtype), RANK["float32"]))


def ask_hessians(network: Network, centres: Array, labels: Ints) -> tuple[Ints, PackedMatrices]:
    """The clients with well-formed answers, (c,), and their Hessians."""
    dim = int(centres.shape[1])
    form = np.zeros((1, triangle(dim)))
    replies = network.hessians(centres, labels)
    accepted = admit(replies, clients=network.count, clusters=int(centres.shape[0]), round=-1, like=form)
    rows = as_numpy(accepted.updates)
    usable = (rows.max(axis=1) < 1e150) & (rows.min(axis=1) > -1e150)  # squares stay finite
    return accepted.clients[usable], PackedMatrices(rows if usable.all() else rows[usable], dim)


def condition(
    matrices: PackedMatrices, clients: Ints, sizes: Floats, byzantine: int, rank: float = RANK["float64"]
) -> Conditioning | None:
    """The coordinates from the Hessians of some clients (c,); sizes: (m,), of all clients.

    Clients whose Hessians are not positive semidefinite are Byzantine, and no more of the others may be than are left
    of the bound.

    What α of false Hessians can do at worst: coordinates that are invertible, but bad, which costs rounds; and a mean
    Hessian of at least 1 − β times the honest one in a cluster of which they are a share β, so that a step of `SHARE`
    of a Newton step is at most SHARE/(1 − β) of the honest one's.
    """
    answers = len(clients)
    clients, matrices = without_negative(clients, matrices)
    left = max(0, byzantine - (answers - len(clients)))  # the Byzantine ones among those whose answers are possible
    axes = robust_axes(matrices, left, rank)
    if axes is None:
        return None
    basis, number = axes
    samples = float(np.median(sizes))
    inner = _in_coordinates(clients, matrices, basis, len(sizes))
    away = inner.norms**2 - 2 * inner.traces + basis.shape[1]
    by_chance = (inner.traces**2 + inner.norms**2) / np.maximum(sizes[clients], 1.0)
    specific = 1 - float(np.median(by_chance)) / max(float(np.median(away)), 1e-300)
    return Conditioning(
        Coordinates(basis, np.linalg.pinv(basis)),
        inner.hessians,
        inner.leverages,
        min(specific, 0.999) if specific >= SPECIFIC else 0.0,
        samples,
        number,
        byzantine,
    )


class InCoordinates(NamedTuple):
    """The Hessians in the coordinates, I for a client without a usable one."""

    hessians: Floats  # (m, r, r), float32
    leverages: Floats  # (m,)
    norms: Floats  # (c,), of the clients that sent one: the Frobenius norms
    traces: Floats  # (c,)


def _in_coordinates(clients: Ints, matrices: PackedMatrices, basis: Floats, count: int) -> InCoordinates:
    """The Hessians BᵀH_iB of some clients (c,), of `count` in all; I for one that is not positive semidefinite."""
    identity = np.eye(basis.shape[1], dtype=np.float32)
    hessians, leverages = np.empty((count, *identity.shape), dtype=np.float32), np.ones(count)
    hessians[np.setdiff1d(np.arange(count), clients)] = identity
    norms, traces = np.empty(len(clients)), np.empty(len(clients))
    for rows, inner in matrices.transformed(basis):
        norms[rows], traces[rows] = np.sqrt(np.einsum("crs,crs->c", inner, inner)), np.einsum("crr->c", inner)
        large = np.flatnonzero(norms[rows] > FLOAT32)
        inner[large] /= norms[rows][large, None, None] / FLOAT32
        hessians[clients[rows]] = inner
    unusable = ~_positive(hessians, clients)
    hessians[clients[unusable]], norms[unusable], traces[unusable] = identity, np.linalg.norm(identity), len(identity)
    if len(clients):
        sizes = norms / (LARGEST * max(float(np.median(norms)), 1e-300))
        leverages[clients] = np.maximum(np.minimum(1.0, 1 / np.maximum(sizes, 1e-300)) ** 2, 1e-30)
        for i in np.flatnonzero(sizes > HUGE):
            hessians[clients[i]] *= HUGE / sizes[i] * max(norms[i] / FLOAT32, 1.0)
    return InCoordinates(hessians, leverages, norms, traces)


def _positive(matrices: Floats, chosen: Ints) -> Bools:
    """(c,): which of the chosen matrices are positive semidefinite, up to rounding in float32."""
    found = np.zeros(len(chosen), dtype=np.bool_)
    for i, matrix in enumerate(matrices[one] for one in chosen.tolist()):
        if (trace := np.trace(matrix)) > 0:
            shifted = matrix / trace
            shifted.flat[:: len(shifted) + 1] += np.float32(1e-5)
            found[i] = spotrf(shifted.T, lower=True, overwrite_a=True, clean=False)[1] == 0
    return found
