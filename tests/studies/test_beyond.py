"""The study beyond the paper: its grids, its tables, its figure."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from coterie._src.experiments.results import Row
from coterie._src.experiments.summary import METRICS
from coterie._src.experiments.sweep import Grid
from coterie._src.studies.arena import ATTACKS
from coterie._src.studies.beyond import RULES, beyond_report, by_dimension, grids, lower_bound, worst_by_dimension


def rows(grid: Grid) -> list[Row]:
    """Two trials; the ratio is 1.1, 1.5 under ALIE; one trial in two finds the true k; distances grow like √d."""
    found = []
    for config in grid.configs:
        inside = config.model_dump(mode="json")
        base = {f"{section}.{key}": value for section, keys in inside.items() for key, value in keys.items()}
        alie = config.attack.kind == "alie"
        for place, method in enumerate(config.methods, 1):
            for trial in range(2):
                numbers = dict.fromkeys(METRICS.names, 1.0) | {
                    "oracle_ratio": 1.5 if alie else 1.1 + 0.01 * trial,
                    "worst_ratio": 2.0 if alie else 1.2,
                    "clusters": config.problem.clusters + trial,
                    "matched_dist": (2 if alie else 1) * place * math.sqrt(getattr(config.problem, "dim", 1)),
                    "rounds": 20.0 + trial,
                }
                found.append({**base, "method": method, "seed": 0, "trial": trial, **numbers})
    return found


def test_every_attack_meets_every_cell() -> None:
    full = grids(50)
    assert len(full["paper"].configs) == len(full["honest"].configs) == 20
    assert len(full["attacked"].configs) == 20 * len(ATTACKS)
    assert (full["attacked"].trials, full["unknown"].trials) == (50, 10)
    assert {config.problem.byzantine for config in full["honest"].configs} == {0.0}  # type: ignore[union-attr]
    assert all(config.algorithm.clusters == "auto" for config in full["unknown"].configs)
    assert len(grids(2, quick=True)["paper"].configs) == 6


def test_the_report_has_a_table_for_each_and_says_who_was_worst() -> None:
    found = {name: rows(grid) for name, grid in grids(2, quick=True).items()}
    text = beyond_report(found)
    assert "| 2 | 80 | 20 | 1.105 ± 0.005 | 1.110 | 1.0000 ± 0.0000 | 20 | 21 |" in text
    assert "| 5 | 200 | 100 | 10 of 48 | 1.500 ± 0.000 (ALIE) | 2.000 ± 0.000 (ALIE) | 1.0000 |" in text
    assert "| 2 | 80 | 20 | phantom | 1 of 2 | 3 | 1.105 ± 0.005 |" in text
    assert "| smallest cluster 5 % | 20 | 1.105 ± 0.005 |" in text
    assert "| slope | 0.500 ± 0.000 | 0.500 ± 0.000 |" in text
    assert "2 trials." in text
    assert "## paper\n\n1 to 2 trials.\n" in beyond_report({"paper": found["paper"][1:]})


def test_the_worst_attack_counts_for_every_rule_and_dimension(tmp_path: Path) -> None:
    found = rows(grids(2, quick=True)["dimension"])
    worst = worst_by_dimension(found)
    assert {row["attack.kind"] for row in worst} == {"alie"}
    assert {row["method"] for row in worst} == set(RULES)
    by_dimension(found, tmp_path / "dimension.png")
    assert (tmp_path / "dimension.png").read_bytes().startswith(b"\x89PNG")
    assert lower_bound(100) == pytest.approx(math.sqrt(0.2 * (0.2 + 100 / 500)))
