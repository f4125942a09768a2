"""The names of lines beside their ends, instead of a legend that the eye must look up."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

LINE_HEIGHT = 1.25
"""The distance of two labels, in heights of a letter."""


def spread(positions: NDArray[np.float64], gap: float) -> NDArray[np.float64]:
    """The nearest positions, in the sense of least squares, that are in the same order and at least `gap` apart."""
    order = np.argsort(positions, kind="stable")
    room = gap * np.arange(positions.size)
    moved = np.empty_like(positions, dtype=np.float64)
    moved[order] = isotonic_regression(positions[order] - room).x + room
    return moved


def label_ends(axes: Axes) -> None:
    """Write the label of every line beside its last visible point, in its colour; labels do not overlap.

    To be called when all is drawn and the limits of the axes are final. A line without a visible point is named in the
    upper right corner. Labels that begin with an underscore are none, as in a legend.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    with warnings.catch_warnings(action="ignore"):  # a glyph that the font does not have
        figure.draw_without_rendering()  # the layout, on which distances depend
    pixels_per_point = figure.dpi / 72
    lines = {line: str(line.get_label()) for line in axes.get_lines() if not str(line.get_label()).startswith("_")}
    ends = {line: end for line in lines if (end := visible_end(axes, line)) is not None}
    size = float(axes.xaxis.label.get_fontsize())
    gap = LINE_HEIGHT * size * pixels_per_point
    groups = columns(ends, width=axes.bbox.width / 4)
    for group in groups:
        above = 0.0 if group is groups[-1] else 0.8 * gap  # within the axes, where another line may go on to the right
        heights = spread(np.array([ends[line].y + above for line in group]), gap)
        for line, height in zip(group, heights, strict=True):
            axes.annotate(
                lines[line],
                ends[line].point,
                xycoords=line.get_transform(),
                xytext=(7, float(height - ends[line].y) / pixels_per_point),
                textcoords="offset points",
                color=line.get_color(),
                va="center",
                fontsize=size,
                parse_math=False,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
            )
    if hidden := [name for line, name in lines.items() if line not in ends]:
        text = "off the chart: " + ", ".join(hidden)
        axes.text(0.99, 0.98, text, transform=axes.transAxes, ha="right", va="top", color="0.35", parse_math=False)


class End(NamedTuple):
    """The end of a line: the point in the line's own coordinates, and in pixels."""

    point: tuple[float, float]
    x: float
    y: float


def visible_end(axes: Axes, line: Line2D) -> End | None:
    """The last point of a line that is finite and within the heights of the axes."""
    given = np.column_stack([np.asarray(values, dtype=np.float64) for values in line.get_data(orig=False)])
    points = np.asarray(line.get_transform().transform(given))
    box = axes.bbox
    inside = np.isfinite(points).all(axis=1) & (points[:, 1] >= box.y0 - 1) & (points[:, 1] <= box.y1 + 1)
    if not inside.any():
        return None
    last = np.flatnonzero(inside)[-1]
    return End((float(given[last, 0]), float(given[last, 1])), float(points[last, 0]), float(points[last, 1]))


def columns(ends: dict[Line2D, End], width: float) -> list[list[Line2D]]:
    """The lines in groups whose ends are within `width` of their neighbour's along x."""
    groups: list[list[Line2D]] = []
    last = -np.inf
    for line in sorted(ends, key=lambda line: ends[line].x):
        if ends[line].x - last > width:
            groups.append([])
        groups[-1].append(line)
        last = ends[line].x
    return groups
