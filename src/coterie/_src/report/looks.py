"""Which clients of a run are worth a look, from the rows of its audit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from coterie._src.experiments.printable import printable
from coterie._src.report.run_record import as_number
from coterie._src.report.terminal import number
from coterie._src.suspicion import TOO_SMALL

OFTEN_OUTERMOST = 0.5
"""The share of a client's coordinates among the outermost of its cluster, above which it stands out."""


class Look(NamedTuple):
    """What the audit of a run says about one client; NaN for what is not known."""

    client: str
    cluster: int
    loss: float  # at the model of its cluster
    suspicion: float  # −log₁₀ of the probability of such a loss or a larger one
    trimmed: float
    refused: float
    silent: float
    reasons: tuple[str, ...]  # why it stands out; empty: it does not
    in_small_cluster: bool


def looks(rows: Sequence[Mapping[str, str]]) -> list[Look]:
    """What the rows of one method and trial of audit.csv say, those clients first that stand out most.

    The reasons by loss, cluster and refusals come first: updates may be extreme for honest reasons.

    >>> row = {"client": "oslo", "cluster": "0", "suspicion": "9.5", "evidence": "its loss is …", "trimmed": "0.1"}
    >>> [(one.client, one.reasons) for one in looks([{**row, "client": "bern", "suspicion": "1", "evidence": ""}, row])]
    [('oslo', ('its loss is …',)), ('bern', ())]
    """
    found = []
    for row in rows:
        evidence, trimmed = row.get("evidence", ""), as_number(row.get("trimmed"))
        reasons = [evidence] if evidence else []
        if trimmed > OFTEN_OUTERMOST:
            reasons.append(f"its update was among the outermost of its cluster in {trimmed:.0%} of its coordinates")
        if not evidence and as_number(row.get("refused")) > 0:  # of an earlier version
            reasons.append(f"refused in {as_number(row['refused']):.0%} of the rounds ({row.get('reasons', '')})")
        loss, score, refused, silent = (as_number(row.get(n)) for n in ("loss", "suspicion", "refused", "silent"))
        small = TOO_SMALL in evidence
        found.append(
            Look(row["client"], int(row["cluster"]), loss, score, trimmed, refused, silent, tuple(reasons), small)
        )
    return sorted(found, key=_rank)


def _rank(one: Look) -> tuple[bool, bool, float, float]:
    by_evidence = bool(one.reasons) and not one.reasons[0].startswith("its update")
    score = 0.0 if math.isnan(one.suspicion) else one.suspicion
    return not by_evidence, not one.reasons, -score, -one.trimmed


def small_clusters(clients: Sequence[Look]) -> set[str]:
    """The names, such as "cluster 3", of the clusters with no more members than may be Byzantine."""
    return {f"cluster {one.cluster}" for one in clients if one.in_small_cluster}


def looks_table(clients: Sequence[Look]) -> Table:
    """A row per client for the terminal."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("client", no_wrap=True)
    for name in ("cluster", "loss", "suspicion", "trimmed", "refused", "silent"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why")
    for one in clients:
        table.add_row(
            escape(printable(one.client)),
            "-" if one.cluster < 0 else str(one.cluster),
            *(
                "-" if math.isnan(value) else number(value, digits)
                for value, digits in ((one.loss, 3), (one.suspicion, 1))
            ),
            *("-" if math.isnan(share) else f"{share:.0%}" for share in (one.trimmed, one.refused, one.silent)),
            escape("; ".join(one.reasons)) or "-",
        )
    return table
