"""Quadratic models of the clients' losses around one common point, with which a server can cluster without asking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coterie._src.aggregators import SpectralFilter
from coterie._src.arrays import Floats, Ints
from coterie._src.init.conditioning import Conditioning, selected_rows

REFINEMENTS = 4
"""Steps of `LocalModels.refined`."""
CONCENTRATIONS = 20
"""Steps of `LocalModels.concentrated`, at most; usually five are enough."""


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
        along = points.astype(np.float32) @ self._hessians  # (c, k, r)
        found: Floats = 0.5 * np.einsum("kr,ckr->ck", points, along) - self.updates @ points.T
        return found

    def refined(self, points: Floats, byzantine: int, steps: int = REFINEMENTS, losses: Floats | None = None) -> Floats:
        """(k, r) points after some rounds of Algorithm 1 on the models, with Newton steps and the spectral filter.

        losses: those at the points, if they are known.
        """
        rule = SpectralFilter(byzantine)
        weights = self.conditioning.leverages[self.clients]
        before: Ints = np.zeros(0, dtype=np.int64)
        for step in range(steps):
            losses = self.losses(points) if step or losses is None else losses
            labels = losses.argmin(axis=1)
            if step > 1 and np.array_equal(labels, before):
                break
            before = labels
            if step + 1 < steps and (empty := np.flatnonzero(np.bincount(labels, minlength=len(points)) == 0)).size:
                points, labels = self._split(points, labels, losses.min(axis=1), int(empty[0]))
            newton = self.conditioning.newton(self.clients, labels, len(points), weights, standardise=False)
            gradients = self.gradients(points, labels)
            points = points - selected_rows(self.conditioning, newton, rule, gradients, weights).steps(len(points))
        return points

    def concentrated(self, points: Floats, byzantine: int) -> Floats:
        """(k, r): the points after steps that lower `fewest_regrets`, until the clients that count stay the same.

        A step leaves out the clients with the `byzantine` largest regrets and moves every point to the minimiser of the
        mean model of the others that are nearest to it (Rousseeuw and Van Driessen, A fast algorithm for the minimum
        covariance determinant estimator, 1999).
        """
        before: Ints = np.zeros(0, dtype=np.int64)
        for _ in range(CONCENTRATIONS):
            losses = self.losses(points)
            labels, regrets = losses.argmin(axis=1), self._regrets(losses.min(axis=1))
            labels[np.argsort(regrets, kind="stable")[max(1, len(regrets) - byzantine) :]] = -1
            if np.array_equal(labels, before):
                break
            before, points = labels, points.copy()
            for j in range(len(points)):
                members = np.flatnonzero(labels == j)
                if len(members):
                    mean = self._hessians[members].mean(axis=0, dtype=np.float64)
                    ridge = 1e-5 * max(float(np.trace(mean)) / len(mean), 1e-300) * np.eye(len(mean))
                    points[j] = np.linalg.solve(mean + ridge, self.updates[members].mean(axis=0))
        return points

    def all_refined(self, candidates: Sequence[Floats], byzantine: int) -> list[Floats]:
        """The candidates after `refined`; one that gives all clients the same partners as another is left out."""
        known: list[Ints] = []
        found = []
        for points in candidates:
            losses = self.losses(points)
            labels = losses.argmin(axis=1)
            first = np.unique(labels, return_index=True, return_inverse=True)
            partition = first[1][first[2]]  # every cluster named by its first client
            if not any(np.array_equal(partition, other) for other in known):
                known.append(partition)
                found.append(self.refined(points, byzantine, losses=losses))
        return found

    def _split(self, points: Floats, labels: Ints, losses: Floats, empty: int) -> tuple[Floats, Ints]:
        """The points and labels after the cluster with the largest regret is cut in two; one half gets an empty centre.

        A client's regret is the amount by which its loss exceeds that at its shrunk minimiser; the largest quarter of a
        cluster's regrets does not count. The cut is at the median along the leading direction of the minimisers.
        """
        own = self.shrunk_minimisers()
        regrets = self._regrets(losses)
        sizes = np.bincount(labels, minlength=len(points))
        totals = [np.sort(regrets[labels == j])[: -(-3 * size // 4)].sum() for j, size in enumerate(sizes)]
        members = np.flatnonzero(labels == int(np.argmax(totals)))
        if not len(members):  # no client has a regret, and the first cluster is empty
            return points, labels
        away = own[members] - np.median(own[members], axis=0)
        lengths = np.linalg.norm(away, axis=1)
        if not np.median(lengths) > 0:  # one member, or copies
            return points, labels
        away /= np.maximum(1.0, lengths / np.median(lengths))[:, None]
        along = away @ np.linalg.svd(away, full_matrices=False)[2][0]
        upper = members[np.argsort(along, kind="stable")[len(members) // 2 :]]
        points, labels = points.copy(), labels.copy()
        points[empty], labels[upper] = points[labels[upper[0]]], empty
        return points, labels

    def _regrets(self, losses: Floats) -> Floats:
        """(c,): by how much the losses (c,) exceed those at the clients' shrunk minimisers, at least 0."""
        own = self.shrunk_minimisers()
        best = 0.5 * np.einsum("cr,crs,cs->c", own, self._hessians, own) - np.einsum("cr,cr->c", self.updates, own)
        return np.asarray(np.maximum(losses - best, 0.0))

    def fewest_regrets(self, points: Floats, byzantine: int) -> float:
        """The sum of the clients' regrets at the nearest of the points (k, r), without the `byzantine` largest.

        What α = byzantine/c of false models can do at worst: no regret is negative, so that they cannot outweigh an
        honest one. If S is the sum at the true centres over all honest clients, then at points with a smaller sum at
        most `byzantine` honest clients have a regret above S: as long as every cluster has more members than may be
        Byzantine, and two clusters that share a point cost one of them more than S, every cluster has a point.
        """
        regrets = np.sort(self._regrets(self.losses(points).min(axis=1)))
        return float(regrets[: max(1, len(regrets) - byzantine)].sum())

    @cached_property
    def _minimisers(self) -> Floats:
        dim = self.conditioning.coordinates.dim
        ridge = dim / self.conditioning.samples * np.eye(dim)
        found: Floats = np.linalg.solve(self._hessians + ridge, self.updates[:, :, None])[:, :, 0]
        return found

    def shrunk_minimisers(self) -> Floats:
        """(c, r): (H_i + λI)⁻¹u_i with λ = r/n, the local minimisers shrunk towards the origin."""
        return self._minimisers
