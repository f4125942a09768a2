"""The problems draw their own federation and build their own task."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie._src.data import tabular
from coterie._src.experiments import read_config, run_trial
from coterie._src.experiments.config import named_files
from coterie._src.experiments.plan import plan
from coterie._src.experiments.problems import PROBLEMS, Folder, GaussianMeans, MixedRegression, PoissonMeans, Tabular
from coterie._src.experiments.problems.tabular import KNOBS
from coterie._src.theory import Constants
from small_trials import SMALL


@pytest.mark.parametrize("name", PROBLEMS.names)
def test_every_name_is_a_problem_of_its_own_keys(name: str) -> None:
    problem = read_config(None, [f"problem.kind={name}"]).problem
    assert isinstance(problem, PROBLEMS[name].section)
    assert problem.kind == name
    assert str(problem.clusters) in problem.title()


@pytest.mark.parametrize(
    ("name", "section", "has_targets"),
    [
        ("mixed-regression", MixedRegression, True),
        ("gaussian-means", GaussianMeans, False),
        ("poisson-means", PoissonMeans, False),
        ("tabular", Tabular, True),
    ],
)
def test_synthetic_problems(name: str, section: type, has_targets: bool) -> None:
    problem = read_config(None, [*SMALL, f"problem.kind={name}"]).problem
    assert isinstance(problem, section)
    drawn = problem.draw(np.random.default_rng(0))
    assert drawn.truth is not None
    assert drawn.truth.centres.shape == (2, 6)
    assert (drawn.clients.targets is not None) == has_targets
    setup = problem.setup(drawn, "cpu", np.random.default_rng(0))
    assert setup.task.dim == 6
    assert setup.example.shape == (1, 6)
    assert (problem.loss_of() == "linear") == has_targets
    assert not problem.reads_data()


def test_samples_as_a_number_a_range_and_a_list() -> None:
    for text, counts in (("7", [7]), ('"3..5"', [3, 4, 5]), ("[1, 2, 3]", [1, 2, 3])):
        problem = read_config(
            None,
            [f"problem.samples={text}", "problem.clients=3", "problem.clusters=1", "problem.byzantine=0"],
        ).problem
        assert isinstance(problem, MixedRegression)
        assert list(problem.sample_counts) == counts


def tables(*changes: str) -> Tabular:
    problem = read_config(None, [*SMALL, "problem.kind=tabular", *changes]).problem
    assert isinstance(problem, Tabular)
    return problem


def test_the_keys_of_tables_are_the_parameters_of_the_generator() -> None:
    parameters = inspect.signature(tabular).parameters
    own = {"rng", "clients", "clusters", "samples", "dim", "byzantine", "shares", "dtype"}
    assert set(KNOBS) == set(parameters) - own
    defaults = {name: parameters[name].default for name in KNOBS}
    problem = Tabular()
    assert {name: getattr(problem, name) for name in KNOBS} == {**defaults, "separation": "drawn"}
    assert (problem.dim, problem.clusters, problem.clients) == (50, 5, 200)


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ("task=logistic", {"task": "logistic"}),
        ("noise_variance=0.7", {"noise_variance": 0.7}),
        ("separation=0.3", {"separation": 0.3}),
        ("correlation=-0.5", {"correlation": -0.5}),
        ("factors=2", {"factors": 2}),
        ("scales=1.5", {"scales": 1.5}),
        ("mean=-1.0", {"mean": -1.0}),
        ("binary=0.5", {"binary": 0.5}),
        ("counts=0.5", {"counts": 0.5}),
        ("heavy=1.0", {"heavy": 1.0}),
        ("client_means=1.0", {"client_means": 1.0}),
        ("client_covariances=0.5", {"client_covariances": 0.5}),
        ("spread=0.1", {"spread": 0.1}),
        ("intercept=true", {"intercept": True}),
    ],
)
def test_every_key_of_tables_reaches_the_generator_and_the_title(change: str, options: dict[str, Any]) -> None:
    plain, changed = tables(), tables(f"problem.{change}")
    shape: dict[str, Any] = {"clients": 24, "clusters": 2, "samples": 15, "dim": 6, "byzantine": 0.1}
    drawn, expected = changed.draw(np.random.default_rng(1)).clients, tabular(1, **shape, **options).clients
    assert np.array_equal(drawn.features, expected.features)
    assert np.array_equal(drawn.targets, expected.targets)
    assert not np.array_equal(drawn.targets, plain.draw(np.random.default_rng(1)).clients.targets)
    [(name, value)] = options.items()
    assert changed.title() == f"{plain.title()}, {name}={value}"
    assert plain.title() == "tabular: k=2, m=24, n=15, d=6, α=0.1"


def test_tables_of_classes_have_their_own_task() -> None:
    softmax = tables("problem.task=softmax", "problem.classes=4")
    drawn = softmax.draw(np.random.default_rng(0))
    task = softmax.build_task(drawn.clients)
    assert (task.dim, softmax.loss_of()) == (24, "softmax")
    assert drawn.truth is not None
    assert drawn.truth.centres.shape == (2, 24)
    assert softmax.title().endswith(", task=softmax, classes=4")
    assert tables("problem.task=logistic").loss_of() == "logistic"


@pytest.mark.parametrize(("task", "weights"), [("linear", 4), ("logistic", 4), ("softmax", 12)])
def test_the_oracle_of_tables_is_near_the_truth(task: str, weights: int) -> None:
    """Its error is that of maximum likelihood on the pooled samples, of the order √(weights/samples)."""
    changes = ["problem.samples=400", "problem.dim=4", "problem.correlation=0.5", "problem.scales=0.5"]
    options = [*SMALL, "problem.kind=tabular", f"problem.task={task}", *changes, 'run.methods=["oracle"]']
    metrics = run_trial(read_config(None, options), 0).methods["oracle"].metrics
    assert metrics["oracle_ratio"] == 1
    assert metrics["ari"] == 1
    assert metrics["matched_dist"] < 10 * np.sqrt(weights / (11 * 400))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["correlation=1.0"], r"problem\.correlation: .*less than 1"),
        (["task=mean"], r"problem\.task: "),
        (["separation=0.0"], r"problem\.separation: "),
        (["scales=21.0"], r"problem\.scales: "),
        (["binary=0.6", "counts=0.5"], r"binary \+ counts \+ heavy must be at most 1, got 1\.1"),
        (["dim=1", "intercept=true"], "dim must be at least 2 with an intercept, got 1"),
        (["clusters=1", "separation=0.5"], "separation must be left out where there is one cluster, got 0.5"),
    ],
)
def test_impossible_tables_are_refused_before_they_are_drawn(changes: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tables(*(f"problem.{change}" for change in changes))


def test_there_is_no_plan_for_tables() -> None:
    with pytest.raises(ValueError, match="not known for tabular features"):
        plan(read_config(None, ["problem.kind=tabular"]), Constants())


def test_a_folder_has_no_truth_and_names_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("age,bmi,y\n1,2,0\n3,4,1\n")
    config = read_config(
        None, ["problem.kind=folder", f"problem.path={tmp_path}", "problem.clusters=1", "problem.intercept=true"]
    )
    problem = config.problem
    assert isinstance(problem, Folder)
    drawn = problem.draw(np.random.default_rng(0))
    assert drawn.truth is None
    assert drawn.clients.features.tolist() == [[1, 2, 1], [3, 4, 1]]
    assert problem.weight_names() == ["age", "bmi", "intercept"]
    assert named_files(config) == (str(tmp_path),)
    monkeypatch.chdir(tmp_path.parent)
    beside = read_config(None, ["problem.kind=folder", f"problem.path={tmp_path.name}"]).problem
    assert beside.anchored().files() == (str(tmp_path),)
    mean = read_config(None, ["problem.kind=folder", f"problem.path={tmp_path}", "problem.task=mean"]).problem
    assert mean.loss_of() is None
    assert mean.draw(np.random.default_rng(0)).clients.targets is None


def test_targets_that_are_no_classes_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,0.5\n")
    problem = read_config(
        None, ["problem.kind=folder", f"problem.path={tmp_path}", "problem.task=logistic", "problem.clusters=1"]
    ).problem
    with pytest.raises(ValueError, match=r"target 0\.5 is not a class from 0 to 1"):
        problem.check(problem.draw(np.random.default_rng(0)).clients, "cpu")
