"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie._src.experiments.outcome import TrialResult
from coterie._src.experiments.plan import Line
from coterie._src.experiments.printable import printable
from coterie._src.experiments.summary import METRICS, Statistic, Summary, statistic

COLUMNS = {metric.name: metric.heading for metric in METRICS if metric.heading}

LEFT_OUT = ("rounds", "seconds")
"""The columns that a narrow terminal does not show."""
NAMED = 30
"""The number of clients that a line names."""


def cell(statistic: Statistic, digits: int) -> str:
    """mean ± standard error, or a dash."""
    mean, error = statistic["mean"], statistic["se"]
    if mean is None:
        return "-"
    return number(mean, digits) if error is None else f"{number(mean, digits)} ± {number(error, digits)}"


def number(value: float, digits: int) -> str:
    """The number in fixed point, or with an exponent from 1000 on."""
    return f"{round(value, digits) + 0.0:.{digits}f}" if abs(value) < 1000 else f"{value:.1e}"  # no -0.000


def shown(summary: Summary) -> Sequence[str]:
    """The metrics that get a column: those that some method has; the training loss only without anything better."""
    return _without_needless_loss(
        [m for m in COLUMNS if any(stats[m]["mean"] is not None for stats in summary.values())]
    )


def _without_needless_loss(having: Sequence[str]) -> list[str]:
    return [m for m in having if m != "loss" or not {"dist", "accuracy", "test_loss"} & set(having)]


def as_table(summary: Summary, title: str = "", width: int | None = None) -> Table:
    """One row per method, mean ± standard error over the trials.

    width: of the terminal; a table that is wider leaves out rounds and seconds, and says so below.
    """
    metrics = list(shown(summary))
    table = _methods_table(summary, title, metrics)
    if width is None or Console(width=10_000).measure(table).maximum <= width:
        return table
    kept = [metric for metric in metrics if metric not in LEFT_OUT]
    table = _methods_table(summary, title, kept)
    if len(kept) < len(metrics):
        table.caption = "rounds and seconds need a wider terminal; they are in summary.json"
        table.caption_justify = "left"
    return table


def _methods_table(summary: Summary, title: str, metrics: Sequence[str]) -> Table:
    table = Table(title=escape(title) or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", no_wrap=True)
    for metric in metrics:
        table.add_column(COLUMNS[metric], justify="right")
    for method, statistics in summary.items():
        cells = []
        for metric in metrics:
            if metric in LEFT_OUT:
                mean = statistics[metric]["mean"]
                cells.append("-" if mean is None else f"{mean:.{METRICS[metric].digits}f}")
            else:
                cells.append(cell(statistics[metric], METRICS[metric].digits))
        table.add_row(method, *cells)
    return table


def accuracy_table(trials: Sequence[TrialResult]) -> Table | None:
    """Test accuracy of every method in every true cluster, mean ± standard error; None without test data."""
    tested = {name: found.clusters for name, found in trials[0].methods.items() if found.clusters}
    if not tested:
        return None
    table = Table(title="test accuracy by cluster", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", no_wrap=True)
    count = max(len(rows) for rows in tested.values())
    for j in range(count):
        table.add_column(str(j), justify="right")
    for name in tested:
        each = [[trial.methods[name].clusters[j]["accuracy"] for trial in trials] for j in range(count)]
        table.add_row(name, *(cell(statistic(values), 3) for values in each))
    return table


def cluster_members(labels: Iterable[tuple[str, int]]) -> list[str]:
    """A line for each cluster with the names of its clients; labels: (client, cluster), -1 for no cluster.

    >>> cluster_members([("oslo", 1), ("bern", 0), ("rome", 1), ("lima", -1)])
    ['in no cluster: lima', 'cluster 0: bern', 'cluster 1: oslo, rome']
    """
    members: dict[int, list[str]] = {}
    for client, cluster in labels:
        members.setdefault(cluster, []).append(client)
    lines = []
    for cluster, names in sorted(members.items()):
        title = f"cluster {cluster}" if cluster >= 0 else "in no cluster"
        lines.append(f"{title}: {shortened(names)}")
    return lines


def shortened(names: Sequence[str]) -> str:
    """The first names, and how many there are more.

    >>> shortened(["oslo", "\\x1b[31mbern"])
    'oslo, ?[31mbern'
    """
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(map(printable, names[:NAMED]))}{more}"


def results_table(rows: Sequence[dict[str, Any]], last: int | None = None) -> Table:
    """Rows of a sweep: means with standard errors (`METRIC_se`), or single trials. last: only this many rows."""
    shown_rows = rows if last is None else rows[-last:]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    if not rows:
        return table
    names = [n for n in rows[0] if n not in METRICS.names and n.removesuffix("_se") not in METRICS.names]
    having = [m for m in COLUMNS if m not in ("rounds", "seconds") and any(_is_number(r.get(m)) for r in rows)]
    metrics = _without_needless_loss(having)
    for name in names:
        table.add_column(name.split(".")[-1], no_wrap=name == "method")
    for metric in metrics:
        table.add_column(COLUMNS[metric], justify="right", no_wrap=True)
    for row in shown_rows:
        cells = [str(row.get(name)) for name in names]
        for metric in metrics:
            value = row.get(metric)
            found = {"mean": value if _is_number(value) else None, "se": row.get(f"{metric}_se"), "trials": None}
            cells.append(cell(found, METRICS[metric].digits))
        table.add_row(*cells)
    return table


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def plan_table(lines: Sequence[Line]) -> Table:
    """The table that `coterie plan` prints."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column()
    for line in lines:
        table.add_row(line.name, line.value, escape(line.meaning), style="bold red" if line.is_alarm else None)
    return table
