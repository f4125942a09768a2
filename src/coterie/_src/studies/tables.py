"""Real tables with natural clients: is a client better off than alone, and than with one model for all?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie._src.arrays import Floats
from coterie._src.data.known_tables import KNOWN_TABLES
from coterie._src.experiments.methods import OWN
from coterie._src.experiments.results import Row
from coterie._src.experiments.sweep import Grid, parse_grid
from coterie._src.plot import WIDTH, method_colour, new_figure, save, styled
from coterie._src.studies.arena import NO_ATTACK
from coterie._src.studies.markdown import plus_minus, table
from coterie._src.studies.study import Options, Rows, Study, on_cpu_only

NEVER = 1_000_000
"""The round in which an attack begins that is none: the clients that count as Byzantine reply honestly."""
ATTACKS: dict[str, dict[str, Any]] = {
    "no attack": {"kind": "sign-flip", "target": "smallest", "sleep": NEVER},
    "targets x -3": {"kind": "scaled-targets"},
    "noisy targets": {"kind": "noisy-targets"},
    "ALIE": {"kind": "alie", "target": "smallest"},
    "sign flip": {"kind": "sign-flip", "target": "smallest"},
}
"""−3·y (the opposite class), targets with noise of ten deviations (random classes), and two attacks on one cluster.

Scores are means over the clients that are not Byzantine. What an attack costs is therefore measured against the same
bound with the same clients, of which those that count as Byzantine reply honestly (`no attack`)."""
FRACTIONS = (0.1, 0.2)
CLUSTERED = ("coterie", "brifca-median", "ifca", "three-stage")
COUNTED = CLUSTERED[:3]
"""The methods that estimate the number of clusters: all that begin with the robust start."""
REFERENCES = ("global", "local")
CLUSTERS = (1, 2, 3, 5)
QUICK_TABLES, QUICK_CLUSTERS = ("schools-like", "exam", "heart"), (1, 2)
AUTO = "auto"
RECOMMENDED = "coterie" + OWN
"""The method that is compared with all others, with the number of clusters estimated."""
SHOWN = 0.3
"""The range of scores below the best one that a figure shows; a lower score is written at its edge."""

Name = tuple[str, str]
"""A method and its number of clusters: known, "auto", or "" for a method without clusters."""
Scores = dict[Name, dict[str, Floats]]
"""Per method and condition the score of every split, in the order of the splits."""


def grids(data: Path, trials: int, quick: bool = False) -> dict[str, Grid]:
    """One grid per table: no Byzantine clients, and 10 and 20 % of them under each attack.

    Methods with clusters have 1, 2, 3 and 5 of them, and an estimated number. All methods know the Byzantine
    fraction, and 5 % where there are no Byzantine clients. Every method appears with personal models, too.

    data: the folder with the published files; if some of them are there, tables whose files are not are left out.
    quick: three tables, no more than 2 clusters, and 10 % Byzantine clients.
    """
    names: Sequence[str] = QUICK_TABLES if quick else KNOWN_TABLES.names
    if _published(data):
        names = [name for name in names if name in _published(data) or not KNOWN_TABLES[name].files]
    conditions = [{"problem": {"byzantine": 0.0}}]
    for byzantine in FRACTIONS[:1] if quick else FRACTIONS:
        bounds = {"max_byzantine": byzantine, "trim": byzantine}
        for attack in ATTACKS.values():
            conditions.append({"problem": {"byzantine": byzantine}, "attack": attack, "algorithm": bounds})
    counts: list[dict[str, Any]] = [
        {"problem": {"clusters": 1}, "run": {"methods": [*CLUSTERED, *REFERENCES]}},
        *(
            {"problem": {"clusters": k}, "run": {"methods": list(CLUSTERED)}}
            for k in (QUICK_CLUSTERS if quick else CLUSTERS)[1:]
        ),
        {"algorithm": {"clusters": "auto"}, "run": {"methods": list(COUNTED)}},
    ]
    settings = [
        {section: {**one.get(section, {}), **other.get(section, {})} for section in {*one, *other}}
        for one in conditions
        for other in counts
    ]
    return {
        name: parse_grid(
            {
                "problem": {"kind": name, "path": str(data)},
                "algorithm": {"personalise": "shrink"},
                "run": {"trials": trials},
                "settings": settings,
            }
        )
        for name in names
    }


def _published(data: Path) -> list[str]:
    """The tables that have published files, all of which are in this folder."""
    return [
        known.name for known in KNOWN_TABLES if known.files and all((data / file).is_file() for file in known.files)
    ]


def condition_of(row: Row) -> str:
    """The name of a row's attack with the Byzantine fraction."""
    if not row["problem.byzantine"]:
        return NO_ATTACK
    own = row["attack.kind"], row["attack.sleep"]
    name = next(name for name, attack in ATTACKS.items() if (attack["kind"], attack.get("sleep", 0)) == own)
    return f"{name}, {100 * row['problem.byzantine']:.0f} %"


