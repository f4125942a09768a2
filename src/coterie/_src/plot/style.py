"""What all pictures share: colours, labels, an empty figure, a legend, and how a figure is saved."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.summary import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def method_colour(name: object) -> str | None:
    """The colour of a method in all pictures; None for a name that is none."""
    return METHODS[name].colour if isinstance(name, str) and name in METHODS else None


def metric_label(name: str) -> str:
    """The label of a metric on an axis."""
    return METRICS[name].axis_label if name in METRICS else MOVEMENT if name == "movement" else name


MOVEMENT = "largest movement of a centre"


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
