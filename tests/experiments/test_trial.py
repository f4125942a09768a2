"""Trials: same seed, same bits, whatever the number of workers and the other methods."""

from __future__ import annotations

import numpy as np
import pytest

from small_trials import small, trials, without_clock


@pytest.mark.parametrize("attack", ["paper", "gaussian", "garbage"])
def test_one_and_two_workers_give_the_same_bits(attack: str) -> None:
    one, two = (trials(small(f"attack.kind={attack}", f"run.workers={n}")) for n in (1, 2))
    for ours, theirs in zip(one, two, strict=True):
        assert without_clock(ours) == without_clock(theirs)
        for name, found in ours.methods.items():
            assert found.centres.tobytes() == theirs.methods[name].centres.tobytes()


@pytest.mark.parametrize("dim", [6, 20])  # in Gram form, and in the form in which methods share a pass over X
def test_a_method_does_not_depend_on_which_others_run(dim: int) -> None:
    shape = (f"problem.dim={dim}", "run.workers=1", "run.trials=1")
    (among,) = trials(small(*shape))
    for name in among.methods:
        (alone,) = trials(small(*shape, f'run.methods=["{name}"]'))
        assert without_clock(alone)[name] == without_clock(among)[name]
        assert alone.methods[name].centres.tobytes() == among.methods[name].centres.tobytes()


def test_seeds_and_trials_differ() -> None:
    first, second, third = trials(small("run.workers=1", 'run.methods=["oracle"]'))
    other = trials(small("run.workers=1", 'run.methods=["oracle"]', "run.seed=1"))[0]
    distances = {t.methods["oracle"].metrics["dist"] for t in (first, second, third, other)}
    assert len(distances) == 4


@pytest.mark.parametrize(
    "overrides",
    [
        ["problem.kind=gaussian-means"],
        ["problem.kind=poisson-means", "problem.samples=5..30"],
        ["problem.shares=[0.7, 0.3]", "attack.kind=sign-flip", "attack.target=smallest"],
        ["attack.kind=constant", "attack.target=rotating", "algorithm.project=l2-ball"],
        ["attack.kind=gaussian", "attack.target=random", "algorithm.project=box", "algorithm.init=gaussian"],
        [
            "attack.kind=data-poisoning",
            "algorithm.init=warm",
            "algorithm.tolerance=1e-3",
            "algorithm.empty=random-client",
        ],
        ["algorithm.resample=true", "algorithm.rounds=7", "problem.dtype=float64"],
        ["problem.clusters=1", "problem.byzantine=0.0"],
        [
            "algorithm.ifca_divisor=all",
            "three_stage.first=truth",
            "three_stage.erm=float32-inverse",
            "three_stage.project=unit-sphere",
        ],
    ],
)
def test_every_option_runs_and_gives_finite_numbers(overrides: list[str]) -> None:
    (trial,) = trials(small(*overrides, "run.trials=1"))
    for name, found in trial.methods.items():
        assert np.isfinite(found.metrics["matched_dist"]), name
        assert np.isfinite(found.metrics["oracle_ratio"]), name
        assert len(found.rounds) == found.metrics["rounds"]
        assert len(found.audit) == 24
    assert trial.methods["oracle"].metrics["oracle_ratio"] == 1.0


def test_one_byzantine_client_cannot_end_a_run() -> None:
    extreme = ["problem.dtype=float64", "attack.kind=constant", "attack.scale=1e200", "run.trials=1"]
    (trial,) = trials(small(*extreme))
    assert np.isfinite(trial.methods["brifca-median"].metrics["dist"])