def conditions_of(rows: Sequence[Row]) -> list[str]:
    """The conditions of some rows: nobody Byzantine first, then by fraction and attack."""
    order = [NO_ATTACK, *(f"{name}, {100 * share:.0f} %" for share in FRACTIONS for name in ATTACKS)]
    found = {condition_of(row) for row in rows}
    return [name for name in order if name in found]


def metric_of(name: str) -> tuple[str, str]:
    """The metric of a table, and its name in words."""
    return ("test_auc", "AUC") if KNOWN_TABLES[name].task == "logistic" else ("test_r2", "R²")


def scores_of(rows: Sequence[Row], metric: str) -> Scores:
    """The scores on held-out samples; −∞ for a result that is not a number.

    Only of the splits that all methods have under all conditions: an interrupted run ends within one.
    """
    found: dict[Name, dict[str, dict[int, float]]] = {}
    for row in rows:
        clusters = AUTO if row["algorithm.clusters"] == AUTO else str(row["problem.clusters"])
        name = row["method"], "" if row["method"].removesuffix(OWN) in REFERENCES else clusters
        score: float = math.nan if row[metric] is None else row[metric]
        by_trial = found.setdefault(name, {}).setdefault(condition_of(row), {})
        by_trial[row["trial"]] = score if math.isfinite(score) else -math.inf
    whole = sorted(set.intersection(*(set(own) for conditions in found.values() for own in conditions.values())))
    if not whole:
        raise ValueError("tables: no split has the results of all methods under all conditions; go on with --resume")
    return {
        name: {condition: np.array([own[trial] for trial in whole]) for condition, own in conditions.items()}
        for name, conditions in found.items()
    }


def best_count(scores: Scores, method: str, condition: str) -> Name | None:
    """The number of clusters with which a method has the highest mean score under a condition, if it has any score."""
    own = [name for name in scores if name[0] == method and condition in scores[name]]
    return max(own, key=lambda name: float(scores[name][condition].mean()), default=None)


def difference(one: Floats, other: Floats) -> tuple[float, float | None]:
    """The mean of the paired differences and its standard error.

    >>> difference(np.array([0.5, 1.0]), np.array([0.5, 0.5]))
    (0.25, 0.25)
    """
    each = one - other
    error = float(each.std(ddof=1) / math.sqrt(len(each))) if len(each) > 1 and np.isfinite(each).all() else None
    return float(each.mean()), error


def tables_report(found: Rows) -> str:
    """Markdown: a summary; for every table the scores, those by k, and the recommended method against the best one."""
    lines = ["## Summary", "", *_summary(found), ""]
    for name, rows in found.items():
        metric, words = metric_of(name)
        scores, conditions = scores_of(rows, metric), conditions_of(rows)
        splits = len(scores[RECOMMENDED, AUTO][NO_ATTACK])
        lines += [f"## {name}", "", f"{KNOWN_TABLES[name].origin} {words} on held-out samples, {splits} splits.", ""]
        for share in FRACTIONS:
            attacked = [one for one in conditions if _share(one) == share]
            if attacked:
                lines += [*_scores(scores, [NO_ATTACK, *attacked]), ""]
        lines += ["With each number of clusters, nobody Byzantine:", "", *_by_count(scores), ""]
        lines += [f"{RECOMMENDED} with an estimated number of clusters, and the best other method:", ""]
        lines += [*_against_the_best(scores, conditions), ""]
    return "\n".join(lines)


