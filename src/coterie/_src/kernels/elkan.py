"""Which of k centres has the least loss for a client, without computing all k losses in every round.

A convex loss lies above its tangent planes: F_i(θ) ≥ F_i(θ₀) + ⟨∇F_i(θ₀), θ − θ₀⟩. A centre whose lower bound, from when
the client last computed its loss there, still lies above the loss at the client's own centre cannot be the best one.
Elkan's idea for k-means (Using the triangle inequality to accelerate k-means, 2003), with tangent planes in the place
of distances.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

MARGIN = 1e-4
"""How much smaller, relatively, the loss at the own centre must be for another to be excluded: more than rounding."""
MEMORY_SHARE = 0.15
"""What lower bounds may take, as a share of the memory of the samples."""
ROUNDING = 2.0**-21
"""By how much more, relatively, a bound is lowered in every round: more than float32 loses of it."""
FLAT = 1e-30
"""Units of a slope below which it is kept as 0."""
SMALLEST = 1e-37
"""Losses below which every centre is evaluated: such numbers are too small for float32 to bound anything."""
UNDERFLOW = 1e-40
"""What may be missing of a slope because its parts are too small for float32."""
LOWER, STEEPNESS, PATH = range(3)
"""The numbers that are kept of a client's loss at a centre (see `LowerBounds`)."""
UNIT, HEIGHT, REMAINDER = range(3)
"""Those of a tangent plane, beside its slope."""


@dataclass
class LowerBounds:
    """Lower bounds on the losses of m clients at k centres.

    A bound falls by at most ‖∇F_i(θ₀)‖·‖δ‖ when a centre has moved by δ, which needs no look at the slope; only where
    that excludes too little is the tangent plane itself evaluated. The slope is kept in whole numbers from -127 to 127
    times a unit, a quarter of its memory in float32, and the plane is lowered by ‖e‖·‖δ‖ for the remainder e. In Gram
    form, where a loss costs little more than a plane, only the first kind of bound is kept.

    Attributes
    ----------
    labels : (m,), the clients' last centres.
    previous : (k, d), the centres as they last were.
    bounds : (m, 3, k), what F_i(θ_j) cannot lie below now, the steepness ‖∇F_i(θ₀)‖, and the length of the centre's path
        since the loss was last computed, which is no less than ‖δ‖; NaN where it never was.
    planes : (m, k, 3), the unit, the height, so that F_i(θ_j) ≥ height + ⟨slope, θ_j⟩ − ‖e‖·‖δ‖, and ‖e‖.
    steps : (m, k, d), slope = unit·steps. Planes and steps are (0, k, ·) in Gram form.
    """

    labels: NDArray[np.int64]
    previous: NDArray[Any]
    bounds: NDArray[Any]
    planes: NDArray[Any]
    steps: NDArray[np.int8]

    @classmethod
    def unknown(cls, clients: int, centres: NDArray[Any], gram: bool) -> LowerBounds:
        """Before the first loss is computed."""
        (k, d), sloped = centres.shape, 0 if gram else clients
        bounds = np.full((clients, 3, k), np.nan, centres.dtype)
        planes = np.full((sloped, k, 3), np.nan, centres.dtype)
        steps = np.zeros((sloped, k, d), dtype=np.int8)
        return cls(np.zeros(clients, np.int64), centres.copy(), bounds, planes, steps)

    @staticmethod
    def nbytes(clients: int, centres: NDArray[Any], gram: bool) -> int:
        """The memory that they take."""
        three = 3 * centres.itemsize
        return int(len(centres) * clients * (three if gram else 2 * three + centres.shape[1]))


@dataclass
class AssignmentCache:
    """What clients keep from round to round, so that most need not compute their loss at all k centres again.

    It changes no label and no gradient, only the time to find them. It belongs to the clients whose data it was last
    used with; with other data, or with centres of another shape, it begins anew.
    """

    data: Any = field(default=None, repr=False)
    lower_bounds: LowerBounds | None = field(default=None, repr=False)

    def bounds_for(self, data: Any, centres: NDArray[Any], clients: int, gram: bool) -> LowerBounds:
        """The bounds of these clients at such centres, unknown ones if there are none yet."""
        fits = self.lower_bounds is not None and self.lower_bounds.previous.shape == centres.shape
        if self.lower_bounds is None or self.data is not data or not fits:
            self.data, self.lower_bounds = data, LowerBounds.unknown(clients, centres, gram)
        return self.lower_bounds
