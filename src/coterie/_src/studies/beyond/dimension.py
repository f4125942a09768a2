"""One cluster in 20 to 5,000 dimensions: the table and the figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie._src.experiments.results import Row, aggregate
from coterie._src.plot import WIDTH, draw_lines, label_ends, new_figure, save, styled
from coterie._src.studies.beyond.grids import ONE_CLUSTER, RULES
from coterie._src.studies.markdown import mean_of, or_infinite, plus_minus, table
from coterie._src.studies.slopes import fitted_slope


def worst_by_dimension(rows: Sequence[Row]) -> list[Row]:
    """The rows of the attack with the largest error, for every aggregator and dimension."""
    means = aggregate(rows, ["problem.dim", "attack.kind"])
    worst: dict[tuple[Any, Any], Row] = {}
    for line in means:
        place = line["method"], line["problem.dim"]
        if place not in worst or or_infinite(line["matched_dist"]) > or_infinite(worst[place]["matched_dist"]):
            worst[place] = line
    return [row for row in rows if row["attack.kind"] == worst[row["method"], row["problem.dim"]]["attack.kind"]]


def lower_bound(dim: float) -> float:
    """σ √(α/n + d/(mn)): the lower bound of the error, up to a constant, where only a covariance is known."""
    return math.sqrt(
        ONE_CLUSTER["noise_variance"]
        * (ONE_CLUSTER["byzantine"] + dim / ONE_CLUSTER["clients"])
        / ONE_CLUSTER["samples"]
    )


def dimension_table(rows: Sequence[Row]) -> list[str]:
    """Per dimension the error of each aggregator under its worst attack, and the slopes."""
    worst = worst_by_dimension(rows)
    means = aggregate(worst, ["problem.dim"])
    lines = []
    for dim in dict.fromkeys(line["problem.dim"] for line in means):
        own = {line["method"]: line for line in means if line["problem.dim"] == dim}
        cells = [mean_of(own[rule], "matched_dist", ".4f") for rule in RULES]
        lines.append([dim, *cells, f"{lower_bound(dim):.4f}"])
    slopes = ["slope"]
    slopes += [plus_minus(*fitted_slope(worst, "problem.dim", rule)) for rule in RULES]
    low, high = min(row["problem.dim"] for row in rows), max(row["problem.dim"] for row in rows)
    bound = math.log(lower_bound(high) / lower_bound(low)) / math.log(high / low)
    return table(["d", *RULES, "lower bound"], [*lines, [*slopes, f"{bound:.3f}"]])


@styled
def by_dimension(rows: Sequence[Row], path: str | Path) -> None:
    """The error of each aggregator under its worst attack against the dimension, beside the lower bound."""
    figure = new_figure(WIDTH, 5.2)
    axes = figure.subplots()
    draw_lines(axes, worst_by_dimension(rows), "problem.dim", "method", "matched_dist", log=True)
    dims = sorted({row["problem.dim"] for row in rows})
    axes.plot(dims, [lower_bound(dim) for dim in dims], "k--", label="lower bound")
    axes.set_xlabel("d")
    axes.set_ylabel("distance to the true mean")
    label_ends(axes)
    save(figure, path)