def _summary(found: Rows) -> list[str]:
    """Per table the recommended method beside the references without Byzantine clients, and what attacks cost it."""
    lines = []
    for name, rows in found.items():
        metric, words = metric_of(name)
        scores, conditions = scores_of(rows, metric), conditions_of(rows)
        own = scores[RECOMMENDED, AUTO]
        worst = []
        for share in FRACTIONS:
            costs = [(_cost(own, one), one) for one in conditions if _share(one) == share and one != _without(one)]
            if costs:
                (mean, error), condition = max(costs)
                worst.append(f"{plus_minus(mean, error, '+.4f', '.4f')} ({condition.split(',')[0]})")
            else:
                worst.append("-")
        shown = [("global", ""), ("local" + OWN, ""), ("coterie", AUTO), (RECOMMENDED, AUTO)]
        cells = [_mean(scores[one][NO_ATTACK]) if one in scores else "-" for one in shown]
        lines.append([f"{name}, {words}", *cells, *worst])
    header = ["table", "global", "local" + OWN, "coterie", RECOMMENDED]
    return table([*header, *(f"costs of the worst attack, {100 * share:.0f} %" for share in FRACTIONS)], lines)


def _share(condition: str) -> float:
    """The Byzantine fraction of a condition."""
    return 0.0 if condition == NO_ATTACK else float(condition.split(", ")[1].removesuffix(" %")) / 100


def _without(condition: str) -> str:
    """The condition in which the clients that count as Byzantine are the same, and reply honestly."""
    return condition if condition == NO_ATTACK else f"no attack, {condition.split(', ')[1]}"


def _cost(own: dict[str, Floats], condition: str) -> tuple[float, float | None]:
    """By how much an attack lowers the score of the same clients."""
    return difference(own[_without(condition)], own[condition])


def _methods(scores: Scores) -> list[str]:
    """The methods in the order of the tables: those with personal models first."""
    order = [*(name + OWN for name in (*CLUSTERED, *REFERENCES)), *CLUSTERED, *REFERENCES]
    return [name for name in order if any(method == name for method, _ in scores)]


def _scores(scores: Scores, conditions: Sequence[str]) -> list[str]:
    """Per method and condition the score with the number of clusters that is best there; the recommended one first."""
    lines = [[f"{RECOMMENDED}, estimated k", *(_mean(scores[RECOMMENDED, AUTO][one]) for one in conditions)]]
    for method in _methods(scores):
        cells = []
        for condition in conditions:
            best = best_count(scores, method, condition)
            count = f" (k = {best[1]})" if best and best[1] else ""
            cells.append(_mean(scores[best][condition]) + count if best else "-")
        lines.append([method, *cells])
    return table(["score, k best", *conditions], lines)


def _mean(values: Floats) -> str:
    if not values.mean() > -10:
        return "diverged"
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
    return plus_minus(float(values.mean()), error)


def _by_count(scores: Scores) -> list[str]:
    counts = sorted({clusters for _, clusters in scores if clusters})  # "auto" comes last
    lines = [
        [method, *(_mean(scores[method, k][NO_ATTACK]) if (method, k) in scores else "-" for k in counts)]
        for method in _methods(scores)
        if any((method, k) in scores for k in counts)
    ]
    return table(["method", *(f"k = {k}" for k in counts)], lines)


def rivals(scores: Scores) -> list[Name]:
    """All but the recommended method itself: other methods with any number of clusters."""
    return [name for name in scores if name[0] != RECOMMENDED]


