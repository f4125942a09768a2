"""A small sweep that tests of several stations share; the fixture `finished` has its results."""

from __future__ import annotations

from typing import Any

from coterie._src.experiments.database import Database
from coterie._src.experiments.results import aggregate, as_csv, without_clock
from coterie._src.experiments.sweep import Grid, parse_grid

GRID = """
[problem]
clusters = 2
clients = 16
samples = 8
dim = [3, 5]

[algorithm]
rounds = 6
step = [0.05, "auto"]

[run]
methods = ["brifca-median", "ifca"]
trials = 3
"""


def grid(**run: Any) -> Grid:
    return parse_grid(
        {
            "problem": {"clusters": 2, "clients": 16, "samples": 8, "dim": [3, 5]},
            "algorithm": {"rounds": 6, "step": [0.05, "auto"]},
            "run": {"methods": ["brifca-median", "ifca"], "trials": 3, **run},
        }
    )


def table(database: Database, of: Grid) -> str:
    return as_csv(without_clock(aggregate(database.rows(of.keys))))
