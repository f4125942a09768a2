"""The arena: every attack once, a report that says what to use, a heat map."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from command import coterie
from coterie._src.attacks import PAYLOADS
from coterie._src.experiments.database import Database
from coterie._src.experiments.doubts import doubts
from coterie._src.experiments.results import Row
from coterie._src.studies import arena
from coterie._src.studies.arena import ATTACKS, NO_ATTACK, Outcome, attack_name, heat_map, outcomes, report, verdict
from coterie._src.studies.markdown import or_infinite


def rows() -> list[Row]:
    """One trial each: a defence's ratio is its place, and 10 × that under ALIE."""
    found = []
    for config in arena.arena(1, quick=True).configs:
        inside = config.model_dump(mode="json")
        base = {f"{section}.{key}": value for section, keys in inside.items() for key, value in keys.items()}
        for place, method in enumerate(config.methods, 1):
            ratio = float("inf") if method == "ifca" else place * (10.0 if config.attack.kind == "alie" else 1.0)
            ratio *= 1.0 if config.algorithm.before == "nothing" else 4.0
            found.append(
                {**base, "method": method, "trial": 0, "seed": 0, "oracle_ratio": ratio, "worst_ratio": 2 * ratio}
                | dict.fromkeys(("dist", "matched_dist", "ari", "misclustered", "clusters", "loss", "rounds"), 1.0)
                | {"seconds": 1.0}
            )
    return found


def test_every_kind_of_attack_that_forges_replies_is_in_the_arena() -> None:
    kinds = {attack["kind"] for attack in ATTACKS.values()}
    assert {payload.name for payload in PAYLOADS if payload.poison is None} == kinds
    for problem in (arena.FULL, arena.QUICK):
        assert all(alpha < 1 / (problem.clusters + 1) for alpha in problem.byzantine)


def test_the_grid_has_every_attack_at_every_fraction_and_its_bound() -> None:
    grid = arena.arena(3)
    names = [attack_name({f"{s}.{k}": v for s, keys in c.model_dump().items() for k, v in keys.items()})
             for c in grid.configs]  # fmt: skip
    ways = len(arena.DEFENCES)
    assert names.count(NO_ATTACK) == ways
    assert all(names.count(name) == 3 * ways for name in ATTACKS)
    assert [config.methods for config in grid.configs[:ways]] == [list(methods) for methods in arena.DEFENCES.values()]
    assert all(config.algorithm.max_byzantine == config.problem.byzantine for config in grid.configs)  # type: ignore[union-attr]
    strongest = [config for config in grid.configs if config.problem.byzantine == 0.16]  # type: ignore[union-attr]
    assert strongest[0].algorithm.trim == pytest.approx(32 / (32 + 33), abs=1e-4)
    assert not any(doubts(config) for config in (*grid.configs, *arena.arena(1, quick=True).configs))


def test_the_report_names_the_best_and_the_broken(tmp_path: Path) -> None:
    text = report(rows(), "coterie arena --quick")
    assert "Use `coterie`: at worst 10.00 × the oracle (ALIE); next comes `brifca-filter` with 20.00 × (ALIE)." in text
    assert "| mixing + brifca-trimmed | 40.00 | 80.00 | ALIE |" in text
    assert "beyond 3 ×" in text
    assert "| ifca | diverged | diverged | paper |" in text
    assert text.count("## α = ") == 2
    heat_map(outcomes(rows()), tmp_path / "arena.png")
    assert (tmp_path / "arena.png").read_bytes().startswith(b"\x89PNG")


def test_what_costs_nothing_without_byzantine_clients() -> None:
    here = [
        Outcome(0.0, NO_ATTACK, "coterie", 1.0, 0.0, 1.0),
        Outcome(0.0, NO_ATTACK, "brifca-median", 1.3, 0.0, 1.5),
    ]
    assert verdict(here) == "Without Byzantine clients, these cost at most 2 %: coterie."


def test_what_differs_by_chance_is_no_reason_to_prefer_it() -> None:
    here = [
        Outcome(0.1, "ALIE", "coterie", 1.06, 0.02, 1.2),
        Outcome(0.1, "ALIE", "brifca-filter", 1.05, 0.02, 1.2),
        Outcome(0.1, "ALIE", "brifca-median", 1.3, 5.0, 1.5),
    ]
    assert verdict(here) == (
        "Use `coterie`: at worst 1.06 × the oracle (ALIE); within a standard error of that `brifca-filter` with 1.05 × "
        "(ALIE); next comes `brifca-median` with 1.30 × (ALIE)."
    )


def test_an_unknown_attack_is_named() -> None:
    row = {"problem.byzantine": 0.1, "attack.kind": "gaussian", "attack.target": "own", "attack.scale": 7.0}
    with pytest.raises(ValueError, match="gaussian"):
        attack_name({**row, "attack.sleep": 0})
    assert math.isinf(or_infinite(None))


def test_the_command_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attacks on a small problem; half of the results are deleted."""
    monkeypatch.setattr(arena, "QUICK", arena.Problem(2, 24, 8, (0.1,)))
    monkeypatch.setattr(arena, "ATTACKS", {name: ATTACKS[name] for name in ("paper", "sign flip")})
    out = tmp_path / "out"
    command = ("arena", "--quick", "--trials", "1", "--workers", "1", "--out", "out")
    assert "Use `" in coterie(*command, cwd=tmp_path).stdout
    assert (out / "arena.png").read_bytes().startswith(b"\x89PNG")
    whole = (out / "arena.md").read_text(encoding="utf-8")
    refused = coterie(*command, cwd=tmp_path)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    database = Database(out)
    kept = [row["method"] for row in database.rows()]
    database.close()
    database = Database(out, create=True)
    database.connection.execute("DELETE FROM results WHERE rowid % 2 = 0")
    assert len(database.rows()) < len(kept)
    database.close()
    assert coterie(*command, "--resume", cwd=tmp_path).returncode == 0
    assert (out / "arena.md").read_text(encoding="utf-8") == whole
