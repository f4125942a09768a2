"""The payload that searches for the shift by which the rule moves most, and what it remembers."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from coterie._src.aggregators import SpectralFilter
from coterie._src.attacks import View
from coterie._src.attacks.tilt import honest_error, tilt
from coterie._src.experiments import read_config, run_trial
from coterie._src.tasks import linear_regression

HONEST, BYZANTINE = 30, 8


@pytest.fixture
def seen() -> View:
    """A round at the true centre of one cluster, with mean estimation's coordinates: the updates are θ − z_i."""
    rng = np.random.default_rng(3)
    drawn = ct.mixed_regression(rng, clients=HONEST + BYZANTINE, clusters=1, samples=50, dim=10, byzantine=0.21)
    truth = drawn.truth
    assert truth is not None
    task = linear_regression(drawn.clients, "direct")
    labels = np.zeros(HONEST + BYZANTINE, dtype=np.int64)
    updates = task.gradients(truth.centres, labels).astype(np.float64)
    few = task.on(drawn.clients.take(np.flatnonzero(truth.is_byzantine)))
    return View(
        0, truth.centres, labels, updates, truth.is_byzantine, few, SpectralFilter(BYZANTINE), rng,
        truth=truth, objective="rule", memory={},
    )  # fmt: skip


def moved(view: View, rows: np.ndarray) -> np.ndarray:
    """By how much the rule moves from the honest mean if the Byzantine clients send these rows."""
    honest = view.updates[~view.is_byzantine]
    assert view.aggregate is not None
    return np.asarray(view.aggregate(np.concatenate([honest, rows])) - honest.mean(axis=0))


def test_the_shift_is_no_smaller_than_that_of_a_line_search(seen: View) -> None:
    line = ct.attack("noisy-alie", scale="worst")(seen)
    found = tilt(seen)
    assert np.linalg.norm(moved(seen, found.updates)) > np.linalg.norm(moved(seen, line.updates))


def test_it_gets_no_worse_from_round_to_round_and_begins_anew_without_its_memory(seen: View) -> None:
    sizes = [float(np.linalg.norm(moved(seen, tilt(seen).updates))) for _ in range(6)]
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]
    assert np.linalg.norm(moved(seen, tilt(seen._replace(memory={})).updates)) < sizes[-1]


def test_with_the_objective_error_the_fixed_point_goes_farther_from_the_truth(seen: View) -> None:
    error = honest_error(seen, 0, seen.updates[~seen.is_byzantine].mean(axis=0))
    assert error == pytest.approx(-seen.updates[~seen.is_byzantine].mean(axis=0))  # at the true centre
    ends: dict[str, list[float]] = {"error": [], "rule": []}
    for objective, found in ends.items():
        for seed in range(8):
            view = seen._replace(objective=objective, memory={}, rng=np.random.default_rng(seed))
            found.append(float(np.linalg.norm(error - moved(view, tilt(view).updates))))
    assert np.mean(ends["error"]) > max(np.mean(ends["rule"]), 1.7 * np.linalg.norm(error))


def test_every_method_meets_the_same_adversary() -> None:
    """What it remembers of one method tells it nothing about the next: results do not depend on who plays beside."""
    cell = ["problem.clusters=2", "problem.clients=30", "problem.dim=8", "algorithm.rounds=6", "run.trials=1",
            "problem.byzantine=0.1", "attack.kind=tilt", "attack.target=smallest"]  # fmt: skip
    both, alone = (
        run_trial(read_config(None, [*cell, f"run.methods={names}"]), 0, record=False).methods["brifca-filter"].metrics
        for names in ("['coterie', 'brifca-filter']", "['brifca-filter']")
    )
    assert both["matched_dist"] == alone["matched_dist"]


def test_an_objective_that_it_has_not_gets_one_line() -> None:
    with pytest.raises(ValueError, match="objective: must be one of auto, rule, error for the attack tilt, got ari"):
        ct.attack("tilt", objective="ari")
    with pytest.raises(ValueError, match="objective: must be one of auto for the attack alie"):
        read_config(None, ["attack.kind=alie", "attack.objective=error"])
