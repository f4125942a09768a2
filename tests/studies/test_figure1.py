"""Figure 1 of the paper: its grid, its figure and its report."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import coterie
from coterie._src.studies import figure1 as study
from coterie._src.studies.figure1 import figure1


def test_the_paper_s_grid() -> None:
    published = figure1("as-published", trials=50)
    cells = {(c.problem.clusters, c.problem.clients, c.problem.dim) for c in published.configs}
    assert cells == {(k, 40 * k, d) for k in (2, 5, 10, 15) for d in (20, 50, 100, 200, 500)}
    assert {c.problem.samples for c in published.configs} == {100}
    assert {c.algorithm.rounds for c in published.configs} == {299}
    assert len(published.keys) == 20 * 50 * 5
    assert len(figure1("fair", quick=True, trials=5).configs) == 9
    assert not set(published.keys) & set(figure1("fair", trials=50).keys)


def test_reproduce_draws_the_figure_and_writes_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole command on a grid with the shape of Figure 1 and little in it."""
    for preset in study.PRESETS.values():
        monkeypatch.setitem(preset["algorithm"], "rounds", 60)
    for name, value in (("SETTINGS", ((2, 10), (5, 20), (10, 30))), ("DIMENSIONS", (3, 4))):
        monkeypatch.setattr(study, name, value)
    command = ("reproduce", "figure1", "--trials", "2", "--workers", "1", "--out", "out")
    assert coterie(*command, cwd=tmp_path).stdout.endswith("out/report.md\n")
    report = (tmp_path / "out" / "report.md").read_text()
    assert report.count("\n| ") == 3 * 2 * 5 + 1
    assert "three_stage.erm = float32-inverse" in report
    rows = [row for line in report.splitlines() if len(row := line.split("|")) == 15]
    assert {len(row) for row in rows} == {15}
    assert (tmp_path / "out" / "figure1.png").read_bytes().startswith(b"\x89PNG")
    refused = coterie(*command, cwd=tmp_path)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
