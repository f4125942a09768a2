"""Payloads that lie about the clients' Hessians, from which the server computes its coordinates and step lengths.

In the rounds all but the last send the updates of `noisy_alie`, which are hard to detect, so that slow or wrong steps
would show.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coterie._src.arrays import Floats, as_numpy, like
from coterie._src.attacks.base import Entry, Forgery, Payload, View
from coterie._src.attacks.crafted import noisy_alie
from coterie._src.attacks.payloads import data_poisoning

Lie = Callable[[View, Floats, float], Floats]
"""(view, the honest Hessians of the Byzantine clients as upper triangles (b, d(d+1)/2), strength) -> what they send."""


def _payload(name: str, summary: str, published_scale: float, arena: tuple[Entry, ...], lie: Lie) -> Payload:
    def forge(view: View, scale: float = published_scale) -> Forgery:
        if view.question != "hessian":
            return noisy_alie(view)
        honest = as_numpy(view.updates[view.is_byzantine]).astype(np.float64)
        return Forgery(view.claimed, like(lie(view, honest, scale), view.updates))

    return Payload(name, summary, forge, published_scale, arena=arena)


def _dim(packed: Floats) -> int:
    """d, from rows of d(d+1)/2 numbers."""
    return int((np.sqrt(8 * packed.shape[1] + 1) - 1) / 2)


def _identical(view: View, honest: Floats, scale: float) -> Floats:
    """One random positive semidefinite matrix for all, `scale` times as large as an honest one."""
    dim = _dim(honest)
    factor = view.rng.standard_normal((dim, 1 + dim // 2))
    size = np.abs(honest).max() * scale / dim
    return np.tile((size * factor @ factor.T)[np.triu_indices(dim)], (len(honest), 1))


def _spike(view: View, honest: Floats, scale: float) -> Floats:
    """The honest Hessian plus `scale` times its size along one common random direction."""
    dim = _dim(honest)
    along = view.rng.standard_normal(dim)
    along /= np.linalg.norm(along)
    found: Floats = honest + scale * np.abs(honest).max() * np.outer(along, along)[np.triu_indices(dim)]
    return found


def _scaled(view: View, honest: Floats, scale: float) -> Floats:
    """The honest Hessian times `scale`."""
    return scale * honest


def _permuted(view: View, honest: Floats, scale: float) -> Floats:
    """`scale` times the honest Hessian of features in another order: plausible, but of another distribution."""
    dim = _dim(honest)
    above, order = np.triu_indices(dim), view.rng.permutation(dim)
    found = np.empty_like(honest)
    for i, row in enumerate(honest):
        matrix = np.zeros((dim, dim))
        matrix[above] = row
        matrix = matrix + np.triu(matrix, 1).T
        found[i] = scale * matrix[order][:, order][above]
    return found


def _forge_leverage(view: View, scale: float = 40.0) -> Forgery:
    """Claims much information along one common direction v, and sends updates that are shifted along it.

    The Hessian is that of a typical honest client plus `scale` times its mean eigenvalue along v. Where the server
    judges updates by the clients' own Hessians, a shift by two standard deviations of a client with that Hessian is
    within its noise, and the clients with the large Hessians determine the centre along v. We know of no earlier
    description.
    """
    along = np.random.default_rng(0).standard_normal(view.task.dim)  # the same in all questions
    along /= np.linalg.norm(along)
    if view.question == "hessian":
        typical = as_numpy(view.updates[~view.is_byzantine]).astype(np.float64).mean(axis=0)
        above = np.triu_indices(len(along))
        size = scale * typical[above[0] == above[1]].mean()
        row = typical + size * np.outer(along, along)[above]
        return Forgery(view.claimed, like(np.tile(row, (view.byzantine_count, 1)), view.updates))
    if view.question != "gradient" or view.round < 0:
        return data_poisoning(view)
    direction = along if view.coordinates is None else view.coordinates.updates(along[None])[0]
    direction = direction / max(float(np.linalg.norm(direction)), 1e-300)
    rows = np.empty((view.byzantine_count, len(direction)))
    for i, cluster in enumerate(view.claimed.tolist()):
        honest = as_numpy(view.honest_rows(cluster)).astype(np.float64)
        deviation = float(np.median(honest.std(axis=0)))
        noise = 0.7 * view.rng.standard_normal(len(direction))
        rows[i] = honest.mean(axis=0) + deviation * (2 * np.sqrt(scale) * direction + noise)
    return Forgery(view.claimed, like(rows, view.updates))


PAYLOADS = (
    _payload(
        "hessian-identical",
        "one random Hessian for all, much too large",
        1e6,
        (Entry("Hessian, identical"),),
        _identical,
    ),
    _payload("hessian-spike", "a Hessian with one huge eigenvalue", 1e6, (Entry("Hessian, spike"),), _spike),
    _payload(
        "hessian-scaled",
        "the honest Hessian times a huge or a tiny number",
        1e6,
        (Entry("Hessian, times 1e6"), Entry("Hessian, times 1e-6", scale=1e-6)),
        _scaled,
    ),
    _payload(
        "hessian-permuted",
        "the Hessian of the features in another order",
        1.0,
        (Entry("Hessian, permuted"),),
        _permuted,
    ),
    Payload(
        "hessian-leverage",
        "a Hessian that claims much information along one direction, and updates shifted along it",
        _forge_leverage,
        40.0,
        arena=(Entry("Hessian, leverage"),),
    ),
)
