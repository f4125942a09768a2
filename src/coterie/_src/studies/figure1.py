"""The paper's experiments as grids: as its authors published them, and as a fair comparison."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Literal, NamedTuple

import numpy as np

from coterie import __version__
from coterie._src.experiments.results import Row, aggregate
from coterie._src.experiments.sweep import Grid, parse_grid

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


PUBLISHED: dict[Preset, dict[str, str]] = {
    "as-published": {
        "brifca-median": "brifca_median", "brifca-trimmed": "brifca_trimmed", "ifca": "ifca_mean_over_m",
        "three-stage": "three_stage_published",
    },
    "fair": {},
}  # fmt: skip
"""Which rows of published/grid.csv a method of a preset is to be compared with."""


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


def published(method: str) -> dict[tuple[int, int], tuple[float, float]]:
    """(k, d) -> mean and standard error of `dist` that the authors' code gives for a method of published/grid.csv."""
    return {
        (int(row["k"]), int(row["d"])): (float(row["dist_mean"]), float(row["dist_se"]))
        for row in _published_rows("grid.csv")
        if row["method"] == method
    }


def _published_rows(name: str) -> list[dict[str, str]]:
    text = (files("coterie._src.experiments") / "published" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def report(rows: Sequence[Row], preset: Preset) -> str:
    """Markdown: the options and one table of all cells, beside what the authors' code gives and how long it takes."""
    table = aggregate(rows, ["problem.clusters", "problem.clients", "problem.dim"])
    options = [f"`{name}.{key} = {value}`" for name, keys in PRESETS[preset].items() for key, value in keys.items()]
    trials = sorted({line["trials"] for line in table})
    clocks = {
        (int(r["k"]), int(r["d"]), r["method"]): float(r["seconds_per_round"]) for r in _published_rows("timing.csv")
    }
    theirs = {method: published(name) for method, name in PUBLISHED[preset].items()}
    lines = [
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
        "| k | m | d | method | dist | matched | misclustered | x oracle | trials | authors | z | ms/round | speed |",
        "|" + "---|" * 13,
    ]
    for line in table:
        cell = line["problem.clusters"], line["problem.dim"]
        cells = [cell[0], line["problem.clients"], cell[1], line["method"]]
        cells += [_cell(line, metric) for metric in ("dist", "matched_dist", "misclustered", "oracle_ratio")]
        cells += [line["trials"], *_agreement(line, theirs.get(line["method"], {}).get(cell))]
        cells += _speed(line, clocks.get((*cell, line["method"].replace("-", "_"))))
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _hours(rows: Sequence[Row], preset: Preset) -> str:
    """What the trials took, and what the authors' code would take for the same trials, set-up included."""
    ours = sum(row["seconds"] for row in rows) / 3600
    text = f"All trials together took {ours:.2f} hours of one core"
    if preset != "as-published":
        return text + "."
    done = {(row["problem.clusters"], row["problem.dim"], row["method"].replace("-", "_")): 0 for row in rows}
    for row in rows:
        done[row["problem.clusters"], row["problem.dim"], row["method"].replace("-", "_")] += 1
    theirs = sum(
        done.get((int(clock["k"]), int(clock["d"]), clock["method"]), 0)
        * (float(clock["setup_seconds"]) + 300 * float(clock["seconds_per_round"]))
        for clock in _published_rows("timing.csv")
    )
    return f"{text}; the authors' code would take {theirs / 86400:.1f} days."


def _cell(line: Row, metric: str) -> str:
    mean, error = line[metric], line[f"{metric}_se"]
    if mean is None:
        return "-"
    return f"{mean:.4g}" if error is None else f"{mean:.4g} ± {error:.2g}"


def _agreement(line: Row, theirs: tuple[float, float] | None) -> tuple[str, str]:
    if theirs is None or line["dist"] is None:
        return "-", "-"
    mean, error = theirs
    combined = math.hypot(error, line["dist_se"] or 0.0)
    return f"{mean:.4g} ± {error:.2g}", f"{(line['dist'] - mean) / combined:+.1f}"


def _speed(line: Row, theirs: float | None) -> tuple[str, str]:
    if not line["rounds"] or line["seconds"] is None:
        return "-", "-"
    ours = line["seconds"] / line["rounds"]
    return f"{1000 * ours:.2f}", "-" if theirs is None else f"{theirs / ours:.0f}x"


class Slope(NamedTuple):
    """A sweep along one key whose log-log slope the paper's rates predict.

    key: the key that varies. grid: its configurations. expected: method -> exponent in the rate that the paper
    states after the method's theorem (`theory.theorem1_rate`, `theory.theorem2_rate`). metric: what is fitted.
    """

    name: str
    key: str
    grid: Grid
    expected: dict[str, float]
    metric: str = "matched_dist"

    @property
    def folder(self) -> str:
        """The last word of its name: `gather` of "1/p, liars gather"."""
        return self.name.rsplit(maxsplit=1)[-1]


def slopes(trials: int = 20) -> list[Slope]:
    """Error against n, m, d, k and α from a warm start, one at a time, where one term of the rates dominates.

    Without Byzantine clients the rate of Theorem 1 is √(d/(pmn)) (and 1/n, far smaller here), that of Theorem 2
    is d/√(pmn). With them it is α/√n and αd/(p√n): they send a huge constant, in one cluster of many clients. Last
    they gather on one cluster of k, all with as many clients, so that p is 1/k: there the error of the worst cluster is
    fitted, relative to the oracle's.
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
            "1/p, liars gather", "problem.clusters", gathered, dict(zip(both, (0.0, 1.0), strict=True)), "worst_ratio"
        ),
    ]


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


def slopes_report(found: Sequence[tuple[Slope, Sequence[Row]]]) -> str:
    """Markdown: the measured exponents beside those of the theorems."""
    lines = [
        "| error against | method | measured slope | exponent of the paper's rate | of the oracle |",
        "|---|---|---|---|---|",
    ]
    for slope, rows in found:
        for method, expected in slope.expected.items():
            measured, error = fitted_slope(rows, slope.key, method, slope.metric)
            lied = rows[0]["problem.byzantine"] > 0
            oracle = "-" if lied else f"{fitted_slope(rows, slope.key, 'oracle')[0]:.2f}"
            lines.append(f"| {slope.name} | {method} | {measured:.3f} ± {error:.3f} | {expected:+g} | {oracle} |")
    return "\n".join(lines) + "\n"
