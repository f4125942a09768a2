"""Payloads that lie about the clients' Hessians, from which the server computes its coordinates and step lengths.

In the rounds all of them send the updates of `noisy_alie`, which are hard to detect, so that slow or wrong steps would
show.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coterie._src.arrays import Floats, as_numpy, like
from coterie._src.attacks.base import Entry, Forgery, Payload, View
from coterie._src.attacks.crafted import noisy_alie

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
)
