"""The paper's claims: their tables, from both presets of Figure 1 and three small grids."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import coterie
from coterie._src.studies import claims, figure1


def test_claims_are_tables_of_both_presets_and_three_small_grids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure1, "SETTINGS", ((2, 10), (5, 20)))
    monkeypatch.setattr(figure1, "DIMENSIONS", (20, 100))
    for sections in figure1.PRESETS.values():
        monkeypatch.setitem(sections["algorithm"], "rounds", 60)
    monkeypatch.setattr(claims, "WARM_DIMENSIONS", (20,))
    options = ("--trials", "2", "--workers", "1", "--out")
    early = coterie("reproduce", "claims", *options, ".", cwd=tmp_path)
    assert early.returncode == 2
    assert "as-published" in early.stderr
    for preset in ("as-published", "fair"):
        made = coterie("reproduce", "figure1", "--preset", preset, *options, preset, cwd=tmp_path)
        assert made.returncode == 0, made.stderr
    assert coterie("reproduce", "claims", *options, ".", cwd=tmp_path).returncode == 0
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
