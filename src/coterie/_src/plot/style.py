"""What all pictures share: colours, labels, an empty figure, a legend, and how a figure is saved."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METHOD_COLOURS = {
    "coterie": "tab:orange",
    "brifca-filter": "tab:orange",
    "brifca-no-regret": "tab:olive",
    "brifca-geometric": "tab:cyan",
    "brifca-median": "tab:blue",
    "brifca-trimmed": "tab:green",
    "ifca": "tab:red",
    "three-stage": "tab:purple",
    "global": "tab:brown",
    "local": "tab:gray",
    "oracle": "black",
}
"""The colour of a method in all pictures."""
METRIC_LABELS = {
    "accuracy": "test accuracy",
    "matched_dist": "matched distance to the true centres",
    "movement": "largest movement of a centre",
}
"""Metrics whose label on an axis is not their name."""


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, which needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def common_legend(figure: Figure, axes: Axes) -> None:
    """One legend below all panels, with the lines of one of them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=9, loc="outside lower center", ncols=len(labels))


def save(figure: Figure, path: str | Path) -> None:
    """Write the figure as PNG, SVG or PDF, by the suffix of the path."""
    with warnings.catch_warnings(action="ignore"):  # a glyph that the font does not have
        figure.savefig(path, dpi=150)
