"""`coterie plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command import coterie
from coterie._src.cli.plan import plan


def test_plan_says_where_there_is_no_guarantee(tmp_path: Path) -> None:
    done = coterie("plan", "--clients", "80", "--clusters", "2", "--c1", "0", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    second = found["Theorem 2 (trimmed mean)"]
    assert (round(second["left"], 4), second["right"], second["holds"]) == (0.4211, 0.05, False)
    assert "NO GUARANTEE" in second["meaning"]
    assert round(found["worst contamination a/(a+p)"]["value"], 5) == 0.09524
    assert "NO GUARANTEE" in coterie("plan", cwd=tmp_path).stdout
    large = coterie("plan", "--clients", "100000", "--clusters", "2", "--byzantine", "0.01", "--samples", "100000",
                    "--dim", "5", "--trim", "0.2", cwd=tmp_path)  # fmt: skip
    assert "NO GUARANTEE" not in large.stdout
    for wrong in (["--clusters", "999"], ["--trim", "0.5"], ["--epsilon", "0.7"], ["--set", "problem.kind=folder"]):
        refused = coterie("plan", *wrong, cwd=tmp_path)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


def test_every_option_of_plan_sets_what_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    def planned(**options: Any) -> dict[str, Any]:
        plan(**options, as_json=True)
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    first, second = "Theorem 1 (median)", "Theorem 2 (trimmed mean)"
    usual, certain, far, half = planned(), planned(delta=0.2), planned(epsilon=0.3), planned(c1=64.0)
    liars = planned(c1=0.0)[second]["left"]
    for other in (certain, half):
        assert usual[second]["left"] - liars == pytest.approx(2 * (other[second]["left"] - liars))
    assert (usual[first]["right"], far[first]["right"]) == pytest.approx((0.4, 0.2))
    assert far[second]["left"] == usual[second]["left"]
    assert planned(bound=3.0)["bound of Theorem 2"]["value"] == pytest.approx(3 * usual["bound of Theorem 2"]["value"])
    assert "no trim above 1/2 - epsilon = 0.4" in planned(trim=0.45)[second]["meaning"]
    assert "unknown" in planned(changes=["algorithm.init=spectral"])["start within"]["meaning"]
    edge = planned(clients=1499, clusters=2, byzantine=0.33289, c1=0.0)["set algorithm.trim to"]
    assert (edge["value"], edge["meaning"]) == (None, "too many Byzantine clients")
    planned(changes=["problem.kind=gaussian-means", "problem.noise_variance=0"])
