"""The page of a sweep: its table, and for an arena a map of defences by attacks."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from coterie._src.experiments.database import Database
from coterie._src.experiments.results import Row, aggregate, varied
from coterie._src.experiments.summary import METRICS
from coterie._src.report.html.colours import SHADES
from coterie._src.report.html.markup import Markup, element, joined
from coterie._src.report.html.page import copyable, page, section
from coterie._src.report.html.tables import Cell, Column, number_cell, table
from coterie._src.report.terminal import cell, number
from coterie._src.studies.arena import Outcome, outcomes, verdict, worst_of
from coterie._src.studies.arena import number as ratio_text

MAX_ROWS = 2000
"""The most rows of a sweep's table."""
WORST_SHOWN = 10.0
"""The ratio to the oracle from which on a cell has the strongest shade."""


def sweep_page(folder: Path) -> str:
    """The page of the sweep in a folder."""
    rows = Database(folder).rows()
    if not rows:
        raise ValueError(f"{folder}: no result")
    try:
        arena = outcomes(rows)
    except (ValueError, KeyError):
        arena = []
    facts: list[tuple[str, object]] = [("results", len(rows)), ("trials", 1 + max(row["trial"] for row in rows))]
    parts = [
        *section("arena", "Defences by attacks", *(_maps(arena) if arena else ())),
        *section("results", "Results", results_table(rows)),
        *section("configuration", "Command", _command(folder)),
    ]
    return page(f"{'Arena' if arena else 'Sweep'} {folder.resolve().name}", facts, parts)


def _maps(found: Sequence[Outcome]) -> list[Markup]:
    """For each Byzantine fraction, what to use, and a table whose cells are shaded by the ratio to the oracle."""
    parts = []
    for i, byzantine in enumerate(dict.fromkeys(one.byzantine for one in found)):
        here = [one for one in found if one.byzantine == byzantine]
        attacks = list(dict.fromkeys(one.attack for one in here))
        rows = []
        for defence in dict.fromkeys(one.defence for one in here):
            own = {one.attack: one for one in here if one.defence == defence}
            most = worst_of(list(own.values()))
            ratios = [most.ratio, *(own[attack].ratio if attack in own else math.nan for attack in attacks)]
            rows.append([Cell(defence), *(_shaded(ratio) for ratio in ratios)])
        caption = (
            f"α = {byzantine:g}: the matched distance as a multiple of the oracle's, mean over the trials; darker is "
            "worse. The column worst is the largest of the row."
        )
        columns = [Column("defence"), Column("worst"), *(Column(attack) for attack in attacks)]
        parts.append(
            element(
                "div",
                element("h3", f"α = {byzantine:g}"),
                element("p", verdict(here).replace("`", "")),
                table(f"arena-{i}", caption, columns, rows),
                class_="heat",
            )
        )
    return parts


def _shaded(ratio: float) -> Cell:
    if math.isnan(ratio):
        return Cell("–", "", "value")
    share = math.log(min(max(ratio, 1.0), WORST_SHOWN)) / math.log(WORST_SHOWN)
    return Cell(ratio_text(ratio), min(ratio, 1e300), f"value s{round(share * (SHADES - 1))}")


def results_table(rows: Sequence[Row]) -> Markup:
    """The table of a sweep: means with standard errors by the keys that vary."""
    lines = aggregate(rows)[:MAX_ROWS]
    keys = ["method", *(key for key in varied(rows) if key != "method")]
    metrics = [m for m in METRICS.names if METRICS[m].heading and any(line[m] is not None for line in lines)]
    made = []
    for line in lines:
        cells = [_key(line.get(key)) for key in keys]
        for metric in metrics:
            value, digits = line[metric], METRICS[metric].digits
            found = {"mean": value, "se": line.get(f"{metric}_se"), "trials": None}
            text = None if value is None else number(value, digits) if metric == "rounds" else cell(found, digits)
            cells.append(number_cell(value, text))
        made.append(cells)
    columns = [
        *(Column(key.split(".")[-1], key) for key in keys),
        *(Column(METRICS[m].heading, METRICS[m].summary) for m in metrics),
    ]
    return table("results-table", "Mean ± standard error over the trials. A click on a heading sorts.", columns, made)


def _key(value: object) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number_cell(float(value))
    return Cell("" if value is None else str(value))


def _command(folder: Path) -> Markup:
    grid = folder / "grid.toml"
    command = f"coterie results {shlex.quote(str(folder))}"
    parts: list[object] = [copyable("command", "The command that lists these results", command)]
    if grid.is_file():
        parts.append(copyable("toml", "grid.toml", grid.read_text(encoding="utf-8")))
    return joined(*parts)
