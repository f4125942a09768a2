"""Federations of 6 to 30 clients, such as hospitals: the grid `few` of the study beyond the paper, and its tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from coterie._src.experiments.results import Row, aggregate
from coterie._src.experiments.sweep import Grid, parse_grid
from coterie._src.studies.arena import ATTACKS, NO_ATTACK, attack_name
from coterie._src.studies.markdown import mean_of, table

HONEST = ((1, 6), (2, 6), (3, 9), (1, 12), (2, 12), (3, 12), (2, 20), (3, 20), (2, 30), (3, 30))
"""k and m where nobody is Byzantine; the method allows for one Byzantine client all the same."""
ATTACKED = ((1, 6, 1), (2, 8, 1), (2, 12, 1), (3, 12, 1), (3, 20, 1), (2, 12, 2), (3, 20, 2))
"""k, m and the number of Byzantine clients; the smallest cluster has at least three honest ones."""
FEW_ATTACKS = ("sign flip", "ALIE", "noisy ALIE, worst", "Min-Max", "phantom", "tilt, error")
UNKNOWN = ("sign flip", "phantom")
"""The attacks under which k is estimated."""
KNOWS_THE_ERROR = "tilt, error"
"""The adversary that knows the honest clients' updates and the true centres, and shifts to where these err already."""
APART = {"separation": 0.5}
"""Of few centres in five dimensions some would otherwise be equal."""
KEYS = ["problem.clusters", "problem.clients", "problem.dim"]


def few_clients(trials: int, quick: bool) -> Grid:
    """The grid: with nobody Byzantine, and under attacks that are gathered on one cluster; with k given, and found."""
    settings: list[dict[str, Any]] = []

    def add(k: int, m: int, byzantine: int, attack: str, clusters: list[str]) -> None:
        settings.append(
            {
                "problem": {"clusters": k, "clients": m, "byzantine": byzantine / m, **(APART if k > 1 else {})},
                "attack": ATTACKS[attack],
                "algorithm": {"max_byzantine": max(byzantine, 1) / m, "clusters": clusters},
            }
        )

    for k, m in HONEST[: 3 if quick else None]:
        add(k, m, 0, "paper", ["known", "auto"])
    for k, m, byzantine in ATTACKED[: 2 if quick else None]:
        for attack in FEW_ATTACKS:
            add(k, m, byzantine, attack, ["known", "auto"] if attack in UNKNOWN else ["known"])
    problem = {"kind": "tabular", "samples": "50..200", "dim": [5, 20], "correlation": 0.5}
    return parse_grid({"problem": problem, "run": {"methods": ["coterie"], "trials": trials}, "settings": settings})


def few_clients_report(rows: Sequence[Row]) -> list[str]:
    """Two tables: with nobody Byzantine, and under attacks."""
    named = [{**row, "attack": attack_name(row), "count": _count(row)} for row in rows]
    return [*_honest([row for row in named if row["attack"] == NO_ATTACK]), "", *_attacked(
        [row for row in named if row["attack"] != NO_ATTACK]
    )]  # fmt: skip


def _count(row: Row) -> int:
    return round(float(row["problem.byzantine"]) * int(row["problem.clients"]))


def _found(rows: Sequence[Row]) -> str:
    right = sum(row["clusters"] == row["problem.clusters"] for row in rows)
    return f"{right} of {len(rows)}"


def _honest(rows: Sequence[Row]) -> list[str]:
    lines = []
    for line in aggregate([row for row in rows if row["algorithm.clusters"] == "known"], KEYS):
        cell = [row for row in rows if all(row[key] == line[key] for key in KEYS)]
        known, auto = (
            [row for row in cell if (row["algorithm.clusters"] == "known") == given] for given in (True, False)
        )
        (other,) = aggregate(auto, KEYS)
        worst = f"{max(row['oracle_ratio'] for row in known):.2f}"
        means = [mean_of(one, "oracle_ratio") for one in (line, other)]
        lines.append([*(line[key] for key in KEYS), means[0], worst, _found(auto), means[1]])
    return table(["k", "m", "d", "x oracle", "worst trial", "k found", "x oracle, k found"], lines)


def _attacked(rows: Sequence[Row]) -> list[str]:
    keys, lines = [*KEYS, "count"], []
    known = aggregate([row for row in rows if row["algorithm.clusters"] == "known"], [*keys, "attack"])
    auto = [row for row in rows if row["algorithm.clusters"] == "auto"]
    for cell in dict.fromkeys(tuple(line[key] for key in keys) for line in known):
        here = [line for line in known if tuple(line[key] for key in keys) == cell]
        blind = [line for line in here if line["attack"] != KNOWS_THE_ERROR]
        worst = max(blind, key=lambda line: _size(line["oracle_ratio"]))
        (knowing,) = (line for line in here if line["attack"] == KNOWS_THE_ERROR)
        k, m, d, byzantine = cell
        own = [row for row in auto if tuple(row[key] for key in keys) == cell]
        lines.append(
            [
                k,
                m,
                d,
                f"{byzantine} of {(m - byzantine) // k + byzantine}",
                f"{mean_of(worst, 'oracle_ratio')} ({worst['attack']})",
                mean_of(worst, "worst_ratio", ".2f"),
                mean_of(knowing, "oracle_ratio"),
                f"{min(line['ari'] for line in here):.3f}",
                _found(own),
            ]
        )
    heads = ["x oracle, worst attack", "its worst cluster", KNOWS_THE_ERROR, "smallest ARI", "k found"]
    return table(["k", "m", "d", "Byzantine", *heads], lines)


def _size(value: float | None) -> float:
    return math.inf if value is None else value
