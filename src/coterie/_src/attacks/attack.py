"""An attack: a payload, a target and a strength."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import numpy as np

from coterie._src.arrays import Array, Bools, Ints, as_numpy, like, namespace
from coterie._src.attacks.base import Forgery, Payload, Target, View, as_payload, as_target
from coterie._src.attacks.payloads import data_poisoning
from coterie._src.attacks.targets import own
from coterie._src.client import respond
from coterie._src.tasks import Task

WORST: Final = "worst"
COARSE, FINE = 2.0 ** np.arange(-5, 6), 2.0 ** np.array([-0.75, -0.5, -0.25, 0.25, 0.5, 0.75])
"""The strengths that the search tries, and the factors by which it refines the best of them."""


@dataclass(frozen=True)
class Attack:
    """A payload sent to a target; `ct.attack` makes one from names.

    Parameters
    ----------
    payload : what Byzantine clients send: a `Payload`, or a function (view, scale=…) -> Forgery.
    target : which cluster they claim: a `Target`, or a function (view) -> labels.
    scale : the payload's strength; None for the published one, "worst" for the one that moves the server's rule
        farthest, found in every round by a line search (the optimised attacks of Allouah et al.,
        Fixing by mixing, 2023).
    sleep : the number of first rounds in which the Byzantine clients send honest replies from their own data.
    objective : what the adversary maximises, one of the payload's `objectives`; "auto" for the first of them.

    Examples
    --------
    >>> import coterie as ct
    >>> def backwards(view, scale=1.0):
    ...     return view.claimed, -scale * view.updates[view.is_byzantine]
    >>> federation = ct.mixed_regression(0, clients=20, clusters=2, samples=40, dim=5, byzantine=0.1)
    >>> attacked = ct.fit(federation, clusters=2, method="ifca", attack=ct.Attack(backwards, scale=100.0), rounds=9)
    >>> attacked.metrics["oracle_ratio"] > 10  # the mean is not robust
    True
    """

    payload: Payload | Callable[..., Any]
    target: Target | Callable[[View], Ints] = own
    scale: float | Literal["worst"] | None = None
    sleep: int = 0
    objective: str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "payload", as_payload(self.payload))
        object.__setattr__(self, "target", as_target(self.target))
        payload = cast(Payload, self.payload)
        if payload.poison is not None and (self.sleep or self.scale == WORST):
            wrong = f"sleep must be 0, got {self.sleep}" if self.sleep else f"scale must be a number, got {self.scale}"
            raise ValueError(f"{wrong}: the data of {payload.name} are poisoned once, before the first round")
        if self.objective not in ("auto", *payload.objectives):
            known = ", ".join(["auto", *payload.objectives])
            raise ValueError(f"objective: must be one of {known} for the attack {payload.name}, got {self.objective}")

    def __call__(self, view: View) -> Forgery:
        """What the Byzantine clients send instead of their honest replies."""
        if view.round < self.sleep and self.sleep:
            return data_poisoning(view)
        payload = cast(Payload, self.payload)
        if payload.objectives:
            view = view._replace(objective=self._objective)
        if view.centres is not None and not view.fixed:
            view = self._with_claims(view)
        if self.scale is None or (self.scale == WORST and (view.centres is None or view.round < 0)):
            return payload(view)
        return _worst(payload, view) if self.scale == WORST else payload(view, self.scale)

    @property
    def _objective(self) -> str:
        objectives = cast(Payload, self.payload).objectives
        return objectives[0] if self.objective == "auto" and objectives else self.objective

    def poisoned(self, task: Task, is_byzantine: Bools) -> Task:
        """The task on the data with which the clients compute: those of the Byzantine ones as the payload poisons them.

        The task itself where the payload does not change data.
        """
        payload = cast(Payload, self.payload)
        if (poison := payload.poison) is None or not is_byzantine.any():
            return task
        scale = payload.published_scale if self.scale is None else self.scale
        assert isinstance(scale, int | float)
        offsets = task.clients.offsets

        def change(targets: Array, classes: int) -> Array:
            found = namespace(targets).asarray(targets, copy=True)
            for client in np.flatnonzero(is_byzantine).tolist():
                rows = slice(int(offsets[client]), int(offsets[client + 1]))
                found[rows] = like(poison(as_numpy(targets[rows]), classes, scale), targets)
            return found

        return task.poisoned(change)

    def _with_claims(self, view: View) -> View:
        """The view with the clusters that the Byzantine clients claim."""
        payload, centres = cast(Payload, self.payload), view.centres
        if payload.working_centres is not None and self.scale != WORST:
            scale = payload.published_scale if self.scale is None else self.scale
            assert scale is not None
            working = payload.working_centres(centres, scale)
            response = respond(view.task, working, cache=view.cache)
            if view.coordinates is not None:
                response = response._replace(updates=view.coordinates.updates(as_numpy(response.updates)))
            view = view._replace(response=response)
        return view._replace(claims=self.target(view))


def _worst(payload: Payload, view: View) -> Forgery:
    """The forged replies of the strength that moves the server's rule farthest from the honest means."""
    if view.aggregate is None:
        raise ValueError("scale: worst needs the server's rule; give it as SimulatedNetwork(aggregate=...)")
    published = payload(view)
    if not isinstance(published.updates, type(view.updates)):
        return published  # malformed on purpose: the intake refuses it before any rule
    state = view.rng.bit_generator.state

    def forged(scale: float) -> Forgery:
        view.rng.bit_generator.state = state  # the same noise for every strength
        return payload(view, scale)

    tried = {scale: _damage(view, forged(scale)) for scale in COARSE.tolist()}
    best = max(tried, key=lambda scale: tried[scale])
    tried |= {scale: _damage(view, forged(scale)) for scale in (best * FINE).tolist()}
    return forged(max(tried, key=lambda scale: tried[scale]))


def _damage(view: View, forged: Forgery) -> float:
    """Σ_j ‖rule(honest and forged rows of cluster j) − mean(honest rows)‖²; infinite where that is not finite."""
    assert view.aggregate is not None
    total, forgeries = 0.0, cast(Array, forged.updates)
    for honest, byzantine in _attacked(view, forged):
        together = namespace(view.updates).concat([view.updates[honest], forgeries[byzantine]])
        moved = as_numpy(view.aggregate(together)).astype(np.float64)
        total += float(((moved - as_numpy(view.updates[honest]).mean(axis=0, dtype=np.float64)) ** 2).sum())
    return total if np.isfinite(total) else np.inf


def _attacked(view: View, forged: Forgery) -> Iterator[tuple[Ints, Ints]]:
    """Yield, per attacked cluster, the indices of honest clients (among all m) and of Byzantine ones (among these)."""
    labels = np.asarray(forged.labels)
    for j in np.unique(labels).tolist():
        honest = np.flatnonzero(~view.is_byzantine & (view.labels == j))
        if len(honest):
            yield honest, np.flatnonzero(labels == j)
