"""The paper's claims about its experiments, as questions to results: one small grid and one table for each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from coterie._src.experiments.results import Row, aggregate
from coterie._src.experiments.summary import share
from coterie._src.experiments.sweep import Grid, parse_grid
from coterie._src.studies.figure1 import METHODS, PUBLISHED, Preset, figure1, published

RIDGES = (0.0, 0.01, 0.1, 1.0)
RIDGE_TRIALS = 20
"""At most: the ridge's effect is large, and ten starts of k-means++ are slow."""
WARM_DIMENSIONS = (100, 500)
CELL = ["problem.clusters", "problem.clients", "problem.dim"]
COMPARED = METHODS[:4]
"""The methods of Figure 1."""


Means = dict[tuple[Any, ...], tuple[float, float]]
"""(k, d, method, …) -> mean and standard error of a metric."""


class Results(NamedTuple):
    """The rows that the tables are made of; see `questions` for the last three."""

    as_published: Sequence[Row]
    fair: Sequence[Row]
    divisor: Sequence[Row]
    ridge: Sequence[Row]
    warm: Sequence[Row]
    many: Sequence[Row] = ()  # lines of a summary with more trials of the as-published cells, if there is one


def questions(trials: int, device: str = "cpu") -> dict[str, Grid]:
    """What the two presets leave open, one change at a time; `ridge` is always the CPU's.

    divisor: as published, but the IFCA baseline divides by the cluster's own size. ridge: Three-Stage at d = n = 100
    with a ridge in its local minimisers, else fair. warm: fair, but from a start near the truth.
    """

    def changed(preset: Preset, dims: list[int], methods: list[str], device: str, **algorithm: Any) -> Grid:
        raw = dict(figure1(preset, trials, device=device).raw)
        raw["problem"] = {**raw["problem"], "dim": dims}
        raw["algorithm"] = {**raw["algorithm"], **algorithm}
        raw["run"] = {**raw["run"], "methods": methods}
        if "ridge" in algorithm:
            raw["run"]["trials"] = min(trials, RIDGE_TRIALS)
        return parse_grid(raw)

    dims = figure1("fair", 1).raw["problem"]["dim"]
    descents = ["brifca-median", "brifca-trimmed", "ifca", "oracle"]
    return {
        "divisor": changed("as-published", dims, ["ifca"], device, ifca_divisor="cluster"),
        "ridge": changed("fair", [100], ["three-stage"], "cpu", ridge=list(RIDGES)),
        "warm": changed("fair", list(WARM_DIMENSIONS), descents, device, init="warm"),
    }


def check_complete(rows: Sequence[Row], preset: Preset, place: object) -> None:
    """Every cell and method of a preset must be there."""
    there = {(row["problem.clusters"], row["problem.dim"], row["method"]) for row in rows}
    for config in figure1(preset, 1).configs:
        problem: Any = config.problem
        for method in METHODS:
            if (problem.clusters, problem.dim, method) not in there:
                raise ValueError(
                    f"{place}: has no {method} at k={problem.clusters}, d={problem.dim}; "
                    f"`coterie reproduce figure1 --preset {preset} --out {place}` makes it"
                )


def claims_report(found: Results) -> str:
    """Markdown: one table per claim."""
    parts = {
        "Every cell": _cells(found),
        "Agreement with the authors' code": _agreement(_means(found.as_published)),
        **({"Agreement with more trials": _agreement(_summary_means(found.many))} if found.many else {}),
        "IFCA and its divisor": _divisor(found),
        "Three-Stage": _three_stage(found),
        "How often a random start fails": _collapses(found),
        "From a warm start": _warm(found.warm),
    }
    return "\n".join(f"## {title}\n\n{table}" for title, table in parts.items())


def _cells(found: Results) -> str:
    """dist of all methods, as published and fair."""
    published_, fair = _means(found.as_published), _means(found.fair)
    head = ["k", "d", *(f"{m}, as published" for m in COMPARED), *(f"{m}, fair" for m in COMPARED), "oracle"]
    lines = [
        [k, d, *(_pm(published_[k, d, m]) for m in COMPARED), *(_pm(fair[k, d, m]) for m in COMPARED),
         _pm(fair[k, d, "oracle"])]
        for k, d in _cells_of(fair)
    ]  # fmt: skip
    return _table(head, lines)


def _agreement(ours: Means) -> str:
    """(ours − theirs) in combined standard errors, and in per cent where the published ERM is rounding error."""
    theirs = {method: published(name) for method, name in PUBLISHED["as-published"].items()}
    lines = []
    for k, d in _cells_of(ours):
        if (k, d) not in theirs["ifca"]:
            continue
        line: list[Any] = [k, d]
        for method in COMPARED:
            (mean, error), (their_mean, their_error) = ours[k, d, method], theirs[method][k, d]
            z = (mean - their_mean) / math.hypot(error, their_error)
            relative = f" ({100 * (mean / their_mean - 1):+.0f} %)" if method == "three-stage" and d >= 100 else ""
            line.append(f"{z:+.1f}{relative}")
        lines.append(line)
    return _table(["k", "d", *COMPARED], lines)


