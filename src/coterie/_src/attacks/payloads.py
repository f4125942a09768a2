"""Payloads that need no statistics of the honest clients except their mean."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie._src.arrays import as_numpy, cast, like, namespace
from coterie._src.attacks.base import Entry, Forgery, View, payload

PAPER = 3.0
"""The strength in the paper's experiments, and the default of the simple attacks."""


@payload(
    "data-poisoning",
    "the honest computation on poisoned data: the optimum of a Byzantine client is none of the k",
    published_scale=PAPER,
    arena=(Entry("poisoned data", target="own"),),
    aliases=("none",),
)
def data_poisoning(view: View, scale: float = PAPER) -> Forgery:
    """∇F_i(θ), the honest update on the client's own data, for the cluster that it claims; `scale` is not used.

    The data are poisoned by the problem: in the synthetic ones the optimum of a Byzantine client is none of the k
    centres (the paper's experiments).
    """
    return _at_scaled_centres(view, 1.0)


@payload(
    "paper",
    "the gradient of poisoned data at scale·θ instead of θ (the paper's experiments: scale 3)",
    published_scale=PAPER,
    working_centres=lambda centres, scale: scale * centres,
    arena=(Entry("paper", target="own"),),
)
def paper(view: View, scale: float = PAPER) -> Forgery:
    """∇F_i(scale·θ). With the target `own` the Byzantine clients also choose their cluster by these centres."""
    return _at_scaled_centres(view, scale)


def _at_scaled_centres(view: View, scale: float) -> Forgery:
    labels = view.claimed
    if view.centres is None:
        return Forgery(labels, view.updates[view.is_byzantine])
    if view.response is not None and (labels is view.response.labels or np.array_equal(labels, view.response.labels)):
        return Forgery(labels, view.response.updates)  # computed when the cluster was chosen
    return Forgery(labels, view.gradients(view.task, scale * view.centres, labels))


@payload(
    "sign-flip",
    "−scale times the mean honest update of the claimed cluster",
    published_scale=PAPER,
    arena=(
        Entry("sign flip"),
        Entry("rotating", target="rotating"),
        Entry("empty cluster", target="emptiest"),
        Entry("sleeper", sleep=10),
    ),
)
def sign_flip(view: View, scale: float = PAPER) -> Forgery:
    """−scale·μ, with μ the mean honest update of the claimed cluster (of all honest clients where it has none)."""
    xp, claimed = namespace(view.updates), view.claimed
    flipped = {j: -scale * xp.mean(view.honest_rows(j), axis=0) for j in np.unique(claimed).tolist()}
    return Forgery(claimed, xp.stack([flipped[j] for j in claimed.tolist()]))


@payload(
    "ipm",
    "inner-product manipulation: a small sign flip that is hard to detect",
    published_scale=0.5,
    arena=(Entry("IPM"), Entry("IPM, worst", scale="worst")),
)
def inner_product(view: View, scale: float = 0.5) -> Forgery:
    """−ε·μ, ε = `scale`, with μ as in `sign_flip`: a sign flip that is small enough to be hard to detect.

    With few Byzantine rows the mean of all rows is still a descent direction, but shorter; with many it is not.
    Reference: Xie, Koyejo and Gupta, Fall of empires, 2019.
    """
    return sign_flip(view, scale)


@payload("label-flip", "the gradient of their own data with flipped targets", arena=(Entry("label flip"),))
def label_flip(view: View, scale: float = PAPER) -> Forgery:
    """∇F_i(θ) on the client's own data with flipped targets: −y, or the class C − 1 − y.

    Losses, curvatures and Hessians are those of the data as they are. `scale` is not used. Reference: Tolpegin, Truex,
    Gursoy and Liu, Data poisoning attacks against federated learning systems, 2020.
    """
    flipped = view.task.poisoned(lambda targets, classes: classes - 1 - targets if classes else -targets)
    if view.question == "minimiser":
        return Forgery(view.claimed, cast(flipped.minimisers(), view.updates))
    if view.centres is None:
        return data_poisoning(view)
    return Forgery(view.claimed, view.gradients(flipped, view.centres, view.claimed))


@payload(
    "curvature-lies",
    "a largest curvature near 0 and a huge mean curvature, from which a server would choose too long steps",
    published_scale=1e12,
    arena=(Entry("curvature lies"),),
)
def curvature_lies(view: View, scale: float = 1e12) -> Forgery:
    """λ_max/scale and scale·trace/n for the two numbers of `Task.curvatures`, and the honest answers otherwise.

    No data have such numbers if scale² is above λ_max·n/trace, since trace/n is at most λ_max.
    """
    if view.question != "curvature":
        return data_poisoning(view)
    honest = as_numpy(view.updates[view.is_byzantine]).astype(np.float64)
    return Forgery(view.claimed, like(honest * [1 / scale, scale], view.updates))


