"""A payload that searches in every round for the common shift by which the server's rule moves most.

The Byzantine updates of a cluster are μ + ℓ·σ·v + ν·s·g_i: a common shift along a unit direction v, of ℓ typical
standard deviations σ of the honest updates, and noise of their own, ν times as large as that of the honest updates.
Like `noisy_alie` of strength "worst", but the direction and the noise are searched as well as the length. We know of no
earlier description of the second objective.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coterie._src.arrays import Floats, as_numpy, like, namespace
from coterie._src.attacks.base import Entry, Forgery, View, payload
from coterie._src.attacks.payloads import data_poisoning

LEADING = 3
"""The leading principal directions of the honest updates that are tried, in both senses."""
LENGTHS = (0.8, 1.2, 1.6, 2.0, 2.5, 3.0, 3.7, 4.5, 6.0)
"""The lengths that are tried along every direction, with the noise of honest updates."""
CHANGES = ((0.87, 1.0), (1.15, 1.0), (1.0, 0.8), (1.0, 1.25))
"""Factors by which the length and the noise of the best shift so far are changed."""
DRAWS, TURN = 4, 0.3
"""Draws of new noise in a round, and of directions near the best one: the tangent of the angle between them."""


@dataclass(frozen=True)
class Shift:
    """A common shift of `length` typical deviations along a unit direction (r,), and noise (b, r) times `own`."""

    direction: Floats
    length: float
    own: float
    noise: Floats

    def rows(self, mean: Floats, spread: Floats, scale: float = 1.0) -> Floats:
        """(b, r): the Byzantine rows beside honest ones of this mean and coordinate-wise spread."""
        deviation = float(np.sqrt((spread**2).mean()))
        return np.asarray(mean + scale * self.length * deviation * self.direction + self.own * spread * self.noise)


@payload(
    "tilt",
    "honest noise around the common shift, of any direction, length and noise, that moves the server's rule most",
    published_scale=1.0,
    objectives=("rule", "error"),
    arena=(Entry("tilt"), Entry("tilt, error", objective="error")),
)
def tilt(view: View, scale: float = 1.0) -> Forgery:
    """μ + scale·ℓ·σ·v + ν·s·g_i, with the direction v, length ℓ and noise ν·g that serve the objective most.

    objective `rule`: the distance between the server's aggregate and the mean of the honest updates, as for strength
    "worst". `error`: the distance between the fixed point to which the aggregate leads and the true centre, so that the
    shift goes where the honest updates alone already err; it needs the truth, and a Hessian near the identity in the
    coordinates of the updates. The first round of a cluster tries at most 7 directions and 9 lengths; every round
    changes the best shift so far a little, or draws other noise: 13 further evaluations of the rule.
    """
    if view.centres is None or view.round < 0 or view.aggregate is None:
        return data_poisoning(view)
    claimed, found = view.claimed, np.empty((view.byzantine_count, view.updates.shape[1]))
    for cluster in np.unique(claimed).tolist():
        found[claimed == cluster] = _tilted(view, cluster, int((claimed == cluster).sum()), scale)
    return Forgery(claimed, like(found, view.updates))


def _tilted(view: View, cluster: int, byzantine: int, scale: float) -> Floats:
    """(byzantine, r): the best of the shifts, for one cluster."""
    honest, xp = view.honest_rows(cluster), namespace(view.updates)
    rows = as_numpy(honest).astype(np.float64)
    mean, spread = rows.mean(axis=0), rows.std(axis=0)
    error = honest_error(view, cluster, mean) if view.objective == "error" else 0 * mean

    rule = view.rule
    assert rule is not None

    def gain(shift: Shift) -> float:
        together = xp.concat([honest, like(shift.rows(mean, spread), view.updates)])
        moved = as_numpy(rule(together)).astype(np.float64) - mean
        found = float(((error - moved) ** 2).sum())  # a step is against the update
        return found if np.isfinite(found) else np.inf

    memory = {} if view.memory is None else view.memory
    key = (view.objective, cluster, byzantine)
    best = memory.get(key) or max(_first(view, rows - mean, error, byzantine), key=gain)
    others = [replace(best, length=best.length * one, own=best.own * other) for one, other in CHANGES]
    for _ in range(DRAWS):
        turn = view.rng.standard_normal(len(mean))
        direction = best.direction + TURN * turn / np.linalg.norm(turn)
        others += [
            replace(best, noise=view.rng.standard_normal(best.noise.shape)),
            replace(best, direction=direction / np.linalg.norm(direction)),
        ]
    memory[key] = best = max([best, *others], key=gain)
    return best.rows(mean, spread, scale)


def _first(view: View, offsets: Floats, error: Floats, byzantine: int) -> list[Shift]:
    """All lengths along the leading directions of the honest rows and, if it is known, against their error."""
    axes = np.linalg.svd(offsets, full_matrices=False)[2][:LEADING]
    size = float(np.linalg.norm(error))
    directions = np.concatenate([axes, -axes, -error[None] / size] if size > 0 else [axes, -axes])
    noise = view.rng.standard_normal((byzantine, offsets.shape[1]))
    return [Shift(direction, length, 1.0, noise) for direction in directions for length in LENGTHS]


def honest_error(view: View, cluster: int, mean: Floats) -> Floats:
    """(r,): the error of the fixed point of the honest updates of a cluster, in units and coordinates of the updates.

    With updates L·(θ − θ_i) of the honest clients, mean μ, their fixed point is θ − μ/L. Zero without the truth.
    """
    members = np.flatnonzero(~view.is_byzantine & (view.labels == cluster))
    if view.truth is None or not view.truth.centres.shape[1] or not len(members):
        return 0 * mean
    own = int(np.bincount(view.truth.labels[members]).argmax())
    true = as_numpy(view.truth.centres).astype(np.float64)
    if view.coordinates is not None:
        found: Floats = view.points[cluster] - view.coordinates.points(true)[own] - mean
    else:
        found = view.task.curvature_bound * (view.points[cluster] - true[own]) - mean
    return found
