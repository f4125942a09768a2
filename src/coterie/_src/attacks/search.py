"""An adversary that searches: it plays the server's half of a round with many possible answers, and sends the worst.

What the Byzantine clients send is described by a `Plan`: which true cluster they pretend to belong to, the direction,
length and noise of a common shift of its honest updates, and what they say where the server asks for losses, Hessians,
curvatures and sizes. A plan is scored by the server itself: from its present state, or from the beginning where there
is none, it goes on for a few rounds in which they follow the plan (`View.rehearse`). The search is random, with
restarts, and remembers the best plan from round to round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from coterie._src.arrays import Floats, Ints, as_numpy, like
from coterie._src.attacks.base import Entry, Forgery, Prospect, View, payload
from coterie._src.attacks.payloads import data_poisoning
from coterie._src.attacks.tilt import honest_error

BUDGET = 16.0
"""The plans that are tried before the first round, and again in every round."""
SEARCHED = 20
"""The number of rounds in which plans are tried; afterwards the best plan so far is kept."""
AHEAD = {True: 2, False: 1}
"""The rounds that a plan is followed to score it: from before the first round, and later."""
RESTARTS = 0.3
"""The share of the plans that are drawn anew; the others are changes of the best one."""
LEADING = 3
QUESTIONS = {"hessian": 0, "loss": 1, "curvature": 2, "size": 3}

OBJECTIVES: dict[str, Callable[[Prospect], float]] = {
    "distance": lambda found: found.distance,
    "worst-cluster": lambda found: found.worst_cluster,
    "ari": lambda found: found.distance - 1e3 * found.ari,
    "no-stop": lambda found: -1.0 if found.converged else found.left,
    "early-stop": lambda found: found.distance if found.converged else -found.left,
}
"""What is made as large as possible. A stop counts as early where the centres are far from the truth."""


@dataclass(frozen=True)
class Plan:
    """What the Byzantine clients send.

    Attributes
    ----------
    cluster : the true cluster that they pretend to belong to.
    turn : (LEADING + 3,), the direction of the shift, in terms of the leading directions of the honest updates, a
        random one, the one to the nearest cluster, and the error of the honest updates.
    length, own : of the shift, and the size of the noise, both in standard deviations of the honest updates.
    seed : of the noise, the random direction and the pattern of false losses.
    lies : (4,), for the questions in `QUESTIONS`, 0 for honest answers: logarithms of the factors of the Hessian,
        of the losses, of the curvatures and of the number of samples.
    """

    cluster: int
    turn: Floats
    length: float
    own: float
    seed: int
    lies: Floats

    def __call__(self, view: View) -> Forgery:
        """The answers to one question."""
        lie = float(self.lies[QUESTIONS[view.question]]) if view.question in QUESTIONS else 0.0
        if view.question in QUESTIONS:
            return self._false_report(view, lie) if lie else data_poisoning(view)
        members = members_of(view, self.cluster)
        if not len(members):
            return data_poisoning(view)
        rows = as_numpy(view.updates)[members].astype(np.float64)
        mean, spread = rows.mean(axis=0), rows.std(axis=0)
        deviation = float(np.sqrt((spread**2).mean()))
        noise = np.random.default_rng(self.seed).standard_normal((view.byzantine_count, len(mean)))
        direction = self._direction(view, members, rows - mean)
        sent = mean + self.length * deviation * direction + self.own * spread * noise
        claimed = view.claimed
        if view.centres is not None and not view.fixed:
            claimed = np.full(view.byzantine_count, np.bincount(view.labels[members]).argmax())
        return Forgery(claimed, like(sent, view.updates))

    def _direction(self, view: View, members: Ints, offsets: Floats) -> Floats:
        """(r,): the unit direction of the shift. offsets: (c, r), of the honest rows around their mean."""
        mean = as_numpy(view.updates)[members].mean(axis=0, dtype=np.float64)
        basis = np.zeros((LEADING + 3, offsets.shape[1]))
        axes = np.linalg.svd(offsets, full_matrices=False)[2][:LEADING]
        basis[: len(axes)] = axes
        basis[-3] = np.random.default_rng(self.seed).standard_normal(offsets.shape[1])
        others = [members_of(view, j) for j in range(true_clusters(view)) if j != self.cluster]
        gaps = [as_numpy(view.updates)[one].mean(axis=0, dtype=np.float64) - mean for one in others if len(one)]
        if view.question == "gradient" and view.centres is not None and view.round >= 0:
            cluster = int(np.bincount(view.labels[members]).argmax())
            basis[-1] = -honest_error(view, cluster, mean)
            gaps = [view.points[cluster] - point for point in np.delete(view.points, cluster, axis=0)]
        if gaps:
            basis[-2] = min(gaps, key=np.linalg.norm)
        basis /= np.maximum(np.linalg.norm(basis, axis=1, keepdims=True), 1e-300)
        along = self.turn @ basis
        return np.asarray(along / max(float(np.linalg.norm(along)), 1e-300))

    def _false_report(self, view: View, lie: float) -> Forgery:
        """False answers about the loss, the Hessian, the curvature or the number of samples."""
        honest = as_numpy(view.updates[view.is_byzantine]).astype(np.float64)
        pattern = np.random.default_rng(self.seed).standard_normal(honest.shape[1:])
        if view.question == "loss":  # the same for all: these centres are good, and those are not
            sent = np.median(honest) * np.exp(lie * pattern) + 0 * honest
        elif view.question == "hessian":
            dim = view.task.dim
            above: tuple[Ints, Ints] = np.triu_indices(dim)
            along: Floats = pattern[:dim] / np.linalg.norm(pattern[:dim])
            size = honest[:, above[0] == above[1]].mean() * np.expm1(abs(lie))
            sent = honest + size * np.outer(along, along)[above] if lie > 0 else np.exp(lie) * honest
        else:
            sent = honest * np.exp(np.resize([lie, -lie], honest.shape[1]))
        return Forgery(view.claimed, like(sent, view.updates))


def true_clusters(view: View) -> int:
    """The number of true clusters."""
    return 0 if view.truth is None else int(view.truth.labels.max()) + 1


def members_of(view: View, cluster: int) -> Ints:
    """The honest clients of a true cluster, of those that take part."""
    if view.truth is None or len(view.truth.labels) != len(view.labels):
        return np.flatnonzero(~view.is_byzantine)
    return np.flatnonzero(~view.is_byzantine & (view.truth.labels == cluster))


def drawn_plan(rng: Generator, clusters: int) -> Plan:
    """A random plan; half of the plans lie about other things than updates."""
    lies = rng.normal(0.0, 3.0, 4) * (rng.random(4) < 0.3) * (rng.random() < 0.5)
    return Plan(
        int(rng.integers(max(clusters, 1))),
        rng.standard_normal(LEADING + 3) * rng.integers(0, 2, LEADING + 3),
        float(np.exp(rng.uniform(np.log(0.5), np.log(12.0)))),
        float(rng.choice([0.3, 0.7, 1.0, 1.3])),
        int(rng.integers(2**31)),
        lies,
    )


def changed_plan(plan: Plan, rng: Generator) -> Plan:
    """The plan with one or two of its parts changed a little."""
    changes: list[Callable[[Plan], Plan]] = [
        lambda one: replace(one, turn=one.turn + 0.4 * rng.standard_normal(len(one.turn))),
        lambda one: replace(one, length=one.length * float(np.exp(0.25 * rng.standard_normal()))),
        lambda one: replace(one, own=one.own * float(np.exp(0.25 * rng.standard_normal()))),
        lambda one: replace(one, seed=int(rng.integers(2**31))),
        lambda one: replace(one, lies=one.lies + rng.normal(0.0, 1.0, 4) * (one.lies != 0)),
    ]
    for i in rng.choice(len(changes), int(rng.integers(1, 3)), replace=False).tolist():
        plan = changes[i](plan)
    return plan


@payload(
    "search",
    "what a budgeted search over updates, losses, Hessians and sizes finds to serve the objective most",
    published_scale=BUDGET,
    objectives=tuple(OBJECTIVES),
    arena=(Entry("search", target="own"), Entry("search, ARI", target="own", objective="ari")),
)
def search(view: View, scale: float = BUDGET) -> Forgery:
    """The answers of the best `Plan` of `scale` random ones, searched anew in each of the first rounds.

    Objectives: the matched `distance` to the truth, that of the `worst-cluster`, a small agreement of the clusters with
    the true ones (`ari`), preventing the end of the descent (`no-stop`) or bringing it about far from the truth
    (`early-stop`). The plan says which cluster they claim, so that the target is not used. Where the adversary does not
    know the server and the truth, as in a real federation, these are honest answers. In all at most
    scale·(SEARCHED + 1) times one or two rounds of the server.
    """
    rehearse, memory = view.rehearse, {} if view.memory is None else view.memory
    start = "plan" not in memory
    if rehearse is None or view.truth is None or not view.byzantine_count:
        return data_poisoning(view) if start else memory["plan"](view)
    asked = view.round if view.question == "gradient" and view.centres is not None else -1
    if start or (asked >= 0 and asked not in memory["searched"] and len(memory["searched"]) < SEARCHED):
        memory.setdefault("searched", set()).update({asked} - {-1})
        objective, ahead, clusters = OBJECTIVES[view.objective], AHEAD[start], true_clusters(view)
        plans = [] if start else [memory["plan"]]
        plans += [
            drawn_plan(view.rng, clusters)
            if start or view.rng.random() < RESTARTS
            else changed_plan(memory["plan"], view.rng)
            for _ in range(max(1, round(scale)))
        ]
        memory["plan"] = max(plans, key=lambda plan: score(objective(rehearse(plan, ahead))))
    forged: Forgery = memory["plan"](view)
    return forged


def score(value: float) -> float:
    """The value, infinite where a run has diverged."""
    return value if np.isfinite(value) else np.inf
