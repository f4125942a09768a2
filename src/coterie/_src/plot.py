"""Pictures of a run."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie._src.experiments import TrialResult
from coterie._src.experiments.results import aggregate
from coterie._src.experiments.summary import METRICS
from coterie._src.studies.arena import Bout
from coterie._src.studies.beyond import lower_bound, worst_by_dimension
from coterie._src.studies.rotated_mnist import ATTACKS, CLUSTERED, REFERENCES, attack_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = {
    "coterie": "tab:orange",
    "brifca-filter": "tab:orange",
    "brifca-no-regret": "tab:olive",
    "brifca-geometric": "tab:cyan",
    "brifca-median": "tab:blue",
    "brifca-trimmed": "tab:green",
    "ifca": "tab:red",
    "three-stage": "tab:purple",
    "global": "tab:brown",
    "local": "tab:gray",
    "oracle": "black",
}
HEADROOM = 30.0
NAMED_CLIENTS = 40
"""More have no room for their names."""
LABELS = {
    "accuracy": "test accuracy",
    "matched_dist": "matched distance to the true centres",
    "movement": "largest movement of a centre",
}


def _leave_out_divergence(axes: Axes) -> None:
    """A method that runs away must not flatten the others: show what is within HEADROOM of the lowest curve."""
    curves = {line: np.asarray(line.get_ydata(), dtype=np.float64) for line in axes.get_lines()}
    heights = np.concatenate([[], *(curve[np.isfinite(curve) & (curve > 0)] for curve in curves.values())])
    if heights.size == 0 or heights.max() <= HEADROOM * heights.min():
        return
    top = HEADROOM * heights.min()
    axes.set_ylim(heights.min() / 1.5, top)
    for line, curve in curves.items():
        if not (curve <= top).any():
            line.set_label(f"{line.get_label()} (off the chart)")


def convergence(trials: Sequence[TrialResult], path: str | Path, title: str = "") -> None:
    """Matched distance by round, mean over trials with a band of one standard error, as PNG (or SVG, PDF).

    Methods without rounds are horizontal lines. Where the truth is unknown: how far the centres still move.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    methods = trials[0].methods
    known = any(not np.isnan(found.metrics["matched_dist"]) for found in methods.values())
    tested = any(found.clusters for found in methods.values())
    metric = "matched_dist" if known else "accuracy" if tested else "movement"
    for name in methods:
        curves = [[row[metric] for row in trial.methods[name].rounds] for trial in trials]
        color = STYLES.get(name)
        if not any(curves):
            final = [trial.methods[name].metrics.get(metric, np.nan) for trial in trials]
            if np.isfinite(final).all():
                axes.axhline(float(np.mean(final)), color=color, linestyle="--", linewidth=1.2, label=name)
            continue
        longest = max(len(curve) for curve in curves)
        # a trial that stopped early stays where it was
        values = np.array([curve + curve[-1:] * (longest - len(curve)) for curve in curves], dtype=np.float64)
        values[~np.isfinite(values)] = np.nan  # a curve ends where a trial is lost
        mean = values.mean(axis=0)
        rounds = np.arange(1, longest + 1)
        axes.plot(rounds, mean, color=color, linewidth=1.6, label=name)
        if len(trials) > 1:
            error = values.std(axis=0, ddof=1) / np.sqrt(len(trials))
            axes.fill_between(
                rounds, np.maximum(mean - error, 1e-12), mean + error, color=color, alpha=0.18, linewidth=0
            )
    if metric != "accuracy":
        axes.set_yscale("log")
    if metric == "matched_dist":  # a movement may well fall to nothing
        _leave_out_divergence(axes)
    axes.set_xlabel("round")
    axes.set_ylabel(LABELS[metric])
    axes.set_title(title, fontsize=10, parse_math=False)
    axes.grid(alpha=0.25, which="both")
    figure.legend(fontsize=9, loc="outside right upper")
    _save(figure, path)


