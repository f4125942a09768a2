"""Quadratic models of the clients' losses around one common point, with which a server can cluster without asking."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coterie._src.aggregators import Median, per_cluster
from coterie._src.arrays import Floats, Ints
from coterie._src.init.conditioning import Conditioning

REFINEMENTS = 4
"""Steps of `LocalModels.refined`."""


@dataclass(frozen=True)
class LocalModels:
    """F_i(φ) ≈ F_i(0) − u_iᵀφ + ½ φᵀH_iφ around the origin of the coordinates φ; exact for a squared loss.

    conditioning: with the Hessians H_i. clients: (c,), which of its clients these are. updates: (c, r), u_i = −∇F_i(0).
    """

    conditioning: Conditioning
    clients: Ints
    updates: Floats

    @cached_property
    def _hessians(self) -> Floats:
        whole = len(self.clients) == len(self.conditioning.hessians)
        return self.conditioning.hessians if whole else self.conditioning.hessians[self.clients]

    def gradients(self, points: Floats, labels: Ints) -> Floats:
        """(k, r), (c,) -> (c, r): the gradients at the points that the labels name."""
        found = np.empty_like(self.updates)
        for j in range(len(points)):
            members = np.flatnonzero(labels == j)
            found[members] = self._hessians[members] @ points[j] - self.updates[members]
        return found

    def losses(self, points: Floats) -> Floats:
        """(k, r) -> (c, k): F_i − F_i(0) at the points."""
        along = self._hessians @ points.T  # (c, r, k)
        found: Floats = 0.5 * np.einsum("kr,crk->ck", points, along) - self.updates @ points.T
        return found

    def refined(self, points: Floats, steps: int = REFINEMENTS) -> Floats:
        """(k, r) points after some rounds of Algorithm 1 on the models, with Newton steps and the median."""
        weights = self.conditioning.leverages[self.clients]
        for _ in range(steps):
            labels = self.losses(points).argmin(axis=1)
            newton = self.conditioning.newton(self.clients, labels, len(points), weights, standardise=False)
            rows = newton.rows(self.gradients(points, labels))
            points = points - newton.moves(per_cluster(Median(), rows, labels, len(points)).updates)
        return points

    def shrunk_minimisers(self) -> Floats:
        """(c, r): (H_i + λI)⁻¹u_i with λ = r/n, the local minimisers shrunk towards the origin."""
        dim = self.conditioning.coordinates.dim
        ridge = dim / self.conditioning.samples * np.eye(dim)
        found: Floats = np.linalg.solve(self._hessians + ridge, self.updates[:, :, None])[:, :, 0]
        return found
