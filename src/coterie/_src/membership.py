"""Whether a client belongs to a cluster: its loss at the centre, compared with the losses of the members there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy.special import stdtr

from coterie._src.arrays import Array, Floats, Ints, as_numpy
from coterie._src.init.conditioning import MAX_NUMBERS
from coterie._src.packed import unpacked
from coterie._src.tasks import Task, assign

LEVEL = 0.01
"""The probability with which a client of a cluster is said to belong to none."""
FAR = 5.0
"""From so many deviations on, a member's loss is taken for that of a Byzantine client."""
SHARED = 4
"""The degrees of freedom with which the spread of the other clusters counts in that of a cluster."""
MAX_LEVERAGE = 0.98
"""A client's largest share of the information about a direction of the parameters, when it is left out."""
MAD_TO_DEVIATION = 1.4826
"""The standard deviation of a normal variable, in median absolute deviations."""
THIRD = 1 / 3


@dataclass(frozen=True)
class Membership:
    """What the losses of the members of each cluster are like, so that a new client's loss can be judged.

    On the scale g(F) = ((F/F_j)^λ − 1)/λ the losses of the members of cluster j are about normal with mean 0. Their
    variance has two parts: that between clients, and r_j/n_i from the n_i samples of a client, with r_j the variance of
    the loss of a sample over F_j². Where there is only the second, λ = 1/3 (Wilson and Hilferty, 1931: for a squared
    loss with normal noise F is a χ²); the more clients differ, the nearer is λ to 0, the logarithm.

    Attributes
    ----------
    loss : tuple of float
        F_j, the typical loss of a member; NaN for a cluster without members.
    spread : tuple of float
        The variance of g(F) over the members.
    sampling : tuple of float
        The part of it that comes from their finite numbers of samples; 0 where it is not known.
    noise : tuple of float
        r_j; 0 where it is not known.
    members : tuple of int
        The members that these numbers come from; those taken for Byzantine are left out.
    degrees : tuple of float
        The degrees of freedom of `spread`; 0 where nothing is known about it, so that no client can be refused.
    power : float
        λ.
    resolution : float
        The loss below which there are only rounding errors.
    """

    loss: tuple[float, ...]
    spread: tuple[float, ...]
    sampling: tuple[float, ...]
    noise: tuple[float, ...]
    members: tuple[int, ...]
    degrees: tuple[float, ...]
    power: float = THIRD
    resolution: float = 0.0

    def p_values(self, losses: Floats, variances: Floats, n: int) -> Floats:
        """(k,): the probability that a member of the cluster with n samples would have such a loss or a larger one.

        Parameters
        ----------
        losses : array of shape (k,)
            The client's mean loss at each centre.
        variances : array of shape (k,)
            The variances of the losses of its samples; NaN where they are not known.
        n : int
            The number of its samples.
        """
        each = zip(losses, variances, strict=True)
        return np.array([self.p_value(j, loss, variance, n) for j, (loss, variance) in enumerate(each)])

    def p_value(self, cluster: int, loss: float, variance: float, n: int) -> float:
        """As `p_values`, for one cluster."""
        j = cluster
        if self.degrees[j] <= 0 or self.members[j] == 0:
            return 1.0
        if not math.isfinite(loss):
            return 0.0
        shifted = loss + self.resolution
        relative = max(shifted / self.loss[j], 1e-100)
        own = variance / shifted / shifted if n > 1 and math.isfinite(variance) and shifted > 0 else 0.0
        sampling = self.sampling[j]
        if self.noise[j] > 0:
            sampling = max(self.noise[j], own) / n
        total = max(self.spread[j] - self.sampling[j], 0.0) + sampling
        middle = (1 - self.power) / 2 * (self.spread[j] - total)  # a concave function: its mean falls
        deviation = math.sqrt(max(total + self.spread[j] / self.members[j], 1e-12))
        return float(stdtr(self.degrees[j], -(_scaled(relative, self.power) - middle) / deviation))

    def cluster_of(self, losses: Floats, variances: Floats, n: int) -> int:
        """The cluster of lowest loss, or -1 if a member would have such a loss with a probability of less than 1 %."""
        nearest = int(assign(losses[None])[0])
        return nearest if self.p_values(losses, variances, n)[nearest] >= LEVEL else -1

    def renumbered(self, numbers: Sequence[int], clusters: int, earlier: Membership | None) -> Membership:
        """With cluster j as number numbers[j] of so many clusters; the others are as they were earlier, if known."""
        rows: dict[str, Any] = {}
        for name in ("loss", "spread", "sampling", "noise", "members", "degrees"):
            before = () if earlier is None else getattr(earlier, name)
            nothing = math.nan if name == "loss" else 0
            rows[name] = [before[j] if j < len(before) else nothing for j in range(clusters)]
            for j, number in enumerate(numbers):
                if self.members[j] or earlier is None or number >= len(earlier.loss):
                    rows[name][number] = getattr(self, name)[j]
        return Membership(
            **{name: tuple(row) for name, row in rows.items()}, power=self.power, resolution=self.resolution
        )

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain values, None for a loss that is not known."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
        return plain | {"loss": [None if math.isnan(one) else one for one in self.loss]}

    @classmethod
    def from_dict(cls, values: Any) -> Membership:
        """The record of `as_dict`, or a `ValueError` that says what is wrong with it."""
        names = [one.name for one in fields(cls)]
        if not isinstance(values, Mapping) or set(values) != set(names):
            raise ValueError(f"membership must have exactly the keys {', '.join(names)}")
        single = ("power", "resolution")
        lists = {name: values[name] for name in names if name not in single}
        clusters = len(lists["loss"]) if isinstance(lists["loss"], list) else 0
        for name, row in lists.items():
            if not isinstance(row, list) or len(row) != clusters or not clusters:
                raise ValueError(f"membership: {name} must be a list with one number for each cluster")
            if not all(_is_amount(one) or (name == "loss" and one is None) for one in row):
                raise ValueError(f"membership: {name} must hold finite numbers of at least 0")
        if not all(isinstance(one, int) for one in lists["members"]):
            raise ValueError("membership: members must hold whole numbers")
        if any(one is None or one == 0 for one, count in zip(lists["loss"], lists["members"], strict=True) if count):
            raise ValueError("membership: loss must be positive for a cluster with members")
        for name in single:
            if not _is_amount(values[name]) or (name == "power" and values[name] > 1):
                raise ValueError(f"membership: {name} must be a number of at least 0, and power at most 1")
        numbers: dict[str, Any] = {
            name: tuple(math.nan if one is None else one for one in row) for name, row in lists.items()
        }
        return cls(**numbers, power=float(values["power"]), resolution=float(values["resolution"]))


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _scaled(relative: Any, power: float) -> Any:
    """(x^λ − 1)/λ, for λ = 0 the logarithm (Box and Cox, 1964)."""
    logarithm = np.log(relative)
    return np.expm1(power * logarithm) / power if power > 0 else logarithm


