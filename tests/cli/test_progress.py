"""Long work says how far it is, also where the output is no terminal."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from command import coterie
from coterie._src.cli import progress

SMALL = """
[problem]
clusters = 2
clients = 16
samples = 15
dim = [3, 4]
[algorithm]
rounds = 3
[run]
methods = ["ifca"]
trials = 2
workers = 1
"""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)


def test_lines_come_at_growing_intervals() -> None:
    now = 0.0
    lines = progress.ProgressLines("trials", 1000, 100, clock=lambda: now)
    told = {}
    for now in range(1, 400):
        if text := lines.line(100 + now):
            told[now] = text
    times = list(told)
    assert times[0] == progress.FIRST_SECONDS
    assert all(later >= progress.GROWTH * earlier for earlier, later in pairwise(times))
    assert times[-1] > 300
    assert told[10] == "110 of 1000 trials, 1.0 a second, about 0:14:50 left"


def test_work_without_an_end_in_sight_says_no_rate() -> None:
    now = 0.0
    lines = progress.ProgressLines("trials", 9, clock=lambda: now)
    now = 60.0
    assert lines.line(0) == "0 of 9 trials"
    lines = progress.ProgressLines("rounds", 1000, clock=lambda: now)
    now = 120.0
    assert lines.line(1) == "1 of 1000 rounds"  # the first rounds say little about those to come


@pytest.mark.usefixtures("impatient")
def test_a_sweep_says_how_far_it_is(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(SMALL)
    done = coterie("sweep", "grid.toml", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^1 of 4 trials, .* a second, about .* left$", done.stderr, re.MULTILINE)


@pytest.mark.usefixtures("impatient")
def test_a_run_says_how_far_it_is_on_standard_error(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(SMALL.replace("[3, 4]", "3"))
    done = coterie("run", "one.toml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\d+ of 8 rounds", done.stderr, re.MULTILINE)
    assert done.stdout.startswith("{")
