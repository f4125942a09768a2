"""The colours of a page, each in a light and a dark variant: of the methods, of clusters, of the cells of a map."""

from __future__ import annotations

from collections.abc import Iterable

from coterie._src.experiments.methods import METHODS, OWN

LIGHT_PAPER, DARK_PAPER = "#ffffff", "#14171a"
"""The backgrounds, as in style.css."""
GREY = "#767676"
CLUSTERS = ("#0b7285", "#c77700", "#6741d9", "#5c940d", "#c2255c", "#3b5b92", "#8f5a2b", "#2b8a6e")
"""Colours of clusters, in turn, none of them that of a method; a cluster is also named wherever it is drawn."""
DASHES = ("", "6 3", "2 3", "9 3 2 3")
"""Dashes of lines, in turn, so that lines differ without their colours, too."""
SHADES = 8
"""Steps of a heat map."""


def rgb(colour: str) -> tuple[int, int, int]:
    """Red, green and blue of #rrggbb."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return red, green, blue


def on_dark(colour: str) -> str:
    """The lighter variant of a colour, for a dark background; nearly black becomes nearly white.

    >>> on_dark("#101010"), on_dark("#1347bf")
    ('#e1e1e1', '#7090d8')
    """
    parts = rgb(colour)
    share = 0.22 + 0.7 * (1 - max(parts) / 255)
    return "#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in parts)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours by the Web Content Accessibility Guidelines, from 1 to 21.

    >>> contrast("#000000", "#ffffff"), contrast("#777777", "#777777")
    (21.0, 1.0)
    """
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (value / 255 for value in rgb(colour))
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def method_hex(name: str) -> str:
    """The colour of a method as #rrggbb; grey for a name that is none, or a colour that is none."""
    base = name.removesuffix(OWN)
    colour = METHODS[base].colour if base in METHODS else GREY
    if colour.startswith("#") and len(colour) == 7 and all(c in "0123456789abcdefABCDEF" for c in colour[1:]):
        return colour
    from matplotlib.colors import to_hex  # noqa: PLC0415  another package may use matplotlib's names

    try:
        return str(to_hex(colour))
    except ValueError:
        return GREY


def method_rules(names: Iterable[str]) -> str:
    """The style rules by which an element of the class m0, m1, … has the colour of that method."""
    return "".join(_rule(f"m{i}", method_hex(name)) for i, name in enumerate(names))


def cluster_rules() -> str:
    """The style rules of the classes k0, k1, …, the colours of clusters."""
    return "".join(_rule(f"k{i}", colour) for i, colour in enumerate(CLUSTERS)) + _rule("none", GREY)


def shade_rules() -> str:
    """The style rules of the classes s0 (paper) to s7 (strongest) of heat maps, with readable text on each."""
    rules = []
    for i in range(SHADES):
        share = i / (SHADES - 1)
        light, dark = _between("#fdf6ee", "#9c2f08", share), _between("#1d2126", "#ffb08a", share)
        inks = [
            max(("#000000", "#ffffff"), key=lambda ink, paper=paper: contrast(ink, paper))  # type: ignore[misc]
            for paper in (light, dark)
        ]
        rules.append(
            f".s{i}{{background:light-dark({light},{dark});fill:light-dark({light},{dark});"
            f"color:light-dark({inks[0]},{inks[1]})}}"
        )
    return "".join(rules)


def _between(one: str, other: str, share: float) -> str:
    parts = zip(rgb(one), rgb(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in parts)


def _rule(name: str, colour: str) -> str:
    return f".{name}{{color:light-dark({colour},{on_dark(colour)})}}"
