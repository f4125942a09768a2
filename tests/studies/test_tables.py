"""The study of real tables: its grid, the choice of k for the rivals, paired differences, and a small run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie._src.experiments.config import Config
from coterie._src.experiments.database import Database
from coterie._src.experiments.engines import local_engine
from coterie._src.experiments.sweep import Grid, jobs_left, sweep
from coterie._src.experiments.toml import parse_config
from coterie._src.experiments.trial import run_trial
from coterie._src.studies.arena import NO_ATTACK
from coterie._src.studies.study import Options
from coterie._src.studies.tables import (
    ATTACKS,
    NEVER,
    STUDY,
    best_count,
    condition_of,
    conditions_of,
    grids,
    scores_figure,
    scores_of,
    tables_report,
)

Row = dict[str, Any]


def row(method: str, clusters: int | str, trial: int, score: float | None, **keys: Any) -> Row:
    counts = {"algorithm.clusters": "auto" if clusters == "auto" else "known"}
    counts["problem.clusters"] = 3 if clusters == "auto" else clusters
    without = {"problem.byzantine": 0.0, "attack.kind": "sign-flip", "attack.sleep": 0}
    return {"method": method, "trial": trial, "seed": 0, "test_r2": score, **without, **counts, **keys}


ATTACKED = {"problem.byzantine": 0.1, "attack.kind": "alie"}
ASLEEP = {"problem.byzantine": 0.1, "attack.sleep": NEVER}
ROWS = [
    *(row("coterie+own", "auto", trial, score) for trial, score in enumerate((0.5, 0.7))),
    *(row("coterie+own", "auto", trial, score, **ASLEEP) for trial, score in enumerate((0.6, 0.8))),
    *(row("coterie+own", "auto", trial, score, **ATTACKED) for trial, score in enumerate((0.5, 0.6))),
    *(row("ifca+own", 1, trial, score) for trial, score in enumerate((0.4, 0.5))),
    *(row("ifca+own", 2, trial, score) for trial, score in enumerate((0.4, 0.6))),
    *(row("ifca+own", 2, trial, score, **ASLEEP) for trial, score in enumerate((0.4, 0.5))),
    *(row("ifca+own", 1, trial, score, **ATTACKED) for trial, score in enumerate((0.2, 0.3))),
    *(row("ifca+own", 2, trial, score, **ATTACKED) for trial, score in enumerate((None, 0.9))),
    *(row("global", 1, trial, -1e30) for trial in range(2)),
]


def test_every_condition_has_every_number_of_clusters(tmp_path: Path) -> None:
    (tmp_path / "Exam.csv").write_text("school,normexam\n")
    found = grids(tmp_path, trials=2)
    assert [*found] == ["schools-like", "exam"]  # the files of the others are not there
    configs = found["schools-like"].configs
    assert len(configs) == (1 + 2 * len(ATTACKS)) * 5
    assert {config.problem.clusters for config in configs} == {1, 2, 3, 5}
    for config in configs:
        byzantine = config.problem.byzantine  # type: ignore[attr-defined]
        assert config.algorithm.max_byzantine == (byzantine or 0.05)
        references = {"global", "local+own"} <= set(config.methods)
        assert references == (config.problem.clusters == 1 and config.algorithm.clusters == "known")
        assert {"coterie", "coterie+own"} <= set(config.methods)


def test_a_folder_without_the_option_is_refused() -> None:
    with pytest.raises(ValueError, match="--data: tables needs a folder with data"):
        STUDY.check_options(Options(2))


def test_a_folder_with_none_of_the_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--data: .* must hold the files of at least one table, of ilea_school\.mat"):
        STUDY.check_options(Options(2, data=tmp_path))


def test_the_rivals_have_the_number_of_clusters_that_is_best_for_them() -> None:
    scores = scores_of(ROWS, "test_r2")
    assert best_count(scores, "ifca+own", NO_ATTACK) == ("ifca+own", "2")
    assert best_count(scores, "ifca+own", "ALIE, 10 %") == ("ifca+own", "1")  # one split of k = 2 has no score
    assert scores["ifca+own", "2"]["ALIE, 10 %"].tolist() == [-math.inf, 0.9]
    assert conditions_of(ROWS) == [NO_ATTACK, "no attack, 10 %", "ALIE, 10 %"]
    assert condition_of(ROWS[0]) == NO_ATTACK


def test_the_report_in_numbers_that_were_computed_by_hand() -> None:
    report = tables_report({"exam": ROWS})
    assert "R² on held-out samples, 2 splits." in report
    assert "| coterie+own, estimated k | 0.600 ± 0.100 | 0.700 ± 0.100 | 0.550 ± 0.050 |" in report
    assert "| ifca+own | 0.500 ± 0.100 (k = 2) | 0.450 ± 0.050 (k = 2) | 0.250 ± 0.050 (k = 1) |" in report
    assert "| ifca+own | 0.450 ± 0.050 | 0.500 ± 0.100 | - |" in report
    # differences 0.1, 0.1 and 0.3, 0.3 to the best rival; 0.1, 0.2 to the same clients without an attack
    assert f"| {NO_ATTACK} | 0.600 ± 0.100 | ifca+own, k = 2 | +0.1000 ± 0.0000 | - |" in report
    assert "| ALIE, 10 % | 0.550 ± 0.050 | ifca+own, k = 1 | +0.3000 ± 0.0000 | +0.1500 ± 0.0500 |" in report
    assert "diverged" in report


def test_a_small_run_and_its_figure(tmp_path: Path) -> None:
    whole = grids(tmp_path, trials=1, quick=True)["schools-like"]
    few = ("sign-flip", "scaled-targets")
    configs = [config for config in whole.configs if config.attack.kind in few or not byzantine_of(config)]
    configs = [config for config in configs if config.problem.clusters == 1 or config.algorithm.clusters == "auto"]
    grid = Grid(tuple(configs), {})
    database = Database(tmp_path, create=True)
    sweep(jobs_left(grid, database), database, local_engine(1))
    rows = database.rows(grid.keys)
    database.close()
    conditions = conditions_of(rows)
    assert conditions == [NO_ATTACK, *(f"{name}, 10 %" for name in ("no attack", "targets x -3", "sign flip"))]
    scores = scores_of(rows, "test_r2")
    own, alone = scores["coterie+own", "auto"], scores["local+own", ""]
    for condition in conditions:  # 60 clients of three kinds
        assert own[condition][0] > alone[condition][0]
        assert own[condition][0] > scores["global", ""][condition][0] + 0.3
    assert abs(own["no attack, 10 %"][0] - own["sign flip, 10 %"][0]) < 0.03
    scores_figure(rows, "schools-like", tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert np.isfinite(own[NO_ATTACK]).all()


def byzantine_of(config: Config) -> float:
    return float(config.problem.byzantine)  # type: ignore[attr-defined]


def test_a_split_that_is_not_whole_does_not_count() -> None:
    rows = [row("coterie+own", "auto", trial, 0.5 + trial) for trial in range(3)]
    rows += [row("ifca", 2, trial, 0.25) for trial in (2, 0)]
    found = scores_of(rows, "test_r2")
    assert found["coterie+own", "auto"][NO_ATTACK].tolist() == [0.5, 2.5]
    assert found["ifca", "2"][NO_ATTACK].tolist() == [0.25, 0.25]
    with pytest.raises(ValueError, match="no split has the results of all methods"):
        scores_of([row("coterie+own", "auto", 0, 0.5), row("ifca", 2, 1, 0.5)], "test_r2")


@pytest.mark.parametrize(("split", "clusters"), [(17, 2), (6, 5)])
def test_a_cluster_that_is_led_astray_along_an_unknown_column_harms_no_personal_model(
    split: int, clusters: int
) -> None:
    """ALIE at 20 %: no honest member of a cluster knows missing cells, and its centre is far off along their column."""
    config = parse_config(
        {
            "problem": {"kind": "schools-like", "clusters": clusters, "byzantine": 0.2},
            "algorithm": {"personalise": "shrink", "max_byzantine": 0.2, "trim": 0.2},
            "attack": {"kind": "alie", "target": "smallest"},
            "run": {"methods": ["coterie", "local"]},
        }
    )
    found = run_trial(config, split, record=False).methods
    scores = {name: result.metrics["test_r2"] for name, result in found.items()}
    assert scores["coterie+own"] > scores["local+own"] - 0.02
