"""The study beyond the paper: its grids, its tables, its figure."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from coterie._src.experiments.results import Row
from coterie._src.experiments.summary import METRICS
from coterie._src.experiments.sweep import Grid
from coterie._src.studies.arena import ATTACKS
from coterie._src.studies.beyond.dimension import by_dimension, lower_bound, worst_by_dimension
from coterie._src.studies.beyond.grids import RULES, TABLES, UNKNOWN_TABLES, grids
from coterie._src.studies.beyond.report import beyond_report, family_of


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


def test_every_family_of_tables_has_a_name_that_its_rows_tell() -> None:
    full = grids(50)
    assert (full["tables"].trials, full["tables_unknown"].trials) == (50, 10)
    for name, families in (("tables", TABLES), ("tables_unknown", UNKNOWN_TABLES)):
        configs = full[name].configs
        assert len(configs) == 2 * len(families)
        assert all(config.methods == ["coterie"] and config.attack.kind == "paper" for config in configs)
        assert {config.algorithm.clusters for config in configs} == {"known" if name == "tables" else "auto"}
        found = [(family_of(row), row["problem.byzantine"]) for row in rows(full[name])[::2]]
        assert found == [(family, share) for family in families for share in (0.05, 0.0)]
    sizes = {(config.problem.clients, config.problem.clusters) for config in full["tables"].configs}  # type: ignore[attr-defined]
    assert sizes == {(200, 5)}
    old = {key: value for key, value in rows(full["tables"])[0].items() if key != "problem.heavy"}
    assert family_of(old) == "independent normal"  # results from before a key was there
    with pytest.raises(ValueError, match="family: no family of tables has"):
        family_of({**old, "problem.correlation": 0.123})


def test_tables_are_reported_by_family_in_the_order_of_the_grid() -> None:
    found = {name: rows(grid) for name, grid in grids(2).items() if name.startswith("tables")}
    text = beyond_report({name: list(reversed(own)) for name, own in found.items()})
    quality = "1.105 ± 0.005 | 1.110 | 1.0000 ± 0.0000 | 20 | 21 |"
    assert f"| correlation 0.9 | 0.05 | {quality}\n| correlation 0.9 | 0.0 | {quality}\n| scales 1.5 |" in text
    assert f"| 4 centres, 0.35 apart | 0.05 | 1 of 2 | 5 | {quality}" in text
    assert f"| n = 20 | 0.0 | 1 of 2 | 6 | {quality}" in text
    assert "## tables\n\n2 trials.\n\n| features | Byzantine | x oracle | worst trial | ARI |" in text
    undefined = [{**row, "oracle_ratio": math.nan} for row in found["tables"]]
    assert "| mean 2 | 0.0 | - | - | 1.0000 ± 0.0000 |" in beyond_report({"tables": undefined})
    assert "tables" not in beyond_report({"paper": rows(grids(2, quick=True)["paper"])})


def test_the_worst_attack_counts_for_every_rule_and_dimension(tmp_path: Path) -> None:
    found = rows(grids(2, quick=True)["dimension"])
    worst = worst_by_dimension(found)
    assert {row["attack.kind"] for row in worst} == {"alie"}
    assert {row["method"] for row in worst} == set(RULES)
    by_dimension(found, tmp_path / "dimension.png")
    assert (tmp_path / "dimension.png").read_bytes().startswith(b"\x89PNG")
    assert lower_bound(100) == pytest.approx(math.sqrt(0.2 * (0.2 + 100 / 500)))
