"""What lies beyond the paper, as questions to results: one grid and one table for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coterie._src.experiments.results import Row, aggregate
from coterie._src.experiments.summary import share
from coterie._src.experiments.sweep import Grid, parse_grid
from coterie._src.studies.arena import ATTACKS, attack_name, number
from coterie._src.studies.figure1 import DIMENSIONS, SETTINGS, fitted_slope

CELL = ["problem.clusters", "problem.clients", "problem.dim"]
UNEVEN: dict[str, dict[str, Any]] = {
    "smallest cluster 5 %": {"shares": [[0.05, 0.2, 0.25, 0.25, 0.25]]},
    "n_i from 20 to 500": {"samples": "20..500"},
    "Poisson means": {"kind": "poisson-means"},
}
RULES = ("brifca-median", "brifca-trimmed", "brifca-geometric", "brifca-filter", "brifca-no-regret")
WIDTHS = (20, 50, 100, 200, 500, 1000, 2000, 5000)
STRONGEST = ("constant", "trimmed mean", "ALIE, worst", "disguised, worst", "Min-Max", "Min-Sum", "mimic")
"""The attacks that the dimension is measured under: of each rule and dimension the worst of them counts."""
BOUNDS = (0.05, 0.1, 0.15, 0.18, 0.2, 0.3)
"""Shares of liars that are reckoned with; 0.05 are there, and the smallest of five clusters is 0.19."""
ALONE = {"clients": 500, "samples": 1, "byzantine": 0.2, "noise_variance": 0.2}


def questions(trials: int, quick: bool = False) -> dict[str, Grid]:
    """paper: the paper's grid and attack. honest: nobody lies. attacked: every attack of the arena. uneven: unequal
    clusters, unequal clients, counts. bound: more liars are reckoned with than there are. unknown: k is to be found,
    with liars who pose as a cluster or do not. dimension: one cluster, from 20 to 5,000 dimensions. The last two with
    a fifth of the trials.

    quick: d ≤ 100, k ≤ 5, and d ≤ 500 in the last.
    """
    settings = [{"problem": {"clusters": k, "clients": m}} for k, m in SETTINGS if not quick or k <= 5]
    dims = [d for d in DIMENSIONS if not quick or d <= 100]

    def grid(trials: int, problem: dict[str, Any], settings: Sequence[dict[str, Any]], **sections: Any) -> Grid:
        methods = {"methods": ["coterie"], "trials": trials}
        return parse_grid({"problem": {"dim": dims, **problem}, "run": methods, "settings": list(settings), **sections})

    few = max(2, trials // 5)
    each = [{**cell, "attack": attack} for cell in settings for attack in ATTACKS.values()]
    lonely = {"kind": "gaussian-means", "clusters": 1, **ALONE, "dim": [d for d in WIDTHS if not quick or d <= 500]}
    return {
        "paper": grid(trials, {}, settings),
        "honest": grid(trials, {"byzantine": 0.0}, settings),
        "attacked": grid(trials, {}, each),
        "uneven": grid(trials, {}, [{"problem": problem} for problem in UNEVEN.values()]),
        "bound": grid(
            trials,
            {"clusters": 5, "clients": 200, "dim": [20, 100]},
            [{"attack": ATTACKS[name]} for name in ("paper", "disguised, worst")],
            algorithm={"most_byzantine": list(BOUNDS)},
        ),
        "unknown": grid(
            few,
            {"dim": [d for d in dims if d <= 200]},
            [{**cell, "attack": {"kind": kind}} for cell in settings[:3] for kind in ("paper", "phantom")],
            algorithm={"clusters": "auto"},
        ),
        "dimension": parse_grid(
            {
                "problem": lonely,
                # a step of ½ on ‖θ − z‖² goes from anywhere to the rule of the clients' means
                "algorithm": {"step": 0.5, "rounds": 1, "most_byzantine": 0.2, "trim": 0.2},
                "run": {"methods": list(RULES), "trials": few},
                "settings": [{"attack": {**ATTACKS[name], "target": "own"}} for name in STRONGEST],
            }
        ),
    }


def beyond_report(found: Mapping[str, Sequence[Row]]) -> str:
    """Markdown: one table per question."""
    parts: dict[str, Callable[[Sequence[Row]], list[str]]] = {
        "paper": _cells,
        "honest": _cells,
        "attacked": _attacked,
        "uneven": _uneven,
        "bound": _bound,
        "unknown": _unknown,
        "dimension": _dimension,
    }
    lines = []
    for name, rows in found.items():
        counts = sorted({line["trials"] for line in aggregate(rows)})
        trials = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        lines += [f"## {name}", "", f"{trials} trials.", "", *parts[name](rows), ""]
    return "\n".join(lines)


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return lines + [f"| {' | '.join(map(str, row))} |" for row in rows]


def _mean(line: Row, metric: str, digits: int = 3) -> str:
    value, error = line[metric], line[f"{metric}_se"]
    if value is None:
        return "-"
    return f"{value:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def _cells(rows: Sequence[Row]) -> list[str]:
    """Per cell of the paper's grid: how near the oracle, on average, at worst, and how soon."""
    lines = []
    for line in aggregate(rows, CELL):
        own = [row for row in rows if all(row[key] == line[key] for key in CELL)]
        lines.append(
            [
                *(line[key] for key in CELL),
                _mean(line, "oracle_ratio"),
                f"{max(row['oracle_ratio'] for row in own):.3f}",
                _mean(line, "ari", 4),
                f"{line['rounds']:.0f}",
                f"{max(row['rounds'] for row in own):.0f}",
            ]
        )
    return _table(["k", "m", "d", "x oracle", "worst trial", "ARI", "rounds", "most rounds"], lines)


