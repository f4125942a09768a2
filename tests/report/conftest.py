"""Folders of results for pages: one of clients whose names are hostile, one with a known truth and 200 clients."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from command import coterie
from hostile import NAMES


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on own data, whose clients have the names of `hostile.NAMES`."""
    folder = tmp_path_factory.mktemp("own")
    rng = np.random.default_rng(5)
    with (folder / "all.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["who", "<b>dose", "y"])
        for i, name in enumerate(NAMES):
            slope = 3.0 if i % 2 else -2.0
            for x in rng.standard_normal(16):
                writer.writerow([name, x, slope * x + 0.3 * rng.standard_normal()])
    done = coterie(
        "run", "--set", "problem.kind=folder", "--set", f"problem.path={folder / 'all.csv'}", "--set",
        "problem.client=who", "--set", "problem.clusters=2", "--out", str(folder / "run"), cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture(scope="session")
def paper_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a known truth: 200 clients, all methods that are compared by default, two trials."""
    folder = tmp_path_factory.mktemp("paper")
    done = coterie(
        "run", "--set", "problem.dim=10", "--set", "problem.samples=20", "--set", "algorithm.rounds=60", "--set",
        "attack.target=smallest", "--trials", "2", "--set", "run.workers=1", "--out", str(folder / "run"), cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "run"
