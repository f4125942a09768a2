"""The clients' updates along two directions: for pictures, so they change nothing and survive everything."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie._src.experiments import RunFolder, run_trials
from coterie._src.experiments.callbacks import RunInfo
from coterie._src.experiments.directions import CAP, two_directions
from small_trials import small, trials, without_clock


def test_clusters_lie_apart_and_outliers_at_the_rim(rng: np.random.Generator) -> None:
    """The distances of two clusters in 30 dimensions are kept up to the noise, by either way of computing them."""
    for dim in (30, 90):
        centres = np.zeros((2, dim))
        centres[0, 0], centres[1, 0] = -4.0, 4.0
        rows = np.repeat(centres, 30, axis=0) + 0.3 * rng.standard_normal((60, dim)) / np.sqrt(dim)
        rows[0] = 1e9
        found = two_directions(rows)
        labels = np.arange(60) >= 30
        gap = abs(np.median(found[labels, 0]) - np.median(found[~labels, 0]))
        assert gap == pytest.approx(8.0, abs=1.0)
        middle = np.median(np.linalg.norm(rows - np.median(rows, axis=0), axis=1))
        assert np.linalg.norm(found, axis=1).max() <= CAP * middle * (1 + 1e-9)


def test_the_two_ways_of_computing_agree(rng: np.random.Generator) -> None:
    square = rng.standard_normal((12, 12))
    wide = np.column_stack([square, np.zeros((12, 3))])
    np.testing.assert_allclose(two_directions(square), two_directions(wide), atol=1e-6)


@given(st.lists(st.lists(st.floats(width=64), min_size=3, max_size=3), min_size=3, max_size=6))
def test_no_update_breaks_it(rows: list[list[float]]) -> None:
    with np.errstate(all="ignore"):
        assert np.isfinite(two_directions(np.array(rows))).all()


def test_refused_clients_have_no_place(tmp_path: Path) -> None:
    config = small("attack.kind=garbage", "run.trials=1", 'run.methods=["ifca", "ifca+own", "local"]')
    (result,) = trials(config)
    found = result.methods["ifca"].directions
    assert found is not None
    byzantine = np.array([row["byzantine"] for row in result.methods["ifca"].audit], dtype=bool)
    assert np.isnan(found[byzantine]).all()
    assert np.isfinite(found[~byzantine]).all()
    folder = RunFolder(tmp_path / "run", config)
    folder.on_start(RunInfo("coterie run", 0))
    folder.on_trial(result)
    folder.on_end("complete")
    with (tmp_path / "run" / "directions.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["first"] == "" for row in rows] == byzantine.tolist()
    assert {row["method"] for row in rows} == {"ifca"}


def test_only_the_first_trial_has_them_and_nothing_else_changes() -> None:
    first, second = trials(small("run.trials=2", 'run.methods=["coterie"]'))
    assert first.methods["coterie"].directions is not None
    assert second.methods["coterie"].directions is None
    alone = trials(small("run.trials=1", 'run.methods=["coterie"]'))[0]
    assert without_clock(alone) == without_clock(first)


def test_assignments_add_up_to_the_clusters_of_every_round(tmp_path: Path) -> None:
    """From the kept changes alone, the sizes of all clusters in all rounds."""
    config = small("run.trials=2", 'run.methods=["ifca"]', "problem.byzantine=0.0", "algorithm.init=gaussian")
    folder = RunFolder(tmp_path / "run", config)
    folder.on_start(RunInfo("coterie run", 0))
    for result in run_trials(config):
        folder.on_trial(result)
    folder.on_end("complete")
    with (tmp_path / "run" / "assignments.csv").open() as stream:
        moves = list(csv.DictReader(stream))
    with (tmp_path / "run" / "rounds.csv").open() as stream:
        rounds = [row for row in csv.DictReader(stream) if row["trial"] == "0"]
    assert {move["trial"] for move in moves} == {"0"}
    where: dict[str, int] = {}
    for row in rounds:
        where |= {move["client"]: int(move["cluster"]) for move in moves if move["round"] == row["round"]}
        sizes = np.bincount(list(where.values()), minlength=2)
        assert sizes.tolist() == [int(size) for size in row["sizes"].split()]
