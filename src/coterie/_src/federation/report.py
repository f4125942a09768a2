"""The audit as a table, and the progress of a federation as a live view."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from coterie._src.federation.audit import ClientAudit
from coterie._src.federation.progress import Progress
from coterie._src.report import number

if TYPE_CHECKING:
    from coterie._src.federation.evaluation import Evaluation

BAR_WIDTH = 40
MAX_FAULTS = 8
"""The most faults that the view shows."""
OLD_SECONDS = 10.0
"""The age of the last progress from which on the view shows it."""


def audit_table(clients: Iterable[ClientAudit], names: Mapping[str, str]) -> Table:
    """Return a table with a row for each client; names: of the sites by their nodes, where they are known."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("client", "site" if names else "node", "cluster", "distance", "trimmed", "refused", "silent"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why")
    for one in clients:
        table.add_row(
            str(one.client),
            escape(names.get(one.node, one.node)),
            "-" if one.cluster < 0 else str(one.cluster),
            "-" if math.isnan(one.distance) else f"{one.distance:.1f}",
            *(f"{part:.0%}" for part in (one.trimmed_fraction, one.refused_fraction, one.silent_fraction)),
            escape("; ".join(one.reasons)) or "-",
        )
    return table


TABLE = "evaluation.txt"
"""The file with the table of the sites' scores, in the folder of a federation."""
MODEL_NAMES = {"cluster": "of its cluster", "personal": "personal", "global": "one for all", "local": "its own alone"}


def evaluation_table(evaluation: Evaluation) -> Table:
    """Return a table with a row for each model that the sites compared."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("a site's model", no_wrap=True)
    score = evaluation.score_name
    for name in ("test loss", *((f"test {score}", "worst tenth") if evaluation.score != "loss" else ())):
        table.add_column(name, justify="right")
    for model, found in evaluation.summary.items():
        values = (found["test_loss"], *((found["test_score"], found["test_worst"]) if len(table.columns) > 2 else ()))
        table.add_row(MODEL_NAMES[model], *("-" if math.isnan(value) else number(value, 3) for value in values))
    return table


def evaluation_lines(evaluation: Evaluation) -> list[str]:
    """Return the table and the lines below it as plain text, for a log."""
    console = Console(width=100, no_color=True, force_terminal=False)
    with console.capture() as captured:
        console.print(evaluation_table(evaluation))
    table = [line.rstrip() for line in captured.get().splitlines() if line.strip()]
    return [*table, *evaluation.lines()]


def federation_view(progress: Progress, age: float) -> Group:
    """Return the view of a federation; age: seconds since its progress was written."""
    if not progress.sizes:
        return Group(_bars(progress, age))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("cluster", "sites", "median loss"):
        table.add_column(name, justify="right")
    for j, (size, loss) in enumerate(zip(progress.sizes, progress.losses, strict=True)):
        table.add_row(str(j), str(size), "-" if loss is None else number(loss, 4))
    counts = f"last round: {progress.accepted} accepted, {progress.refused} refused, {progress.silent} silent"
    faults = [escape(fault) for fault in progress.faults[:MAX_FAULTS]]
    if len(progress.faults) > MAX_FAULTS:
        faults.append(f"and {len(progress.faults) - MAX_FAULTS} more")
    return Group(_bars(progress, age), table, counts, *faults)


def _bars(progress: Progress, age: float) -> Table:
    bars = Table.grid(padding=(0, 1))
    left = "" if progress.left is None or progress.done else f"at most {timedelta(seconds=round(progress.left))} left"
    rounds = ProgressBar(progress.rounds, progress.round, width=BAR_WIDTH)
    bars.add_row("round", rounds, f"{progress.round}/{progress.rounds}", left)
    if not progress.done:
        replies = ProgressBar(max(1, progress.asked), progress.replies, width=BAR_WIDTH)
        old = f"no news for {timedelta(seconds=round(age))}" if age > OLD_SECONDS else ""
        name = "sites" if progress.waiting else "replies"
        bars.add_row(name, replies, f"{progress.replies}/{progress.asked}", old)
    return bars
