"""A snapshot as a page: its frame, and the parts that are sent again when they have changed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from importlib.resources import files

from coterie._src.report.html.markup import Markup, element, joined, named
from coterie._src.report.html.page import Live, Section, looks, page, sentences
from coterie._src.report.html.svg import short
from coterie._src.report.html.tables import Cell, Column, number_cell, table
from coterie._src.watch.snapshot import Bar, Rounds, Snapshot, Suspect

PARTS = {
    "progress": "Progress",
    "clusters": "Clusters",
    "refused": "Refused replies",
    "audit": "The audit's top",
    "results": "Results so far",
}
"""The sections of the page and their titles."""
NEWS_SECONDS = 5.0
"""The age of the last news from which on the page tells it."""
MAX_CLUSTERS = 100
SENTENCES = {
    "waiting": "The server waits for sites.",
    "running": "Under way.",
    "stale": "No news for a while: a long round, or its process hangs or is gone.",
    "gone": "It has died: its process is gone, and nothing says that it ended.",
    "complete": "Complete.",
    "interrupted": "Interrupted.",
    "failed": "Failed.",
    "unknown": "No file says whether it is under way.",
}
FOOTER = "This page shows what lies on disk, changes nothing, and ends with the command that shows it."
ALARMING = ("stale", "gone", "failed")


@cache
def template(name: str) -> str:
    """A file of the folder `template`."""
    return files("coterie._src.watch").joinpath("template", name).read_text(encoding="utf-8")


def title(snapshot: Snapshot) -> str:
    """One line for the title of a window: how far it is, and what it is about."""
    far = [f"{_percent(bar)} %" for bar in snapshot.bars[:1] if snapshot.state in ("running", "stale")]
    return " · ".join([*far, *([snapshot.state] if snapshot.state != "running" else []), snapshot.title])


def frame(snapshot: Snapshot) -> tuple[str, str]:
    """The whole page as it is now, and its policy for the header of the answer."""
    live = Live(template("live.css"), template("live.js"), FOOTER)
    parts = contents(snapshot)
    sections = [
        Section(name, heading, element("div", parts[name], id=f"live-{name}")) for name, heading in PARTS.items()
    ]
    text = page(snapshot.title, [("watched", snapshot.kind)], sections, snapshot.methods, live)
    return text, looks(snapshot.methods, live).policy


def contents(snapshot: Snapshot) -> dict[str, Markup]:
    """The sections by name."""
    later = "No trial is finished yet."
    if snapshot.kind == "federation":
        ended = snapshot.state == "complete"
        later = "The page of `coterie report` has them." if ended else "The sites are asked for scores at the end."
    return {
        "progress": _progress(snapshot),
        "clusters": joined(*map(_clusters, snapshot.rounds)) or _nothing("No round is finished yet."),
        "refused": joined(*map(_refused, snapshot.rounds)) or _nothing("No round is finished yet."),
        "audit": _audit(snapshot.audit_of, snapshot.suspects),
        "results": snapshot.results or _nothing(later),
    }


def _nothing(words: str) -> Markup:
    return element("p", words, class_="soft")


def _progress(snapshot: Snapshot) -> Markup:
    words = SENTENCES[snapshot.state]
    alarm = "note" if snapshot.state in ALARMING else "state"
    news = None
    if snapshot.age is not None and snapshot.age >= NEWS_SECONDS and snapshot.state != "complete":
        news = element("p", f"The last news is {duration(snapshot.age)} old.", class_="soft")
    left = None
    if snapshot.left is not None:
        about = "At most" if snapshot.at_most else "About"
        left = element("p", f"{about} {duration(snapshot.left)} left.")
    return joined(
        element("p", words, role="status", class_=alarm, data_state=snapshot.state),
        element("p", snapshot.trouble, class_="note") if snapshot.trouble else None,
        element("p", snapshot.advice) if snapshot.advice else None,
        *map(_bar, snapshot.bars),
        left,
        news,
    )


def duration(seconds: float) -> str:
    """Seconds as hours, minutes and seconds.

    >>> duration(3725.4), duration(float("inf"))
    ('1:02:05', 'unknown time')
    """
    return str(timedelta(seconds=round(seconds))) if seconds < 1e9 else "unknown time"


def _percent(bar: Bar) -> int:
    return int(100 * bar.done / bar.total) if bar.total > 0 else 0


def _bar(bar: Bar) -> Markup:
    shown = element("progress", value=str(bar.done), max=str(max(1, bar.total)), aria_label=bar.name)
    return element("p", element("span", bar.name), shown, element("span", f"{bar.done} of {bar.total}"), class_="bar")


def _heading(rounds: Rounds) -> Markup:
    far = f"round {rounds.round} of {rounds.rounds}"
    return element("h3", rounds.title, " ", element("small", far)) if rounds.title else element("h3", far.capitalize())


def _clusters(rounds: Rounds) -> Markup:
    if not rounds.clusters:
        return joined(_heading(rounds), _nothing("No replies by cluster yet."))
    most = max(1, *(one.size for one in rounds.clusters))
    rows = [
        element(
            "tr",
            element("th", f"cluster {j}", scope="row"),
            element("td", element("meter", value=str(one.size), max=str(most), aria_hidden="true")),
            element("td", one.size, class_="number"),
            element("td", "–" if one.loss is None else short(one.loss), class_="number"),
        )
        for j, one in enumerate(rounds.clusters[:MAX_CLUSTERS])
    ]
    heads = [element("th", name, scope="col", class_=style) for name, style in
             (("", ""), ("", ""), ("clients", "number"), ("median loss", "number"))]  # fmt: skip
    moved = None if rounds.movement is None else _nothing(f"The centres moved by {short(rounds.movement)} at most.")
    made = element("table", element("thead", element("tr", *heads)), element("tbody", *rows), class_="clusters")
    name = f"Clusters of {rounds.title}" if rounds.title else "Clusters of the last round"
    return joined(
        _heading(rounds), element("div", made, class_="scroll", tabindex=0, role="region", aria_label=name), moved
    )


def _refused(rounds: Rounds) -> Markup:
    if rounds.replies is None:
        return joined(_heading(rounds), _nothing("No replies yet."))
    counts = ", ".join(f"{count} {verdict}" for verdict, count in rounds.replies.items())
    lines = [joined(named(one.client), f": {one.reason}" if one.reason else "") for one in rounds.refused]
    missing = sum(count for verdict, count in rounds.replies.items() if verdict == "refused") - len(lines)
    if lines and missing > 0:
        lines.append(Markup.of(f"and {missing} more"))
    return joined(_heading(rounds), element("p", f"{counts}."), sentences(lines))


def _audit(audit_of: str, suspects: Sequence[Suspect]) -> Markup:
    if not suspects:
        return _nothing("Nothing is known about single clients yet.")
    columns = [
        Column("client"),
        Column("cluster", "in which it was last"),
        Column("refused", "share of the rounds in which its reply was refused"),
        Column("silent", "share of the rounds without a reply"),
        Column("trimmed", "share of its coordinates that were among the outermost of its cluster"),
    ]
    rows = [
        [
            Cell(named(one.client)),
            number_cell(float(one.cluster)) if one.cluster >= 0 else number_cell(None),
            *(number_cell(share, f"{share:.0%}") for share in (one.refused, one.silent, one.trimmed)),
        ]
        for one in suspects
    ]
    if any(one.distance is not None for one in suspects):
        columns.append(Column("distance", "of its update to its cluster's median, in median distances"))
        for row, one in zip(rows, suspects, strict=True):
            row.append(number_cell(one.distance, None if one.distance is None else f"{one.distance:.1f}"))
    if any(one.reasons for one in suspects):
        columns.append(Column("reasons"))
        for row, one in zip(rows, suspects, strict=True):
            row.append(Cell(one.reasons))
    of = f"{audit_of}: the clients" if audit_of else "The clients"
    return table("audit-table", f"{of} that stand out most. Evidence, no verdict.", columns, rows)
