"""The exponents of the paper's error rates, measured: one sweep for each of n, m, d, k, α and 1/p."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie._src.experiments.results import Row, aggregate
from coterie._src.experiments.sweep import Grid, parse_grid
from coterie._src.plot import WIDTH, draw_lines, label_ends, new_figure, save, styled
from coterie._src.studies.markdown import plus_minus, table
from coterie._src.studies.study import Options, Rows, Study, on_cpu_only


class Slope(NamedTuple):
    """A sweep along one key whose log-log slope the paper's rates predict.

    key: the key that varies. grid: its configurations. expected: method -> exponent in the rate that the paper
    states after the method's theorem (`theory.theorem1_rate`, `theory.theorem2_rate`). metric: what is fitted.
    title: as the table has it, where that is not the name.
    """

    name: str
    key: str
    grid: Grid
    expected: dict[str, float]
    metric: str = "matched_dist"
    title: str = ""


def slopes(trials: int = 20) -> list[Slope]:
    """Error against n, m, d, k and α from a warm start, one at a time, where one term of the rates dominates.

    Without Byzantine clients the rate of Theorem 1 is √(d/(pmn)) (and 1/n, far smaller here), that of Theorem 2
    is d/√(pmn). With them it is α/√n and αd/(p√n): they send a huge constant, in one cluster of many clients. In the
    last sweep all of them choose one of k clusters of the same size, so that p is 1/k; there the error of the worst
    cluster is fitted, relative to the oracle's.
    """

    def along(key: str, values: list[Any], settings: list[dict[str, Any]] | None = None, **changes: Any) -> Grid:
        problem: dict[str, Any] = {"clusters": 2, "clients": 80, "samples": 200, "dim": 20, "byzantine": 0.0}
        raw: dict[str, Any] = {
            **({} if settings is None else {"settings": [{"problem": table} for table in settings]}),
            "problem": {**problem, **changes, **({key: values} if values else {})},
            "algorithm": {"init": "warm", "rounds": 60, "trim": 0.25},
            "attack": {"kind": "constant", "target": "smallest", "scale": 100.0},
            "run": {"methods": ["brifca-median", "brifca-trimmed", "oracle"], "trials": trials},
        }
        return parse_grid(raw)

    both = ("brifca-median", "brifca-trimmed")
    one: dict[str, Any] = {"clusters": 1, "clients": 2000, "samples": 100, "dim": 10}
    shared = [{"clusters": k, "clients": 1000 * k} for k in (2, 4, 8)]
    gathered = along("clusters", [], shared, byzantine=0.03, samples=100)
    return [
        Slope("n", "problem.samples", along("samples", [50, 100, 200, 400, 800]), dict.fromkeys(both, -0.5)),
        Slope("m", "problem.clients", along("clients", [40, 80, 160, 320, 640]), dict.fromkeys(both, -0.5)),
        Slope("d", "problem.dim", along("dim", [10, 20, 40, 80]), dict(zip(both, (0.5, 1.0), strict=True))),
        Slope("k", "problem.clusters", along("clusters", [2, 4, 8], clients=320), dict.fromkeys(both, 0.5)),
        Slope("alpha", "problem.byzantine", along("byzantine", [0.05, 0.1, 0.2], **one), dict.fromkeys(both, 1.0)),
        Slope(
            "gather", "problem.clusters", gathered, dict(zip(both, (0.0, 1.0), strict=True)), "worst_ratio",
            title="1/p, Byzantine clients on one cluster",
        ),
    ]  # fmt: skip


def fitted_slope(rows: Sequence[Row], key: str, method: str, metric: str = "matched_dist") -> tuple[float, float]:
    """The least-squares slope of log mean error against log key, and its standard error.

    The error of a mean is propagated: each point has variance (se/mean)² on the log scale.
    """
    lines = [line for line in aggregate(rows, [key]) if line["method"] == method]
    points = [line for line in lines if line[metric] is not None and line[f"{metric}_se"] is not None]
    if len(points) < 2:
        raise ValueError(f"{method}: a slope needs at least two points with a standard error, got {len(points)}")
    x = np.log([point[key] for point in points])
    y = np.log([point[metric] for point in points])
    spread = np.array([point[f"{metric}_se"] / point[metric] for point in points])
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    return float(weights @ y), float(np.sqrt((weights**2 * spread**2).sum()))


def slopes_report(rows: Rows, trials: int) -> str:
    """Markdown: the measured exponents beside those of the theorems, for the sweeps that have results."""
    lines = []
    for slope in slopes(trials):
        for method, expected in slope.expected.items() if slope.name in rows else ():
            own = rows[slope.name]
            measured, error = fitted_slope(own, slope.key, method, slope.metric)
            attacked = own[0]["problem.byzantine"] > 0
            oracle = "-" if attacked else f"{fitted_slope(own, slope.key, 'oracle')[0]:.2f}"
            title = slope.title or slope.name
            lines.append([title, method, plus_minus(measured, error), f"{expected:+g}", oracle])
    header = ["error against", "method", "measured slope", "exponent of the paper's rate", "of the oracle"]
    return "\n".join(table(header, lines)) + "\n"


PANELS = 3
"""In a row of the figure."""


@styled
def draw_slopes(rows: Rows, path: Path, trials: int) -> None:
    """A metric against one key for each sweep, on logarithmic axes, three panels in a row."""
    sweeps = [slope for slope in slopes(trials) if slope.name in rows]
    height = -(-len(sweeps) // PANELS)
    figure = new_figure(WIDTH, 3.2 * height)
    all_axes = figure.subplots(height, PANELS, squeeze=False).ravel()
    for axes in all_axes[len(sweeps) :]:
        axes.remove()
    for place, (axes, slope) in enumerate(zip(all_axes, sweeps, strict=False)):
        draw_lines(axes, rows[slope.name], slope.key, "method", slope.metric, log=True)
        distance = slope.metric == "matched_dist"
        name = "matched distance" if distance else "attacked cluster, x oracle"
        axes.set_ylabel(name if place % PANELS == 0 or not distance else "")
        if place % PANELS == PANELS - 1 or place == len(sweeps) - 1:
            label_ends(axes)
    save(figure, path)


def _check(options: Options) -> None:
    on_cpu_only(options)
    if options.trials < 2:
        raise ValueError("--trials: must be at least 2 for a slope with a standard error, got 1")


STUDY = Study(
    name="slopes",
    summary="the exponents of Theorems 1 and 2 in n, m, d, k and alpha, measured from a warm start",
    grids=lambda options: {slope.name: slope.grid for slope in slopes(options.trials)},
    reports={"report.md": lambda rows, options: slopes_report(rows, options.trials)},
    figures={"slopes.png": lambda rows, path, options: draw_slopes(rows, path, options.trials)},
    quick_trials=5,
    check=_check,
)