def _attacked(rows: Sequence[Row]) -> list[str]:
    """Per cell the attacks that hurt most, on average over the clusters and in the worst of them."""
    named = [{**row, "attack": attack_name(row)} for row in rows]
    table = aggregate(named, [*CELL, "attack"])
    lines = []
    for cell in dict.fromkeys(tuple(line[key] for key in CELL) for line in table):
        here = [line for line in table if tuple(line[key] for key in CELL) == cell]
        whole = max(here, key=lambda line: _size(line["oracle_ratio"]))
        single = max(here, key=lambda line: _size(line["worst_ratio"]))
        k, m, _ = cell
        liars, honest = round(0.05 * m), (m - round(0.05 * m)) // k
        lines.append(
            [
                *cell,
                f"{liars} of {liars + honest}",
                f"{_mean(whole, 'oracle_ratio')} ({whole['attack']})",
                f"{_mean(single, 'worst_ratio')} ({single['attack']})",
                f"{min(line['ari'] for line in here):.4f}",
            ]
        )
    found = _table(["k", "m", "d", "liars", "x oracle, worst attack", "its worst cluster", "least ARI"], lines)
    by_attack = aggregate(named, ["attack"])
    found += ["", *_table(
        ["attack", "x oracle, all cells", "worst cell", "worst cluster of all cells"],
        [
            [
                line["attack"],
                _mean(line, "oracle_ratio"),
                number(max(_size(one["oracle_ratio"]) for one in table if one["attack"] == line["attack"])),
                number(max(_size(one["worst_ratio"]) for one in table if one["attack"] == line["attack"])),
            ]
            for line in sorted(by_attack, key=lambda line: list(ATTACKS).index(line["attack"]))
        ],
    )]  # fmt: skip
    return found


def _size(value: float | None) -> float:
    return math.inf if value is None else value


def _uneven(rows: Sequence[Row]) -> list[str]:
    def what(row: Row) -> str:
        if row["problem.kind"] == "poisson-means":
            return "Poisson means"
        return "n_i from 20 to 500" if row["problem.samples"] == "20..500" else "smallest cluster 5 %"

    table = aggregate([{**row, "what": what(row)} for row in rows], ["what", "problem.dim"])
    ordered = sorted(table, key=lambda line: (list(UNEVEN).index(line["what"]), line["problem.dim"]))
    return _table(
        ["problem", "d", "x oracle", "worst cluster", "ARI"],
        [
            [
                line["what"],
                line["problem.dim"],
                _mean(line, "oracle_ratio"),
                _mean(line, "worst_ratio", 2),
                _mean(line, "ari", 4),
            ]
            for line in ordered
        ],
    )


