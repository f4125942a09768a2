"""The paper's grids, its figure and report, and the fitted slopes."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from coterie._src.cli import paper
from coterie._src.studies import claims
from coterie._src.studies import figure1 as reproduction
from coterie._src.experiments.summary import METRICS
from coterie._src.experiments.sweep import parse_grid
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
    for name, value in (("SETTINGS", ((2, 10), (5, 20), (10, 30))), ("DIMENSIONS", (3, 4))):
        monkeypatch.setattr(reproduction, name, value)
    paper.reproduce("figure1", "as-published", 2, False, None, 1, "local", None, None, tmp_path / "out", False)
    report = (tmp_path / "out" / "report.md").read_text()
    assert report.count("\n| ") == 3 * 2 * 5 + 1
    assert "three_stage.erm = float32-inverse" in report
    rows = [row for line in report.splitlines() if len(row := line.split("|")) == 15]
    assert {len(row) for row in rows} == {15}
    assert (tmp_path / "out" / "figure1.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="--resume"):
        paper.reproduce("figure1", "as-published", 2, False, None, 1, "local", None, None, tmp_path / "out", False)


def test_claims_are_tables_of_both_presets_and_three_small_grids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduction, "SETTINGS", ((2, 10), (5, 20)))
    monkeypatch.setattr(reproduction, "DIMENSIONS", (20, 100))
    monkeypatch.setattr(claims, "WARM_DIMENSIONS", (20,))
    with pytest.raises(ValueError, match="as-published"):
        paper.reproduce("claims", "fair", 2, False, None, 1, "local", None, None, tmp_path, False)
    for preset in ("as-published", "fair"):
        paper.reproduce("figure1", preset, 2, False, None, 1, "local", None, None, tmp_path / preset, False)
    paper.reproduce("claims", "fair", 2, False, None, 1, "local", None, None, tmp_path, False)
    text = (tmp_path / "claims.md").read_text()
    sections = dict(part.split("\n", 1) for part in text.split("## ")[1:])
    assert [body.count("\n| ") for body in sections.values()] == [5, 5, 5, 5, 5, 3]
    cell = sections["IFCA and its divisor"].splitlines()[3].split("|")
    assert cell[1:3] == [" 2 ", " 20 "]
    wrong, right, first, second = (float(text.split("±")[0]) for text in cell[3:7])
    assert float(cell[7].strip(" %")) == pytest.approx(100 * (wrong - right) / (wrong - min(first, second)), abs=1)
    half = sections["Three-Stage"].splitlines()[4].split("|")
    assert half[2] == " 100 "
    assert all("±" in entry for entry in half[3:9])


def test_a_fitted_slope_by_hand() -> None:
    """Points on a line of slope −½ with known errors."""
    rows = [
        {"problem.samples": n, "method": "ifca", "seed": 0, "trial": trial, **dict.fromkeys(METRICS, factor / n**0.5)}
        for n in (1, 4, 16)
        for trial, factor in enumerate((0.9, 1.1))
    ]
    measured, error = reproduction.fitted_slope(rows, "problem.samples", "ifca")
    assert measured == pytest.approx(-0.5)
    # each log mean has error 0.1; the slope over log 1, log 4, log 16 so 0.1/√(2 (log 4)²)
    assert error == pytest.approx(0.1 / math.sqrt(2 * math.log(4) ** 2), rel=1e-6)


def test_reproduce_slopes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [slope for slope in reproduction.slopes(2) if slope.name in ("n", "d")]
    small = []
    for slope in few:
        problem = {**slope.grid.raw["problem"], slope.key.removeprefix("problem."): [3, 6]}
        small.append(slope._replace(grid=parse_grid({**slope.grid.raw, "problem": problem})))
    monkeypatch.setattr(reproduction, "slopes", lambda trials: small)
    paper.reproduce("slopes", "fair", 2, False, None, 1, "local", None, None, tmp_path / "out", False)
    assert (tmp_path / "out" / "report.md").read_text().count("| brifca-median |") == 2
    assert (tmp_path / "out" / "slopes.png").read_bytes().startswith(b"\x89PNG")
    report = (tmp_path / "out" / "report.md").read_text()
    shutil.rmtree(tmp_path / "out" / small[1].name)  # as if it had been interrupted after the first
    paper.reproduce("slopes", "fair", 2, False, None, 1, "local", None, None, tmp_path / "out", True)
    assert (tmp_path / "out" / "report.md").read_text() == report
    with pytest.raises(ValueError, match="--resume"):
        paper.reproduce("slopes", "fair", 2, False, None, 1, "local", None, None, tmp_path / "nothing", True)
