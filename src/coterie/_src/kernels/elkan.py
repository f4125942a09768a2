"""Lower bounds that find the centre of lowest loss for a client without computing all k losses in every round.

A convex loss lies above its tangent planes: F_i(θ) ≥ F_i(θ₀) + ⟨∇F_i(θ₀), θ − θ₀⟩. When a client computes its loss at a
centre, it stores such a lower bound. While this bound exceeds the loss at the client's own centre, the other centre
cannot be the best, and its loss need not be computed. This is Elkan's idea for k-means (Using the triangle inequality
to accelerate k-means, 2003), with tangent planes instead of distances.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

MARGIN = 1e-4
"""A centre is excluded if its bound exceeds the loss at the own centre by this relative margin, against rounding."""
MEMORY_SHARE = 0.15
"""The largest memory of the lower bounds, as a share of that of the samples."""
ROUNDING = 2.0**-21
"""In every round a bound is lowered by this share of itself, more than the rounding error of float32."""
FLAT = 1e-30
"""A slope whose unit is smaller is stored as 0."""
SMALLEST = 1e-37
"""Below this loss every centre is evaluated, since bounds in float32 are not reliable."""
UNDERFLOW = 1e-40
"""A bound on the norm of a slope's components that underflow in float32."""
LOWER, STEEPNESS, PATH = range(3)
"""The three numbers stored per client and centre (see `LowerBounds.bounds`)."""
UNIT, HEIGHT, REMAINDER = range(3)
"""The three numbers of a tangent plane, beside its slope (see `LowerBounds.planes`)."""


@dataclass
class LowerBounds:
    """Lower bounds on the losses of m clients at k centres.

    When a centre has moved by δ, a bound decreases by at most ‖∇F_i(θ₀)‖·‖δ‖, which needs only the norm of the slope.
    If that bound does not exclude the centre, the tangent plane itself is evaluated. The slope is stored as integers
    from -127 to 127 times a unit, a quarter of its memory in float32, and the plane is lowered by ‖e‖·‖δ‖ for the
    rounding error e. In Gram form, where a loss costs little more than a plane, only the first kind of bound is stored.

    Attributes
    ----------
    labels : (m,), the clients' labels in the last round.
    previous : (k, d), the centres of the last round.
    bounds : (m, 3, k), the lower bound on F_i(θ_j), the steepness ‖∇F_i(θ₀)‖, and the length of the centre's path since
        the loss was computed, which is at least ‖δ‖; NaN where it never was.
    planes : (m, k, 3), the unit, the height, and ‖e‖, so that F_i(θ_j) ≥ height + ⟨slope, θ_j⟩ − ‖e‖·‖δ‖.
    steps : (m, k, d), the integers: slope = unit·steps. In Gram form planes and steps are empty, (0, k, ·).
    """

    labels: NDArray[np.int64]
    previous: NDArray[Any]
    bounds: NDArray[Any]
    planes: NDArray[Any]
    steps: NDArray[np.int8]

    @classmethod
    def unknown(cls, clients: int, centres: NDArray[Any], gram: bool) -> LowerBounds:
        """The bounds before any loss is computed."""
        (k, d), sloped = centres.shape, 0 if gram else clients
        bounds = np.full((clients, 3, k), np.nan, centres.dtype)
        planes = np.full((sloped, k, 3), np.nan, centres.dtype)
        steps = np.zeros((sloped, k, d), dtype=np.int8)
        return cls(np.zeros(clients, np.int64), centres.copy(), bounds, planes, steps)

    @staticmethod
    def nbytes(clients: int, centres: NDArray[Any], gram: bool) -> int:
        """The memory of the bounds."""
        three = 3 * centres.itemsize
        return int(len(centres) * clients * (three if gram else 2 * three + centres.shape[1]))


@dataclass
class AssignmentCache:
    """Lower bounds that clients keep from round to round, so that most need not compute all k losses again.

    The cache changes no label and no gradient, only the time to compute them. It belongs to the data that it was last
    used with; with other data, or with centres of another shape, it is reset.
    """

    data: Any = field(default=None, repr=False)
    lower_bounds: LowerBounds | None = field(default=None, repr=False)

    def bounds_for(self, data: Any, centres: NDArray[Any]) -> LowerBounds | None:
        """The bounds for these clients and centres; None if there are none yet."""
        known = self.lower_bounds
        fits = known is not None and self.data is data and known.previous.shape == centres.shape
        return known if fits else None

    def reset(self, data: Any, bounds: LowerBounds) -> LowerBounds:
        """Begin anew with these bounds."""
        self.data, self.lower_bounds = data, bounds
        return bounds