def _bound(rows: Sequence[Row]) -> list[str]:
    named = [{**row, "attack": attack_name(row)} for row in rows]
    table = []
    for line in aggregate(named, ["attack", "problem.dim", "algorithm.most_byzantine"]):
        bound = line["algorithm.most_byzantine"]
        cells = [line["attack"], line["problem.dim"], f"{bound:g}, {round(bound * named[0]['problem.clients'])}"]
        table.append([*cells, _mean(line, "oracle_ratio"), _mean(line, "worst_ratio", 2), _mean(line, "ari", 4)])
    return _table(["attack", "d", "bound, liars", "x oracle", "worst cluster", "ARI"], table)


def _unknown(rows: Sequence[Row]) -> list[str]:
    table = []
    for line in aggregate(rows, [*CELL, "attack.kind"]):
        keys = [*CELL, "attack.kind"]
        own = [row["clusters"] for row in rows if all(row[key] == line[key] for key in keys)]
        right = sum(found == line["problem.clusters"] for found in own)
        wrong = sorted({f"{found:.0f}" for found in own if found != line["problem.clusters"]})
        cells = [line[key] for key in keys]
        table.append([*cells, f"{right} of {len(own)}", ", ".join(wrong) or "-", _mean(line, "oracle_ratio")])
    for attack in dict.fromkeys(row["attack.kind"] for row in rows):  # they share their draws
        hits = [row["clusters"] == row["problem.clusters"] for row in rows if row["attack.kind"] == attack]
        _, low, high = share(sum(hits), len(hits))
        found = f"{sum(hits)} of {len(hits)} (95 %: {100 * low:.1f} to {100 * high:.1f} %)"
        table.append(["all", "", "", attack, found, "", ""])
    return _table(["k", "m", "d", "attack", "k found", "else", "x oracle"], table)


def worst_by_dimension(rows: Sequence[Row]) -> list[Row]:
    """The rows of the attack that hurts a rule most, for every rule and dimension."""
    table = aggregate(rows, ["problem.dim", "attack.kind"])
    worst: dict[tuple[Any, Any], Row] = {}
    for line in table:
        place = line["method"], line["problem.dim"]
        if place not in worst or _size(line["matched_dist"]) > _size(worst[place]["matched_dist"]):
            worst[place] = line
    return [row for row in rows if row["attack.kind"] == worst[row["method"], row["problem.dim"]]["attack.kind"]]


def lower_bound(dim: float) -> float:
    """σ √(α/n + d/(mn)): what no rule can do better than, up to a constant, where only a covariance is known."""
    return math.sqrt(ALONE["noise_variance"] * (ALONE["byzantine"] + dim / ALONE["clients"]) / ALONE["samples"])


def _dimension(rows: Sequence[Row]) -> list[str]:
    worst = worst_by_dimension(rows)
    table = aggregate(worst, ["problem.dim"])
    lines = []
    for dim in dict.fromkeys(line["problem.dim"] for line in table):
        own = {line["method"]: line for line in table if line["problem.dim"] == dim}
        cells = [_mean(own[rule], "matched_dist", 4) for rule in RULES]
        lines.append([dim, *cells, f"{lower_bound(dim):.4f}"])
    slopes = ["slope"]
    for rule in RULES:
        slope, error = fitted_slope(worst, "problem.dim", rule)
        slopes.append(f"{slope:.3f} ± {error:.3f}")
    low, high = min(row["problem.dim"] for row in rows), max(row["problem.dim"] for row in rows)
    bound = math.log(lower_bound(high) / lower_bound(low)) / math.log(high / low)
    return _table(["d", *RULES, "lower bound"], [*lines, [*slopes, f"{bound:.3f}"]])
