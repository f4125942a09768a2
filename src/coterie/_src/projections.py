"""Projections Π_Θ of centres onto a set Θ, row by row: (k, d) -> (k, d)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coterie._src.arrays import Array, namespace

Projection = Callable[[Array], Array]


@dataclass(frozen=True)
class Unconstrained:
    """Θ = R^d: no projection."""

    def __call__(self, centres: Array) -> Array:
        return centres


@dataclass(frozen=True)
class L2Ball:
    """Θ = {θ : ‖θ‖ ≤ radius}: a longer centre is scaled to norm `radius`.

    >>> import numpy as np
    >>> L2Ball(1.0)(np.array([[3.0, 4.0], [0.3, 0.4]])).round(6).tolist()
    [[0.6, 0.8], [0.3, 0.4]]
    """

    radius: float

    def __call__(self, centres: Array) -> Array:
        norms, units = _norms_and_units(centres)
        return namespace(centres).where(norms > self.radius, units * self.radius, centres)


@dataclass(frozen=True)
class Box:
    """Θ = [−radius, radius]^d: every coordinate is clipped."""

    radius: float

    def __call__(self, centres: Array) -> Array:
        return namespace(centres).clip(centres, -self.radius, self.radius)


@dataclass(frozen=True)
class UnitSphere:
    """Θ = {θ : ‖θ‖ = 1}: every centre is rescaled to norm 1; 0 stays 0."""

    def __call__(self, centres: Array) -> Array:
        return _norms_and_units(centres)[1]


def _norms_and_units(centres: Array) -> tuple[Array, Array]:
    """Norms (k, 1) and the centres over them (0 stays 0), without overflow of the squares."""
    xp = namespace(centres)
    largest = xp.max(xp.abs(centres), axis=-1, keepdims=True)
    scaled = centres / xp.where(largest > 0, largest, largest + 1)
    length = xp.linalg.vector_norm(scaled, axis=-1, keepdims=True)
    return largest * length, scaled / xp.where(length > 0, length, length + 1)