def learn_membership(
    losses: Floats,
    variances: Floats,
    sizes: Ints,
    labels: Ints,
    clusters: int,
    max_byzantine: int,
    resolution: float = 0.0,
) -> Membership:
    """What the losses of the members of each cluster are like.

    At most `max_byzantine` members of a cluster, and fewer than half, are left out: those whose losses are farther than
    five robust deviations from the median. The spread of a small cluster is uncertain: Student's t distribution has
    wide tails then, and the spread of the other clusters counts as four more members would.

    Parameters
    ----------
    losses : array of shape (m,)
        The mean loss of each client at the centre of its cluster, best of all with a centre that was fitted without it
        (`held_out_losses`), since a new client's loss is of that kind.
    variances : array of shape (m,)
        The variances of the losses of its samples; NaN where they are not known.
    sizes : array of shape (m,)
        The numbers of samples.
    labels : array of shape (m,)
        The clusters; -1 for a client that is in none.
    clusters : int
        k.
    max_byzantine : int
        The bound on the number of Byzantine clients.
    resolution : float, default 0
        The loss below which there are only rounding errors.

    Examples
    --------
    >>> losses = np.array([1.0, 1.2, 0.9, 1.1, 1.0])
    >>> found = learn_membership(losses, np.full(5, 2.0), np.full(5, 200), np.zeros(5, dtype=int), 1, 1)
    >>> found.p_values(np.array([1.1]), np.array([2.0]), 200).round(2), found.cluster_of(np.array([5.0]), losses[:1], 9)
    (array([0.32]), -1)
    """
    tiny = np.finfo(np.float64).tiny
    shifted = losses.astype(np.float64) + resolution
    usable = np.isfinite(shifted) & (shifted >= 0)
    inside = [np.flatnonzero((labels == j) & usable) for j in range(clusters)]
    shifted = np.maximum(shifted, tiny)
    power = THIRD
    for last in (False, True):
        parts = [_describe(shifted[one], variances[one], sizes[one], max_byzantine, power) for one in inside]
        if not last:
            spread = sum((part.members - 1) * part.spread for part in parts if part.members)
            sampling = sum((part.members - 1) * part.sampling for part in parts if part.members)
            power = THIRD * (min(sampling / spread, 1.0) if spread > 0 else 1.0)
    spreads, degrees = [], []
    for j, part in enumerate(parts):
        others = [other for i, other in enumerate(parts) if i != j and other.members > 1]
        free = sum(other.members - 1 for other in others)
        shared = min(SHARED, free)
        elsewhere = sum((other.members - 1) * other.spread for other in others) / max(free, 1)
        own = max(part.members - 1, 0)
        spread = (own * part.spread + shared * elsewhere) / max(own + shared, 1)
        spreads.append(max(spread, part.sampling))
        degrees.append(float(own + shared) if part.members else 0.0)
        if part.members and not own + shared and part.sampling > 0:  # one client alone: its samples say something
            degrees[-1] = 1.0
    return Membership(
        tuple(part.loss for part in parts),
        tuple(spreads),
        tuple(part.sampling for part in parts),
        tuple(part.noise for part in parts),
        tuple(part.members for part in parts),
        tuple(degrees),
        power,
        resolution,
    )


