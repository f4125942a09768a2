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

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from scipy.linalg import eigh, solve_triangular
from scipy.linalg.lapack import spotrf

from coterie._src.aggregators import Aggregator, Mean, per_cluster, shares_per_cluster
from coterie._src.arrays import Array, Bools, Floats, Ints, as_numpy
from coterie._src.coordinates import Coordinates
from coterie._src.init.leverage import bounded_leverage
from coterie._src.intake import admit
from coterie._src.network import Network
from coterie._src.packed import PackedMatrices, triangle

LARGEST = 2.0
"""A client whose Hessian has a norm of q times this many typical ones, q > 1, counts 1/q²: then a huge Hessian has no
influence on the mean of its cluster, and the most influential one is just as large as this."""
HUGE, FLOAT32 = 1e6, 1e30
"""A Hessian that is larger than this many times `LARGEST` is scaled down to that, and one that float32 might not hold
to this."""
PASSES = 4
"""Passes of the robust mean of Hessians at most."""
OUTLYING = 2.0
"""A Hessian whose trace is larger than this many times the typical one counts less in the mean."""
ABSURD = 1e3
"""The same before there are coordinates: a Hessian that is larger than this must not hide all other directions."""
LONGEST = 1.0
"""The length of a step for a loss that is not quadratic, in coordinates in which the Hessian at 0 is I: the scores of
logistic regression change by about 2. A Hessian tells little about farther points, and where the loss is flat it would
allow steps that get longer and longer."""
RANK = {"float32": 1e-12, "float64": 1e-13}
"""By the precision of the centres: directions in which the features vary by less than this share of the largest
variance are left out, since the gradients along them are rounding errors."""
AXIS, ROUNDING = 1e-13, 16.0
"""The rounding error of an axis, as a share of its length in the units of the columns, and that of the product of axes
and a Hessian, in typical ones (see `_variation`)."""
RARE = 1e3
"""The variation of a client along an axis, in typical ones, above which the axis may be known to few clients alone."""
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
    means : (k, r, r), the mean Hessians of the clusters, where only a sample of the clients was asked; then `hessians`
        and `leverages` hold no client, all clients count the same, and the noise of all updates is taken to be alike.
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
        return self.leverages[clients] if self.means is None else np.ones(len(clients))

    def among(self, clients: Ints, byzantine: int) -> Conditioning:
        """For some of the clients, of which at most so many are Byzantine."""
        return replace(self, hessians=self.hessians[clients], leverages=self.leverages[clients], byzantine=byzantine)

    def of_clusters(self, labels: Ints, clusters: int) -> Conditioning:
        """For all clients, where these are a sample of them: with the mean Hessians of its clusters.

        labels: (m,), of the sample; -1: in none. The Hessian of a cluster without a client is I, the typical one.
        """
        dim = self.coordinates.dim
        means = np.stack(
            [self._mean(np.flatnonzero(labels == j), self.leverages[labels == j]) for j in range(clusters)]
        )
        nobody = np.zeros((0, dim, dim), dtype=np.float32)
        return replace(self, hessians=nobody, leverages=np.ones(0), specific=0.0, means=means)

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

    The mean P of the Hessians, in which one with a larger trace(P⁻¹H_i) than typical counts less, is diagonalised
    together with the mean weighted by these traces; both change with the parameters in the same way, so that the axes
    do not depend on the units and the correlation of the features (invariant coordinate selection; Tyler, Critchley,
    Dümbgen and Oja, 2009). Each axis is scaled by a mean over the clients without the largest values, as many as may be
    Byzantine, so that false Hessians determine no scale. Clients whose Hessians are not positive semidefinite are
    Byzantine, and no more of the others may be than are left of the bound.
    """
    answers = len(clients)
    clients, matrices = _without_negative(clients, matrices)
    left = max(0, byzantine - (answers - len(clients)))  # the Byzantine ones among those whose answers are possible
    diagonals = np.maximum(matrices.diagonals, 0.0)
    if not diagonals.any():
        return None
    units = np.sqrt(_typical(diagonals, left))
    basis: Floats = np.diag(1 / np.where(units > 0, units, 1.0))
    # the traces depend on the columns here, and not yet on the coordinates alone: only absurd ones count
    weights = _trace_weights(diagonals @ np.diag(basis) ** 2, left, ABSURD)
    number = 0.0
    for _ in range(PASSES):
        basis, condition_number = _whitening(matrices, weights, basis, rank)
        number = number or condition_number
        values = matrices.along(basis)
        scales = _typical(_variation(values, diagonals, units, basis), left)
        kept = scales > 0
        if not kept.any():
            return None
        basis, values = basis[:, kept] / np.sqrt(scales[kept]), values[:, kept] / scales[kept]
        before = weights
        weights = _trace_weights(values.sum(axis=1), left, OUTLYING)
        if np.abs(weights - before).max() < 1e-2 and scales.min() > 0.25 * scales.max():
            break
    basis = _with_rare_axes(values, matrices, units, basis, left)
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


def _trace_weights(traces: Floats, byzantine: int, largest: float) -> Floats:
    """(c,): 1 for a trace of up to `largest` typical ones, less in proportion for a larger one."""
    typical = max(float(_typical(traces[:, None], byzantine)[0]), 1e-300)
    found: Floats = 1 / np.maximum(traces / (largest * typical), 1.0)
    return found


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


def _typical(values: Floats, byzantine: int) -> Floats:
    """(c, r) -> (r,): means over the clients without the `byzantine` largest; the largest where these are 0."""
    ranked = np.sort(values, axis=0)
    found = ranked[: max(1, len(values) - byzantine)].mean(axis=0)
    return np.asarray(np.where(found > 0, found, ranked[-1]))


def _variation(values: Floats, diagonals: Floats, units: Floats, basis: Floats) -> Floats:
    """(c, r): the values along the axes, 0 where they are no more than rounding errors, as where no feature varies.

    A term |b_j H_jk b_k| is at most |b_j|√(H_jj H_kk)|b_k|, since H_i is positive semidefinite, so that the rounding
    errors of all terms, which are independent, add up to about ε·Σ_j b_j² H_jj; `ROUNDING` times that is certainly
    more. The axes themselves are known to `AXIS`. Every client is judged by its own Hessian, so that none can hide the
    variation of the others.

    values: (c, r), the diagonals of BᵀH_iB. diagonals: (c, d), of H_i. units: (d,), of the columns.
    """
    roots = np.sqrt(diagonals)
    scaled = np.where(units > 0, units, 1.0)
    products = ROUNDING * np.finfo(np.float64).eps * (diagonals @ basis**2)
    axes = (AXIS * (roots / scaled).sum(axis=1)[:, None] * np.linalg.norm(basis * scaled[:, None], axis=0)) ** 2
    return np.where(values > np.maximum(products, axes), values, 0.0)


def _with_rare_axes(values: Floats, matrices: PackedMatrices, units: Floats, basis: Floats, byzantine: int) -> Floats:
    """(d, r): the basis, in which a direction that few clients know and all others do not is an axis of its own.

    Where no more than `byzantine` clients have a rare level of a category, the means in which they take part lead to an
    axis that is only nearly orthogonal to what the others know, and what the others have along it would be its scale.
    If they have nothing at all along a direction near it, that direction is the axis, in the scale of the few.
    """
    unknown: dict[bytes, Floats] = {}
    change = np.eye(basis.shape[1])
    for j in np.flatnonzero(values.max(axis=0) > RARE).tolist():
        others = np.sort(np.argsort(values[:, j], kind="stable")[: len(values) - byzantine])
        key = others.tobytes()
        if key not in unknown:
            spread, vectors = eigh(basis.T @ matrices.take(others).mean() @ basis)
            unknown[key] = vectors[:, spread < 1e-9 * spread[-1]]
        nearest = unknown[key] @ unknown[key][j]
        axis = basis @ nearest[:, None]
        along = _variation(matrices.along(axis), matrices.diagonals, units, axis)[:, 0]
        if nearest[j] > 0.1 and along.any() and not along[others].any():
            change[:, j] = nearest / np.sqrt(along[along > 0].mean())
    if np.array_equal(change, np.eye(len(change))) or np.linalg.cond(change / np.linalg.norm(change, axis=0)) >= 1e3:
        return basis
    return np.asarray(basis @ change)


def _whitening(matrices: PackedMatrices, weights: Floats, basis: Floats, rank: float) -> tuple[Floats, float]:
    """(d, r), a basis in which the weighted mean is the identity, and the mean's condition number in the basis before.

    The axes are the eigenvectors of a second mean, in which a matrix counts by its trace in the basis.
    """
    values, vectors, weights = _positive_mean(matrices, weights, basis)
    kept = values > rank * values[-1]
    if not kept.any():
        return basis[:, :0], 0.0
    axes = basis @ (vectors[:, kept] / np.sqrt(values[kept]))
    traces = matrices.traces(axes @ axes.T)
    tilt = np.clip(traces / max(float(np.median(np.abs(traces))), 1e-300), 0.0, 1e3) * weights
    other = axes.T @ matrices.mean(tilt) @ axes
    return axes @ eigh(other)[1], float(values[-1] / values[kept][0])


def _positive_mean(matrices: PackedMatrices, weights: Floats, basis: Floats) -> tuple[Floats, Floats, Floats]:
    """The eigenvalues and eigenvectors of the weighted mean in a basis, and the weights.

    A matrix that makes this mean negative along a direction, by more than rounding, has the weight 0: negative ones
    that are outweighed in the plain mean are not where outlying honest ones count less.
    """
    while True:
        mean = basis.T @ matrices.mean(weights) @ basis
        values, vectors = eigh(mean)
        along = basis @ vectors[:, values < -1e-6 * np.abs(values).max()]
        negative = (matrices.along(along) < 0).any(axis=1) & (weights > 0)
        if not negative.any():
            return values, vectors, weights
        weights = np.where(negative, 0.0, weights)


def _without_negative(clients: Ints, matrices: PackedMatrices) -> tuple[Ints, PackedMatrices]:
    """The clients and matrices without those that have a negative diagonal or make the mean negative along a direction.

    The mean of positive semidefinite matrices has no negative eigenvalue. While it has one, up to rounding, the
    matrices that are negative along its eigenvector are left out.
    """
    possible = np.flatnonzero((matrices.diagonals >= 0).all(axis=1))
    if len(possible) < len(matrices):
        clients, matrices = clients[possible], matrices.take(possible)
    while len(matrices):
        units = 1 / np.sqrt(np.maximum(np.abs(matrices.diagonals).max(axis=0), 1e-300))
        values, vectors = eigh(matrices.mean() * (units[:, None] * units))
        if values[0] > -1e-12 * max(values[-1], 1e-300):
            break
        along = units[:, None] * vectors[:, values < 0]
        rounding = 1e-12 * (matrices.diagonals @ units**2)[:, None]
        kept = np.flatnonzero((matrices.along(along) >= -rounding).all(axis=1))
        if len(kept) == len(matrices):
            break
        clients, matrices = clients[kept], matrices.take(kept)
    return clients, matrices


def _positive(matrices: Floats, chosen: Ints) -> Bools:
    """(c,): which of the chosen matrices are positive semidefinite, up to rounding in float32."""
    found = np.zeros(len(chosen), dtype=np.bool_)
    for i, matrix in enumerate(matrices[one] for one in chosen.tolist()):
        if (trace := np.trace(matrix)) > 0:
            shifted = matrix / trace
            shifted.flat[:: len(shifted) + 1] += np.float32(1e-5)
            found[i] = spotrf(shifted.T, lower=True, overwrite_a=True, clean=False)[1] == 0
    return found
