"""The paper's experiments as grids: as its authors published them, and as a fair comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from coterie import __version__
from coterie.experiments.results import Row, aggregate
from coterie.experiments.sweep import Grid, parse_grid

Preset = Literal["as-published", "fair"]

SETTINGS = ((2, 80), (5, 200), (10, 400), (15, 600))
"""(k, m) of Figure 1: 40 clients per cluster throughout."""
DIMENSIONS = (20, 50, 100, 200, 500)
METHODS = ("brifca-median", "brifca-trimmed", "ifca", "three-stage", "oracle")

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


def figure1(preset: Preset, trials: int = 50, quick: bool = False) -> Grid:
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
        "attack": {"kind": "paper", "target": "own", "scale": 3.0},
        "run": {"methods": list(METHODS), "trials": trials},
        "settings": [{"problem": {"clusters": k, "clients": m}} for k, m in settings],
    }
    return parse_grid(raw)


def report(rows: Sequence[Row], preset: Preset) -> str:
    """Markdown: the options, and one table of `dist` and matched distance for all cells."""
    table = aggregate(rows, ["problem.clusters", "problem.clients", "problem.dim"])
    options = [
        f"`{section}.{key} = {value}`" for section, keys in PRESETS[preset].items() for key, value in keys.items()
    ]
    trials = sorted({line["trials"] for line in table})
    lines = [
        f"# Figure 1, {preset}",
        "",
        f"`coterie reproduce figure1 --preset {preset} --trials {trials[-1]}`, Coterie {__version__}.",
        f"n = 100, σ² = 0.2, α = β = 0.05. Options: {', '.join(options)}.",
        "Mean ± standard error over the trials; `dist` is the paper's metric, `matched` the one-to-one distance.",
        "",
        "![Figure 1](figure1.png)",
        "",
        "| k | m | d | method | dist | matched | misclustered | x oracle | trials |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for line in table:
        cells = [line["problem.clusters"], line["problem.clients"], line["problem.dim"], line["method"]]
        cells += [_cell(line, metric) for metric in ("dist", "matched_dist", "misclustered", "oracle_ratio")]
        lines.append("| " + " | ".join(str(cell) for cell in [*cells, line["trials"]]) + " |")
    return "\n".join(lines) + "\n"


def _cell(line: Row, metric: str) -> str:
    mean, error = line[metric], line[f"{metric}_se"]
    if mean is None:
        return "-"
    return f"{mean:.4g}" if error is None else f"{mean:.4g} ± {error:.2g}"
