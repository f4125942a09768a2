"""Tables that can be sorted by a click on a heading and filtered by a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from coterie._src.report.html.markup import Markup, element

FILTERED = 25
"""Tables with at least this many rows scroll in themselves and have a field to filter by."""


class Cell(NamedTuple):
    """What a cell shows, by what it is sorted (None: by what it shows), and its style."""

    content: object
    key: float | str | None = None
    style: str = ""


def number_cell(value: float | None, shown: str | None = None) -> Cell:
    """A number; a dash for one that is not known."""
    if value is None or math.isnan(value):
        return Cell("–", "", "number")
    return Cell(f"{value:g}" if shown is None else shown, value, "number")


class Column(NamedTuple):
    """The heading of a column, and what it means, for those who ask."""

    title: str
    meaning: str = ""


def table(
    name: str, caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], classes: Sequence[str] = ()
) -> Markup:
    """A table; the first cell of a row names it. classes: of the rows."""
    head = [
        element(
            "th",
            element("button", column.title, type="button", title=column.meaning),
            scope="col",
            aria_sort="none",
            class_="number" if rows and rows[0][i].style == "number" else "",
        )
        for i, column in enumerate(columns)
    ]
    body = []
    for index, row in enumerate(rows):
        cells = []
        for i, cell in enumerate(row):
            key = None if cell.key is None else f"{cell.key!r}" if isinstance(cell.key, float) else cell.key
            if cell.key == "":
                key = " "  # an attribute that is there, for a value that is not known
            options: dict[str, object] = {"class_": cell.style, "data_key": key}
            cells.append(element("th", cell.content, scope="row", **options) if i == 0 else
                         element("td", cell.content, **options))  # fmt: skip
        body.append(element("tr", *cells, class_=classes[index] if classes else ""))
    made = element(
        "table",
        element("thead", element("tr", *head)),
        element("tbody", *body),
        id=name,
        class_="sortable",
        aria_labelledby=f"{name}-caption",
    )
    field = None
    if len(rows) >= FILTERED:
        entry = element("input", type="search", data_filter=name, autocomplete="off")
        count = element("output", f"{len(rows)} rows", data_count=name)
        field = element("p", element("label", "Filter ", entry), " ", count, class_="control")
    scroll = element("div", made, class_="scroll", tabindex=0, role="region", aria_labelledby=f"{name}-caption")
    return element(
        "div",
        element("p", caption, class_="caption", id=f"{name}-caption"),
        field,
        scroll,
        class_="tabled" if field is None else "tabled long",
    )
