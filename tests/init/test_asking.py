"""Starts that ask the clients: they find the clusters of the paper's problems, and how many there are, under attack."""

from __future__ import annotations

import numpy as np
import pytest

from coterie._src.experiments import read_config, run_trial
from coterie._src.experiments.setup import draw_trial
from coterie._src.init import RobustStart, spectral
from coterie._src.metrics import matched_distance
from coterie._src.simulation import SimulatedNetwork


@pytest.mark.parametrize("attack", ["paper", "sign-flip", "constant", "garbage"])
@pytest.mark.parametrize("init", ["spectral", "balls", "erm"])
def test_a_run_from_a_robust_start_finds_every_client_s_cluster(init: str, attack: str) -> None:
    config = read_config(
        None,
        [f"algorithm.init={init}", f"attack.kind={attack}", "problem.dim=20", "problem.clusters=4",
         "problem.clients=80", "algorithm.rounds=60", "run.methods=['brifca-median']"],
    )  # fmt: skip
    for trial in range(3):
        found = run_trial(config, trial, record=False).methods["brifca-median"].metrics
        assert found["ari"] == 1.0
        assert found["oracle_ratio"] < 2.0


@pytest.mark.parametrize("kind", ["gaussian-means", "poisson-means"])
def test_means_have_robust_starts_too(kind: str) -> None:
    config = read_config(None, [f"problem.kind={kind}", "problem.dim=20", "algorithm.init=spectral"])
    draw = draw_trial(config, 0)
    assert draw.truth is not None
    assert matched_distance(draw.start, draw.truth.centres) < 0.25 * draw.truth.separation


@pytest.mark.parametrize("attack", ["paper", "phantom", "seed-capture", "constant", "garbage"])
@pytest.mark.parametrize("clusters", [1, 2, 4])
def test_the_number_of_clusters_is_found(clusters: int, attack: str) -> None:
    config = read_config(
        None,
        [f"problem.clusters={clusters}", f"problem.clients={30 * clusters}", "problem.dim=20", f"attack.kind={attack}",
         "algorithm.init=spectral", "algorithm.clusters=auto", "algorithm.max_clusters=6"],
    )  # fmt: skip
    assert [draw_trial(config, trial).start.shape[0] for trial in range(2)] == [clusters] * 2


@pytest.mark.parametrize("kind", ["gaussian-means", "poisson-means"])
def test_the_number_of_clusters_of_means(kind: str) -> None:
    """A choice by the samples that judge it would find more: five to seven of these three."""
    config = read_config(
        None,
        [f"problem.kind={kind}", "problem.clusters=3", "problem.clients=90", "problem.dim=20", "problem.byzantine=0.0",
         "algorithm.init=spectral", "algorithm.clusters=auto", "algorithm.max_clusters=8"],
    )  # fmt: skip
    assert [draw_trial(config, trial).start.shape[0] for trial in range(3)] == [3] * 3


def test_a_start_without_answers_says_so() -> None:
    config = read_config(
        None,
        ["problem.clients=4", "problem.clusters=2", "problem.byzantine=0.5", "problem.dim=3",
         "attack.kind=garbage", "algorithm.init=spectral"],
    )  # fmt: skip
    draw_trial(config, 0)  # two are enough
    setup = draw_trial(config, 0)
    network = SimulatedNetwork(setup.task, setup.is_byzantine, setup.attack, np.random.default_rng(1))
    with pytest.raises(ValueError, match="at least 3 well-formed answers, got 2"):
        RobustStart(spectral, "gradient", 0.1, 3)(network, setup.start, np.random.default_rng(1))
