"""How methods and clusters look in all figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coterie._src.report.html.colours import CLUSTERS, DASHES
from coterie._src.report.html.markup import Markup, element
from coterie._src.report.html.svg import line


class Style(NamedTuple):
    """The class of a method's colour, and its dash."""

    colour: str
    dash: str


def styles(methods: Sequence[str]) -> dict[str, Style]:
    """By method, how its marks look; the classes are those of `colours.method_rules`."""
    return {name: Style(f"m{i}", DASHES[i % len(DASHES)]) for i, name in enumerate(methods)}


def swatch(style: Style) -> Markup:
    """A piece of a method's line, for its name in a table."""
    return element(
        "svg", line(0, 6, 30, 6, "line", style.dash), viewBox="0 0 30 12", class_=f"swatch {style.colour}",
        aria_hidden="true",
    )  # fmt: skip


def cluster_class(cluster: int) -> str:
    """The class of a cluster's colour."""
    return f"k{cluster % len(CLUSTERS)}" if cluster >= 0 else "none"


def cluster_name(cluster: int) -> str:
    """A cluster in words."""
    return f"cluster {cluster}" if cluster >= 0 else "no cluster"


def capitalised(words: str) -> str:
    """The words with a capital at their beginning; the rest as it is."""
    return words[:1].upper() + words[1:]
