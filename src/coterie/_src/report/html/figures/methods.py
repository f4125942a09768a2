"""Figures of methods: their means with intervals, and their way from round to round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coterie._src.arrays import Floats
from coterie._src.experiments.methods import METHODS
from coterie._src.report.html.figures.style import Style, capitalised, styles
from coterie._src.report.html.markup import Markup, element, joined, json_script
from coterie._src.report.html.svg import (
    CHARACTER,
    LINE,
    WIDTH,
    Scale,
    at,
    figure,
    horizontal_axis,
    line,
    path,
    short,
    spread,
    text,
    vertical_axis,
)
from coterie._src.report.run_record import LARGEST, interval

MAX_POINTS = 120
"""The rounds at which a line is drawn, at most."""
HEADROOM = 30.0
"""A distance is shown up to this multiple of the lowest value."""
REACH = 1e5
"""The longest axis of means, as a multiple of its beginning."""
LONG = 50
"""With more rounds their axis is logarithmic, since most happens in the first ones."""
TOP, BOTTOM = 26.0, 330.0
"""The upper and the lower end of the chart of convergence."""


def intervals(values: Mapping[str, Sequence[float]], label: str, lower_is_better: bool) -> Markup | None:
    """The mean of every method with its 95 % interval over the trials; values: by method, one per trial."""
    found = {name: one for name, own in values.items() if (one := interval(own)) is not None}
    if not found:
        return None
    if all(value >= 0 for own in values.values() for value in own if math.isfinite(value)):
        found = {name: (mean, max(lowest, 0.0), highest) for name, (mean, lowest, highest) in found.items()}
    looks = styles(list(values))
    means = [mean for mean, _, _ in found.values()]
    log = min(means) > 0 and max(means) > 20 * min(means)
    if log:
        low, high = min(means) / 2, max(*means, *(high for _, _, high in found.values())) * 1.2
        high = min(high, REACH * low)
    else:
        low, high = min(low for _, low, _ in found.values()), max(high for _, _, high in found.values())
        margin = 0.06 * ((high - low) or abs(high) or 1.0)
        low, high = low - margin, high + margin
    left = 20 + CHARACTER * max(map(len, found))
    scale = Scale(low, high, left, WIDTH - 190, log)
    step, top = 26.0, 12.0
    bottom = top + step * len(found)
    parts: list[object] = [horizontal_axis(scale, top, bottom, label)]
    for i, (name, (mean, lowest, highest)) in enumerate(found.items()):
        y = top + step * (i + 0.5)
        tooltip = f"{name}: {short(mean)}" + (f", 95 % {short(lowest)} to {short(highest)}" if lowest < highest else "")
        span = f"{short(mean)}" + (f"  ({short(lowest)} to {short(highest)})" if lowest < highest else "")
        parts += [
            text(left - 12, y + 4, name, "end"),
            element(
                "g",
                line(scale(max(lowest, low)), y, scale(highest), y, "line"),
                element("circle", cx=at(scale(mean)), cy=at(y), r=5, class_="dot"),
                class_=looks[name].colour, data_tip=tooltip, data_method=name,
            ),
            text(scale.end + 14, y + 4, span),
        ]  # fmt: skip
    able = [name for name in found if name not in METHODS or not METHODS[name].needs_truth] or list(found)
    best = (min if lower_is_better else max)(able, key=lambda name: found[name][0])
    trials = max(len(own) for own in values.values())
    beyond = [name for name, (mean, _, _) in found.items() if mean > high]
    missing = [name for name in values if name not in found]
    meaning = (
        f"{capitalised(label)}, mean and 95 % interval (Student's t) over {trials} trials" if trials > 1 else
        f"{capitalised(label)} in one trial, so that there is no interval"
    )  # fmt: skip
    words = (
        f"{meaning}; {'lower' if lower_is_better else 'higher'} is better. Best"
        f"{' of those without the truth' if len(able) < len(found) else ''}: {best} with {short(found[best][0])}."
        + (" The axis is logarithmic; an interval may reach beyond its left end. None is drawn below 0." if log else "")
        + (f" Beyond the right end of the axis: {', '.join(beyond)}." if beyond else "")
        + (f" Not known for {', '.join(missing)}." if missing else "")
    )
    return figure("intervals", "Methods compared", bottom + 2.6 * LINE, joined(*parts), words)


@dataclass(frozen=True)
class Chart:
    """The area of a chart of lines: rounds across, a metric upwards."""

    across: Scale
    up: Scale
    limit: float

    @property
    def left(self) -> float:
        return self.across.start

    @property
    def right(self) -> float:
        return self.across.end


class Line(NamedTuple):
    """A method by round: means and standard errors (NaN where there are none); a method without rounds is level."""

    mean: Floats
    error: Floats
    level: bool = False

    @property
    def end(self) -> float:
        """The last mean."""
        return float(self.mean[-1])


def convergence(
    curves: Mapping[str, Sequence[Sequence[float]]], ends: Mapping[str, Sequence[float]], label: str, log: bool
) -> Markup | None:
    """A metric by round, mean over the trials with a band of one standard error; a dotted level without rounds.

    curves: by method, one list per trial. ends: by method, the final values. A line that stays above `HEADROOM` times
    the lowest value of a distance is left out, and named.
    """
    lines = {name: Line(*means_and_errors(own)) for name, own in curves.items() if own and all(own)}
    levels = {
        name: Line(np.array([np.mean(own)]), np.array([np.nan]), True)
        for name, own in ends.items()
        if name not in lines and own and (np.abs(own) <= LARGEST).all()
    }
    if not lines or (chart := _chart(lines, levels, log, log and label.startswith("matched"))) is None:
        return None
    longest = max(len(one.mean) for one in lines.values())
    even = np.geomspace if chart.across.log else np.linspace
    numbers = sorted({round(t) for t in even(1, longest, min(longest, MAX_POINTS))})
    looks = styles(list(curves))
    there = {name: one for name, one in {**lines, **levels}.items() if (one.mean <= chart.limit).any()}
    above = [
        f"{name} ({short(one.end) if math.isfinite(one.end) else 'diverged'})"
        for name, one in {**lines, **levels}.items()
        if name not in there
    ]
    parts = [
        _axes(chart, label),
        *(_line(name, one, chart, numbers, looks[name]) for name, one in there.items()),
        *_labels(there, chart, looks),
        line(chart.left, TOP, chart.left, BOTTOM, "cursor off"),
    ]
    trials = max(len(own) for own in curves.values())
    band = f"mean over {trials} trials, with a band of one standard error" if trials > 1 else "one trial"
    final = ", ".join(f"{name} {short(one.end)}" for name, one in sorted(there.items(), key=lambda pair: pair[1].end))
    words = (
        f"{capitalised(label)} by round: {band}. A dot marks the last round of a method; a dotted level is a method "
        f"without rounds. At the end, from the lowest: {final}."
        + (f" Beyond the upper end of the axis: {', '.join(above)}." if above else "")
    )
    data = {
        "rounds": numbers,
        "places": [round(chart.across(t), 1) for t in numbers],
        "series": [(name, _values(one, numbers)) for name, one in {**lines, **levels}.items()],
    }
    slider = element(
        "input", type="range", min=0, max=len(numbers) - 1, value=len(numbers) - 1, class_="slider",
        aria_label="Round whose values are shown",
    )  # fmt: skip
    control = element("div", slider, element("output", class_="readout"))
    made = figure("convergence", "Convergence", BOTTOM + 2.6 * LINE, joined(*parts), words, control)
    return joined(element("div", made, data_series="convergence-data"), json_script("convergence-data", data))


def _chart(lines: Mapping[str, Line], levels: Mapping[str, Line], log: bool, limited: bool) -> Chart | None:
    """The area in which all lines have room; limited: without those far above the lowest."""
    heights = np.concatenate([one.mean for one in (*lines.values(), *levels.values())])
    heights = heights[np.isfinite(heights) & ((heights > 0) | (not log))]
    if not heights.size:
        return None
    low, limit = float(heights.min()), HEADROOM * float(heights.min()) if limited else math.inf
    high = float(heights[heights <= limit].max())
    margin = 0.05 * ((high - low) or abs(high) or 1.0)
    bounds = (low / 1.25, high * 1.25) if log else (low - margin, high + margin)
    longest = max(len(one.mean) for one in lines.values())
    right = WIDTH - 30 - CHARACTER * max(len(name) + 8 for name in (*lines, *levels))
    return Chart(Scale(1, max(2, longest), 52, right, longest > LONG), Scale(*bounds, BOTTOM, TOP, log), limit)


def _axes(chart: Chart, label: str) -> Markup:
    return joined(
        vertical_axis(chart.up, chart.left, chart.right, label),
        *(
            text(chart.across(t), BOTTOM + LINE, f"{t:g}", "middle", "tick")
            for t in chart.across.ticks()
            if t == round(t)
        ),
        text(chart.right, BOTTOM + 2.2 * LINE, "round (logarithmic)" if chart.across.log else "round", "end", "axis"),
    )


def _line(name: str, one: Line, chart: Chart, numbers: Sequence[int], look: Style) -> Markup:
    """The line of a method with its band and a dot at its end."""
    if one.level:
        y = chart.up(one.end)
        return element("g", line(chart.left, y, chart.right, y, "line", "2 5"), class_=look.colour, data_method=name)
    rounds = [t for t in sorted({*numbers, len(one.mean)}) if t <= len(one.mean) and math.isfinite(one.mean[t - 1])]
    points = [(chart.across(t), chart.up(one.mean[t - 1])) for t in rounds]
    banded = [t for t in rounds if math.isfinite(one.error[t - 1])]
    upper = [(chart.across(t), chart.up(one.mean[t - 1] + one.error[t - 1])) for t in banded]
    lower = [(chart.across(t), chart.up(one.mean[t - 1] - one.error[t - 1])) for t in banded]
    return element(
        "g",
        element("path", d=path([*upper, *reversed(lower)]) + "Z", class_="band") if len(banded) > 1 else None,
        element("path", d=path(points), class_="line", stroke_dasharray=look.dash) if len(points) > 1 else None,
        element("circle", cx=at(points[-1][0]), cy=at(points[-1][1]), r=4, class_="dot"),
        class_=look.colour, data_method=name,
    )  # fmt: skip


def _labels(there: Mapping[str, Line], chart: Chart, looks: Mapping[str, Style]) -> list[Markup]:
    """The names and final values beside the ends of the lines, led to where there is room for them."""
    ends = {}
    for name, one in there.items():
        finite = np.flatnonzero(np.isfinite(one.mean))
        last = int(finite[-1])
        ends[name] = (chart.right if one.level else chart.across(last + 1), chart.up(float(one.mean[last])))
    found = []
    right = chart.right
    for (name, (x, y)), label_y in zip(ends.items(), spread([y for _, y in ends.values()], TOP, BOTTOM), strict=True):
        lead = None
        if x < right - 1 or label_y != y:
            lead = element("path", d=path([(x, y), (right, y), (right + 6, label_y)]), class_="thin",
                           stroke_dasharray="1 3")  # fmt: skip
        value = element("tspan", short(there[name].end), class_="tick")
        label = element("text", f"{name} ", value, x=at(right + 20), y=at(label_y + 4))
        mark = line(right + 6, label_y, right + 16, label_y, "line")
        found.append(element("g", lead, mark, label, class_=looks[name].colour, data_method=name))
    return found


def _values(one: Line, numbers: Sequence[int]) -> list[float | None]:
    """The means at these rounds as far as there are any, with six digits; None where one is not finite."""
    values = [float(one.mean[t - 1]) for t in numbers if t <= len(one.mean)] if not one.level else [one.end]
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def means_and_errors(curves: Sequence[Sequence[float]]) -> tuple[Floats, Floats]:
    """Mean and standard error by round; a trial that stopped early stays where it was, a lost one ends the curve.

    >>> mean, error = means_and_errors([[4.0, 2.0], [2.0]])
    >>> mean.tolist(), error.tolist()
    ([3.0, 2.0], [1.0, 0.0])
    """
    longest = max(len(curve) for curve in curves)
    values = np.array([[*curve, *(list(curve[-1:]) or [math.nan]) * (longest - len(curve))] for curve in curves])
    values[~(np.abs(values) <= LARGEST)] = np.nan
    error = np.full(longest, np.nan)
    if len(values) > 1:
        error = values.std(axis=0, ddof=1) / math.sqrt(len(values))
    mean: Floats = values.mean(axis=0)
    return mean, error