def _divisor(found: Results) -> str:
    ours, mended = _means(found.as_published), _means(found.divisor)
    head = ["k", "d", "ifca over all m", "ifca over the cluster", "brifca-median", "brifca-trimmed", "share explained"]
    lines = []
    for k, d in _cells_of(mended):
        wrong, right = ours[k, d, "ifca"][0], mended[k, d, "ifca"][0]
        best = min(ours[k, d, "brifca-median"][0], ours[k, d, "brifca-trimmed"][0])
        cells = [ours[k, d, "ifca"], mended[k, d, "ifca"], ours[k, d, "brifca-median"], ours[k, d, "brifca-trimmed"]]
        lines.append([k, d, *map(_pm, cells), f"{100 * (wrong - right) / (wrong - best):.0f} %"])
    return _table(head, lines)


def _three_stage(found: Results) -> str:
    ours, fair = _means(found.as_published), _means(found.fair)
    with_ridge = _means(found.ridge, "algorithm.ridge")
    head = ["k", "d", "as published", "fair", *(f"fair, ridge {r:g}" for r in RIDGES[1:]), "best of algorithm 1, fair"]
    lines = []
    for k, d in _cells_of(fair):
        best = min(fair[k, d, "brifca-median"], fair[k, d, "brifca-trimmed"])
        ridged = [_pm(with_ridge[k, d, "three-stage", r]) if d == 100 else "" for r in RIDGES[1:]]
        lines.append([k, d, _pm(ours[k, d, "three-stage"]), _pm(fair[k, d, "three-stage"]), *ridged, _pm(best)])
    return _table(head, lines)


def _collapses(found: Results) -> str:
    """Per cent of trials in which more than one honest client in a hundred ends outside the best matching.

    With Wilson's interval of 95 %.
    """
    head = ["k", "d"]
    columns = []
    for name, rows in (("as published", found.as_published), ("fair", found.fair)):
        for method in COMPARED[:2]:
            head += [f"{method}, {name}: failed", "dist", "matched"]
            columns.append((method, _share_failed(rows), _means(rows), _means(rows, metric="matched_dist")))
    lines = []
    for k, d in _cells_of(_means(found.fair)):
        line: list[Any] = [k, d]
        for method, failed, dist, matched in columns:
            cell = (k, d, method)
            part, low, high = (100 * value for value in failed[cell])
            line += [f"{part:.0f} % ({low:.0f} to {high:.0f})", f"{dist[cell][0]:.3f}", f"{matched[cell][0]:.3f}"]
        lines.append(line)
    return _table(head, lines)


def _share_failed(rows: Sequence[Row]) -> dict[tuple[Any, ...], tuple[float, float, float]]:
    groups: dict[tuple[Any, ...], list[bool]] = {}
    for row in rows:
        cell = (row["problem.clusters"], row["problem.dim"], row["method"])
        groups.setdefault(cell, []).append(row["misclustered"] > 0.01)
    return {cell: share(sum(failed), len(failed)) for cell, failed in groups.items()}


def _warm(rows: Sequence[Row]) -> str:
    """matched distance over the oracle's, trial by trial."""
    ratios = _means(rows, metric="oracle_ratio")
    distances = _means(rows, metric="matched_dist")
    methods = COMPARED[:3]
    head = ["k", "d", *(f"{method}, x oracle" for method in methods), *methods, "oracle"]
    lines = [
        [k, d, *(_pm(ratios[k, d, m]) for m in methods), *(_pm(distances[k, d, m]) for m in (*methods, "oracle"))]
        for k, d in sorted(_cells_of(ratios), key=lambda cell: cell[::-1])
    ]
    return _table(head, lines)


def _means(rows: Sequence[Row], *keys: str, metric: str = "dist") -> Means:
    """(k, d, method, *keys) -> mean and standard error."""
    return {
        (line["problem.clusters"], line["problem.dim"], line["method"], *(line[key] for key in keys)): (
            line[metric],
            line[f"{metric}_se"] or 0.0,
        )
        for line in aggregate(rows, [*CELL, *keys])
    }


def _summary_means(lines: Sequence[Row]) -> Means:
    """The same of the lines of a summary.csv."""
    return {
        (int(line["problem.clusters"]), int(line["problem.dim"]), line["method"]): (
            float(line["dist"]),
            float(line["dist_se"]),
        )
        for line in lines
    }


def _cells_of(means: Means) -> list[tuple[int, int]]:
    return sorted({(cell[0], cell[1]) for cell in means})


def _pm(value: tuple[float, float]) -> str:
    return f"{value[0]:.3f} ± {value[1]:.3f}"


def _table(head: Iterable[str], lines: Iterable[Sequence[Any]]) -> str:
    titles = list(head)
    rows = ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]
    return "\n".join(["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles), *rows]) + "\n"
