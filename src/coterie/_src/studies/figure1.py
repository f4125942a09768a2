"""Figure 1 of the paper: as its authors published it, and as a fair comparison."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie import __version__
from coterie._src.experiments.results import Row, aggregate
from coterie._src.experiments.sweep import Grid, parse_grid
from coterie._src.plot import WIDTH, draw_lines, label_ends, new_figure, save, styled
from coterie._src.studies.markdown import mean_of, plus_minus, table
from coterie._src.studies.published import COMPARED_WITH, published_distances, seconds_per_round, seconds_per_trial
from coterie._src.studies.study import OUT, Preset, Study

SETTINGS = ((2, 80), (5, 200), (10, 400), (15, 600))
"""(k, m) of Figure 1: 40 clients per cluster throughout."""
DIMENSIONS = (20, 50, 100, 200, 500)
METHODS = ("brifca-median", "brifca-trimmed", "ifca", "three-stage", "oracle")
METRICS = ("dist", "matched_dist", "misclustered", "oracle_ratio")
HEADER = (
    "k", "m", "d", "method", "dist", "matched", "misclustered", "x oracle", "trials", "authors", "z", "ms/round",
    "speed",
)  # fmt: skip

PRESETS: dict[Preset, dict[str, dict[str, Any]]] = {
    # What the authors' code does, each difference to `fair` by name. Its loop of 300 epochs makes 299 updates.
    "as-published": {
        "algorithm": {
            "step": 0.01, "rounds": 299, "init": "bernoulli", "empty": "random-client", "ifca_divisor": "all",
        },
        "three_stage": {"first": "truth", "erm": "float32-inverse", "project": "unit-sphere", "iterations": 100},
    },
    # The same start and step rule for all, the cluster's own mean, a stable local minimiser, no truth.
    "fair": {
        "algorithm": {"step": "auto", "rounds": 300, "init": "bernoulli", "empty": "keep", "ifca_divisor": "cluster"},
        "three_stage": {"first": "k-means++", "erm": "stable", "project": "same", "iterations": 100},
    },
}  # fmt: skip


def figure1(preset: Preset, trials: int = 50, quick: bool = False, device: str = "cpu") -> Grid:
    """The grid behind Figure 1: 4 settings of (k, m) by 5 dimensions; n = 100, σ² = 0.2, α = β = 0.05.

    quick: d ≤ 100 and k ≤ 10.
    """
    settings = [(k, m) for k, m in SETTINGS if not quick or k <= 10]
    raw: dict[str, Any] = {
        "problem": {
            "kind": "mixed-regression",
            "samples": 100,
            "noise_variance": 0.2,
            "byzantine": 0.05,
            "dim": [d for d in DIMENSIONS if not quick or d <= 100],
        },
        "algorithm": {"trim": 0.05, **PRESETS[preset]["algorithm"]},
        "three_stage": dict(PRESETS[preset]["three_stage"]),
        "attack": {"kind": "paper", "target": "own"},
        "run": {"methods": list(METHODS), "trials": trials} | ({} if device == "cpu" else {"device": device}),
        "settings": [{"problem": {"clusters": k, "clients": m}} for k, m in settings],
    }
    return parse_grid(raw)


def figure1_report(rows: Sequence[Row], preset: Preset) -> str:
    """Markdown: the options and one table of all cells, beside what the authors' code gives and how long it takes."""
    cells = aggregate(rows, ["problem.clusters", "problem.clients", "problem.dim"])
    options = [f"`{name}.{key} = {value}`" for name, keys in PRESETS[preset].items() for key, value in keys.items()]
    trials = sorted({line["trials"] for line in cells})
    clocks = seconds_per_round()
    theirs = {method: published_distances(name) for method, name in COMPARED_WITH[preset].items()}
    lines = []
    for line in cells:
        cell = line["problem.clusters"], line["problem.dim"]
        method = line["method"]
        lines.append(
            [
                cell[0],
                line["problem.clients"],
                cell[1],
                method,
                *(mean_of(line, name, ".4g", ".2g") for name in METRICS),
                line["trials"],
                *_agreement(line, theirs.get(method, {}).get(cell)),
                *_speed(line, clocks.get((*cell, method.replace("-", "_")))),
            ]
        )
    text = [
        f"# Figure 1, {preset}",
        "",
        f"`coterie reproduce figure1 --preset {preset} --trials {trials[-1]}`, Coterie {__version__}.",
        f"n = 100, σ² = 0.2, α = β = 0.05. Options: {', '.join(options)}.",
        "",
        "Mean ± standard error over the trials. `dist` is the paper's metric, `matched` the one-to-one distance;",
        "`authors` is the `dist` of their code and `z` the difference in combined standard errors; `speed` is their",
        "seconds per round over ours.",
        _hours(rows, preset),
        "",
        "![Figure 1](figure1.png)",
        "",
        *table(HEADER, lines),
    ]
    return "\n".join(text) + "\n"