def _scaled_targets(targets: NDArray[Any], classes: int, scale: float) -> NDArray[Any]:
    """scale·y, or the class C − 1 − y."""
    found: NDArray[Any] = classes - 1 - targets if classes else scale * targets
    return found


def _noisy_targets(targets: NDArray[Any], classes: int, scale: float) -> NDArray[Any]:
    """y + scale·s·N(0, 1), with s the standard deviation of y, in every column; or random classes.

    The generator is seeded by the targets, so that the same data are poisoned in the same way in every round and in
    every process.
    """
    exact = np.ascontiguousarray(targets, dtype=np.float64)
    rng = np.random.default_rng(list(sha256(exact.tobytes()).digest()))
    if classes:
        return rng.integers(classes, size=targets.shape)
    found: NDArray[Any] = exact + scale * exact.std(axis=0) * rng.standard_normal(targets.shape)
    return found


@payload(
    "scaled-targets",
    "the honest computation on scale·y instead of y, or on the opposite class",
    published_scale=-3.0,
    poison=_scaled_targets,
)
def scaled_targets(view: View, scale: float = -3.0) -> Forgery:
    """∇F_i(θ) on data with the targets scale·y, or C − 1 − y of C classes; scale·z where there are no targets.

    The data are poisoned before the first round, so that every answer of a Byzantine client, the cluster that it
    chooses, its loss and its minimiser included, is the honest one on these data. Hessians of the linear models do not
    depend on the targets.
    """
    return data_poisoning(view)


@payload(
    "noisy-targets",
    "the honest computation on targets with noise of scale standard deviations, or on random classes",
    published_scale=10.0,
    poison=_noisy_targets,
)
def noisy_targets(view: View, scale: float = 10.0) -> Forgery:
    """∇F_i(θ) on data with the targets y + scale·s·N(0, 1), s the standard deviation of the client's own targets.

    Classes become uniformly random ones. The data are poisoned before the first round, as those of `scaled_targets`:
    the noise of a client is the same in all rounds.
    """
    return data_poisoning(view)


@payload(
    "gaussian",
    "independent noise N(0, scale²) in every coordinate",
    published_scale=PAPER,
    arena=(Entry("huge noise", scale=1e4),),
)
def gaussian(view: View, scale: float = PAPER) -> Forgery:
    """Independent N(0, scale²) noise in every coordinate."""
    noise = scale * view.rng.standard_normal((view.byzantine_count, view.updates.shape[1]))
    return Forgery(view.claimed, like(noise, view.updates))


@payload("constant", "every coordinate is the number `scale`", published_scale=PAPER, arena=(Entry("constant"),))
def constant(view: View, scale: float = PAPER) -> Forgery:
    """Every coordinate is `scale`."""
    rows = np.full((view.byzantine_count, view.updates.shape[1]), scale)
    return Forgery(view.claimed, like(rows, view.updates))


@payload(
    "garbage",
    "malformed replies of every kind, each of them twice",
    published_scale=PAPER,
    arena=(Entry("garbage", target="own"),),
)
def garbage(view: View, scale: float = PAPER) -> Forgery:
    """Malformed replies of every kind in turn, each sent twice.

    NaN, infinity, wrong length, wrong dtype, text, None, labels that do not exist, and a stale round.
    """
    honest = view.updates[view.is_byzantine]
    spoils: list[Callable[[Any], Any]] = [
        lambda row: row * float("nan"),
        lambda row: row + float("inf"),
        lambda row: row[:-1] if row.shape[0] > 1 else row[None],
        lambda row: as_numpy(row).astype(np.complex128),
        lambda row: "garbage",
        lambda row: None,
        lambda row: row,
    ]
    wrong_labels: list[Any] = [view.clusters, -1, 2**70, "0", None, 0.5, True]
    turn = [i + max(view.round, 0) for i in range(view.byzantine_count)]
    updates = [spoils[t % len(spoils)](honest[i]) for i, t in enumerate(turn)]
    # a well-formed update (the last of `spoils`) gets a wrong label or, every other time, a stale round
    well_formed = [t % len(spoils) == len(spoils) - 1 for t in turn]
    stale = [h and (t // len(spoils)) % 2 == 1 for h, t in zip(well_formed, turn, strict=True)]
    labels: list[Any] = view.claimed.tolist()
    for i, t in enumerate(turn):
        if well_formed[i] and not stale[i]:
            labels[i] = wrong_labels[(t // len(spoils)) % len(wrong_labels)]
    rounds = [view.round - 1 if late else view.round for late in stale]
    return Forgery(labels, updates, rounds, repeated=True)