def lines(rows: Sequence[dict[str, Any]], x: str, series: str, y: str, *, path: str | Path, log: bool = False) -> None:
    """Mean of metric `y` against key `x`, one line per value of `series`, error bars of one standard error."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    draw_lines(figure.add_subplot(), rows, x, series, y, log=log)
    figure.legend(fontsize=9, loc="outside right upper")
    _save(figure, path)


def _save(figure: Figure, path: str | Path) -> None:
    with warnings.catch_warnings(action="ignore"):  # a glyph that the font does not have
        figure.savefig(path, dpi=150)


def draw_lines(axes: Axes, rows: Sequence[dict[str, Any]], x: str, series: str, y: str, log: bool = False) -> None:
    """The lines of `lines` in given axes. What is no number along x stands side by side."""
    if y not in METRICS:
        raise ValueError(f"y: must be a metric ({', '.join(METRICS)}), got {y}")
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
        axes.errorbar(
            [point[x] for point in points],
            [point[y] for point in points],
            yerr=[point[f"{y}_se"] or 0.0 for point in points],
            color=STYLES.get(name) if isinstance(name, str) else None,
            marker="o",
            markersize=4,
            capsize=3,
            linewidth=1.4,
            label=str(name),
        )
    if log:
        axes.set_yscale("log")
    if log and numeric:
        axes.set_xscale("log")
        _plain_ticks(axes, sorted({row[x] for row in rows}))
    axes.set_xlabel(x.rsplit(".", maxsplit=1)[-1])
    axes.set_ylabel(LABELS.get(y, y))
    axes.grid(alpha=0.25, which="both")


def _hashable(value: Any) -> Any:
    return str(value) if isinstance(value, list | dict) else value


def _plain_ticks(axes: Axes, values: list[Any]) -> None:
    """The values themselves along a logarithmic axis, where they are few, instead of overlapping powers of ten."""
    if len(values) <= 8:
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.set_xticks([], minor=True)


def figure1(rows: Sequence[dict[str, Any]], path: str | Path, title: str = "") -> None:
    """The paper's Figure 1: dist against d for two settings of k, and against k for the largest d.

    (a) k = 5, (b) k = 10, (c) d = 500, or the largest there are. Error bars are one standard error.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings = sorted({row["problem.clusters"] for row in rows})
    largest = max(row["problem.dim"] for row in rows)
    chosen = [k for k in (5, 10) if k in settings] or settings[-1:]
    panels = [("problem.dim", "problem.clusters", k, f"k = {k}") for k in chosen]
    panels.append(("problem.clusters", "problem.dim", largest, f"d = {largest}"))
    figure = Figure(figsize=(4.2 * len(panels), 4), layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (x, fixed, value, name) in zip(all_axes, panels, strict=True):
        draw_lines(axes, [row for row in rows if row[fixed] == value], x, "method", "dist")
        axes.set_title(name, fontsize=10)
        axes.set_xlabel({"problem.dim": "d", "problem.clusters": "k"}[x])
        axes.set_ylabel("dist")
        top = max((row["dist"] for row in rows if row[fixed] == value and row["method"] != "three-stage"), default=1.0)
        axes.set_ylim(0, min(2.0, 1.3 * max(top, 1.0)))
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=9, loc="outside lower center", ncols=len(labels))
    figure.suptitle(title, fontsize=11, parse_math=False)
    _save(figure, path)


def slopes(sweeps: Sequence[tuple[str, str, Sequence[dict[str, Any]]]], path: str | Path) -> None:
    """A metric against one key each, on logarithmic axes, side by side: the matched distance, or what is named."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(sweeps), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = figure.subplots(1, len(sweeps), squeeze=False)[0]
    for axes, (key, metric, rows) in zip(all_axes, sweeps, strict=True):
        draw_lines(axes, rows, key, "method", metric, log=True)
        distance = metric == "matched_dist"
        name = "matched distance" if distance else "worst cluster, x oracle, liars gather"
        axes.set_ylabel(name if axes is all_axes[0] or not distance else "")
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=9, loc="outside lower center", ncols=len(labels))
    _save(figure, path)


def by_dimension(rows: Sequence[dict[str, Any]], path: str | Path) -> None:
    """The error of each rule under its worst attack against the dimension, beside the lower bound."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    draw_lines(axes, worst_by_dimension(rows), "problem.dim", "method", "matched_dist", log=True)
    dims = sorted({row["problem.dim"] for row in rows})
    axes.plot(dims, [lower_bound(dim) for dim in dims], "k--", linewidth=1.2, label="lower bound")
    axes.set_xlabel("d")
    axes.set_ylabel("distance to the true mean")
    axes.legend(fontsize=8)
    _save(figure, path)


