"""A bound on the Byzantine clients that is too small: the server notices, says so, and goes on with a larger one."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from coterie._src.aggregators import SpectralFilter
from coterie._src.algorithms.newton import _bearable
from coterie._src.experiments import read_config, run_trial
from coterie._src.experiments.outcome import MethodResult
from coterie._src.init.conditioning import NewtonSteps
from coterie._src.init.robust import count_alone

CELL = ["problem.clusters=3", "problem.clients=90", "problem.dim=20", "problem.byzantine=0.1", "run.trials=1",
        "run.methods=['coterie']", "algorithm.max_byzantine=0.02", "attack.target=smallest"]  # fmt: skip
NOISE = ("attack.kind=gaussian", "attack.scale=1e4")


def played(*changes: str) -> MethodResult:
    """Nine of 90 clients are Byzantine, and two are allowed for."""
    return run_trial(read_config(None, [*CELL, *changes]), 0).methods["coterie"]


@pytest.mark.parametrize("attack", [NOISE, ("attack.kind=paper",)], ids=["noise", "paper"])
def test_more_byzantine_clients_than_allowed_for_are_noticed(attack: tuple[str, ...]) -> None:
    found = played(*attack)
    assert found.metrics["oracle_ratio"] < 1.05
    assert found.metrics["ari"] == 1.0
    assert found.diagnostics is not None
    assert found.diagnostics.outliers > found.diagnostics.max_byzantine == 2
    assert any("that bound is too small" in line for line in found.diagnostics.lines(np.arange(90)))


def test_a_strict_server_publishes_nothing() -> None:
    with pytest.raises(ValueError, match=r"max_byzantine: \d+ clients stand out at the start, and 2 may be Byzantine"):
        played(*NOISE, "algorithm.strict=true")
    assert played("problem.byzantine=0.02", "algorithm.strict=true").metrics["ari"] == 1.0


def test_where_the_bound_holds_it_is_not_called_too_small() -> None:
    for changes in (("problem.byzantine=0.0",), ("problem.byzantine=0.1", "algorithm.max_byzantine=0.1")):
        found = played(*changes, "attack.kind=noisy-alie")
        assert found.diagnostics is not None
        assert not any("too small" in line for line in found.diagnostics.lines(np.arange(90)))


def test_the_rows_that_stand_out_do_not_depend_on_the_bound(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((60, 20))
    none, shifted = SpectralFilter(0), rows.copy()
    assert len(none.standing_out(rows, np.ones(60))) <= 2
    shifted[:12, 0] += 8
    assert len(np.intersect1d(none.standing_out(shifted, np.ones(60)), np.arange(12))) >= 11
    assert not len(none.standing_out(shifted, np.ones(60), spectrum=False))
    rows[:3] *= 1e200
    assert none.standing_out(rows, np.ones(60), spectrum=False).tolist() == [0, 1, 2]


def test_points_very_far_from_all_others_do_not_count_as_a_cluster(rng: np.random.Generator) -> None:
    points = rng.standard_normal((50, 10))
    scattered, together = points.copy(), points.copy()
    scattered[:8] *= 1e3
    together[:8, 0] += 1e3
    assert count_alone(scattered, 2) == 8
    assert count_alone(scattered, 8) == count_alone(points, 0) == 0
    assert count_alone(together, 2) == 0  # eight together are more than may be Byzantine


def test_a_fit_goes_on_and_says_so() -> None:
    federation = ct.mixed_regression(0, clients=60, clusters=2, samples=60, dim=10, byzantine=0.1)
    result = ct.fit(federation, clusters=2, max_byzantine=0.02, attack=ct.attack("gaussian", scale=1e4))
    assert result.metrics["oracle_ratio"] < 1.05
    assert result.diagnostics is not None
    assert result.diagnostics.bound_reached


def test_a_move_that_costs_all_honest_members_is_shortened(rng: np.random.Generator) -> None:
    """Fourteen of 29 members want a move of 20 standard deviations of one update, and claim that it helps them."""
    updates = rng.standard_normal((59, 10))
    updates[:14, 0] += 40
    labels = np.repeat([0, 1], [29, 30])
    newton = NewtonSteps(np.arange(59), labels, np.tile(np.eye(10), (2, 1, 1)), None)
    hessians = np.tile(np.eye(10, dtype=np.float32), (59, 1, 1))
    moves = np.zeros((2, 10))
    moves[:, 0] = -20.0
    assert _bearable(newton, hessians, updates, moves, 14).max() <= 0.25
    assert _bearable(newton, hessians, updates + 20 * np.eye(10)[0], moves, 14).tolist() == [1.0, 1.0]  # which all want
    assert _bearable(newton, hessians, updates, moves / 10, 14).tolist() == [1.0, 1.0]  # within their noise
