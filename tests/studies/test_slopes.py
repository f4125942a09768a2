"""The fitted slopes, and the study that measures them."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from command import coterie
from coterie._src.experiments.summary import METRICS
from coterie._src.experiments.sweep import parse_grid
from coterie._src.studies import slopes
from coterie._src.studies.slopes import fitted_slope


def test_a_fitted_slope_by_hand() -> None:
    """Points on a line of slope −½ with known errors."""
    rows = [
        {
            "problem.samples": n,
            "method": "ifca",
            "seed": 0,
            "trial": trial,
            **dict.fromkeys(METRICS.names, factor / n**0.5),
        }
        for n in (1, 4, 16)
        for trial, factor in enumerate((0.9, 1.1))
    ]
    measured, error = fitted_slope(rows, "problem.samples", "ifca")
    assert measured == pytest.approx(-0.5)
    # each log mean has error 0.1; the slope over log 1, log 4, log 16 so 0.1/√(2 (log 4)²)
    assert error == pytest.approx(0.1 / math.sqrt(2 * math.log(4) ** 2), rel=1e-6)


def test_reproduce_slopes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [slope for slope in slopes.slopes(2) if slope.name in ("n", "d")]
    small = []
    for slope in few:
        problem = {**slope.grid.raw["problem"], slope.key.removeprefix("problem."): [3, 6]}
        small.append(slope._replace(grid=parse_grid({**slope.grid.raw, "problem": problem})))
    monkeypatch.setattr(slopes, "slopes", lambda trials: small)
    command = ("reproduce", "slopes", "--trials", "2", "--workers", "1")
    done = coterie(*command, "--out", "out", cwd=tmp_path)
    assert "slopes 2/2, d: 2 configurations, 2 trials" in done.stderr
    assert (tmp_path / "out" / "report.md").read_text().count("| brifca-median |") == 2
    assert (tmp_path / "out" / "slopes.png").read_bytes().startswith(b"\x89PNG")
    report = (tmp_path / "out" / "report.md").read_text()
    shutil.rmtree(tmp_path / "out" / small[1].name)  # as if it had been interrupted after the first
    assert coterie(*command, "--out", "out", "--resume", cwd=tmp_path).returncode == 0
    assert (tmp_path / "out" / "report.md").read_text() == report
    refused = coterie(*command, "--out", "nothing", "--resume", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