@dataclass(frozen=True)
class _Part:
    """What the members of one cluster say about it; see `Membership`."""

    loss: float
    spread: float
    sampling: float
    noise: float
    members: int


def _describe(losses: Floats, variances: Floats, sizes: Ints, max_byzantine: int, power: float) -> _Part:
    if not len(losses):
        return _Part(math.nan, 0.0, 0.0, 0.0, 0)
    middle = float(np.median(losses))
    losses = np.clip(losses, 1e-100 * middle, 1e100 * middle)  # whose squares are finite
    values = _scaled(losses / middle, power)
    relative = np.where(sizes > 1, variances, np.nan) / losses / losses  # a square may be too large
    known = np.isfinite(relative)
    usual = float(np.median(relative[known])) if known.any() else 0.0
    offsets = np.abs(values - np.median(values))
    scale = np.maximum(MAD_TO_DEVIATION * np.median(offsets), np.sqrt(usual / sizes))
    distances = np.divide(offsets, scale, out=np.zeros_like(offsets), where=scale > 0)
    bound = min(max_byzantine, (len(losses) - 1) // 2)
    farthest = np.argsort(-distances, kind="stable")[:bound]
    kept = np.ones(len(losses), dtype=np.bool_)
    kept[farthest[distances[farthest] > FAR]] = False
    mean = float(values[kept].mean())
    factor = 1 + power * mean if power > 0 else 1.0  # (typical/middle)^λ
    typical = middle * (factor ** (1 / power) if power > 0 else math.exp(mean))
    spread = float(values[kept].var(ddof=1)) / factor**2 if kept.sum() > 1 else 0.0
    judged = kept & known
    squares = (losses[judged] / middle) ** 2
    noises = np.minimum(relative[judged], 5 * usual) * squares  # a Byzantine client may report any variance
    # a squared loss is on average the square of its mean, and its variance
    expected = max(float((squares - noises / sizes[judged]).sum()), 0.5 * float(squares.sum()))
    noise = float(noises.sum()) / expected if judged.any() else 0.0
    sampling = noise * float((1 / sizes[kept]).mean())
    if not all(map(math.isfinite, (typical, spread, sampling))) or typical <= 0:
        return _Part(math.nan, 0.0, 0.0, 0.0, 0)
    return _Part(typical, spread, sampling, noise, int(kept.sum()))


def membership_of(task: Task, centres: Array, labels: Ints, max_byzantine: int) -> Membership:
    """What the losses of the clients of a task are like in their clusters; labels: (m,), -1 for none."""
    losses, variances = held_out_losses(task, centres, labels), loss_variances(task, centres, labels)
    return learn_membership(
        losses, variances, task.clients.sizes, labels, len(centres), max_byzantine, resolution(task, centres)
    )


def cluster_of(task: Task, centres: Array, membership: Membership | None) -> int:
    """The cluster of the only client of a task, -1 for none; without a membership that of lowest loss."""
    losses = as_numpy(task.losses(centres)).astype(np.float64)
    if membership is None:
        return int(assign(losses)[0])
    variances = [loss_variances(task, centres, np.array([j]))[0] for j in range(len(centres))]
    return membership.cluster_of(losses[0], np.array(variances), int(task.clients.sizes[0]))


def resolution(task: Task, centres: Array) -> float:
    """The loss below which there are only rounding errors: ε times that of a model whose parameters are 0."""
    precision = float(np.finfo(as_numpy(centres[:1]).dtype).eps)
    found = float(np.median(as_numpy(task.losses(0 * centres[:1])).astype(np.float64)))
    return precision * found if math.isfinite(found) else 0.0


def loss_variances(task: Task, centres: Array, labels: Ints) -> Floats:
    """(m,): the variances of the losses of each client's samples at its centre; NaN where the task does not say."""
    if not hasattr(task, "loss_variances"):
        return np.full(task.clients.count, np.nan)
    return as_numpy(task.loss_variances(centres, np.maximum(labels, 0))).astype(np.float64)


def held_out_losses(task: Task, centres: Array, labels: Ints) -> Floats:
    """(m,): the loss of every client at the centre that the other members of its cluster would have.

    Without client i, with H = Σ_{l≠i} n_l ∇²F_l, the centre moves by δ = H⁻¹ n_i ∇F_i, and the client's loss is
    F_i + ∇F_i·δ + ½ δᵀ∇²F_i δ: exact for a squared loss at the mean's fixed point. No client counts for more samples
    than the median one. Where Hessians are not known it is the loss at the centre.
    """
    chosen, count = np.maximum(labels, 0), task.clients.count
    found = as_numpy(task.losses(centres)).astype(np.float64)[np.arange(count), chosen]
    known = getattr(task, "hessians_known", "never")
    if known == "never" or count * task.dim**2 > MAX_NUMBERS:
        return found
    gradients = as_numpy(task.gradients(centres, chosen)).astype(np.float64)
    hessians = unpacked(task.hessians(centres, chosen), task.dim)
    weights = np.minimum(task.clients.sizes, np.median(task.clients.sizes)).astype(np.float64)
    finite = np.isfinite(found) & np.isfinite(gradients).all(axis=1) & np.isfinite(hessians).all(axis=(1, 2))
    for j in range(len(centres)):
        members = np.flatnonzero((labels == j) & finite)
        if len(members) > 1:
            found[members] += _increase(gradients[members], hessians[members], weights[members])
    return found


def whitening(matrix: Floats) -> Floats:
    """(d, rank): B with BᵀMB = I for a positive semi-definite M; directions in which M is about 0 are left out."""
    units = np.sqrt(np.maximum(np.diag(matrix), np.finfo(np.float64).tiny))
    values, vectors = np.linalg.eigh(matrix / (units[:, None] * units))
    used = values > 1e-10 * values[-1]
    found: Floats = vectors[:, used] / np.sqrt(values[used]) / units[:, None]
    return found


def _increase(gradients: Floats, hessians: Floats, weights: Floats) -> Floats:
    """(c,): by how much the loss of every member grows if the centre is that of the others."""
    basis = whitening(np.einsum("c,cij->ij", weights, hessians))
    own = weights[:, None, None] * (basis.T @ hessians @ basis)
    slopes = weights[:, None] * (gradients @ basis)
    # the norm bounds all eigenvalues
    for i in np.flatnonzero(np.linalg.norm(own, axis=(1, 2)) > MAX_LEVERAGE).tolist():
        shares, axes = np.linalg.eigh(own[i])
        own[i] = (axes * np.clip(shares, 0.0, MAX_LEVERAGE)) @ axes.T
    moves = np.linalg.solve(np.eye(basis.shape[1]) - own, slopes[:, :, None])
    found: Floats = (slopes[:, None, :] @ moves + 0.5 * np.swapaxes(moves, 1, 2) @ own @ moves)[:, 0, 0] / weights
    return found
