"""A bound on what a few clients with much information along one direction can do to the centre of their cluster.

Where the clients' Hessians differ, a client with a large Hessian along a direction v knows the centre along v better
than others, if its Hessian is true. Byzantine clients that all claim a large Hessian along one v, and send updates that
are shifted along it, determine the centre along v, and each shift is within the noise that the own Hessian allows.
Their sum is not. Let R be the clients without the max_byzantine of largest information along v, and s the Newton step
of R. If all claims are true, the updates that the others have left after this step,

    G = Σ_i w_i (u_i − H_i s),   have mean 0 and covariance σ² (J + J J_R⁻¹ J),  J = Σ_i w_i H_i,

where the sum is over the others, and J_R is the same sum over R. If vᵀG is more than `TOO_FAR` of its standard
deviations, the client that contributes most to it is left out, and the test is repeated. Byzantine clients that claim
more information along v than honest clients have are none of R. Then together they move the centre along v by hardly
more than `TOO_FAR` standard errors of the centre of R, whatever they claim. Those that claim no more than honest
clients are left to the filter of the standardised rows. Honest clients pass, however much information they have.

This is a test of a group of observations of high leverage in a regression (for known groups: Belsley, Kuh and Welsch,
Regression diagnostics, 1980, section 2.1).
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigh

from coterie._src.arrays import Floats, Ints

TOO_FAR = 4.0
"""The standard deviations by which the clients with most information may differ from the others along a direction. Of
1600 simulated clusters of 20 to 60 honest clients with normal noise and means of their own, the largest of the
directions exceeded 4 in 2, 3.5 in 6, and 3 in 37."""
DIRECTIONS = 8
"""The directions that are tested, from the leading eigenvectors of the sum of the Hessians."""
ASCENTS = 3
"""Power iterations towards the direction along which `byzantine` clients hold most information together."""
FEWEST = 8
"""The fewest clients of a cluster that are tested."""
RIDGE = 3e-5
"""Added to J_R, as a share of the trace of all: a Hessian counts as positive semidefinite down to −1e-5 of its trace,
and the sums are of float32 numbers."""


def bounded_leverage(hessians: Floats, updates: Floats, weights: Floats, noise: float, byzantine: int) -> Floats:
    """(c,): the weights of the clients of one cluster, 0 for those left out; at most `byzantine` of them are.

    hessians: (c, r, r), H_i. updates: (c, r), u_i, whose noise has the covariance noise·H_i/w_i. weights: (c,), w_i.
    noise: σ².
    """
    found = weights.copy()
    for _ in range(byzantine):
        remaining = int(np.count_nonzero(found))
        # as many as may be Byzantine, also after some were left out, since these may have been honest
        count = min(byzantine, (remaining - 1) // 2)
        if remaining < FEWEST:
            break
        # summed anew: what is left after a subtraction may be the rounding errors of what was subtracted
        total = _weighted_sum(found, hessians)
        farthest = _farthest(hessians, updates, found, total, noise, count)
        if farthest is None:
            break
        found[farthest] = 0.0
    return found


def _weighted_sum(weights: Floats, hessians: Floats) -> Floats:
    """(r, r): Σ w_i H_i, in the precision of the Hessians."""
    return np.asarray(np.tensordot(weights.astype(hessians.dtype), hessians, axes=1), dtype=np.float64)


def _farthest(
    hessians: Floats, updates: Floats, weights: Floats, total: Floats, noise: float, count: int
) -> int | None:
    """The client that contributes most to the largest deviation; None where none is more than `TOO_FAR`.

    total: (r, r), Σ w_i H_i. count: the number of clients of largest information that are compared with the others.
    """
    dim, largest, farthest = len(total), TOO_FAR, None
    scores = weights[:, None] * updates
    ridge = max(1e-4 / dim, RIDGE) * np.trace(total) * np.eye(dim)
    leading = eigh(total, subset_by_index=(max(0, dim - DIRECTIONS), dim - 1))[1]
    for start in leading.T[::-1]:
        along, products, group = start, *_most_informed(hessians, weights, start, count)
        for _ in range(ASCENTS):
            ascent = products[group].sum(axis=0)
            along = ascent / max(float(np.linalg.norm(ascent)), 1e-300)
            products, group = _most_informed(hessians, weights, along, count)
        own = _weighted_sum(weights[group], hessians[group])
        factor = cho_factor(total - own + ridge, lower=True)
        step = cho_solve(factor, scores.sum(axis=0) - scores[group].sum(axis=0))
        left = scores[group] @ along - products[group] @ step
        joint = own @ along
        variance = noise * float(along @ joint + joint @ cho_solve(factor, joint))
        deviation = float(left.sum()) / np.sqrt(max(variance, 1e-300))
        if abs(deviation) > largest:
            largest, farthest = abs(deviation), int(group[np.argmax(np.sign(deviation) * left)])
    return farthest


def _most_informed(hessians: Floats, weights: Floats, along: Floats, count: int) -> tuple[Floats, Ints]:
    """(c, r), w_i H_i v, and the `count` clients for which vᵀ w_i H_i v is largest."""
    products: Floats = weights[:, None] * (hessians @ along.astype(hessians.dtype)).astype(np.float64)
    return products, np.argsort(-(products @ along), kind="stable")[:count]
