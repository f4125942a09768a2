"""Figures of clients: their held-out scores by cluster, and their updates along two directions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coterie._src.report.html.figures.style import capitalised, cluster_class, cluster_name
from coterie._src.report.html.markup import Markup, element, joined
from coterie._src.report.html.svg import (
    LINE,
    WIDTH,
    Scale,
    at,
    choice,
    figure,
    horizontal_axis,
    line,
    short,
    spread,
    text,
)
from coterie._src.report.run_record import as_number

ABSURD = 1e150
"""A score beyond this is that of a model that diverged, and is not drawn."""
SCORES = {
    "cluster": "by the cluster's model",
    "personal": "by the client's personal model",
    "global": "by one model for all",
    "local": "by what the client learns alone",
}
"""The columns NAME_score of clients.csv."""


class Scored(NamedTuple):
    """A client's held-out score."""

    name: str
    cluster: int
    score: float


def strip(clients: Sequence[Scored], label: str, name: str) -> Markup | None:
    """Every client's held-out score as a dot, a strip for each cluster."""
    there = [one for one in clients if abs(one.score) < ABSURD]
    if not there:
        return None
    scores = np.array([one.score for one in there])
    low, high = float(scores.min()), float(scores.max())
    usual = np.quantile(scores, [0.1, 0.9])
    cut = usual[0] - 2.0 * max(usual[1] - usual[0], 1e-12)
    beyond = [one for one in there if one.score < cut]
    if beyond:
        low = float(cut)
    margin = 0.04 * ((high - low) or abs(high) or 1.0)
    left = 92.0
    scale = Scale(low - margin, high + margin, left, WIDTH - 170)
    clusters = sorted({one.cluster for one in there})
    parts: list[object] = []
    y, means, rows = 8.0, [], []
    for j in clusters:
        own = sorted((one for one in there if one.cluster == j), key=lambda one: one.score)
        dots, deepest = _swarm([scale(one.score) for one in own])
        half = max(14.0, deepest + 8.0)
        middle = y + half
        mean = float(np.mean([one.score for one in own]))
        marks = [
            element("circle", cx=at(x), cy=at(middle + dy), r=4, class_="dot",
                    data_tip=f"{one.name}: {short(one.score)}\n{cluster_name(j)}")
            for one, (x, dy) in zip(own, dots, strict=True)
        ]  # fmt: skip
        rows += [
            text(left - 10, middle + 4, cluster_name(j), "end"),
            element("g", *marks, class_=cluster_class(j)),
            line(scale(mean), middle - half + 3, scale(mean), middle + half - 3, "cross"),
            text(scale.end + 10, middle + 4, f"mean {short(mean)} of {len(own)}"),
        ]
        means.append(f"{cluster_name(j)}: {len(own)} clients, mean {short(mean)}, worst {short(own[0].score)} "
                    f"({own[0].name})")  # fmt: skip
        y += 2 * half
    parts = [horizontal_axis(scale, 8, y, label), *rows]
    words = (
        f"{capitalised(label)} of every client, by cluster; an upright line is a cluster's mean. {'; '.join(means)}."
        + (f" At the left end, beyond the axis: {', '.join(f'{one.name} ({short(one.score)})' for one in beyond[:8])}"
           + (f" and {len(beyond) - 8} more" if len(beyond) > 8 else "") + "." if beyond else "")
    )  # fmt: skip
    return figure(name, f"{capitalised(label)}", y + 2.6 * LINE, joined(*parts), words)


def strips(rows: Sequence[Mapping[str, str]], score: str) -> Markup | None:
    """The rows of clients.csv as strips, one figure for each model that has scores; score: what they are called."""
    made = []
    for name, words in SCORES.items():
        scored = [Scored(row["client"], int(row["cluster"]), as_number(row.get(f"{name}_score"))) for row in rows]
        drawn = strip(scored, f"held-out {score} {words}", f"strip-{name}")
        if drawn is not None:
            made.append((words, drawn))
    return choice("strips", capitalised(score), made)


def _swarm(places: Sequence[float], radius: float = 4.2) -> tuple[list[tuple[float, float]], float]:
    """Dots at these places, which ascend, moved up and down so that they do not cover each other; the largest move."""
    put: list[tuple[float, float]] = []
    for x in places:
        near = [(px, py) for px, py in put[-60:] if x - px < 2 * radius]
        for n in range(61):
            dy = (n + 1) // 2 * radius * (1 if n % 2 else -1)
            if all((x - px) ** 2 + (dy - py) ** 2 >= (1.9 * radius) ** 2 for px, py in near):
                break
        put.append((x, dy))
    return put, max(abs(dy) for _, dy in put)


class Placed(NamedTuple):
    """A client's update along two directions."""

    name: str
    cluster: int
    x: float
    y: float
    byzantine: bool | None = None


def directions(method: str, clients: Sequence[Placed], name: str = "directions") -> Markup | None:
    """The clients' updates at one point along their two leading directions."""
    there = [one for one in clients if math.isfinite(one.x) and math.isfinite(one.y)]
    if len(there) < 3:
        return None
    wide = max(abs(one.x) for one in there) * 1.06 or 1.0
    high = max(max(abs(one.y) for one in there) * 1.1, 0.3 * wide)
    left, right = 20.0, WIDTH - 20.0
    height = min(380.0, max(220.0, (right - left) * high / wide))
    top, bottom = 14.0, 14.0 + height
    across, up = Scale(-wide, wide, left, right), Scale(-high, high, bottom, top)
    parts: list[object] = [line(left, up(0), right, up(0), "grid"), line(across(0), top, across(0), bottom, "grid")]
    for one in there:
        tooltip = f"{one.name}: {cluster_name(one.cluster)}" + (", Byzantine" if one.byzantine else "")
        x, y = across(one.x), up(one.y)
        if one.byzantine:
            shape = element("path", d=f"M{at(x - 4.5)} {at(y - 4.5)}L{at(x + 4.5)} {at(y + 4.5)}"
                            f"M{at(x - 4.5)} {at(y + 4.5)}L{at(x + 4.5)} {at(y - 4.5)}", class_="cross",
                            data_tip=tooltip)  # fmt: skip
        else:
            shape = element("circle", cx=at(x), cy=at(y), r=4, class_=f"dot {cluster_class(one.cluster)}",
                            data_tip=tooltip)  # fmt: skip
        parts.append(shape)
    clusters = sorted({one.cluster for one in there})
    middles = []
    for j in clusters:
        own = [one for one in there if one.cluster == j and not one.byzantine] or [
            one for one in there if one.cluster == j
        ]
        edge = up(float(np.quantile([one.y for one in own], 0.85)))
        middles.append((j, across(float(np.median([one.x for one in own]))), edge - 12))
    for (j, x, _), y in zip(middles, spread([y for _, _, y in middles], top + 10, bottom), strict=True):
        parts.append(text(min(max(x, left + 30), right - 30), y, cluster_name(j), "middle", "strong halo"))
    bad = sum(bool(one.byzantine) for one in there)
    words = (
        f"The updates of {len(there)} clients at the mean of the final centres in the first trial of {method}, along "
        "the two directions in which they differ most; the colour is the cluster at the end. Updates more than three "
        "times as far from the median as the median client's are drawn nearer, at that distance."
        + (f" A cross is a Byzantine client ({bad})." if bad else "")
    )
    return figure(name, f"Updates along two directions, {method}", bottom + 8, joined(*parts), words)
