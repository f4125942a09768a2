"""What all pictures share: sizes, colours, an empty figure, and how a figure is saved."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.summary import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

WIDTH = 9.3
"""The width of a figure in inches: twice that of the column of text it stands in, so it is read at half its size."""
MIN_TICKS, MAX_TICKS = 2, 8
"""The numbers of ticks along a logarithmic axis."""
STYLE: dict[Any, Any] = {
    "font.size": 13.0,
    "axes.titlesize": 13.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "grid.color": "0.5",
    "lines.linewidth": 2.0,
    "lines.markersize": 6.0,
    "legend.frameon": False,
    "savefig.facecolor": "white",
}


def styled(draw: Callable[P, None]) -> Callable[P, None]:
    """A function that draws, in the common style whatever the user's settings are."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> None:
        import matplotlib

        with matplotlib.rc_context(dict(matplotlib.rcParamsDefault) | STYLE):
            draw(*args, **kwargs)

    return drawn


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


def plain_numbers(axes: Axes) -> None:
    """Numbers such as 0.02 instead of powers of ten along a logarithmic axis of heights, whose limits are final.

    An axis that is too short for two of them keeps those of Matplotlib.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    low, high = axes.get_ylim()
    decades = 10.0 ** np.arange(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ([1.0], [1.0, 2.0, 5.0], [1.0, 1.5, 2.0, 3.0, 5.0, 7.0]):
        ticks = np.multiply.outer(decades, steps).ravel()
        ticks = ticks[(ticks >= low) & (ticks <= high)]
        if ticks.size >= MIN_TICKS:
            axes.yaxis.set_major_locator(FixedLocator(ticks[:: -(-ticks.size // MAX_TICKS)]))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
            return


def save(figure: Figure, path: str | Path) -> None:
    """Write the figure as PNG, SVG or PDF, by the suffix of the path."""
    with warnings.catch_warnings(action="ignore"):  # a glyph that the font does not have
        figure.savefig(path, dpi=150)
