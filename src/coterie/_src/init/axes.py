"""Axes in which many positive semidefinite matrices are alike, although some of them are false."""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh

from coterie._src.arrays import Floats, Ints
from coterie._src.packed import PackedMatrices

PASSES = 4
"""Passes of the robust mean of Hessians at most."""
OUTLYING = 2.0
"""A Hessian whose trace is larger than this many times the typical one counts less in the mean."""
ABSURD = 1e3
"""The same before there are coordinates: a Hessian that is larger than this must not hide all other directions."""
RANK = {"float32": 1e-12, "float64": 1e-13}
"""By the precision of the centres: directions in which the features vary by less than this share of the largest
variance are left out, since the gradients along them are rounding errors."""
AXIS, ROUNDING = 1e-13, 16.0
"""The rounding error of an axis, as a share of its length in the units of the columns, and that of the product of axes
and a Hessian, in typical ones (see `_variation`)."""
RARE = 1e3
"""The variation of a client along an axis, in typical ones, above which the axis may be known to few clients alone."""


def without_negative(clients: Ints, matrices: PackedMatrices) -> tuple[Ints, PackedMatrices]:
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


def robust_axes(matrices: PackedMatrices, byzantine: int, rank: float) -> tuple[Floats, float] | None:
    """(d, r), a basis in which a typical matrix is the identity, and the condition number that it removes.

    The mean P of the matrices, in which one with a larger trace(P⁻¹H_i) than typical counts less, is diagonalised
    together with the mean weighted by these traces; both change with the parameters in the same way, so that the axes
    do not depend on the units and the correlation of the features (invariant coordinate selection; Tyler, Critchley,
    Dümbgen and Oja, 2009). Each axis is scaled by a mean over the clients without the largest values, as many as may be
    Byzantine, so that false matrices determine no scale.

    None where all matrices are 0. byzantine: at most so many matrices are false.
    """
    diagonals = np.maximum(matrices.diagonals, 0.0)
    if not diagonals.any():
        return None
    units = np.sqrt(_typical(diagonals, byzantine))
    basis: Floats = np.diag(1 / np.where(units > 0, units, 1.0))
    # the traces depend on the columns here, and not yet on the coordinates alone: only absurd ones count
    weights = _trace_weights(diagonals @ np.diag(basis) ** 2, byzantine, ABSURD)
    number = 0.0
    for _ in range(PASSES):
        basis, condition_number = _whitening(matrices, weights, basis, rank)
        number = number or condition_number
        values = matrices.along(basis)
        scales = _typical(_variation(values, diagonals, units, basis), byzantine)
        kept = scales > 0
        if not kept.any():
            return None
        basis, values = basis[:, kept] / np.sqrt(scales[kept]), values[:, kept] / scales[kept]
        before = weights
        weights = _trace_weights(values.sum(axis=1), byzantine, OUTLYING)
        if np.abs(weights - before).max() < 1e-2 and scales.min() > 0.25 * scales.max():
            break
    basis = _with_rare_axes(values, matrices, units, basis, byzantine)
    return basis, number


def _trace_weights(traces: Floats, byzantine: int, largest: float) -> Floats:
    """(c,): 1 for a trace of up to `largest` typical ones, less in proportion for a larger one."""
    typical = max(float(_typical(traces[:, None], byzantine)[0]), 1e-300)
    found: Floats = 1 / np.maximum(traces / (largest * typical), 1.0)
    return found


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
