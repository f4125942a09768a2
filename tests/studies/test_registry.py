"""The registry of studies: the command, its help and its refusals derive from the records."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import coterie
from coterie._src.cli.sweep import run_grids
from coterie._src.experiments.config import Config
from coterie._src.experiments.database import Database
from coterie._src.experiments.outcome import TrialResult
from coterie._src.experiments.results import aggregate
from coterie._src.studies.registry import STUDIES
from coterie._src.studies.study import Options, Rows, Study
from small_sweep import grid


def test_the_help_lists_every_study() -> None:
    text = " ".join(coterie("reproduce", "--help", cwd=Path.cwd()).stdout.split())
    assert len(STUDIES.names) >= 6
    for name, study in ((study.name, study) for study in STUDIES):
        assert name == study.name
        assert f"{name}: {study.summary}.".replace("`", "") in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["figure"], 'got "figure"; did you mean figure1?'),
        (["weather"], 'must be one of figure1, slopes, claims, beyond, rotated-mnist, tables, arena, got "weather"'),
        (["rotated-mnist"], "--data: rotated-mnist needs"),
        (["figure1", "--data", "."], "--data: figure1 reads no data"),
        (["claims", "--quick"], "--quick: claims has no quick version"),
        (["claims", "--seed", "1"], "--seed: claims"),
        (["claims"], "claims: needs --out"),
        (["slopes", "--trials", "1"], "--trials: must be at least 2"),
        (["slopes", "--device", "cuda"], "--device: this study needs cpu"),
        (["beyond", "--device", "cuda"], "--device: this study needs cpu"),
        (["figure1", "--resume"], "--resume: needs --out"),
    ],
)
def test_what_a_study_refuses(arguments: list[str], expected: str, tmp_path: Path) -> None:
    done = coterie("reproduce", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert expected in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_study_is_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study of two grids that is added here: it runs, resumes, reports early, draws, and is in the help."""
    seen = []

    def report(rows: Rows, options: Options) -> str:
        seen.append(list(rows))
        return "".join(f"{name}: {len(aggregate(own))}\n" for name, own in rows.items())

    study = Study(
        name="small",
        summary="two small grids",
        grids=lambda options: {"first": grid(trials=options.trials), "second": grid(trials=options.trials, seed=1)},
        reports={"small.md": report},
        figures={"small.txt": lambda rows, path, options: path.write_text(f"{len(rows)} grids")},
        quick_trials=1,
        report_early=True,
    )
    monkeypatch.setitem(STUDIES._records, "small", study)
    assert "small: two small grids." in coterie("reproduce", "--help", cwd=tmp_path).stdout
    command = ("reproduce", "small", "--quick", "--workers", "1", "--out", "out")
    done = coterie(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("out/small.md\n")
    assert seen == [["first"], ["first", "second"], ["first", "second"]]
    assert (tmp_path / "out" / "small.md").read_text() == "first: 8\nsecond: 8\n"
    assert (tmp_path / "out" / "small.txt").read_text() == "2 grids"
    assert (tmp_path / "out" / "second" / "summary.csv").is_file()
    assert coterie(*command, cwd=tmp_path).returncode == 2
    assert coterie(*command, "--resume", cwd=tmp_path).returncode == 0


def test_the_first_trial_of_all_grids_comes_before_the_second_of_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, add = [], Database.add

    def noted(database: Database, config: Config, result: TrialResult) -> None:
        order.append((result.trial, database.path.parent.name))
        add(database, config, result)

    monkeypatch.setattr(Database, "add", noted)
    grids = {name: grid(trials=2, seed=seed) for seed, name in enumerate(("first", "second"))}
    databases = run_grids(grids, tmp_path, 1, "local", None, table=False)
    assert order == sorted(order)
    assert len(order) == 4 * len(grids["first"].configs)
    for seed, (name, database) in enumerate(databases.items()):
        found = database.rows(grids[name].keys)
        assert {row["seed"] for row in found} == {seed}
        assert {row["trial"] for row in found} == {0, 1}
