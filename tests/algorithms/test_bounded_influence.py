"""Question by question: what a tenth of false answers can do at worst, by a small search for the worst ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import coterie as ct
from coterie._src.algorithms.newton import LARGE, bearable_shares
from coterie._src.arrays import Floats, as_numpy, like
from coterie._src.attacks import Attack, Forgery, View, data_poisoning
from coterie._src.coordinates import Coordinates
from coterie._src.init.conditioning import Conditioning, NewtonSteps

Lie = Callable[[Floats, Floats, np.random.Generator], Floats]
"""(the honest answers of the Byzantine clients, those of the honest ones, rng) -> what they answer."""


def scaled(factor: float) -> Lie:
    return lambda own, others, rng: factor * own


def spike(size: float) -> Lie:
    """One entry, the same for all: of a packed Hessian its first diagonal entry, of rank one."""

    def lie(own: Floats, others: Floats, rng: np.random.Generator) -> Floats:
        found = own.copy()
        found[:, 0] += size * np.abs(own).max()
        return found

    return lie


LIES: dict[str, Lie] = {
    **{f"times {factor:g}": scaled(factor) for factor in (1e-30, 1e-3, 30.0, 1e3, 1e30, -1.0, -1e6)},
    "zero": lambda own, others, rng: 0 * own,
    "not a number": lambda own, others, rng: np.full_like(own, np.nan),
    "infinite": lambda own, others, rng: np.full_like(own, np.inf),
    "copies": lambda own, others, rng: np.tile(others[:1], (len(own), 1)),
    "spike of 10": spike(10.0),
    "spike of 1e6": spike(1e6),
    "of other clients": lambda own, others, rng: others[rng.integers(len(others), size=len(own))],
    "of another distribution": lambda own, others, rng: others.mean(0) + others.std(0) * rng.standard_t(2, own.shape),
}
QUESTIONS: dict[str, dict[str, object]] = {
    "size": {},
    "hessian": {},
    "loss": {},
    "gradient": {},
    "curvature": {"coordinates": "raw"},
    "minimiser": {"coordinates": "raw", "init": "erm"},
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_no_false_answers_to_one_question_lead_away(question: str) -> None:
    """The error stays below 1.5 times the oracle's, and every honest client in its cluster, whatever they answer."""
    drawn = ct.mixed_regression(1, clients=40, clusters=2, samples=60, dim=8, byzantine=0.1)
    asked = []

    def attack(lie: Lie) -> Attack:
        def forge(view: View) -> Forgery:
            if view.question != question:
                return data_poisoning(view)
            asked.append(view.round)
            answers = as_numpy(view.updates).astype(np.float64)
            own, others = answers[view.is_byzantine], answers[~view.is_byzantine]
            with np.errstate(over="ignore", invalid="ignore"):
                return Forgery(view.claimed, like(lie(own, others, np.random.default_rng(0)), view.updates))

        return Attack(forge)

    for name, lie in LIES.items():
        options = {"clusters": 2, "max_byzantine": 0.1, "rounds": 60, **QUESTIONS[question]}
        result = ct.fit(drawn, attack=attack(lie), **options)  # type: ignore[arg-type]
        assert result.metrics["oracle_ratio"] < 1.5, name
        assert result.metrics["ari"] == 1.0, name
    assert len(asked) >= len(LIES)  # it is a question that the server asks


def test_a_step_that_costs_all_honest_members_is_shortened() -> None:
    """Fourteen of 29 members want a step of 20 standard deviations of one update, and claim that it helps them."""
    rng = np.random.default_rng(0)
    updates = rng.standard_normal((59, 10))
    updates[:14, 0] += 40
    labels = np.repeat([0, 1], [29, 30])
    newton = NewtonSteps(np.arange(59), labels, np.tile(np.eye(10), (2, 1, 1)), None)
    hessians = np.tile(np.eye(10, dtype=np.float32), (59, 1, 1))
    conditioning = Conditioning(Coordinates(np.eye(10), np.eye(10)), hessians, np.ones(59), 0.0, 50.0, byzantine=14)
    steps = np.zeros((2, 10))
    steps[:, 0] = -20.0

    def shares(updates: Floats, steps: Floats) -> list[float]:
        return bearable_shares(conditioning, newton, updates, updates, steps, steps).tolist()

    assert max(shares(updates, steps)) <= 0.25
    assert shares(updates + 20 * np.eye(10)[0], steps) == [1.0, 1.0]  # which all want
    assert shares(updates, 0.99 * LARGE * steps / 20) == [1.0, 1.0]  # within their noise
    assert shares(updates, np.zeros((2, 10))) == [1.0, 1.0]
