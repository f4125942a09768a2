"""The error by round of all methods of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coterie._src.experiments import TrialResult
from coterie._src.experiments.methods import OWN
from coterie._src.plot.labels import label_ends
from coterie._src.plot.style import WIDTH, method_colour, metric_label, new_figure, plain_numbers, save, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEADROOM = 30.0
"""A curve is shown up to this multiple of the lowest value."""


def _leave_out_divergence(axes: Axes) -> None:
    """Limit the axis to HEADROOM times the lowest value, so that a method that diverges does not flatten the others."""
    curves = [np.asarray(line.get_ydata(), dtype=np.float64) for line in axes.get_lines()]
    heights = np.concatenate([[], *(curve[np.isfinite(curve) & (curve > 0)] for curve in curves)])
    if heights.size == 0 or heights.max() <= HEADROOM * heights.min():
        return
    axes.set_ylim(heights.min() / 1.5, HEADROOM * heights.min())


@styled
def convergence(trials: Sequence[TrialResult], path: str | Path, title: str = "") -> None:
    """Matched distance by round, mean over trials with a band of one standard error, as PNG (or SVG, PDF).

    A dot marks the last round of a method. Methods without rounds are horizontal lines. Where the truth is unknown: the
    mean loss at the clients' models or, where that is not known, how far the centres still move.
    """
    figure = new_figure(WIDTH, 5.2)
    axes = figure.add_subplot()
    methods = trials[0].methods
    known = any(not np.isnan(found.metrics["matched_dist"]) for found in methods.values())
    tested = any(found.clusters for found in methods.values())
    has_loss = any("loss" in row for found in methods.values() for row in found.rounds)
    metric = "matched_dist" if known else "accuracy" if tested else "loss" if has_loss else "movement"
    for name in methods:
        if metric == "loss" and name.endswith(OWN):  # the rounds are those of the method without personal models
            continue
        curves = [[row.get(metric, np.nan) for row in trial.methods[name].rounds] for trial in trials]
        color = method_colour(name)
        if not any(curves):
            final = [trial.methods[name].metrics.get(metric, np.nan) for trial in trials]
            if np.isfinite(final).all():
                axes.axhline(float(np.mean(final)), color=color, linestyle="--", label=name)
            continue
        longest = max(len(curve) for curve in curves)
        # a trial that stopped early stays where it was
        values = np.array([curve + curve[-1:] * (longest - len(curve)) for curve in curves], dtype=np.float64)
        values[~np.isfinite(values)] = np.nan  # a curve ends where a trial is lost
        mean = values.mean(axis=0)
        rounds = np.arange(1, longest + 1)
        axes.plot(rounds, mean, color=color, label=name, marker="o", markevery=[-1])
        if len(trials) > 1:
            error = values.std(axis=0, ddof=1) / np.sqrt(len(trials))
            axes.fill_between(
                rounds, np.maximum(mean - error, 1e-12), mean + error, color=color, alpha=0.13, linewidth=0
            )
    if metric != "accuracy":
        axes.set_yscale("log")
    if metric in ("matched_dist", "loss"):  # a movement may well fall to nothing
        _leave_out_divergence(axes)
        plain_numbers(axes)
    axes.set_xlabel("round")
    axes.set_ylabel(metric_label(metric))
    axes.set_title(title, parse_math=False)
    label_ends(axes)
    save(figure, path)
