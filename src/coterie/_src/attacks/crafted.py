"""Lies that are made from what the honest clients of a cluster send, so as not to stand out among them.

Each takes the honest rows x_i of the claimed cluster (of all honest clients where it has none), with mean μ and
coordinate-wise standard deviation s, and gives its formula in these terms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist, squareform
from scipy.special import ndtri

from coterie._src.arrays import Array, Floats, as_numpy, cast, like, namespace
from coterie._src.attacks.base import Entry, Forgery, View, payload
from coterie._src.attacks.payloads import data_poisoning, paper
from coterie._src.tasks import assign

Craft = Callable[[Any, int, int], Array]
"""From the honest rows of a cluster in float64, its number and the number of byzantine to their rows, or one for all."""


def _forge(view: View, craft: Craft, in_place: bool = False) -> Forgery:
    """in_place: the lie is made where the rows are, which may be a GPU; else on the CPU, by NumPy and SciPy."""
    xp, claimed = namespace(view.updates), view.claimed
    rows_sent = xp.empty(
        (view.byzantine_count, view.updates.shape[1]), dtype=view.updates.dtype, device=view.updates.device
    )
    for j in np.unique(claimed).tolist():
        honest = xp.astype(view.honest_rows(j), xp.float64)
        row = craft(honest if in_place else as_numpy(honest), j, int((claimed == j).sum()))
        rows_sent[np.flatnonzero(claimed == j)] = cast(row, rows_sent) if in_place else like(row, rows_sent)
    return Forgery(claimed, rows_sent)


@payload(
    "alie",
    "a little is enough: the honest mean less z standard deviations",
    arena=(Entry("ALIE"), Entry("ALIE, worst", scale="worst")),
)
def alie(view: View, scale: float | None = None) -> Forgery:
    """μ − z·s, z = `scale`: a little is enough, if everybody does it.

    By default the largest z at which the byzantine still win a median: with n rows of which f are lies,
    z = Φ⁻¹((n − f − t)/(n − f)), t = ⌊n/2 + 1⌋ − f honest rows needed for a majority.
    Reference: Baruch, Baruch and Goldberg, A little is enough, 2019.
    """

    def craft(rows: Floats, cluster: int, byzantine: int) -> Array:
        needed = (len(rows) + byzantine) // 2 + 1 - byzantine
        share = np.clip((len(rows) - needed) / len(rows), 0.5, 0.999)
        z = float(ndtri(share)) if scale is None else scale
        xp = namespace(rows)
        return xp.mean(rows, axis=0) - z * xp.std(rows, axis=0)

    return _forge(view, craft, in_place=True)


@payload(
    "noisy-alie",
    "ALIE with noise, so that no two Byzantine rows are alike",
    published_scale=1.5,
    arena=(Entry("noisy ALIE, worst", scale="worst"),),
    aliases=("disguised",),
)
def noisy_alie(view: View, scale: float = 1.5) -> Forgery:
    """μ − z·s + s·g_i with g_i ~ N(0, I), z = `scale`: ALIE, but no two byzantine say the same.

    Row by row they are as noisy as honest clients, so that only their number and their common shift can give them away.
    After Baruch, Baruch and Goldberg, A little is enough, 2019, against rules that look for copies.
    """

    def craft(rows: Floats, cluster: int, byzantine: int) -> Array:
        noise = view.rng.standard_normal((byzantine, rows.shape[1]))
        return rows.mean(axis=0) + rows.std(axis=0) * (noise - scale)

    return _forge(view, craft)


@payload(
    "min-max",
    "as far from the honest mean as two honest rows are from each other",
    published_scale=1.0,
    arena=(Entry("Min-Max"),),
)
def min_max(view: View, scale: float = 1.0) -> Forgery:
    """μ − scale·γ·s with the largest γ whose distance to every x_i is at most the largest between two of them.

    Reference: Shejwalkar and Houmansadr, Manipulating the Byzantine, 2021.
    """

    def craft(rows: Floats, cluster: int, byzantine: int) -> Array:
        mean, spread = rows.mean(axis=0), rows.std(axis=0)
        farthest = pdist(rows, "sqeuclidean").max() if len(rows) > 1 else 0.0
        # ‖μ − x_i − γs‖² ≤ farthest for all i: the least of the positive roots
        offsets = mean - rows
        half, rest = offsets @ spread, (offsets**2).sum(axis=1) - farthest
        return mean - scale * float(_larger_root(spread @ spread, half, rest).min()) * spread

    return _forge(view, craft)


@payload(
    "min-sum",
    "as far from the honest mean as the sum of squared distances allows",
    published_scale=1.0,
    arena=(Entry("Min-Sum"),),
)
def min_sum(view: View, scale: float = 1.0) -> Forgery:
    """μ − scale·γ·s with the largest γ whose squared distances to the x_i add up to at most those of one of them.

    Reference: Shejwalkar and Houmansadr, Manipulating the Byzantine, 2021.
    """

    def craft(rows: Floats, cluster: int, byzantine: int) -> Array:
        mean, spread = rows.mean(axis=0), rows.std(axis=0)
        most = squareform(pdist(rows, "sqeuclidean")).sum(axis=1).max()
        rest = ((rows - mean) ** 2).sum() - most  # Σ‖μ − x_i − γs‖² = rest + most + nγ²‖s‖²: the middle term is 0
        return mean - scale * float(_larger_root(len(rows) * (spread @ spread), 0.0, rest)) * spread

    return _forge(view, craft)


def _larger_root(square: float, half: Any, rest: Any) -> Any:
    """The larger γ with square·γ² − 2·half·γ + rest = 0; 0 where there is none."""
    if square == 0:
        return np.zeros(())
    return (half + np.sqrt(np.maximum(half**2 - square * rest, 0.0))) / square


@payload("mimic", "all copy the honest client that lies farthest out", published_scale=1.0, arena=(Entry("mimic"),))
def mimic(view: View, scale: float = 1.0) -> Forgery:
    """All copy one honest client, the one farthest out along the direction in which they differ most.

    Not one coordinate is implausible, and yet that client counts many times. μ + scale·(x_i − μ).
    Reference: Karimireddy, He and Jaggi, Byzantine-robust learning on heterogeneous datasets via bucketing, 2022.
    """

    def craft(rows: Floats, cluster: int, byzantine: int) -> Array:
        offsets = rows - rows.mean(axis=0)
        along = np.linalg.svd(offsets, full_matrices=False)[0][:, 0]
        return rows.mean(axis=0) + scale * offsets[np.abs(along).argmax()]

    return _forge(view, craft)


@payload(
    "trimmed-mean",
    "just outside the honest range in every coordinate",
    published_scale=2.0,
    arena=(Entry("trimmed mean"),),
)
def trimmed_mean_attack(view: View, scale: float = 2.0) -> Forgery:
    """Per coordinate just outside the honest range, on the side that μ points away from.

    Where μ > 0 a uniform value between the least one and b = `scale` times that (over b, if it is positive), where
    μ < 0 the same beyond the largest.
    Reference: Fang et al., Local model poisoning attacks to Byzantine-robust federated learning, 2020.
    """

    def craft(rows: Floats, cluster: int, byzantine: int) -> Array:
        away = -np.sign(rows.mean(axis=0))
        edge = np.where(away < 0, rows.min(axis=0), rows.max(axis=0))
        end = np.where(edge * away > 0, edge * scale, edge / scale)
        return edge + (end - edge) * view.rng.uniform(size=(byzantine, rows.shape[1]))

    return _forge(view, craft)


@payload(
    "merge",
    "drags a centre onto its nearest neighbour",
    published_scale=1.0,
    arena=(Entry("merge"), Entry("merge, worst", scale="worst")),
)
def merge(view: View, scale: float = 1.0) -> Forgery:
    """μ + scale·ρ·(θ_j − θ_j′)/‖θ_j − θ_j′‖: drags θ_j onto its nearest neighbour θ_j′, until the clients change over.

    ρ² is the mean squared distance of the honest rows to μ, so that with scale 1 a lie stands where they do.
    With one centre, away from 0. Only clusters make it possible; we know of no earlier description.
    """

    def craft(rows: Floats, cluster: int, byzantine: int) -> Array:
        mean = rows.mean(axis=0)
        reach = np.sqrt(((rows - mean) ** 2).sum(axis=1).mean())
        if view.centres is None:
            return mean
        centres = as_numpy(view.centres).astype(np.float64)
        gaps = centres[cluster] - centres
        lengths = np.linalg.norm(gaps, axis=1)
        if not lengths.any():
            gaps, lengths = -centres, np.linalg.norm(centres, axis=1)  # the server goes against what it is sent
        nearest = int(np.where(lengths > 0, lengths, np.inf).argmin())  # the nearest that is not there already
        return mean + scale * reach * gaps[nearest] / max(float(lengths[nearest]), 1e-300)

    return _forge(view, craft)


@payload(
    "cross-mimic", "copies of honest updates of other clusters", published_scale=1.0, arena=(Entry("cross-mimic"),)
)
def cross_mimic(view: View, scale: float = 1.0) -> Forgery:
    """Copies of what honest clients of other clusters send, claimed for this one; scale·x_i of each in turn.

    The mimic of Karimireddy, He and Jaggi (2022) across clusters: every single reply is an honest one.
    """
    updates = as_numpy(view.updates).astype(np.float64)

    def craft(rows: Floats, cluster: int, byzantine: int) -> Array:
        others = updates[~view.is_byzantine & (view.labels != cluster)]
        source = others if len(others) else rows
        return scale * source[np.arange(byzantine) % len(source)]

    return _forge(view, craft)


@payload(
    "seed-capture",
    "one common point before the first round, then the attack of the paper",
    published_scale=1.0,
    arena=(Entry("seed capture", target="own"),),
)
def seed_capture(view: View, scale: float = 1.0) -> Forgery:
    """Aims at the start: all send one point before the first round, then the paper's lie to the clusters they claim.

    The point is μ + scale·ρ·u with u a random direction: dense, and no farther out than an honest client. What seeding
    must withstand in Jana, Fan and Kulkarni, A general theory for robust clustering via trimmed mean, 2024.
    """
    if view.round >= 0:
        return paper(view)
    direction = view.rng.standard_normal(view.updates.shape[1])

    def craft(rows: Floats, cluster: int, byzantine: int) -> Array:
        mean = rows.mean(axis=0)
        reach = np.sqrt(((rows - mean) ** 2).sum(axis=1).mean())
        return mean + scale * reach * direction / np.linalg.norm(direction)

    return _forge(view, craft)


@payload(
    "phantom",
    "a cluster that does not exist: honest computation on data of a made-up model",
    published_scale=1.0,
    arena=(Entry("phantom", target="own"),),
)
def phantom(view: View, scale: float = 1.0) -> Forgery:
    """A cluster that does not exist: all compute honestly on data that (−1, …, −1)·scale/√d explains (`Task.with_targets_from`).

    So their answers fit together in every round, in the start as well, and they look for a centre of their own: ∇F_i(θ)
    of data that are made up. Only an unknown k makes it possible; we know of no earlier description.
    """
    example = view.updates[:1, :] if view.centres is None else view.centres[:1, :]
    model: Array = like(np.full((1, view.task.dim), -scale / np.sqrt(view.task.dim)), example)
    fitted = view.task.with_targets_from(model[0])
    if view.question == "minimiser":
        return Forgery(view.claimed, cast(fitted.minimisers(), view.updates))
    if view.centres is None:
        return data_poisoning(view)
    labels = view.claimed if view.fixed else assign(fitted.losses(view.centres))
    return Forgery(labels, fitted.gradients(view.centres, labels))
