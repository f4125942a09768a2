"""The adversary that searches: what it finds, that the rehearsal is true, and that it leaves no trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coterie._src.attacks import Attack, Forgery, View, data_poisoning
from coterie._src.attacks.search import OBJECTIVES, QUESTIONS, Plan, changed_plan, drawn_plan
from coterie._src.experiments import read_config, run_trial
from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.setup import Custom, draw_trial
from coterie._src.metrics import cluster_distances
from coterie._src.simulation import KnownServer, SimulatedNetwork

CELL = ["problem.clusters=2", "problem.clients=40", "problem.dim=10", "problem.samples=40", "problem.byzantine=0.1",
        "algorithm.max_byzantine=0.1", "algorithm.rounds=12", "run.trials=1"]  # fmt: skip


def played(*changes: str, method: str = "coterie") -> dict[str, float]:
    config = read_config(None, [*CELL, f"run.methods=['{method}']", *changes])
    return run_trial(config, 0, record=False).methods[method].metrics


def searched(objective: str = "distance", method: str = "coterie") -> dict[str, float]:
    return played("attack.kind=search", "attack.scale=6", f"attack.objective={objective}", method=method)


def test_it_finds_worse_than_the_published_attacks_and_the_same_again() -> None:
    found = searched()
    assert found["oracle_ratio"] < 3
    for kind in ("paper", "sign-flip", "noisy-alie"):
        assert found["matched_dist"] > played(f"attack.kind={kind}", "attack.target=smallest")["matched_dist"]
    again = searched()
    assert [found[name] for name in ("matched_dist", "ari", "rounds")] == [
        again[name] for name in ("matched_dist", "ari", "rounds")
    ]


def test_the_objectives_are_served() -> None:
    late, early = searched("no-stop"), searched("early-stop")
    assert late["rounds"] > early["rounds"]
    assert set(OBJECTIVES) == {"distance", "worst-cluster", "ari", "no-stop", "early-stop"}


@pytest.mark.parametrize("method", ["brifca-trimmed", "coterie", "three-stage"])
def test_it_plays_against_every_kind_of_start(method: str) -> None:
    """Random first centres, those of a robust start, and local minimisers."""
    assert np.isfinite(searched(method=method)["matched_dist"])
    assert (
        searched(method=method)["matched_dist"]
        >= 0.9 * played("attack.kind=data-poisoning", method=method)["matched_dist"]
    )


@pytest.fixture
def network() -> tuple[SimulatedNetwork, KnownServer]:
    setup = draw_trial(read_config(None, CELL), 0)
    method = METHODS["coterie"]
    algorithm = method.algorithm(setup.setting(np.random.default_rng(0)))
    server = KnownServer(algorithm, setup.start)
    quiet = Attack(data_poisoning)
    rng = np.random.default_rng(1)
    return SimulatedNetwork(setup.task, setup.is_byzantine, quiet, rng, truth=setup.truth, server=server), server


def test_a_rehearsal_tells_what_comes_and_leaves_no_trace(network: tuple[SimulatedNetwork, KnownServer]) -> None:
    clients, server = network
    plan = drawn_plan(np.random.default_rng(2), 2)
    assert clients.truth is not None
    before = clients.rng.bit_generator.state
    from_the_start = clients.rehearse(plan, 1)
    assert server.state is None
    sent = SimulatedNetwork(clients.task, clients.is_byzantine, Attack(plan), clients.rng, truth=clients.truth)
    state = server.algorithm.initial_state(sent, server.start, np.random.default_rng(0))
    server.state = state
    later = clients.rehearse(plan, 1)
    after, _ = server.algorithm.step(state, sent, np.random.default_rng(0))
    distances = cluster_distances(after.centres, clients.truth.centres)
    for prospect in (from_the_start, later):
        assert prospect.distance == pytest.approx(distances.mean(), rel=1e-6)
        assert prospect.worst_cluster == pytest.approx(distances.max(), rel=1e-6)
    assert server.state is state
    assert clients.rng.bit_generator.state == before
    assert not clients.memory


def test_without_the_server_the_answers_are_honest() -> None:
    drawn = draw_trial(read_config(None, [*CELL, "attack.kind=search"]), 0)
    quiet, alone = (
        SimulatedNetwork(drawn.task, drawn.is_byzantine, attack, np.random.default_rng(0))
        for attack in (None, drawn.attack)
    )
    centres = np.concatenate([drawn.start, drawn.start + 1])[:2]
    assert np.array_equal(quiet.gradients(centres, 0).updates, alone.gradients(centres, 0).updates)


def seen(question: Any, rows: np.ndarray, rng: np.random.Generator) -> View:
    """What an adversary with the last two of eight clients in two dimensions sees."""
    setup = draw_trial(read_config(None, ["problem.clients=8", "problem.clusters=1", "problem.dim=2"]), 0)
    few = setup.task.on(setup.task.clients.take([6, 7]))
    return View(-1, None, np.zeros(8, dtype=np.int64), rows, np.arange(8) >= 6, few, None, rng, question=question)


@pytest.mark.parametrize(("question", "place", "columns"), [("size", 3, 1), ("curvature", 2, 2), ("hessian", 0, 3)])
def test_a_plan_lies_about_one_question_and_not_about_others(question: str, place: int, columns: int) -> None:
    rng = np.random.default_rng(0)
    rows = rng.uniform(1.0, 2.0, (8, columns))
    lies = np.zeros(4)
    lies[place] = -2.0
    plan = Plan(0, np.ones(6), 1.0, 1.0, 0, lies)
    sent: Forgery = plan(seen(question, rows, rng))
    assert np.asarray(sent.updates)[:, 0] == pytest.approx(np.exp(-2.0) * rows[6:, 0])
    honest = changed_plan(Plan(0, np.ones(6), 1.0, 1.0, 0, np.zeros(4)), rng)(seen(question, rows, rng))
    assert np.array_equal(honest.updates, rows[6:])


@pytest.mark.parametrize("question", sorted(QUESTIONS))
def test_the_worst_of_some_lies_about_one_question_costs_little(question: str) -> None:
    """Their updates are shifted by two standard deviations; a lie beside it, of any size, makes that hardly worse."""
    raw = ["run.methods=['brifca-filter']", "algorithm.init=spectral", "algorithm.coordinates=raw"]
    method = raw if question == "curvature" else ["run.methods=['coterie']"]
    config = read_config(None, [*CELL, *method, "algorithm.rounds=40"])
    honest = worst = 0.0
    for size in (0.0, -6.0, -2.0, 2.0, 6.0, 12.0):
        lies = np.where(np.arange(4) == QUESTIONS[question], size, 0.0)
        attack = Attack(Plan(0, np.ones(6), 2.0, 1.0, 0, lies))
        (found,) = run_trial(config, 0, record=False, custom=Custom(attack=attack)).methods.values()
        honest = honest or found.metrics["oracle_ratio"]
        worst = max(worst, found.metrics["oracle_ratio"])
    assert worst < 1.15 * honest
