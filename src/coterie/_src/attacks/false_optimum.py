"""An adversary that lies once: every Byzantine client answers all questions as an honest client with another optimum.

Its loss is F̃_i(θ) = s·(F_i(θ − δ_i) + (ν − 1)·g_iᵀ(θ − δ_i)), that of its own samples shifted by δ_i, with noise ν
times as large and s times as steep; g_i is its gradient at its true centre. The Hessian, the losses and the updates of
all rounds belong to this one loss, so that no server can refute it: what is left to a server are the noise of the
others and the numbers of clients. The δ_i lead to one cluster, and from its centre in a common direction. We know of no
earlier description; `phantom` is the same with a cluster of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import Generator

from coterie._src.arrays import Floats, as_numpy, cast, like
from coterie._src.attacks.base import Entry, Forgery, View, payload
from coterie._src.attacks.payloads import data_poisoning
from coterie._src.attacks.search import OBJECTIVES, members_of, score, true_clusters
from coterie._src.client import assign

BUDGET = 48.0
"""The false optima that are tried, before the server asks its first question."""
AHEAD = 6
"""The rounds that each is followed for."""
RESTARTS = 0.5
"""The share that is drawn anew; the others are changes of the best one."""
LEADING = 3


@dataclass(frozen=True)
class FalseOptimum:
    """What the Byzantine clients claim.

    Attributes
    ----------
    cluster : the true cluster that they claim to belong to.
    turn : (LEADING + 3,), the direction of the shift from its centre, in terms of the leading directions of the honest
        updates, a random one, the one to the nearest cluster, and the error that the honest clients make alone.
    length : of the shift, in standard deviations of an honest optimum along one direction.
    own, steep : ν and s.
    seed : of the random direction.
    """

    cluster: int
    turn: Floats
    length: float
    own: float
    steep: float
    seed: int

    def __call__(self, view: View) -> Forgery:
        """The answers to one question."""
        if view.question in ("size", "minimiser") or view.truth is None:
            return data_poisoning(view)
        if view.question in ("hessian", "curvature"):
            sent = self.steep * as_numpy(view.updates[view.is_byzantine]).astype(np.float64)
            return Forgery(view.claimed, like(sent, view.updates))
        memory: dict[Any, Any] = {} if view.memory is None else view.memory
        if view.question == "gradient" and self not in memory:
            memory[self] = self._shifts(view)
        if self not in memory:  # losses are asked for before any gradient
            return data_poisoning(view)
        return self._losses(view, memory[self]) if view.question == "loss" else self._updates(view, memory[self])

    def __hash__(self) -> int:
        return hash((self.cluster, self.length, self.own, self.steep, self.seed, *self.turn.tolist()))

    def _shifts(self, view: View) -> Floats:
        """(b, d): δ_i, from the honest updates where gradients are asked for the first time."""
        assert view.truth is not None
        assert view.centres is not None
        coordinates, true = view.coordinates, as_numpy(view.truth.centres).astype(np.float64)
        members = members_of(view, self.cluster)
        rows = as_numpy(view.updates)[members].astype(np.float64)
        # an update is L·(φ − φ_i), with L near 1 in the server's coordinates
        steepness = view.task.curvature_bound if coordinates is None else 1.0
        optima = view.points[view.labels[members]] - rows / steepness
        ends = true if coordinates is None else coordinates.points(true)
        offsets, error = optima - optima.mean(axis=0), optima.mean(axis=0) - ends[self.cluster]
        basis = np.zeros((LEADING + 3, rows.shape[1]))
        axes = np.linalg.svd(offsets, full_matrices=False)[2][:LEADING]
        basis[: len(axes)] = axes
        basis[-3] = np.random.default_rng(self.seed).standard_normal(rows.shape[1])
        gaps = np.delete(ends, self.cluster, axis=0) - ends[self.cluster]
        if len(gaps):
            basis[-2] = min(gaps, key=np.linalg.norm)
        basis[-1] = error
        basis /= np.maximum(np.linalg.norm(basis, axis=1, keepdims=True), 1e-300)
        along = self.turn @ basis
        shift = self.length * np.sqrt((offsets**2).mean()) * along / max(float(np.linalg.norm(along)), 1e-300)
        whole: Floats = shift if coordinates is None else coordinates.parameters(shift[None])[0]
        found: Floats = true[self.cluster] + whole - true[self._own_clusters(view)]
        return found

    def _own_clusters(self, view: View) -> Any:
        assert view.truth is not None
        return np.maximum(view.truth.labels[view.is_byzantine], 0)

    def _losses(self, view: View, shifts: Floats) -> Forgery:
        """(b, k): F̃_i at all centres, up to a constant."""
        assert view.losses_at is not None
        centres, count = as_numpy(view.losses_at).astype(np.float64), len(shifts)
        places = (centres[None] - shifts[:, None]).reshape(-1, centres.shape[1])
        losses = as_numpy(view.task.losses(like(places, view.losses_at))).reshape(count, count, len(centres))
        own = losses[np.arange(count), np.arange(count)].astype(np.float64)
        noise = np.einsum("bd,bkd->bk", self._noise(view, view.losses_at), places.reshape(count, -1, centres.shape[1]))
        found = own + (self.own - 1) * (noise - noise.min(axis=1, keepdims=True))
        return Forgery(view.claimed, like(self.steep * found, view.updates))

    def _updates(self, view: View, shifts: Floats) -> Forgery:
        """(b, r): ∇F̃_i at the centre of its lowest loss, or at that which the server has fixed."""
        assert view.centres is not None
        labels = view.claimed
        if not view.fixed and view.clusters > 1:
            labels = assign(self._losses(view._replace(losses_at=view.centres), shifts).updates)
        places = as_numpy(view.centres).astype(np.float64)[labels] - shifts
        own = as_numpy(view.task.gradients(like(places, view.centres), np.arange(len(shifts)))).astype(np.float64)
        sent: Floats = self.steep * (own + (self.own - 1) * self._noise(view, view.centres))
        if view.coordinates is not None:
            sent = view.coordinates.updates(sent)
        return Forgery(labels, cast(sent, view.updates))

    def _noise(self, view: View, example: Any) -> Floats:
        """(b, d): g_i."""
        assert view.truth is not None
        true = like(as_numpy(view.truth.centres), example)
        return as_numpy(view.task.gradients(true, self._own_clusters(view))).astype(np.float64)


def drawn(rng: Generator, clusters: int) -> FalseOptimum:
    """A random one; every other tells its steepness truly."""
    return FalseOptimum(
        int(rng.integers(max(clusters, 1))),
        rng.standard_normal(LEADING + 3) * rng.integers(0, 2, LEADING + 3),
        float(np.exp(rng.uniform(np.log(0.5), np.log(16.0)))),
        float(rng.choice([0.3, 0.7, 1.0, 1.3])),
        float(np.exp(rng.choice([0.0, rng.normal(0.0, 0.7)]))),
        int(rng.integers(2**31)),
    )


def changed(one: FalseOptimum, rng: Generator) -> FalseOptimum:
    """The same with one or two of its parts changed a little."""
    changes: list[Callable[[FalseOptimum], FalseOptimum]] = [
        lambda one: replace(one, turn=one.turn + 0.4 * rng.standard_normal(len(one.turn))),
        lambda one: replace(one, length=one.length * float(np.exp(0.25 * rng.standard_normal()))),
        lambda one: replace(one, own=one.own * float(np.exp(0.25 * rng.standard_normal()))),
        lambda one: replace(one, steep=one.steep * float(np.exp(0.25 * rng.standard_normal()))),
        lambda one: replace(one, seed=int(rng.integers(2**31))),
    ]
    for i in rng.choice(len(changes), int(rng.integers(1, 3)), replace=False).tolist():
        one = changes[i](one)
    return one


@payload(
    "false-optimum",
    "as honest clients whose optimum is shifted: one loss for all questions and rounds, found by a search",
    published_scale=BUDGET,
    objectives=tuple(OBJECTIVES),
    arena=(
        Entry("false optimum", target="own"),
        Entry("false optimum, worst cluster", target="own", objective="worst-cluster"),
    ),
)
def false_optimum(view: View, scale: float = BUDGET) -> Forgery:
    """The answers of the best `FalseOptimum` of `scale`, each of which was rehearsed from the start for some rounds.

    The objectives are those of `search`. Where the adversary does not know the server and the truth, as in a real
    federation, these are honest answers.
    """
    memory = {} if view.memory is None else view.memory
    if "optimum" not in memory:
        if view.rehearse is None or view.truth is None or not view.byzantine_count:
            return data_poisoning(view)
        best, highest = None, -np.inf
        for _ in range(max(1, round(scale))):
            fresh = best is None or view.rng.random() < RESTARTS
            one = drawn(view.rng, true_clusters(view)) if best is None or fresh else changed(best, view.rng)
            found = score(OBJECTIVES[view.objective](view.rehearse(one, AHEAD)))
            if found > highest:
                best, highest = one, found
        memory["optimum"] = best
    forged: Forgery = memory["optimum"](view)
    return forged
