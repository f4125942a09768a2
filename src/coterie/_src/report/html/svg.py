"""What charts are drawn with: scales, axes, labels that keep apart, and the frame of a figure with its text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coterie._src.report.html.markup import Markup, element, joined

WIDTH = 720
"""The width of a chart in its own units; a text of 12 units can be read down to half of that width on a screen."""
LINE = 15.0
"""The height of a line of text."""
CHARACTER = 6.6
"""About the width of a character."""


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` to places from `start` to `end`; values outside stay at the ends."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (_log(x) if self.log else x for x in (self.low, self.high, value))
        share = (at - low) / (high - low) if high > low else 0.5
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round values within the scale, about five.

        >>> Scale(0, 9, 0, 1).ticks(), Scale(0.02, 3, 0, 1, log=True).ticks()
        ([0.0, 2.0, 4.0, 6.0, 8.0], [0.1, 1.0])
        """
        if self.log:
            exponents = range(math.ceil(_log(self.low) - 1e-9), math.floor(_log(self.high) + 1e-9) + 1)
            every = max(1, math.ceil(len(exponents) / 6))
            factors = (1,) if len(exponents) >= 2 else (1, 2, 5)
            found = [f * 10.0**e for e in range(exponents.start - 1, exponents.stop + 1, every) for f in factors]
        else:
            raw = max((self.high - self.low) / 5, 1e-300)
            power = 10.0 ** math.floor(math.log10(raw))
            step = power * next((f for f in (1, 2, 5, 10) if f * power >= raw * 0.999), 10)
            first = math.ceil(self.low / step - 1e-9)
            found = [round(i * step, 12) + 0.0 for i in range(first, math.floor(self.high / step + 1e-9) + 1)]
        return (
            [float(f"{value:.12g}") for value in found if self.low * 0.999999 <= value <= self.high * 1.000001]
            or ([self.low])
            if self.log
            else found
        )


def _log(value: float) -> float:
    return math.log10(max(value, 1e-300))


def short(value: float) -> str:
    """A number for a label: three digits, no exponent where it is not needed.

    >>> short(0.07421), short(473.6), short(12345678.0), short(0.0)
    ('0.0742', '474', '1.2e7', '0')
    """
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e5:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.replace('-', '−')}e{int(exponent)}".replace("e-", "e−")
    return f"{value:.3g}".replace("-", "−") if abs(value) < 1000 else f"{value:.0f}".replace("-", "−")


def at(value: float) -> str:
    """A coordinate with one digit after the point.

    >>> at(3.0), at(2.345)
    ('3', '2.3')
    """
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, content: object, anchor: str = "start", class_: str = "") -> Markup:
    """A text; y: of its base line."""
    return element("text", content, x=at(x), y=at(y), text_anchor=None if anchor == "start" else anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str = "", dash: str = "") -> Markup:
    """A straight line."""
    return element("line", x1=at(x1), y1=at(y1), x2=at(x2), y2=at(y2), class_=class_, stroke_dasharray=dash or None)


def path(points: Iterable[tuple[float, float]]) -> str:
    """The description of a line through points."""
    return "M" + "L".join(f"{at(x)} {at(y)}" for x, y in points)


def horizontal_axis(scale: Scale, top: float, bottom: float, title: str) -> Markup:
    """Ticks with grid lines, their values below, and the title at the right end."""
    parts = []
    for value in scale.ticks():
        parts.append(line(scale(value), top, scale(value), bottom, "grid"))
        parts.append(text(scale(value), bottom + LINE, short(value), "middle", "tick"))
    parts.append(text(scale.end, bottom + 2.2 * LINE, title, "end", "axis"))
    return joined(*parts)


def vertical_axis(scale: Scale, left: float, right: float, title: str) -> Markup:
    """Ticks with grid lines, their values on the left, and the title above."""
    parts = []
    for value in scale.ticks():
        parts.append(line(left, scale(value), right, scale(value), "grid"))
        parts.append(text(left - 6, scale(value) + 4, short(value), "end", "tick"))
    parts.append(text(0, LINE - 3, title, class_="axis"))
    return joined(*parts)


def spread(places: Sequence[float], low: float, high: float, apart: float = LINE) -> list[float]:
    """Places near the given ones, in the same order, between low and high and, if there is room, `apart` or more.

    >>> spread([10.0, 11.0, 50.0], 0, 100, apart=10), spread([99.0, 100.0], 0, 100, apart=10)
    ([10.0, 20.0, 50.0], [90.0, 100.0])
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    found = [0.0] * len(places)
    last = -math.inf
    for i in order:
        last = found[i] = max(low, last + apart, places[i])
    limit = float(high)
    for i in reversed(order):
        found[i] = min(found[i], limit)
        limit = found[i] - apart
    return found


def figure(name: str, title: str, height: float, drawing: object, description: str, *more: object) -> Markup:
    """A chart with its title and the text that says what it shows; more: elements below the chart."""
    picture = element(
        "svg", drawing, role="img", aria_label=f"{title}. {description}", viewBox=f"0 0 {WIDTH} {at(height)}",
        xmlns="http://www.w3.org/2000/svg",
    )  # fmt: skip
    box = element("div", picture, class_="scroll", tabindex=0, role="region", aria_label=title)
    return element(
        "figure", element("h3", title), box, *more, element("figcaption", description), id=name, data_figure=True
    )


def choice(name: str, question: str, variants: Sequence[tuple[str, Markup]]) -> Markup | None:
    """Variants of a figure, of which a menu shows one; without a menu where there is only one."""
    if not variants:
        return None
    if len(variants) == 1:
        return variants[0][1]
    options = [element("option", label, value=i) for i, (label, _) in enumerate(variants)]
    menu = element(
        "p", element("label", question, " ", element("select", *options, data_choice=name)), class_="control"
    )
    shown = [
        element("div", variant, data_variant=f"{name}-{i}", hidden=i > 0) for i, (_, variant) in enumerate(variants)
    ]
    return element("div", menu, *shown, class_="choice")
