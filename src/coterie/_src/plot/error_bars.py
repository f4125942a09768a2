"""A metric of a sweep against a key, with error bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie._src.experiments.results import aggregate
from coterie._src.experiments.summary import METRICS
from coterie._src.plot.labels import label_ends
from coterie._src.plot.style import WIDTH, method_colour, metric_label, new_figure, plain_numbers, save, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@styled
def lines(rows: Sequence[dict[str, Any]], x: str, series: str, y: str, *, path: str | Path, log: bool = False) -> None:
    """Mean of metric `y` against key `x`, one line per value of `series`, error bars of one standard error."""
    figure = new_figure(WIDTH, 5.2)
    axes = figure.add_subplot()
    draw_lines(axes, rows, x, series, y, log=log)
    label_ends(axes)
    save(figure, path)


def draw_lines(axes: Axes, rows: Sequence[dict[str, Any]], x: str, series: str, y: str, log: bool = False) -> None:
    """The lines of `lines` in given axes. What is no number along x stands side by side."""
    if y not in METRICS.names:
        raise ValueError(f"y: must be a metric ({', '.join(METRICS.names)}), got {y}")
    rows = [{**row, series: _hashable(row.get(series)), x: _hashable(row.get(x))} for row in rows]
    numeric = all(isinstance(row[x], int | float) for row in rows)
    if not numeric:
        rows = [{**row, x: str(row[x])} for row in rows]
    table = aggregate(rows, list(dict.fromkeys([series, x])))
    if all(line[y] is None for line in table):
        raise ValueError(f"y: {y} has no finite mean in these results")
    for name in dict.fromkeys(line[series] for line in table):
        points = [
            line for line in aggregate([r for r in rows if r[series] == name], [x, series]) if line[y] is not None
        ]
        drawn = axes.errorbar(
            [point[x] for point in points],
            [point[y] for point in points],
            yerr=[point[f"{y}_se"] or 0.0 for point in points],
            color=method_colour(name),
            marker="o",
            capsize=3,
        )
        drawn.lines[0].set_label(str(name))
    if log:
        axes.set_yscale("log")
        plain_numbers(axes)
    if log and numeric:
        axes.set_xscale("log")
        _plain_ticks(axes, sorted({row[x] for row in rows}))
    axes.set_xlabel(x.rsplit(".", maxsplit=1)[-1])
    axes.set_ylabel(metric_label(y))


def _hashable(value: Any) -> Any:
    return str(value) if isinstance(value, list | dict) else value


def _plain_ticks(axes: Axes, values: list[Any]) -> None:
    """The values themselves along a logarithmic axis, where they are few, instead of overlapping powers of ten."""
    if len(values) <= 8:
        axes.set_xticks(values, [f"{value:g}" for value in values], fontsize="medium" if len(values) < 5 else "small")
        axes.set_xticks([], minor=True)
