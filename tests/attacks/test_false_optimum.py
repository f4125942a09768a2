"""The adversary that lies once: its answers belong to one quadratic loss, and the method survives it."""

from __future__ import annotations

import numpy as np
import pytest

from coterie._src.attacks import Attack
from coterie._src.attacks.false_optimum import changed, drawn
from coterie._src.experiments import read_config, run_trial
from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.setup import draw_trial
from coterie._src.intake import Verdict
from coterie._src.simulation import SimulatedNetwork

CELL = ["problem.clusters=2", "problem.clients=40", "problem.dim=10", "problem.samples=60", "problem.byzantine=0.2",
        "algorithm.max_byzantine=0.2", "run.trials=1", "run.methods=['coterie']"]  # fmt: skip


def test_no_reply_contradicts_another() -> None:
    """Whatever the direction, the length, the noise and the steepness, the server finds one quadratic loss."""
    rng = np.random.default_rng(0)
    setup = draw_trial(read_config(None, CELL), 0)
    algorithm = METHODS["coterie"].algorithm(setup.setting(setup.stream("buckets")))
    plan = drawn(rng, 2)
    for _ in range(4):
        plan = changed(plan, rng)
        clients = SimulatedNetwork(setup.task, setup.is_byzantine, Attack(plan), rng, truth=setup.truth)
        state = algorithm.initial_state(clients, setup.start, np.random.default_rng(1))
        for _ in range(4):
            state, info = algorithm.step(state, clients, rng)
            assert (info.verdicts == Verdict.ACCEPTED).all()


@pytest.mark.parametrize(
    ("attack", "trials"),
    [("false-optimum", 1), *(pytest.param(slow, 3, marks=pytest.mark.slow) for slow in ("search", "tilt"))],
)
def test_no_search_makes_a_cluster_collapse_beside_nearly_as_many_byzantine_clients(attack: str, trials: int) -> None:
    """14 Byzantine clients beside 15 honest ones of a cluster: before, the centre left these, and ARI fell to 0.5."""
    cell = ["problem.clusters=3", "problem.clients=60", "problem.dim=20", "problem.byzantine=0.23", "run.trials=1",
            "algorithm.max_byzantine=0.23", "run.methods=['coterie']", f"attack.kind={attack}"]  # fmt: skip
    target = [] if attack == "search" else ["attack.target=smallest"]
    if attack != "tilt":
        cell.append("attack.scale=8")
    for trial in range(trials):
        found = run_trial(read_config(None, [*cell, *target]), trial, record=False).methods["coterie"].metrics
        assert found["ari"] == 1.0
        assert found["oracle_ratio"] < 3.0