def _hours(rows: Sequence[Row], preset: Preset) -> str:
    """How long the trials took, and how long the authors' code would take for them."""
    ours = sum(row["seconds"] for row in rows) / 3600
    text = f"All trials together took {ours:.2f} hours of one core"
    if preset != "as-published":
        return text + "."
    done = Counter((row["problem.clusters"], row["problem.dim"], row["method"].replace("-", "_")) for row in rows)
    theirs = sum(done[cell] * seconds for cell, seconds in seconds_per_trial().items())
    return f"{text}; the authors' code would take {theirs / 86400:.1f} days."


def _agreement(line: Row, theirs: tuple[float, float] | None) -> tuple[str, str]:
    if theirs is None or line["dist"] is None:
        return "-", "-"
    mean, error = theirs
    combined = math.hypot(error, line["dist_se"] or 0.0)
    return plus_minus(mean, error, ".4g", ".2g"), f"{(line['dist'] - mean) / combined:+.1f}"


def _speed(line: Row, theirs: float | None) -> tuple[str, str]:
    if not line["rounds"] or line["seconds"] is None:
        return "-", "-"
    ours = line["seconds"] / line["rounds"]
    return f"{1000 * ours:.2f}", "-" if theirs is None else f"{theirs / ours:.0f}x"


@styled
def draw_figure1(rows: Sequence[Row], path: str | Path, title: str = "") -> None:
    """The paper's Figure 1: dist against d for two settings of k, and against k for the largest d.

    (a) k = 5, (b) k = 10, (c) d = 500, or the largest there are. Error bars are one standard error.
    """
    settings = sorted({row["problem.clusters"] for row in rows})
    largest = max(row["problem.dim"] for row in rows)
    chosen = [k for k in (5, 10) if k in settings] or settings[-1:]
    panels = [("problem.dim", "problem.clusters", k, f"k = {k}") for k in chosen]
    panels.append(("problem.clusters", "problem.dim", largest, f"d = {largest}"))
    figure = new_figure(WIDTH, 4.4)
    all_axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (x, fixed, value, name) in zip(all_axes, panels, strict=True):
        draw_lines(axes, [row for row in rows if row[fixed] == value], x, "method", "dist")
        axes.set_title(name)
        axes.set_xlabel({"problem.dim": "d", "problem.clusters": "k"}[x])
        axes.set_ylabel("dist" if axes is all_axes[0] else "")
    shown = [row["dist"] for row in rows if row["method"] != "three-stage"]
    all_axes[0].set_ylim(0, min(2.0, 1.3 * max(*shown, 1.0)))
    label_ends(all_axes[-1])
    figure.suptitle(title, fontsize="medium", parse_math=False)
    save(figure, path)


STUDY = Study(
    name="figure1",
    summary="Figure 1 (a), (b), (c) of the paper, with --preset: 20 cells, 50 trials, half an hour on two cores",
    grids=lambda options: {OUT: figure1(options.preset, options.trials, options.quick, options.device)},
    reports={"report.md": lambda rows, options: figure1_report(rows[OUT], options.preset)},
    figures={"figure1.png": lambda rows, path, options: draw_figure1(rows[OUT], path, options.preset)},
    quick_trials=5,
)