def accuracies(rows: Sequence[dict[str, Any]], path: str | Path) -> None:
    """Test accuracy of every method under every attack, one panel for each number of clients.

    The axis begins 10 to 20 points below the best, where the differences are; what ends lower has its number there.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    named = [{**row, "attack": attack_of(row)} for row in rows]
    settings = sorted({(row["problem.clients"], row["problem.samples"]) for row in named})
    figure = Figure(figsize=(9, 0.8 + 2.4 * len(settings)), layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = figure.subplots(len(settings), 1, squeeze=False, sharex=True)[:, 0]
    attacks = [name for name in ATTACKS if any(row["attack"] == name for row in named)]
    methods = [name for name in (*CLUSTERED, *REFERENCES) if any(row["method"] == name for row in named)]
    floor = max(0.0, 10 * (max(10 * row["accuracy"] for row in named) // 1 - 1))
    for axes, (clients, samples) in zip(all_axes, settings, strict=True):
        table = aggregate(
            [row for row in named if (row["problem.clients"], row["problem.samples"]) == (clients, samples)], ["attack"]
        )
        known = {(line["method"], line["attack"]): line for line in table}
        for place, method in enumerate(methods):
            found = [known.get((method, attack), {}) for attack in attacks]
            heights = [100 * (line.get("accuracy") or 0.0) for line in found]
            errors = [100 * (line.get("accuracy_se") or 0.0) for line in found]
            places = np.arange(len(attacks)) + (place - len(methods) / 2 + 0.5) * 0.8 / len(methods)
            axes.bar(places, heights, 0.8 / len(methods), yerr=errors, color=STYLES.get(method), label=method)
            for x, height in zip(places, heights, strict=True):
                if 0 < height < floor:
                    axes.text(x, floor + 0.3, f"{height:.0f}", ha="center", fontsize=7, color=STYLES.get(method))
        axes.set_ylabel("test accuracy in %")
        axes.set_title(f"m = {clients}, n = {samples}", fontsize=10, loc="left")
        axes.set_ylim(floor, 100)
        axes.grid(alpha=0.25, axis="y")
        axes.set_xticks(
            range(len(attacks)), [fill(attack, 14, break_on_hyphens=False) for attack in attacks], fontsize=8
        )
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=9, loc="outside lower center", ncols=len(labels))
    _save(figure, path)


def audit_map(rows: Sequence[dict[str, Any]], path: str | Path, names: Mapping[str, str] | None = None) -> None:
    """Clients by rounds of a federation: how far out each stood (dark is far); red: refused, white: silent.

    names: of the nodes, where they are known.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    clients, rounds = max(row["client"] for row in rows) + 1, max(row["round"] for row in rows)
    away = np.full((clients, rounds), np.nan)
    refused = []
    for row in rows:
        place = row["client"], row["round"] - 1
        away[place] = np.nan if row["distance"] is None else max(row["distance"], 0.1)
        if row["verdict"] not in ("accepted", "silent"):
            refused.append(place)
    figure = Figure(figsize=(3 + min(9.0, 0.12 * rounds), 1.6 + min(12.0, 0.16 * clients)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    extent = (0.5, rounds + 0.5, clients - 0.5, -0.5)
    drawn = axes.imshow(away, cmap="Blues", norm=LogNorm(0.3, 10.0), aspect="auto", interpolation="none", extent=extent)
    if refused:
        axes.scatter([r + 1 for _, r in refused], [c for c, _ in refused], marker="s", s=6, color="tab:red")
    axes.set_xlabel("round")
    axes.set_ylabel("client")
    known = {row["client"]: (names or {}).get(row["node"], str(row["client"])) for row in rows}
    if clients <= NAMED_CLIENTS:
        axes.set_yticks(range(clients), [known.get(client, "") for client in range(clients)], parse_math=False)
    figure.colorbar(drawn, label="median distances\nfrom the cluster's median")
    _save(figure, path)


def heat_map(bouts: Sequence[Bout], path: str | Path) -> None:
    """Defences by attacks, one panel for each fraction of liars: the ratio to the oracle, and the worst of each row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    panels = [
        [bout for bout in bouts if bout.byzantine == byzantine]
        for byzantine in dict.fromkeys(bout.byzantine for bout in bouts)
    ]
    defences = list(dict.fromkeys(bout.defence for bout in bouts))
    widest = max(len({bout.attack for bout in panel}) for panel in panels)
    figure = Figure(figsize=(3 + 0.55 * (widest + 1), len(panels) * (1.6 + 0.34 * len(defences))), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        attacks = list(dict.fromkeys(bout.attack for bout in panel))
        known = {(bout.defence, bout.attack): bout.ratio for bout in panel}
        table = np.array([[known.get((defence, attack), np.nan) for attack in attacks] for defence in defences])
        table = np.column_stack([table, table.max(axis=1)])
        axes.imshow(np.clip(table, 1.0, 10.0), cmap="YlOrRd", norm=LogNorm(1.0, 10.0), aspect="auto")
        for (i, j), value in np.ndenumerate(table):
            text = (
                "∞" if np.isinf(value) else f"{value:.2f}" if value < 9.995 else f"{value:.0f}" if value < 1e3 else "≫"
            )
            axes.text(j, i, text, ha="center", va="center", fontsize=6.5, color="white" if value > 4 else "black")
        axes.set_xticks(range(len(attacks) + 1), [*attacks, "worst"], rotation=40, ha="right", fontsize=7)
        axes.set_yticks(range(len(defences)), defences, fontsize=8)
        axes.axvline(len(attacks) - 0.5, color="black", linewidth=1.2)
        axes.set_title(f"α = {panel[0].byzantine:g}", fontsize=9, loc="left")
    figure.suptitle("matched distance as a multiple of the oracle's", fontsize=10)
    _save(figure, path)
