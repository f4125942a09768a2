"""The problems draw their own federation and build their own task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coterie._src.experiments import read_config
from coterie._src.experiments.config import named_files
from coterie._src.experiments.problems import PROBLEMS, Folder, GaussianMeans, MixedRegression, PoissonMeans
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
