"""Pictures of runs, sweeps and federations, and what the figures of the studies are made of."""

from coterie._src.plot.audit import audit_map
from coterie._src.plot.curves import convergence
from coterie._src.plot.error_bars import draw_lines, lines
from coterie._src.plot.labels import label_ends
from coterie._src.plot.style import WIDTH, method_colour, new_figure, save, styled

__all__ = [
    "WIDTH",
    "audit_map",
    "convergence",
    "draw_lines",
    "label_ends",
    "lines",
    "method_colour",
    "new_figure",
    "save",
    "styled",
]
