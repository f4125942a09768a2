"""The tables of the study beyond the paper's experiments, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from coterie._src.experiments.problems import Tabular
from coterie._src.experiments.results import Row, aggregate
from coterie._src.experiments.summary import share
from coterie._src.studies.arena import ATTACKS, attack_name, number
from coterie._src.studies.beyond.dimension import dimension_table
from coterie._src.studies.beyond.grids import ATTACKED_TABLES, UNEVEN, UNKNOWN_TABLES
from coterie._src.studies.markdown import mean_of, or_infinite, table
from coterie._src.studies.study import Rows

CELL = ["problem.clusters", "problem.clients", "problem.dim"]


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
        "dimension": dimension_table,
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
        whole = max(here, key=lambda line: or_infinite(line["oracle_ratio"]))
        single = max(here, key=lambda line: or_infinite(line["worst_ratio"]))
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
                number(max(or_infinite(one["oracle_ratio"]) for one in means if one["attack"] == line["attack"])),
                number(max(or_infinite(one["worst_ratio"]) for one in means if one["attack"] == line["attack"])),
            ]
            for line in sorted(by_attack, key=lambda line: list(ATTACKS).index(line["attack"]))
        ],
    )]  # fmt: skip
    return found


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
        own, known = [row for row in cell if row["auto"]], [row for row in cell if not row["auto"]]
        (other,) = aggregate(known, keys)
        worst = [max(row["oracle_ratio"] for row in part) for part in (own, known)]
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
        whole = max(here, key=lambda line: or_infinite(line["oracle_ratio"]))
        single = max(here, key=lambda line: or_infinite(line["worst_ratio"]))
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
