"""Trials: same seed, same bits, whatever the number of workers; and what is kept of them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from scipy.stats import binomtest

from coterie._src.data import Federation
from coterie._src.experiments import (
    Config,
    RunFolder,
    TrialResult,
    problems,
    read_config,
    run_trial,
    run_trials,
    summarise,
)
from coterie._src.experiments.config import COMPARED, Problem
from coterie._src.experiments.summary import share, statistic
from coterie._src.experiments.trial import Ground

SMALL = [
    "problem.clusters=2", "problem.clients=24", "problem.samples=15", "problem.dim=6", "problem.byzantine=0.1",
    "algorithm.rounds=12", "run.trials=3",
]  # fmt: skip


def small(*overrides: str) -> Config:
    return read_config(None, [*SMALL, *overrides])


def trials(config: Config) -> list[TrialResult]:
    return sorted(run_trials(config), key=lambda trial: trial.trial)


def without_clock(trial: TrialResult) -> dict[str, object]:
    return {
        name: ({m: repr(v) for m, v in found.metrics.items() if m != "seconds"}, repr(found.rounds), found.audit)
        for name, found in trial.methods.items()
    }


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


def test_trials_on_the_same_ground_draw_it_once_and_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Problem] = []
    federation = problems.federation

    def counted(problem: Problem, rng: np.random.Generator) -> Federation:
        drawn.append(problem)
        return federation(problem, rng)

    monkeypatch.setattr(problems, "federation", counted)
    each = [
        small(f"attack.kind={attack}", f"algorithm.init={init}", "run.methods=['coterie', 'ifca', 'local']")
        for attack in ("paper", "sign-flip", "label-flip")
        for init in ("bernoulli", "spectral")
    ]
    ground = Ground()
    for trial in (0, 1):
        shared = [run_trial(config, trial, ground=ground) for config in each]
        assert len(drawn) == 1 + trial * (1 + len(each))
        alone = [run_trial(config, trial) for config in each]
        assert [without_clock(result) for result in shared] == [without_clock(result) for result in alone]
    other = run_trial(small("problem.dim=7"), 1, ground=ground)
    assert other.methods["coterie"].centres.shape == (2, 7)


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
        ["attack.kind=constant", "attack.target=hop", "algorithm.project=l2-ball"],
        ["attack.kind=gaussian", "attack.target=random", "algorithm.project=box", "algorithm.init=gaussian"],
        ["attack.kind=none", "algorithm.init=warm", "algorithm.tolerance=1e-3", "algorithm.empty=random-client"],
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


def test_the_audit_tells_liars_from_honest_clients() -> None:
    config = small("algorithm.init=warm", "algorithm.trim=0.2", "attack.kind=constant", "attack.scale=1e6")
    audit = trials(config)[0].methods["brifca-trimmed"].audit
    liars = [row for row in audit if row["byzantine"]]
    assert len(liars) == 2
    assert all(row["trimmed"] == 1.0 and row["true_cluster"] == -1 for row in liars)
    assert all(row["trimmed"] < 0.7 and row["refused"] == 0 for row in audit if not row["byzantine"])
    garbage = trials(small("attack.kind=garbage"))[0].methods["ifca"].audit
    assert {row["refused"] for row in garbage} == {0.0, 1.0}
    assert all(bool(row["reasons"]) == bool(row["byzantine"]) for row in garbage)
    reasons = {reason for row in garbage for reason in row["reasons"].split()}
    assert reasons == {"wrong-label", "wrong-type", "wrong-shape", "not-finite"}


def test_as_many_clusters_as_clients_is_not_one_model_per_client() -> None:
    (trial,) = trials(small("problem.clients=2", "problem.byzantine=0.0", "run.trials=1"))
    assert np.isnan(trial.methods["local"].metrics["ari"])
    assert np.isfinite(trial.methods["ifca"].metrics["loss"])


def test_one_byzantine_client_cannot_end_a_run() -> None:
    extreme = ["problem.dtype=float64", "attack.kind=constant", "attack.scale=1e200", "run.trials=1"]
    (trial,) = trials(small(*extreme))
    assert np.isfinite(trial.methods["brifca-median"].metrics["dist"])


def test_statistics() -> None:
    assert statistic([1.0, 3.0]) == {"mean": 2.0, "se": 1.0, "trials": 2}
    assert statistic([5.0]) == {"mean": 5.0, "se": None, "trials": 1}
    assert statistic([1.0, float("nan")])["mean"] is None
    assert statistic([1.0, float("inf")])["mean"] is None
    assert statistic([1e300, 3e300]) == {"mean": 2e300, "se": None, "trials": 2}


@given(st.integers(1, 300), st.data())
def test_a_share_has_wilson_s_interval(trials: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, trials))
    interval = binomtest(hits, trials).proportion_ci(method="wilson")
    assert share(hits, trials) == pytest.approx((hits / trials, interval.low, interval.high), abs=1e-6)


def test_the_folder_is_complete_after_every_trial(tmp_path: Path) -> None:
    config = small("run.workers=1")
    folder = RunFolder(tmp_path / "run", config)
    folder.open()
    kept = []
    for result in run_trials(config):
        folder.add(result)
        kept.append(result)
        summary = json.loads((folder.path / "summary.json").read_text())
        assert summary["status"] == "running"
        assert summary["trials_finished"] == [trial.trial for trial in kept]
        assert summary["methods"] == summarise(kept)
    folder.close("complete")
    with (folder.path / "trials.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 3 * len(COMPARED)
    assert {float(r["dist"]) for r in rows if r["method"] == "ifca"} == {
        t.methods["ifca"].metrics["dist"] for t in kept
    }
    centres = load_file(folder.path / "centres" / "2.safetensors")
    assert np.array_equal(centres["brifca-median"], kept[2].methods["brifca-median"].centres)
    assert not list(folder.path.rglob("*.partial"))


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(ValueError, match="not an empty folder"):
        RunFolder(tmp_path, small())
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("before", ["mixing", "bucketing"])
def test_steps_before_a_rule(before: str) -> None:
    """They change the numbers, run again bit for bit, and leave the recommended method alone."""
    plain, first, second = (
        run_trial(small(f"algorithm.before={name}", "run.methods=['coterie', 'brifca-median', 'ifca']"), 0)
        for name in ("nothing", before, before)
    )
    for method in ("brifca-median", "ifca"):
        assert np.array_equal(first.methods[method].centres, second.methods[method].centres)
        assert not np.array_equal(first.methods[method].centres, plain.methods[method].centres)
    assert np.array_equal(first.methods["coterie"].centres, plain.methods["coterie"].centres)
