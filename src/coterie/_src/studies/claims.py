"""The paper's claims about its experiments: one table for each, and three small grids beside those of Figure 1."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coterie._src.experiments.database import Database
from coterie._src.experiments.results import Row, aggregate
from coterie._src.experiments.summary import share
from coterie._src.experiments.sweep import Grid, parse_grid
from coterie._src.studies.figure1 import METHODS, figure1
from coterie._src.studies.markdown import plus_minus, table
from coterie._src.studies.published import COMPARED_WITH, published_distances
from coterie._src.studies.study import Options, Preset, Rows, Study

RIDGES = (0.0, 0.01, 0.1, 1.0)
RIDGE_TRIALS = 20
"""At most so many: the effect of the ridge is large, and ten starts of k-means++ are slow."""
WARM_DIMENSIONS = (100, 500)
CELL = ["problem.clusters", "problem.clients", "problem.dim"]
COMPARED = METHODS[:4]
"""The methods of Figure 1."""
Means = dict[tuple[Any, ...], tuple[float, float]]
"""(k, d, method, …) -> mean and standard error of a metric."""


class Results(NamedTuple):
    """The rows that the tables are made of; see `grids` for the last three."""

    as_published: Sequence[Row]
    fair: Sequence[Row]
    divisor: Sequence[Row]
    ridge: Sequence[Row]
    warm: Sequence[Row]
    many: Sequence[Row] = ()  # lines of a summary with more trials of the as-published cells, if there is one


def grids(trials: int, device: str = "cpu") -> dict[str, Grid]:
    """Variants of the two presets of Figure 1, with one change each; `ridge` always runs on the CPU.

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


def preset_rows(folder: Path, preset: Preset) -> list[Row]:
    """The results of a preset of Figure 1; ValueError where a cell or a method is missing."""
    rows = Database(folder).rows()
    there = {(row["problem.clusters"], row["problem.dim"], row["method"]) for row in rows}
    for config in figure1(preset, 1).configs:
        problem: Any = config.problem
        for method in METHODS:
            if (problem.clusters, problem.dim, method) not in there:
                raise ValueError(
                    f"{folder}: has no {method} at k={problem.clusters}, d={problem.dim}; "
                    f"`coterie reproduce figure1 --preset {preset} --out {folder}` makes it"
                )
    return rows


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
    return "\n".join(f"## {title}\n\n" + "\n".join(lines) + "\n" for title, lines in parts.items())


def _cells(found: Results) -> list[str]:
    """dist of all methods, as published and fair."""
    published_, fair = _means(found.as_published), _means(found.fair)
    head = ["k", "d", *(f"{m}, as published" for m in COMPARED), *(f"{m}, fair" for m in COMPARED), "oracle"]
    lines = [
        [k, d, *(plus_minus(*published_[k, d, m]) for m in COMPARED), *(plus_minus(*fair[k, d, m]) for m in COMPARED),
         plus_minus(*fair[k, d, "oracle"])]
        for k, d in _cells_of(fair)
    ]  # fmt: skip
    return table(head, lines)


def _agreement(ours: Means) -> list[str]:
    """(ours − theirs) in combined standard errors, and in per cent where the published ERM is rounding error."""
    theirs = {method: published_distances(name) for method, name in COMPARED_WITH["as-published"].items()}
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
    return table(["k", "d", *COMPARED], lines)


def _divisor(found: Results) -> list[str]:
    ours, mended = _means(found.as_published), _means(found.divisor)
    head = ["k", "d", "ifca over all m", "ifca over the cluster", "brifca-median", "brifca-trimmed", "share explained"]
    lines = []
    for k, d in _cells_of(mended):
        wrong, right = ours[k, d, "ifca"][0], mended[k, d, "ifca"][0]
        best = min(ours[k, d, "brifca-median"][0], ours[k, d, "brifca-trimmed"][0])
        cells = [ours[k, d, "ifca"], mended[k, d, "ifca"], ours[k, d, "brifca-median"], ours[k, d, "brifca-trimmed"]]
        lines.append([k, d, *(plus_minus(*cell) for cell in cells), f"{100 * (wrong - right) / (wrong - best):.0f} %"])
    return table(head, lines)


def _three_stage(found: Results) -> list[str]:
    ours, fair = _means(found.as_published), _means(found.fair)
    with_ridge = _means(found.ridge, "algorithm.ridge")
    head = ["k", "d", "as published", "fair", *(f"fair, ridge {r:g}" for r in RIDGES[1:]), "best of algorithm 1, fair"]
    lines = []
    for k, d in _cells_of(fair):
        best = min(fair[k, d, "brifca-median"], fair[k, d, "brifca-trimmed"])
        ridged = [plus_minus(*with_ridge[k, d, "three-stage", r]) if d == 100 else "" for r in RIDGES[1:]]
        lines.append(
            [
                k,
                d,
                plus_minus(*ours[k, d, "three-stage"]),
                plus_minus(*fair[k, d, "three-stage"]),
                *ridged,
                plus_minus(*best),
            ]
        )
    return table(head, lines)


def _collapses(found: Results) -> list[str]:
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
    return table(head, lines)


def _share_failed(rows: Sequence[Row]) -> dict[tuple[Any, ...], tuple[float, float, float]]:
    groups: dict[tuple[Any, ...], list[bool]] = {}
    for row in rows:
        cell = (row["problem.clusters"], row["problem.dim"], row["method"])
        groups.setdefault(cell, []).append(row["misclustered"] > 0.01)
    return {cell: share(sum(failed), len(failed)) for cell, failed in groups.items()}


def _warm(rows: Sequence[Row]) -> list[str]:
    """matched distance over the oracle's, trial by trial."""
    ratios = _means(rows, metric="oracle_ratio")
    distances = _means(rows, metric="matched_dist")
    methods = COMPARED[:3]
    head = ["k", "d", *(f"{method}, x oracle" for method in methods), *methods, "oracle"]
    lines = [
        [
            k,
            d,
            *(plus_minus(*ratios[k, d, m]) for m in methods),
            *(plus_minus(*distances[k, d, m]) for m in (*methods, "oracle")),
        ]
        for k, d in sorted(_cells_of(ratios), key=lambda cell: cell[::-1])
    ]
    return table(head, lines)


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


def claims_of(rows: Rows, folder: Path) -> str:
    """The report from the results of the three grids, and from those of Figure 1 in the same folder.

    Where there is `many/summary.csv`, it has one more table.
    """
    summary = folder / "many" / "summary.csv"
    many = list(csv.DictReader(summary.read_text(encoding="utf-8").splitlines())) if summary.is_file() else []
    presets = preset_rows(folder / "as-published", "as-published"), preset_rows(folder / "fair", "fair")
    return claims_report(Results(*presets, rows["divisor"], rows["ridge"], rows["warm"], many))


def _folder(options: Options) -> Path:
    if options.out is None:
        raise ValueError("claims: needs --out, the folder that holds as-published/ and fair/")
    return options.out


def _check(options: Options) -> None:
    if options.seed is not None:
        raise ValueError("--seed: claims reads results of figure1 with seed 0, and has that seed, too")
    preset_rows(_folder(options) / "as-published", "as-published")
    preset_rows(_folder(options) / "fair", "fair")


STUDY = Study(
    name="claims",
    summary="the paper's claims, from both presets of figure1 in OUT/as-published and OUT/fair and three small grids",
    grids=lambda options: grids(options.trials, options.device),
    reports={"claims.md": lambda rows, options: claims_of(rows, _folder(options))},
    trials=20,
    check=_check,
    always_resumes=True,
)
