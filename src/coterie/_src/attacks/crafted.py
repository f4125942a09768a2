"""Payloads computed from the honest updates of a cluster, so that the forged updates resemble them.

The formulas use the honest rows x_i of the claimed cluster (of all honest clients where it has none), their mean μ and
their coordinate-wise standard deviation s.
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
"""(honest rows in float64, cluster, number of Byzantine clients) -> the forged rows, or one row for all of them."""


def _forge(view: View, craft: Craft, in_place: bool = False) -> Forgery:
    """The forged updates of all clusters; in_place: computed on the device of the rows, else on the CPU by NumPy."""
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
    """μ − z·s, z = `scale`: every Byzantine client sends the same small deviation.

    By default z is the largest for which the Byzantine clients still form a majority together with honest rows that lie
    beyond them: with n rows of which f are Byzantine, z = Φ⁻¹((n − f − t)/(n − f)), where t = ⌊n/2 + 1⌋ − f honest rows
    are needed for a majority.
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
    """μ − z·s + s·g_i with g_i ~ N(0, I), z = `scale`: ALIE with independent noise for every Byzantine client.

    The forged rows are as noisy as honest ones, so that only their common shift can be detected. After Baruch, Baruch
    and Goldberg, A little is enough, 2019, against rules that detect copies.
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
        # ‖μ − x_i − γs‖² ≤ farthest for all i: the smallest of the positive roots
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
        largest = squareform(pdist(rows, "sqeuclidean")).sum(axis=1).max()
        rest = ((rows - mean) ** 2).sum() - largest  # Σ‖μ − x_i − γs‖² = rest + largest + nγ²‖s‖²: the linear term is 0
        return mean - scale * float(_larger_root(len(rows) * (spread @ spread), 0.0, rest)) * spread

    return _forge(view, craft)


def _larger_root(square: float, half: Any, rest: Any) -> Any:
    """The larger γ with square·γ² − 2·half·γ + rest = 0; 0 where there is none."""
    if square == 0:
        return np.zeros(())
    return (half + np.sqrt(np.maximum(half**2 - square * rest, 0.0))) / square


@payload("mimic", "all copy one honest client, the most extreme one", published_scale=1.0, arena=(Entry("mimic"),))
def mimic(view: View, scale: float = 1.0) -> Forgery:
    """μ + scale·(x_i − μ): all copy one honest client, the most extreme along the leading principal direction.

    No coordinate is implausible, but that client is counted many times.
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
    """Per coordinate a uniform value just outside the honest range, on the side opposite to the sign of μ.

    Where μ > 0 it lies between the smallest honest value and that value times b = `scale` (divided by b if the value is
    positive); where μ < 0 likewise beyond the largest.
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
    "moves a centre towards its nearest neighbour",
    published_scale=1.0,
    arena=(Entry("merge"), Entry("merge, worst", scale="worst")),
)
def merge(view: View, scale: float = 1.0) -> Forgery:
    """μ + scale·ρ·(θ_j − θ_j′)/‖θ_j − θ_j′‖: moves θ_j towards its nearest neighbour θ_j′, so that clusters merge.

    ρ² is the mean squared distance of the honest rows to μ: with scale 1 a forged row is as far from μ as honest ones.
    With one centre, the centre is moved away from 0. Specific to clustered learning; we know of no earlier description.
    """

    def craft(rows: Floats, cluster: int, byzantine: int) -> Array:
        mean = rows.mean(axis=0)
        radius = np.sqrt(((rows - mean) ** 2).sum(axis=1).mean())
        if view.centres is None:
            return mean
        centres = view.points
        gaps = centres[cluster] - centres
        lengths = np.linalg.norm(gaps, axis=1)
        if not lengths.any():
            gaps, lengths = -centres, np.linalg.norm(centres, axis=1)  # the server's step is against the update
        nearest = int(np.where(lengths > 0, lengths, np.inf).argmin())  # the nearest centre that differs from this one
        return mean + scale * radius * gaps[nearest] / max(float(lengths[nearest]), 1e-300)

    return _forge(view, craft)


@payload(
    "cross-mimic", "copies of honest updates of other clusters", published_scale=1.0, arena=(Entry("cross-mimic"),)
)
def cross_mimic(view: View, scale: float = 1.0) -> Forgery:
    """scale·x_i: copies of the updates of honest clients of other clusters, in turn, claimed for this cluster.

    The mimic attack of Karimireddy, He and Jaggi (2022) across clusters: every update is that of an honest client.
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
    """An attack on the start: all send one common point before the first round, and the `paper` payload afterwards.

    The point is μ + scale·ρ·u with u a random direction: a dense group, no farther from μ than an honest client.
    Seeding must withstand such a group in Jana, Fan and Kulkarni, A general theory for robust clustering via trimmed
    mean, 2024.
    """
    if view.round >= 0:
        return paper(view)
    direction = view.rng.standard_normal(view.updates.shape[1])

    def craft(rows: Floats, cluster: int, byzantine: int) -> Array:
        mean = rows.mean(axis=0)
        radius = np.sqrt(((rows - mean) ** 2).sum(axis=1).mean())
        return mean + scale * radius * direction / np.linalg.norm(direction)

    return _forge(view, craft)


@payload(
    "phantom",
    "a cluster that does not exist: honest computation on data of a made-up model",
    published_scale=1.0,
    arena=(Entry("phantom", target="own"),),
)
def phantom(view: View, scale: float = 1.0) -> Forgery:
    """∇F_i(θ) of made-up data, with targets from the model (−1, …, −1)·scale/√d (`Task.with_targets_from`).

    The replies are consistent in every round, the start included, like those of one more cluster, so that the server
    may give it a centre. Specific to an unknown k; we know of no earlier description.
    """
    example = view.updates[:1, :] if view.centres is None else view.centres[:1, :]
    model: Array = like(np.full((1, view.task.dim), -scale / np.sqrt(view.task.dim)), example)
    fitted = view.task.with_targets_from(model[0])
    if view.question == "minimiser":
        return Forgery(view.claimed, cast(fitted.minimisers(), view.updates))
    if view.centres is None:
        return data_poisoning(view)
    labels = view.claimed if view.fixed else assign(fitted.losses(view.centres))
    return Forgery(labels, view.gradients(fitted, view.centres, labels))