def _against_the_best(scores: Scores, conditions: Sequence[str]) -> list[str]:
    """Per condition: the best other method and k, the paired difference, and what the Byzantine clients cost."""
    own, lines = scores[RECOMMENDED, AUTO], []
    for condition in conditions:
        best = max(
            (name for name in rivals(scores) if condition in scores[name]),
            key=lambda name: float(scores[name][condition].mean()),
        )
        ahead = difference(own[condition], scores[best][condition])
        cost = _cost(own, condition)
        lines.append(
            [
                condition,
                _mean(own[condition]),
                best[0] + (f", k = {best[1]}" if best[1] else ""),
                plus_minus(*ahead, "+.4f", ".4f"),
                "-" if condition == _without(condition) else plus_minus(*cost, "+.4f", ".4f"),
            ]
        )
    return table(["Byzantine", RECOMMENDED, "best other method", "ahead by", "loses to the attack"], lines)


@styled
def scores_figure(rows: Sequence[Row], name: str, path: str | Path) -> None:
    """The scores of the methods with personal models and of `global` under every condition, with standard errors.

    Each method has the number of clusters that is best for it there, the recommended one the estimated number.
    """
    metric, words = metric_of(name)
    scores, conditions = scores_of(rows, metric), conditions_of(rows)
    methods = [method for method in _methods(scores) if method.endswith(OWN)] + ["global"]
    means: dict[tuple[str, str], Floats] = {}
    for method in methods:
        for condition in conditions:
            shown_as = (RECOMMENDED, AUTO) if method == RECOMMENDED else best_count(scores, method, condition)
            if shown_as:
                means[method, condition] = scores[shown_as][condition]
    top = max(float(values.mean()) for values in means.values())
    floor = max(min(float(values.mean()) for values in means.values()), top - SHOWN) - 0.02
    figure = new_figure(WIDTH, 0.9 + 0.62 * len(conditions))
    axes = figure.subplots()
    for place, method in enumerate(methods):
        colour, marker = method_colour(method.removesuffix(OWN)), "o" if method.endswith(OWN) else "x"
        for line, condition in enumerate(conditions):
            if (method, condition) not in means:
                continue
            values = means[method, condition]
            middle, y = float(values.mean()), line + 0.8 * (place + 0.5) / len(methods) - 0.4
            if middle < floor:
                axes.plot(floor, y, marker="<", color=colour, markersize=5, clip_on=False)
                continue
            error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
            shown = method if line == 0 else None
            axes.errorbar(middle, y, xerr=error, fmt=marker, color=colour, markersize=5, label=shown)
    for line in range(1, len(conditions)):
        axes.axhline(line - 0.5, color="0.9", linewidth=0.8)
    axes.set_yticks(range(len(conditions)), conditions)
    axes.set_ylim(len(conditions) - 0.5, -0.5)
    axes.set_xlim(floor, top + 0.03)
    axes.set_xlabel(f"{words} on held-out samples (mean over the clients)" if words == "R²" else words)
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside right upper", fontsize=11)
    save(figure, path)


def _grids(options: Options) -> dict[str, Grid]:
    if options.data is None:
        raise ValueError("tables: needs --data, the folder with the published files")
    return grids(options.data, options.trials, options.quick)


def _check(options: Options) -> None:
    on_cpu_only(options)
    if options.data is not None and not _published(options.data):
        files = [file for known in KNOWN_TABLES for file in known.files]
        raise ValueError(f"--data: {options.data} must hold the files of at least one table, of {', '.join(files)}")


def _figure(name: str) -> Any:
    def draw(found: Rows, path: Path, options: Options) -> None:
        if name in found:
            scores_figure(found[name], name, path)

    return draw


STUDY = Study(
    name="tables",
    summary="real tables with natural clients, held-out scores; --data: the folder with the published files",
    grids=_grids,
    reports={"tables.md": lambda rows, options: tables_report(rows)},
    figures={f"{name}.png": _figure(name) for name in KNOWN_TABLES.names},
    trials=20,
    quick_trials=2,
    needs_data=True,
    check=_check,
    prints_tables=False,
    together=True,
)
