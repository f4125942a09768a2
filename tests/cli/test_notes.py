"""Settings that are valid but probably not intended are told in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import coterie

SMALL = [
    "--set", "problem.clusters=2", "--set", "problem.clients=24", "--set", "problem.samples=15",
    "--set", "problem.dim=6", "--set", "algorithm.rounds=12", "--trials", "2", "--set", "run.workers=1",
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "told"),
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
def test_options_that_are_hardly_meant_are_told(tmp_path: Path, changes: list[str], told: str) -> None:
    small = ["problem.clusters=3", "problem.clients=60", "problem.dim=3", "problem.samples=8", "algorithm.rounds=2"]
    options = [word for key in [*small, *changes] for word in ("--set", key)]
    done = coterie("run", *options, "--method", "coterie", "--trials", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert told in done.stderr


def test_a_trim_below_the_worst_contamination_is_told_in_one_line(tmp_path: Path) -> None:
    options = [*SMALL, "--method", "brifca-trimmed", "--json"]
    told = coterie("run", *options, cwd=tmp_path)
    assert told.stderr.startswith("note: algorithm.trim = 0.05 is below 0.0")
    assert told.stderr.count("\n") == 1
    assert json.loads(told.stdout)
    assert coterie("run", *options, "--set", "algorithm.trim=0.2", cwd=tmp_path).stderr == ""


def test_more_byzantine_clients_than_the_bound_are_told_in_one_line(tmp_path: Path) -> None:
    told = coterie("run", *SMALL, "--set", "problem.byzantine=0.2", "--method", "coterie", "--json", cwd=tmp_path)
    assert told.stderr.startswith("note: problem.byzantine = 0.2 is above algorithm.max_byzantine = 0.05")
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
    assert told.stderr.count("\n") == 1
