"""Linear coordinates of the parameters, in which the features of the clients are uncorrelated and of equal spread.

A descent in the coordinates φ with θ = Bφ is a descent for the features xB. With B from the clients' own second moments
it does not depend on the units, the origin (if there is an intercept) or the correlation of the features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie._src.arrays import Floats


@dataclass(frozen=True)
class Coordinates:
    """The coordinates φ (r) of parameters θ = Bφ (d), r ≤ d.

    basis: (d, r), B. inverse: (r, d), its left inverse: inverse·B = I.
    """

    basis: Floats
    inverse: Floats

    @property
    def dim(self) -> int:
        """r."""
        return int(self.basis.shape[1])

    def updates(self, gradients: Any) -> Floats:
        """(rows, d) gradients in θ -> (rows, r) gradients in φ, Bᵀg, in float64."""
        found: Floats = np.asarray(gradients, dtype=np.float64) @ self.basis
        return found

    def gradients(self, updates: Any) -> Floats:
        """(rows, r) -> (rows, d): gradients in θ whose `updates` these are, in float64."""
        found: Floats = np.asarray(updates, dtype=np.float64) @ self.inverse
        return found

    def points(self, parameters: Any) -> Floats:
        """(k, d) parameters -> (k, r) coordinates, in float64."""
        found: Floats = np.asarray(parameters, dtype=np.float64) @ self.inverse.T
        return found

    def parameters(self, points: Floats) -> Floats:
        """(k, r) coordinates -> (k, d) parameters, in float64."""
        found: Floats = points @ self.basis.T
        return found
