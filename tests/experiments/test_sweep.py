"""Grids of configurations: what they multiply, what they refuse, and what is left to do of them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from coterie._src.experiments.database import Database
from coterie._src.experiments.engines import local_engine
from coterie._src.experiments.sweep import grid_toml, jobs_left, keep_grid, parse_grid, read_grid, sweep
from small_sweep import grid, table


def test_a_grid_is_the_product_of_its_lists() -> None:
    found = {(c.problem.dim, c.algorithm.step) for c in grid().configs}
    assert found == {(3, 0.05), (3, "auto"), (5, 0.05), (5, "auto")}
    assert len(grid().keys) == 4 * 3 * 2
    assert len(set(grid().keys)) == 24


def test_settings_change_together_and_list_values_are_nested() -> None:
    coupled = parse_grid(
        {
            "problem": {"samples": [[5, 6], [7, 8]], "byzantine": 0.0},
            "settings": [{"problem": {"clusters": 1, "clients": 2}}, {"problem": {"clusters": 2, "clients": 2}}],
        }
    )
    found = [(c.problem.clusters, c.problem.samples) for c in coupled.configs]
    assert found == [(1, [5, 6]), (1, [7, 8]), (2, [5, 6]), (2, [7, 8])]
    assert parse_grid(tomllib.loads(grid_toml(coupled.raw))).configs == coupled.configs


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"run": {"trials": [1, 2]}}, "run.trials: must be one value"),
        ({"problem": {"dim": []}}, "problem.dim: must hold at least one value"),
        ({"problem": {"dim": [3, 0]}}, "problem.dim: must be"),
        ({"problem": {"dmi": [3]}}, "did you mean problem.dim?"),
        ({"settings": [{"run": {"trials": 1}}, {"run": {"trials": 2}}]}, "run.trials: must be the same"),
        ({"settings": {"problem": 3}}, "settings: must be tables"),
        ({"settings": [{"problem": 3}]}, "settings.problem: must be a table"),
    ],
)
def test_mistakes_in_a_grid(raw: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        parse_grid(raw)
    assert expected in str(caught.value)


def test_nothing_is_done_twice_and_the_table_does_not_depend_on_the_order(finished: Path, tmp_path: Path) -> None:
    whole = Database(finished)
    assert jobs_left(grid(), whole) == []
    other = Database(tmp_path, create=True)
    jobs = jobs_left(grid(), other)
    sweep(list(reversed(jobs))[:5], other, local_engine(1))
    left = jobs_left(grid(), other)
    assert len(left) == len(jobs) - 5
    sweep(left, other, local_engine(2))
    assert table(other, grid()) == table(whole, grid())


def test_more_trials_and_other_methods_build_on_what_is_there(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "results.sqlite").write_bytes((finished / "results.sqlite").read_bytes())
    database = Database(tmp_path, create=True)
    jobs = jobs_left(grid(trials=4, methods=["ifca", "global"]), database)
    assert sorted({(job.trial, tuple(job.config.run.methods)) for job in jobs}) == [
        (0, ("global",)), (1, ("global",)), (2, ("global",)), (3, ("ifca", "global")),
    ]  # fmt: skip
    assert len(jobs_left(grid(seed=1), database)) == 12


def test_a_grid_may_grow_and_is_not_replaced(tmp_path: Path) -> None:
    keep_grid(grid(), tmp_path)
    before = (tmp_path / "grid.toml").read_text()
    other = grid(seed=5), parse_grid({**grid().raw, "problem": {**grid().raw["problem"], "dim": [3]}})
    for wrong in other:
        with pytest.raises(
            ValueError, match=r"grid.toml: has [24] of its 4 configurations that this grid does not have"
        ):
            keep_grid(wrong, tmp_path)
        assert (tmp_path / "grid.toml").read_text() == before
    keep_grid(parse_grid({**grid(trials=9).raw, "problem": {**grid().raw["problem"], "dim": [3, 5, 7]}}), tmp_path)
    assert "dim = [3, 5, 7]" in (tmp_path / "grid.toml").read_text()


def test_a_list_in_itself_is_one_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "one.csv").write_text("a,b,y\n1,2,3\n4,5,6\n")
    own: dict[str, Any] = {"kind": "folder", "path": "own", "clusters": 1}
    assert len(parse_grid({"problem": {**own, "columns": ["a", "b"], "scale": [1.0, 2.0]}}).configs) == 1
    assert len(parse_grid({"problem": {**own, "columns": [], "offset": []}}).configs) == 1
    two = parse_grid({"problem": {**own, "columns": [["a"], ["a", "b"]]}})
    assert [config.problem.columns for config in two.configs] == [["a"], ["a", "b"]]  # type: ignore[union-attr]
    base = {"problem": {"path": "own", "clusters": 1}, "settings": [{"problem": {"kind": "folder"}}]}
    keep_grid(parse_grid(base), tmp_path / "out")
    assert read_grid(tmp_path / "out" / "grid.toml", []).configs == parse_grid(base).configs
