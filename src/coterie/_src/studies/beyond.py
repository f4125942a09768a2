"""Experiments beyond the paper's: one grid and one table for each question."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coterie._src.experiments.problems import Tabular
from coterie._src.experiments.results import Row, aggregate
from coterie._src.experiments.summary import share
from coterie._src.experiments.sweep import Grid, parse_grid
from coterie._src.plot import WIDTH, draw_lines, label_ends, new_figure, save, styled
from coterie._src.studies.arena import ATTACKS, attack_name, number
from coterie._src.studies.few_clients import few_clients, few_clients_report
from coterie._src.studies.figure1 import DIMENSIONS, SETTINGS
from coterie._src.studies.information_limit import DRAWS, QUICK_DRAWS, information_limit_report
from coterie._src.studies.markdown import mean_of, plus_minus, table
from coterie._src.studies.slopes import fitted_slope
from coterie._src.studies.study import Rows, Study, on_cpu_only

CELL = ["problem.clusters", "problem.clients", "problem.dim"]
UNEVEN: dict[str, dict[str, Any]] = {
    "smallest cluster 5 %": {"shares": [[0.05, 0.2, 0.25, 0.25, 0.25]]},
    "n_i from 20 to 500": {"samples": "20..500"},
    "Poisson means": {"kind": "poisson-means"},
}
RULES = ("brifca-median", "brifca-trimmed", "brifca-geometric", "brifca-filter", "brifca-no-regret")
WIDTHS = (20, 50, 100, 200, 500, 1000, 2000, 5000)
STRONGEST = ("constant", "trimmed mean", "ALIE, worst", "noisy ALIE, worst", "Min-Max", "Min-Sum", "mimic")
"""The attacks of the grid over dimensions; of each aggregator and dimension the worst of them is reported."""
BOUNDS = (0.05, 0.1, 0.15, 0.18, 0.2, 0.3)
"""Upper bounds on the Byzantine fraction, which is 0.05; the share of the smallest of the five clusters is 0.19."""
AUTO_SETTINGS = ((2, 80), (3, 120), (5, 200))
AUTO_SHARES = (0.0, 0.05, 0.1, 0.15)
"""Byzantine fractions of the grid in which the bound is estimated, all below 1/(k + 1)."""
ATTACKED_BOUNDS: dict[str, dict[str, Any]] = {
    "paper": {"kind": "paper"},
    "ALIE, smallest": {"kind": "alie", "target": "smallest"},
    "sign flip, smallest": {"kind": "sign-flip", "target": "smallest"},
    "phantom": {"kind": "phantom"},
}
"""The attacks of that grid."""
TABLES: dict[str, dict[str, Any]] = {
    "independent normal": {},
    "correlation 0.5": {"correlation": 0.5},
    "correlation 0.9": {"correlation": 0.9},
    "scales 1.5": {"scales": 1.5},
    "3 factors": {"factors": 3},
    "mean 2": {"mean": 2.0},
    "binary": {"binary": 1.0, "samples": 200},
    "counts and heavy tails": {"counts": 0.5, "heavy": 0.5},
    "means of clients": {"client_means": 1.0},
    "covariances of clients": {"client_covariances": 0.5},
    "all mixed": {
        "correlation": 0.5, "factors": 2, "scales": 1.0, "mean": 1.0, "binary": 0.2, "counts": 0.2, "heavy": 0.2
    },
    "unequal shares, correlation 0.9": {"shares": [[0.1, 0.15, 0.2, 0.25, 0.3]], "correlation": 0.9},
    "spread 0.1": {"spread": 0.1},
    "logistic, mean 1": {"task": "logistic", "samples": 2000, "dim": 20, "mean": 1.0},
    "logistic, correlation 0.5": {"task": "logistic", "samples": 500, "dim": 20, "correlation": 0.5},
    "softmax, correlation 0.5": {"task": "softmax", "classes": 3, "samples": 300, "dim": 10, "correlation": 0.5},
}  # fmt: skip
"""Families of features, in the form of a grid: what differs from the problem `tabular` as it is by default."""
UNKNOWN_TABLES: dict[str, dict[str, Any]] = {
    **TABLES,
    "4 centres, 0.35 apart": {"clusters": 4, "separation": 0.35},
    "n = 20": {"samples": 20},
    "one cluster, correlation 0.9": {"clusters": 1, "correlation": 0.9},
    "one cluster, means of clients": {"clusters": 1, "client_means": 1.0},
}
"""The families of the grid in which k is estimated."""
ATTACKED_TABLES = ("correlation 0.9", "means of clients", "all mixed", "logistic, correlation 0.5")
"""The families that all attacks of the arena are tried on."""
TILTED: tuple[dict[str, Any], ...] = (
    {"clusters": 5, "clients": 200, "dim": 20, "byzantine": 0.05},
    {"clusters": 5, "clients": 200, "dim": 20, "byzantine": 0.1},
    {"clusters": 3, "clients": 60, "dim": 20, "byzantine": 0.23},
    {"clusters": 10, "clients": 400, "dim": 20, "byzantine": 0.05},
    {"clusters": 5, "clients": 200, "dim": 50, "byzantine": 0.05},
    {"clusters": 15, "clients": 600, "dim": 100, "byzantine": 0.05},
)
"""The cells in which the adversary searches."""
SEARCHES = ("tilt", "tilt, error", "search")
ONE_CLUSTER = {"clients": 500, "samples": 1, "byzantine": 0.2, "noise_variance": 0.2}


def grids(trials: int, quick: bool = False) -> dict[str, Grid]:
    """The grids of the study.

    paper: the paper's grid and attack. honest: the same without Byzantine clients. attacked: every attack of the
    arena. uneven: clusters of unequal size, clients with unequal numbers of samples, counts. bound: an upper bound
    on the Byzantine fraction that is too large. unknown: k is estimated, under the paper's attack and under
    `phantom`. bound_auto: bounds that are estimated, beside the true ones. tables: features that look like real
    tables, with and without Byzantine clients. tables_unknown: the same where k is estimated, and clusters that are
    harder to count. tables_attacked: some of them under every attack. dimension: one cluster in 20 to 5,000
    dimensions. tilt: adversaries that search, a bound that is too small, and clients of very different size.
    few: 6 to 30 clients. few has two fifths of the trials, unknown, tables_unknown and dimension have a fifth,
    tables_attacked, bound_auto and tilt a tenth.

    quick: d ≤ 100, k ≤ 5, and d ≤ 500 in the grid over dimensions.
    """
    settings = [{"problem": {"clusters": k, "clients": m}} for k, m in SETTINGS if not quick or k <= 5]
    dims = [d for d in DIMENSIONS if not quick or d <= 100]

    def grid(trials: int, problem: dict[str, Any], settings: Sequence[dict[str, Any]], **sections: Any) -> Grid:
        methods = {"methods": ["coterie"], "trials": trials}
        return parse_grid({"problem": {"dim": dims, **problem}, "run": methods, "settings": list(settings), **sections})

    few = max(2, trials // 5)

    def tables(trials: int, families: dict[str, dict[str, Any]], **sections: Any) -> Grid:
        settings = [{"problem": {"dim": 50, **family}} for family in families.values()]
        return grid(trials, {"kind": "tabular", "byzantine": [0.05, 0.0]}, settings, **sections)

    each = [{**cell, "attack": attack} for cell in settings for attack in ATTACKS.values()]
    one_cluster = {
        "kind": "gaussian-means",
        "clusters": 1,
        **ONE_CLUSTER,
        "dim": [d for d in WIDTHS if not quick or d <= 500],
    }
    searched = [
        {"problem": cell, "algorithm": {"max_byzantine": cell["byzantine"]}, "attack": ATTACKS[name]}
        for cell in TILTED
        if not quick or cell["clients"] <= 60
        for name in SEARCHES
    ]
    too_small = {
        "problem": {"clusters": 5, "clients": 200, "dim": 50},
        "algorithm": {"max_byzantine": 0.02},
        "attack": ATTACKS["sign flip"],
    }
    sizes = {"problem": {"clusters": 5, "clients": 200, "dim": 20, "byzantine": 0.0, "samples": "10..2000"}}
    return {
        "paper": grid(trials, {}, settings),
        "honest": grid(trials, {"byzantine": 0.0}, settings),
        "attacked": grid(trials, {}, each),
        "uneven": grid(trials, {}, [{"problem": problem} for problem in UNEVEN.values()]),
        "bound": grid(
            trials,
            {"clusters": 5, "clients": 200, "dim": [20, 100]},
            [{"attack": ATTACKS[name]} for name in ("paper", "noisy ALIE, worst")],
            algorithm={"max_byzantine": list(BOUNDS)},
        ),
        "bound_auto": grid(
            max(2, trials // 10),
            {"dim": 20},
            [
                {
                    "problem": {"clusters": k, "clients": m, "byzantine": share},
                    "attack": ATTACKED_BOUNDS[name],
                    "algorithm": {"max_byzantine": ["auto", share]},
                }
                for k, m in AUTO_SETTINGS[: 1 if quick else None]
                for share in AUTO_SHARES
                for name in (ATTACKED_BOUNDS if share else ["paper"])
            ],
        ),
        "unknown": grid(
            few,
            {"dim": [d for d in dims if d <= 200]},
            [{**cell, "attack": {"kind": kind}} for cell in settings[:3] for kind in ("paper", "phantom")],
            algorithm={"clusters": "auto"},
        ),
        "tables": tables(trials, TABLES),
        "tables_unknown": tables(few, UNKNOWN_TABLES, algorithm={"clusters": "auto"}),
        "tables_attacked": grid(
            max(2, trials // 10),
            {"kind": "tabular", "dim": 50},
            [
                {"problem": {**TABLES[family]}, "attack": attack}
                for family in ATTACKED_TABLES
                for attack in ATTACKS.values()
            ],
        ),
        "tilt": grid(max(2, trials // 10), {"dim": 20}, [*searched, too_small, sizes]),
        "few": few_clients(max(2, 2 * trials // 5), quick),
        "dimension": parse_grid(
            {
                "problem": one_cluster,
                # a step of ½ on ‖θ − z‖² leads from any point to the aggregate of the clients' means
                "algorithm": {"step": 0.5, "rounds": 1, "max_byzantine": 0.2, "trim": 0.2},
                "run": {"methods": list(RULES), "trials": few},
                "settings": [{"attack": {**ATTACKS[name], "target": "own"}} for name in STRONGEST],
            }
        ),
    }


def beyond_report(found: Rows) -> str:
    """Markdown: one table per grid."""
    parts: dict[str, Callable[[Sequence[Row]], list[str]]] = {
        "paper": _cells,
        "honest": _cells,
        "attacked": _attacked,
        "uneven": _uneven,
        "bound": _bound,
        "bound_auto": _bound_auto,
        "unknown": _unknown,
        "tables": _tables,
        "tables_unknown": _tables_unknown,
        "tables_attacked": _tables_attacked,
        "tilt": _tilt,
        "few": few_clients_report,
        "dimension": _dimension,
    }
    lines = []
    for name, rows in found.items():
        counts = sorted({line["trials"] for line in aggregate(rows)})
        trials = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        lines += [f"## {name}", "", f"{trials} trials.", "", *parts[name](rows), ""]
    return "\n".join(lines)


def _cells(rows: Sequence[Row]) -> list[str]:
    """Per cell of the paper's grid: the error relative to the oracle's, mean and worst trial, and the rounds."""
    lines = []
    for line in aggregate(rows, CELL):
        own = [row for row in rows if all(row[key] == line[key] for key in CELL)]
        lines.append([*(line[key] for key in CELL), *_quality(line, own)])
    return table(["k", "m", "d", *QUALITY], lines)


QUALITY = ["x oracle", "worst trial", "ARI", "rounds", "most rounds"]


def _quality(line: Row, own: Sequence[Row]) -> list[str]:
    """The cells under `QUALITY`; line: the mean over the trials `own`."""
    ratios = [row["oracle_ratio"] for row in own]
    return [
        mean_of(line, "oracle_ratio"),
        "-" if any(map(math.isnan, ratios)) else f"{max(ratios):.3f}",
        mean_of(line, "ari", ".4f"),
        f"{line['rounds']:.0f}",
        f"{max(row['rounds'] for row in own):.0f}",
    ]


def _attacked(rows: Sequence[Row]) -> list[str]:
    """Per cell the attacks with the largest error, on average over the clusters and in the worst cluster."""
    named = [{**row, "attack": attack_name(row)} for row in rows]
    means = aggregate(named, [*CELL, "attack"])
    lines = []
    for cell in dict.fromkeys(tuple(line[key] for key in CELL) for line in means):
        here = [line for line in means if tuple(line[key] for key in CELL) == cell]
        whole = max(here, key=lambda line: _size(line["oracle_ratio"]))
        single = max(here, key=lambda line: _size(line["worst_ratio"]))
        k, m, _ = cell
        byzantine, honest = round(0.05 * m), (m - round(0.05 * m)) // k
        lines.append(
            [
                *cell,
                f"{byzantine} of {byzantine + honest}",
                f"{mean_of(whole, 'oracle_ratio')} ({whole['attack']})",
                f"{mean_of(single, 'worst_ratio')} ({single['attack']})",
                f"{min(line['ari'] for line in here):.4f}",
            ]
        )
    found = table(["k", "m", "d", "Byzantine", "x oracle, worst attack", "its worst cluster", "smallest ARI"], lines)
    by_attack = aggregate(named, ["attack"])
    found += ["", *table(
        ["attack", "x oracle, all cells", "worst cell", "worst cluster of all cells"],
        [
            [
                line["attack"],
                mean_of(line, "oracle_ratio"),
                number(max(_size(one["oracle_ratio"]) for one in means if one["attack"] == line["attack"])),
                number(max(_size(one["worst_ratio"]) for one in means if one["attack"] == line["attack"])),
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

    means = aggregate([{**row, "what": what(row)} for row in rows], ["what", "problem.dim"])
    ordered = sorted(means, key=lambda line: (list(UNEVEN).index(line["what"]), line["problem.dim"]))
    return table(
        ["problem", "d", "x oracle", "worst cluster", "ARI"],
        [
            [
                line["what"],
                line["problem.dim"],
                mean_of(line, "oracle_ratio"),
                mean_of(line, "worst_ratio", ".2f"),
                mean_of(line, "ari", ".4f"),
            ]
            for line in ordered
        ],
    )


def _bound(rows: Sequence[Row]) -> list[str]:
    named = [{**row, "attack": attack_name(row)} for row in rows]
    lines = []
    for line in aggregate(named, ["attack", "problem.dim", "algorithm.max_byzantine"]):
        bound = line["algorithm.max_byzantine"]
        lines.append(
            [
                line["attack"],
                line["problem.dim"],
                f"{bound:g}, {round(bound * named[0]['problem.clients'])}",
                mean_of(line, "oracle_ratio"),
                mean_of(line, "worst_ratio", ".2f"),
                mean_of(line, "ari", ".4f"),
            ]
        )
    return table(["attack", "d", "bound, clients", "x oracle", "worst cluster", "ARI"], lines)


def _bound_auto(rows: Sequence[Row]) -> list[str]:
    """Per cell, over all its attacks: the error with an estimated bound, and with the true number as the bound."""
    named = [{**row, "auto": row["algorithm.max_byzantine"] == "auto"} for row in rows]
    keys, lines = ["problem.clusters", "problem.clients", "problem.byzantine"], []
    for line in aggregate([row for row in named if row["auto"]], keys):
        cell = [row for row in named if all(row[key] == line[key] for key in keys)]
        own, told = [row for row in cell if row["auto"]], [row for row in cell if not row["auto"]]
        (other,) = aggregate(told, keys)
        worst = [max(row["oracle_ratio"] for row in part) for part in (own, told)]
        ari = min(row["ari"] for row in own)
        means = [mean_of(one, "oracle_ratio") for one in (line, other)]
        lines.append([*(line[key] for key in keys), means[0], means[1], *(f"{one:.3f}" for one in worst), f"{ari:.4f}"])
    heads = ["x oracle, auto", "true bound", "worst trial, auto", "true bound", "smallest ARI, auto"]
    return table(["k", "m", "Byzantine", *heads], lines)


def _tilt(rows: Sequence[Row]) -> list[str]:
    """Per cell and attack of `TILTED` and of the rest of the grid, the errors and the rounds."""
    keys = [*CELL, "problem.byzantine", "algorithm.max_byzantine", "attack"]
    named = [{**row, "attack": attack_name(row)} for row in rows]
    lines = []
    for line in aggregate(named, keys):
        k, m, d, share, bound, attack = (line[key] for key in keys)
        byzantine = round(share * m)
        lines.append(
            [
                k,
                m,
                d,
                f"{byzantine} of {byzantine + (m - byzantine) // k}" if byzantine else "-",
                f"{bound:g}",
                attack if byzantine else f"{attack}, n_i from 10 to 2000",
                mean_of(line, "oracle_ratio"),
                mean_of(line, "worst_ratio", ".2f"),
                mean_of(line, "ari", ".4f"),
                f"{line['rounds']:.0f}",
            ]
        )
    return table(["k", "m", "d", "Byzantine", "bound", "attack", "x oracle", "worst cluster", "ARI", "rounds"], lines)


def _unknown(rows: Sequence[Row]) -> list[str]:
    lines = []
    for line in aggregate(rows, [*CELL, "attack.kind"]):
        keys = [*CELL, "attack.kind"]
        own = [row for row in rows if all(row[key] == line[key] for key in keys)]
        lines.append([*(line[key] for key in keys), *_found(own), mean_of(line, "oracle_ratio")])
    for attack in dict.fromkeys(row["attack.kind"] for row in rows):  # both attacks have the same trials
        hits = [row["clusters"] == row["problem.clusters"] for row in rows if row["attack.kind"] == attack]
        _, low, high = share(sum(hits), len(hits))
        found = f"{sum(hits)} of {len(hits)} (95 %: {100 * low:.1f} to {100 * high:.1f} %)"
        lines.append(["all", "", "", attack, found, "", ""])
    return table(["k", "m", "d", "attack", "k found", "otherwise", "x oracle"], lines)


def _found(rows: Sequence[Row]) -> tuple[str, str]:
    """How many trials found the true number of clusters, and what the others found."""
    right = sum(row["clusters"] == row["problem.clusters"] for row in rows)
    wrong = sorted({f"{row['clusters']:.0f}" for row in rows if row["clusters"] != row["problem.clusters"]})
    return f"{right} of {len(rows)}", ", ".join(wrong) or "-"


def family_of(row: Row) -> str:
    """The family in `UNKNOWN_TABLES` of a row of the problem `tabular`; a key that the row lacks has its default."""
    defaults = {key: Tabular.model_fields[key].default for family in UNKNOWN_TABLES.values() for key in family}
    own = {key: row.get(f"problem.{key}", default) for key, default in defaults.items()}
    for name, family in UNKNOWN_TABLES.items():
        shares = {"shares": family["shares"][0]} if "shares" in family else {}  # a grid has a list of lists
        if own == {**defaults, **family, **shares}:
            return name
    raise ValueError(f"family: no family of tables has {own}")


def _by_family(rows: Sequence[Row]) -> list[tuple[list[Any], Row, list[Row]]]:
    """Per family and Byzantine fraction, in the order of the grid: both, the means over the trials, and the trials."""
    keys = ["family", "problem.byzantine"]
    named = [{**row, "family": family_of(row)} for row in rows]
    order = list(UNKNOWN_TABLES)
    means = sorted(aggregate(named, keys), key=lambda line: (order.index(line["family"]), -line["problem.byzantine"]))
    return [
        ([line[key] for key in keys], line, [row for row in named if all(row[key] == line[key] for key in keys)])
        for line in means
    ]


def _tables(rows: Sequence[Row]) -> list[str]:
    """Per family of features, as `_cells`."""
    lines = [[*cells, *_quality(line, own)] for cells, line, own in _by_family(rows)]
    return table(["features", "Byzantine", *QUALITY], lines)


def _tables_attacked(rows: Sequence[Row]) -> list[str]:
    """Per family of features the attacks with the largest error, as `_attacked`, and the most rounds."""
    named = [{**row, "family": family_of(row), "attack": attack_name(row)} for row in rows]
    means, lines = aggregate(named, ["family", "attack"]), []
    for family in ATTACKED_TABLES:
        here = [line for line in means if line["family"] == family]
        if not here:
            continue
        whole = max(here, key=lambda line: _size(line["oracle_ratio"]))
        single = max(here, key=lambda line: _size(line["worst_ratio"]))
        lines.append(
            [
                family,
                f"{mean_of(whole, 'oracle_ratio')} ({whole['attack']})",
                f"{mean_of(single, 'worst_ratio')} ({single['attack']})",
                f"{min(line['ari'] for line in here):.4f}",
                f"{max(row['rounds'] for row in named if row['family'] == family):.0f}",
            ]
        )
    return table(["features", "x oracle, worst attack", "its worst cluster", "smallest ARI", "most rounds"], lines)


def _tables_unknown(rows: Sequence[Row]) -> list[str]:
    """Per family of features, how often the true k was found, and the rest as in `_tables`."""
    lines = [[*cells, *_found(own), *_quality(line, own)] for cells, line, own in _by_family(rows)]
    return table(["features", "Byzantine", "k found", "otherwise", *QUALITY], lines)


def worst_by_dimension(rows: Sequence[Row]) -> list[Row]:
    """The rows of the attack with the largest error, for every aggregator and dimension."""
    means = aggregate(rows, ["problem.dim", "attack.kind"])
    worst: dict[tuple[Any, Any], Row] = {}
    for line in means:
        place = line["method"], line["problem.dim"]
        if place not in worst or _size(line["matched_dist"]) > _size(worst[place]["matched_dist"]):
            worst[place] = line
    return [row for row in rows if row["attack.kind"] == worst[row["method"], row["problem.dim"]]["attack.kind"]]


def lower_bound(dim: float) -> float:
    """σ √(α/n + d/(mn)): the lower bound of the error, up to a constant, where only a covariance is known."""
    return math.sqrt(
        ONE_CLUSTER["noise_variance"]
        * (ONE_CLUSTER["byzantine"] + dim / ONE_CLUSTER["clients"])
        / ONE_CLUSTER["samples"]
    )


def _dimension(rows: Sequence[Row]) -> list[str]:
    worst = worst_by_dimension(rows)
    means = aggregate(worst, ["problem.dim"])
    lines = []
    for dim in dict.fromkeys(line["problem.dim"] for line in means):
        own = {line["method"]: line for line in means if line["problem.dim"] == dim}
        cells = [mean_of(own[rule], "matched_dist", ".4f") for rule in RULES]
        lines.append([dim, *cells, f"{lower_bound(dim):.4f}"])
    slopes = ["slope"]
    slopes += [plus_minus(*fitted_slope(worst, "problem.dim", rule)) for rule in RULES]
    low, high = min(row["problem.dim"] for row in rows), max(row["problem.dim"] for row in rows)
    bound = math.log(lower_bound(high) / lower_bound(low)) / math.log(high / low)
    return table(["d", *RULES, "lower bound"], [*lines, [*slopes, f"{bound:.3f}"]])


@styled
def by_dimension(rows: Sequence[Row], path: str | Path) -> None:
    """The error of each aggregator under its worst attack against the dimension, beside the lower bound."""
    figure = new_figure(WIDTH, 5.2)
    axes = figure.subplots()
    draw_lines(axes, worst_by_dimension(rows), "problem.dim", "method", "matched_dist", log=True)
    dims = sorted({row["problem.dim"] for row in rows})
    axes.plot(dims, [lower_bound(dim) for dim in dims], "k--", label="lower bound")
    axes.set_xlabel("d")
    axes.set_ylabel("distance to the true mean")
    label_ends(axes)
    save(figure, path)


STUDY = Study(
    name="beyond",
    summary="the method `coterie` under every attack, with unknown k, on tables; aggregators in up to 5,000 dimensions",
    grids=lambda options: grids(options.trials, options.quick),
    reports={
        "beyond.md": lambda rows, options: beyond_report(rows),
        "information_limit.md": lambda rows, options: information_limit_report(QUICK_DRAWS if options.quick else DRAWS),
    },
    figures={"dimension.png": lambda rows, path, options: by_dimension(rows["dimension"], path)},
    quick_trials=2,
    check=on_cpu_only,
    report_early=True,
    prints_tables=False,
)
