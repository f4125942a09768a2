"""Pictures of runs, sweeps and federations, and what the figures of the studies are made of."""

from coterie._src.plot.audit import audit_map
from coterie._src.plot.curves import convergence
from coterie._src.plot.error_bars import draw_lines, lines
from coterie._src.plot.style import common_legend, method_colour, new_figure, save

__all__ = [
    "audit_map",
    "common_legend",
    "convergence",
    "draw_lines",
    "lines",
    "method_colour",
    "new_figure",
    "save",
]
