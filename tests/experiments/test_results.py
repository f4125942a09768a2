"""From rows to tables: select, vary, aggregate."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie._src.experiments.database import Database
from coterie._src.experiments.results import aggregate, full_name, select, varied


def test_trials_that_share_their_draw_count_once() -> None:
    """Two attacks on the same two draws: the error of their mean is that of two draws, not of four trials."""
    values = {("x", 0): 1.0, ("y", 0): 1.2, ("x", 1): 2.0, ("y", 1): 2.2}
    rows = [
        {"attack.kind": kind, "method": "ifca", "seed": 0, "trial": trial, "dist": value}
        for (kind, trial), value in values.items()
    ]
    (line,) = aggregate(rows, [])
    assert (line["trials"], line["dist"], line["dist_se"]) == (2, pytest.approx(1.6), pytest.approx(0.5))
    assert [line["trials"] for line in aggregate(rows)] == [2, 2]
    again = [{**row, "seed": 7} for row in rows]
    assert [line["trials"] for line in aggregate([*rows, *again], ["attack.kind"])] == [4, 4]
    assert len(aggregate([*rows, *again])) == 4  # a seed is a key, too


def test_a_key_goes_before_a_metric_of_the_same_name() -> None:
    rows = [{"problem.clusters": k, "method": "global", "seed": 0, "trial": 0, "clusters": 1.0} for k in (2, 4)]
    assert full_name("clusters", rows) == "problem.clusters"
    assert full_name("clusters", rows, metric=True) == "clusters"
    assert [row["problem.clusters"] for row in select(rows, ["clusters=4"])] == [4]
    assert full_name("trial", rows) == "trial"


def test_select_vary_and_aggregate(finished: Path) -> None:
    rows = Database(finished).rows()
    assert varied(rows) == ["problem.dim", "algorithm.step"]
    chosen = select(rows, ["dim=3", "algorithm.step=auto", "method=ifca"])
    assert [row["trial"] for row in chosen] == [0, 1, 2]
    (line,) = aggregate(chosen)
    assert line["dist"] == pytest.approx(sum(row["dist"] for row in chosen) / 3)
    assert line["trials"] == 3
    lines = aggregate(rows)
    assert [(li["problem.dim"], li["algorithm.step"], li["method"]) for li in lines[:3]] == [
        (3, 0.05, "brifca-median"), (3, 0.05, "ifca"), (3, "auto", "brifca-median"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="kind: could be"):
        full_name("kind", rows)
    with pytest.raises(ValueError, match="colour: no such key"):
        select(rows, ["colour=red"])
    with pytest.raises(ValueError, match="must read key=value"):
        select(rows, ["dim"])
