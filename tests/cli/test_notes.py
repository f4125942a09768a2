"""Settings that are valid but probably not intended are told in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from command import coterie
from coterie._src.experiments import MethodResult, TrialResult, default_config
from coterie._src.experiments.doubts import result_doubts

SMALL = [
    "--set", "problem.clusters=2", "--set", "problem.clients=24", "--set", "problem.samples=15",
    "--set", "problem.dim=6", "--set", "algorithm.rounds=12", "--trials", "2", "--set", "run.workers=1",
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["problem.byzantine=0.05", "algorithm.max_byzantine=0.4"],
            "allows for 24 Byzantine clients, and the smallest cluster has 19",
        ),
        (
            ["algorithm.step=0.1", "algorithm.tolerance=0.5"],
            "algorithm.step, algorithm.tolerance: the method coterie does",
        ),
    ],
)
def test_options_that_are_hardly_meant_are_told(tmp_path: Path, changes: list[str], message: str) -> None:
    small = ["problem.clusters=3", "problem.clients=60", "problem.dim=3", "problem.samples=8", "algorithm.rounds=2"]
    options = [word for key in [*small, *changes] for word in ("--set", key)]
    done = coterie("run", *options, "--method", "coterie", "--trials", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert message in done.stderr


def test_a_trim_below_the_worst_contamination_is_told_in_one_line(tmp_path: Path) -> None:
    options = [*SMALL, "--method", "brifca-trimmed", "--json"]
    done = coterie("run", *options, cwd=tmp_path)
    assert done.stderr.startswith("note: algorithm.trim = 0.05 is below 0.0")
    assert done.stderr.count("\n") == 1
    assert json.loads(done.stdout)
    assert coterie("run", *options, "--set", "algorithm.trim=0.2", cwd=tmp_path).stderr == ""


def test_more_byzantine_clients_than_the_bound_are_told_in_one_line(tmp_path: Path) -> None:
    done = coterie("run", *SMALL, "--set", "problem.byzantine=0.2", "--method", "coterie", "--json", cwd=tmp_path)
    assert done.stderr.startswith("note: problem.byzantine = 0.2 is above algorithm.max_byzantine = 0.05")
    few = [
        *SMALL,
        "--set",
        "problem.clients=18",
        "--set",
        "attack.kind=data-poisoning",
        "--method",
        "coterie",
        "--json",
    ]
    # 0.9 Byzantine clients are one, for the problem and for the method
    assert coterie("run", *few, cwd=tmp_path).stderr == ""
    assert done.stderr.count("\n") == 1


def test_fewer_clusters_than_asked_for_are_told_with_what_to_do(tmp_path: Path) -> None:
    """Eight centres for two clusters of 12 clients: some of them stay without clients."""
    many = [*SMALL, "--set", "problem.byzantine=0.0", "--set", "problem.samples=60", "--method", "ifca", "--out", "run"]
    done = coterie("run", *many, "--set", "algorithm.init=gaussian", "--set", "problem.clusters=8", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("note: clusters:")]
    assert "fewer than problem.clusters = 8 have clients with ifca (" in line
    assert "algorithm.init=spectral" in line
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["notes"] == [line.removeprefix("note: ")]
    assert "have clients with ifca" in (tmp_path / "run" / "report.html").read_text()


def own_data(folder: Path, slopes: tuple[float, ...], noise: float = 0.1) -> list[str]:
    rng = np.random.default_rng(2)
    (folder / "clients").mkdir()
    for i, slope in enumerate(slopes):
        x = rng.standard_normal(12)
        rows = [f"{a:.5f},{slope * a + 5 + noise * b:.5f}" for a, b in zip(x, rng.standard_normal(12), strict=True)]
        (folder / "clients" / f"c{i}.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    return ["run", "--set", "problem.kind=folder", "--set", "problem.path=clients", "--set", "problem.clusters=1"]


@pytest.mark.parametrize("holdout", ["0.25", "0.0"])
def test_a_loss_above_the_variance_of_the_target_is_told(holdout: str, tmp_path: Path) -> None:
    """Targets about 5, a model without an intercept: its loss is about 25 where the variance is about 9."""
    arguments = [*own_data(tmp_path, (3.0,) * 8), "--method", "coterie", "--set", f"problem.holdout={holdout}"]
    poor = coterie(*arguments, "--set", "problem.intercept=false", cwd=tmp_path)
    (line,) = [line for line in poor.stderr.splitlines() if line.startswith("note: loss:")]
    assert "above the variance of the target with coterie (" in line
    assert "set problem.intercept=true" in line
    assert "note: loss" not in coterie(*arguments, cwd=tmp_path).stderr


def test_a_recommended_method_that_is_the_worst_of_its_table_is_told(tmp_path: Path) -> None:
    """As many clusters as clients, in effect: what a client learns alone is better, and so is one model for all."""
    worst = {"coterie": [3.0, 3.1], "ifca": [1.0, 1.1], "global": [2.0, 2.1], "oracle": [9.0, 9.0]}
    assert "coterie, the recommended one, has the worst matched_dist" in " ".join(doubts_of(worst))
    assert doubts_of({**worst, "global": [4.0, 4.1]}) == []
    assert doubts_of({**worst, "global": [2.5, 3.5]}) == []  # within the standard errors
    assert doubts_of({"coterie": [3.0, 3.1], "oracle": [1.0, 1.0]}) == []


def doubts_of(finals: dict[str, list[float]]) -> list[str]:
    trials = [
        TrialResult(t, {name: MethodResult({"matched_dist": values[t]}, [], [], np.zeros((5, 1)),
                                           labels=np.arange(200) % 5) for name, values in finals.items()})
        for t in range(2)
    ]  # fmt: skip
    return list(result_doubts(default_config(), trials).values())


def test_a_number_of_clusters_that_is_not_used_is_told(tmp_path: Path) -> None:
    """A file of an earlier run says auto; a change of problem.clusters alone changes nothing."""
    arguments = [*own_data(tmp_path, (3.0,) * 8)[:-2], "--method", "coterie"]
    first = coterie(*arguments, "--out", "first", cwd=tmp_path)
    assert (first.returncode, "note" in first.stderr) == (0, False)
    again = ["run", "first/config.toml", "--set", "problem.clusters=2", "--json"]
    assert (
        "note: problem.clusters = 2: not used, since algorithm.clusters = auto" in coterie(*again, cwd=tmp_path).stderr
    )
    assert coterie(*again, "--set", "algorithm.clusters=known", cwd=tmp_path).stderr.count("not used") == 0
