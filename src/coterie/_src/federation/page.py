"""The page of a federation: for those who run it and want to know which sites to call."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from coterie._src.federation.audit import MIN_COMPARED, ClientAudit, audit_clients, site_names
from coterie._src.federation.checkpoint import CLIENTS, SUMMARY, Checkpoint
from coterie._src.federation.progress import Progress, read_progress
from coterie._src.report.html.colours import SHADES
from coterie._src.report.html.figures.clients import strips
from coterie._src.report.html.figures.clusters import Member, cluster_bars
from coterie._src.report.html.markup import Markup, element, joined, named
from coterie._src.report.html.page import copyable, model_links, notes, page, section, sentences
from coterie._src.report.html.svg import LINE, WIDTH, at, figure, text
from coterie._src.report.html.tables import Cell, Column, number_cell, table
from coterie._src.report.run_record import read_rows

MAX_ROUNDS = 60
"""The rounds of the map, at most; beyond, every s-th is drawn."""
MAX_SITES = 200
"""The sites of the map, at most: those that stand out most."""
FARTHEST = 10.0
"""The distance, in median distances, from which on a cell has the strongest shade."""

Row = dict[str, Any]


def federation_page(folder: Path) -> str:
    """The page of the federation that has written to a folder."""
    rows = Checkpoint(folder).rows()
    if not rows:
        raise ValueError(f"{folder}: no round is finished yet")
    progress, _ = read_progress(folder) or (None, 0.0)
    sites, nodes = audit_clients(rows), site_names(folder)
    absent = [nodes[node] for node in nodes.keys() - {one.node for one in sites}]
    until, warnings = _certificates(folder)
    names = {one.client: nodes.get(one.node, f"client {one.client}") for one in sites}
    last = _last_verdicts(rows)
    sizes = Counter(one.cluster for one in sites if one.cluster >= 0)
    small = [str(j) for j, size in sorted(sizes.items()) if size < MIN_COMPARED]
    remarks = [
        f"In a cluster of fewer than {MIN_COMPARED} sites nobody can stand out: cluster {', '.join(small)}."
        if small
        else "",
        f"No reply in the last round from {sum(verdict == 'silent' for verdict in last.values())} sites."
        if "silent" in last.values()
        else "",
        f"Registered, and present in no round: {', '.join(sorted(absent))}." if absent else "",
        *(f"{line[0].upper()}{line[1:]}." for line in warnings),
    ]
    parts = [
        *section("notes", "Worth knowing first", notes([line for line in remarks if line])),
        *section("look", "Sites worth a look", _ranking(sites, names)),
        *section("sites", "Sites", _sites(rows, sites, names, last), _map(rows, sites, names)),
        *section("clusters-of-sites", "Clusters", _members(sites, names)),
        *section("scores", "Held-out scores", *_scores(folder)),
        *section("models", "Models", _models(folder)),
        *section("configuration", "Configuration", _configuration(folder)),
    ]
    return page(f"Federation of {len(sites)} sites", _facts(rows, progress, last, until), parts)


def _certificates(folder: Path) -> tuple[datetime | None, list[str]]:
    """When the first of the server's certificates ends, which lie beside the folder, and what to know about that.

    Nothing is known without the package that reads certificates, which comes with Flower.
    """
    try:
        from coterie._src.federation.certificates import expiry_warnings, valid_until
    except ImportError:
        return None, []
    server = folder.resolve().parent
    ends = filter(None, (valid_until(server / name) for name in ("ca.pem", "server.pem")))
    return min(ends, default=None), expiry_warnings(server)


def _facts(
    rows: Sequence[Row], progress: Progress | None, last: Mapping[int, str], until: datetime | None
) -> list[tuple[str, object]]:
    done = max(row["round"] for row in rows)
    state = "unknown" if progress is None else "finished" if progress.done else "not finished"
    apart = ("accepted", "silent", "blocked")
    count = Counter(verdict if verdict in apart else "refused" for verdict in last.values())
    return [
        ("status", state),
        ("rounds", f"{done}" if progress is None else f"{done} of at most {progress.rounds}"),
        *((f"{words} in the last round", count[words]) for words in ("accepted", "silent", "refused")),
        *([("blocked by the operator", count["blocked"])] if count["blocked"] else []),
        *([] if until is None else [("certificates valid until", f"{until:%Y-%m-%d}")]),
    ]


def _last_verdicts(rows: Sequence[Row]) -> dict[int, str]:
    """By client, the verdict of the last round; a client without a row there is silent."""
    done = max(row["round"] for row in rows)
    found = {row["client"]: "silent" for row in rows}
    return found | {row["client"]: str(row["verdict"]) for row in rows if row["round"] == done}


def _ranking(sites: Sequence[ClientAudit], names: Mapping[int, str]) -> Markup:
    seen = [one for one in sites if one.reasons]
    if not seen:
        return element("p", f"Nobody stands out among {len(sites)} sites.")
    lines = [element("li", element("strong", named(names[one.client])), f": {'; '.join(one.reasons)}") for one in seen]
    words = "Evidence, no verdict: those that stand out most come first."
    return joined(element("p", words), element("ol", *lines, class_="lines"))


def _sites(
    rows: Sequence[Row], sites: Sequence[ClientAudit], names: Mapping[int, str], last: Mapping[int, str]
) -> Markup:
    seconds: dict[int, list[float]] = {}
    sent: dict[int, float] = {}
    for row in rows:
        if isinstance(row["seconds"], int | float):
            seconds.setdefault(row["client"], []).append(float(row["seconds"]))
        if isinstance(row["bytes"], int):
            sent[row["client"]] = sent.get(row["client"], 0.0) + row["bytes"] / 1000
    columns = [
        Column("site"),
        Column("cluster", "in which it was last"),
        Column("last round", "what became of its reply in the last round"),
        Column("refused", "share of the rounds in which it answered and was refused"),
        Column("silent", "share of the rounds without an answer"),
        Column("distance", "median distance of its update to its cluster's median, in median distances"),
        Column("trimmed", "share of its coordinates that were among the outermost of its cluster"),
        Column("seconds", "median time of an answer"),
        Column("kilobytes", "of all its answers to the questions of the rounds"),
        Column("reasons", "why it stands out"),
    ]
    made = []
    for one in sites:
        took = float(np.median(seconds[one.client])) if one.client in seconds else math.nan
        made.append(
            [
                Cell(element("span", named(names[one.client]), title=f"node {one.node}")),
                number_cell(float(one.cluster)) if one.cluster >= 0 else number_cell(None),
                Cell(last[one.client].replace("_", " ")),
                number_cell(one.refused_fraction, f"{one.refused_fraction:.0%}"),
                number_cell(one.silent_fraction, f"{one.silent_fraction:.0%}"),
                number_cell(one.distance, f"{one.distance:.1f}"),
                number_cell(one.trimmed_fraction, f"{one.trimmed_fraction:.0%}"),
                number_cell(took, f"{took:.2f}"),
                number_cell(sent.get(one.client), f"{sent.get(one.client, 0.0):.1f}"),
                Cell("; ".join(one.reasons)),
            ]
        )
    return table("sites-table", f"{len(sites)} sites. A click on a heading sorts.", columns, made)


def _map(rows: Sequence[Row], sites: Sequence[ClientAudit], names: Mapping[int, str]) -> Markup:
    """Sites by rounds: how far a site's update was from its cluster's median, and when it was refused or silent."""
    shown = [one.client for one in sites[:MAX_SITES]]
    rounds = sorted({row["round"] for row in rows})
    every = -(-len(rounds) // MAX_ROUNDS)
    rounds = rounds[::-1][::every][::-1]
    left = 16 + 6.6 * min(24, max(len(names[client]) for client in shown))
    width, height, top = (WIDTH - left - 10) / len(rounds), max(10.0, min(18.0, 500 / len(shown))), 22.0
    where = {t: left + i * width for i, t in enumerate(rounds)}
    line_of = {client: top + i * height for i, client in enumerate(shown)}
    parts: list[object] = [text(left, top - 8, f"round {rounds[0]}", class_="tick")]
    if len(rounds) > 1:
        parts.append(text(WIDTH - 10, top - 8, rounds[-1], "end", "tick"))
    for client, y in line_of.items():
        name = names[client]
        parts.append(text(left - 8, y + height / 2 + 4, name if len(name) <= 24 else name[:23] + "…", "end"))
    for row in rows:
        if row["round"] not in where or row["client"] not in line_of:
            continue
        x, y, verdict = where[row["round"]], line_of[row["client"]], str(row["verdict"])
        told = f"{names[row['client']]}, round {row['round']}: {verdict.replace('_', ' ')}"
        box = {"x": at(x), "y": at(y), "width": at(width), "height": at(height)}
        if verdict == "accepted":
            away = row["distance"] if isinstance(row["distance"], int | float) else 1.0
            share = math.log(min(max(away, 1.0), FARTHEST)) / math.log(FARTHEST)
            style = f"cell s{round(share * (SHADES - 1))}"
            parts.append(element("rect", **box, class_=style, data_tip=f"{told}, distance {away:.1f}"))
        elif verdict in ("silent", "blocked"):
            parts.append(element("rect", **box, class_="cell silent", data_tip=told))
        else:
            fault = f" ({row['fault']})" if row["fault"] else ""
            mark = f"M{at(x + 1)} {at(y + 1)}L{at(x + width - 1)} {at(y + height - 1)}"
            parts += [
                element("rect", **box, class_="cell refused", data_tip=told + fault),
                element("path", d=mark, class_="cross"),
            ]
    out = len(sites) - len(shown)
    words = (
        "Sites by rounds, those first that stand out most. Darker: the update was farther from its cluster's median, "
        f"from 1 to {FARTHEST:.0f} and more median distances. Crossed out: the reply was refused. Empty: no reply."
        + (f" Every {every}. round is drawn." if every > 1 else "")
        + (f" {out} sites that stand out less are not drawn." if out else "")
    )
    return figure("map", "Replies by round", top + height * len(shown) + LINE / 2, joined(*parts), words)


def _members(sites: Sequence[ClientAudit], names: Mapping[int, str]) -> Markup:
    ordered = sorted(sites, key=lambda one: (one.cluster, one.client))
    lines = []
    for j in sorted({one.cluster for one in ordered}):
        own = [named(names[one.client]) for one in ordered if one.cluster == j]
        listed = [part for name in own for part in (", ", name)][1:]
        lines.append(joined(element("strong", f"cluster {j}" if j >= 0 else "in no cluster"), ": ", *listed))
    members = [Member(names[one.client], one.cluster) for one in ordered]
    return joined(
        cluster_bars(members, "Sites per cluster", "when they last answered", "cluster-sizes", "sites"),
        sentences(lines),
    )


def _scores(folder: Path) -> list[Markup | None]:
    """What the sites report about the models, in words and as strips; nothing where they were not asked."""
    file = folder / SUMMARY
    if not file.is_file():
        return []
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        lines, score = [str(line) for line in found["lines"]], str(found["score"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file}: is not the evaluation of a federation ({error})") from None
    return [sentences(lines), strips(read_rows(folder / CLIENTS, ("client",), ("cluster",)), score)]


def _models(folder: Path) -> Markup | None:
    file = folder / "centres.safetensors"
    try:
        centres = load_file(file)
    except (OSError, SafetensorError):
        return None
    words = f"The centres, a row for each cluster; coterie.load({str(folder)!r}) reads them."
    return model_links(words, centres)


def _configuration(folder: Path) -> Markup:
    parts = [copyable("command", "The command that lists the sites that stand out",
                      f"coterie audit {shlex.quote(str(folder))}")]  # fmt: skip
    file = folder / "config.toml"
    if file.is_file():
        parts.append(copyable("toml", "config.toml", file.read_text(encoding="utf-8")))
    return joined(*parts)
