"""From trials to means and standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coterie._src.experiments.config import Config
from coterie._src.experiments.outcome import TrialResult
from coterie._src.experiments.problems import ClientTables
from coterie._src.metrics import Metrics
from coterie._src.registry import Registry


@dataclass(frozen=True)
class Metric:
    """A metric by its name.

    heading: of its column in tables; empty: it has none. digits: after the point. label: on an axis, if not the name.
    repeatable: whether the same run gives it again.
    """

    name: str
    summary: str
    heading: str = ""
    digits: int = 3
    label: str = ""
    repeatable: bool = True

    @property
    def axis_label(self) -> str:
        return self.label or self.name


METRICS: Registry[Metric] = Registry(
    "metric",
    [
        Metric("dist", "mean distance of an estimate to the nearest true centre, as in the paper's code", "dist"),
        Metric(
            "matched_dist",
            "mean distance of true centres and estimates that are matched one to one",
            "matched dist",
            label="matched distance to the true centres",
        ),
        Metric("accuracy", "test accuracy, mean over the honest clients", "accuracy", label="test accuracy"),
        Metric("worst_accuracy", "test accuracy of the worst cluster", "worst cluster"),
        Metric("ari", "adjusted Rand index of the honest clients' clusters", "ARI"),
        Metric("misclustered", "fraction of honest clients outside the best matching of clusters"),
        Metric("oracle_ratio", "matched distance relative to the oracle's", "x oracle", 2),
        Metric("worst_ratio", "the same in the cluster where it is worst"),
        Metric("clusters", "number of clusters"),
        Metric("loss", "mean loss of the honest clients at their cluster's model", "loss", label="mean loss"),
        Metric("test_loss", "loss on held-out samples, mean over the honest clients", "test loss"),
        Metric("test_r2", "R² on held-out samples, mean over the honest clients", "test R²"),
        Metric("test_worst_r2", "the same over the worst tenth of the clients", "worst tenth"),
        Metric("test_accuracy", "accuracy on held-out samples, mean over the honest clients", "test accuracy"),
        Metric("test_worst_accuracy", "the same over the worst tenth of the clients", "worst tenth"),
        Metric("test_auc", "area under the ROC curve of all held-out samples", "AUC"),
        Metric("rounds", "rounds until the end", "rounds", 0),
        Metric("seconds", "seconds of one core", "seconds", 2, repeatable=False),
    ],
)

Statistic = dict[str, float | int | None]
Summary = dict[str, dict[str, Statistic]]


def statistic(values: Sequence[float]) -> Statistic:
    """Mean and standard error s/√n over the trials; null where it is not defined (a value that is not finite, or
    the standard error of one trial)."""
    count = len(values)
    if count == 0 or not np.isfinite(values).all():
        return {"mean": None, "se": None, "trials": count}
    with np.errstate(over="ignore"):  # values near the largest float: their mean or spread is not a number, either
        found = float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(count)) if count > 1 else np.inf
    mean, error = (value if np.isfinite(value) else None for value in found)
    return {"mean": mean, "se": error, "trials": count}


def share(hits: int, trials: int) -> tuple[float, float, float]:
    """hits/trials, and Wilson's interval of 95 % confidence around it.

    >>> [round(value, 3) for value in share(10, 10)]
    [1.0, 0.722, 1.0]
    """
    part, z = hits / trials, 1.959964
    middle = (part + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * math.sqrt(part * (1 - part) / trials + z**2 / (4 * trials**2))
    return part, max(0.0, middle - half), min(1.0, middle + half)


def summarise(trials: Sequence[TrialResult]) -> Summary:
    """{method: {metric: {mean, se, trials}}} in the order of the methods."""
    ordered = sorted(trials, key=lambda trial: trial.trial)
    found: dict[str, list[Metrics]] = {}
    for trial in ordered:
        for name, result in trial.methods.items():
            found.setdefault(name, []).append(result.metrics)
    return {
        name: {metric: statistic([metrics.get(metric, math.nan) for metrics in own]) for metric in METRICS.names}
        for name, own in found.items()
    }


def run_title(config: Config, clusters: Sequence[float]) -> str:
    """One line about a run; clusters: how many a method that estimates k found, in each trial."""
    problem = config.problem
    if problem.has_truth:
        return f"{problem.title()}, {config.attack.kind} attack on {config.attack.target}"
    counts = sorted({int(count) for count in clusters if math.isfinite(count)})
    if config.algorithm.clusters == "known" or not counts or not isinstance(problem, ClientTables):
        return problem.title()
    return problem.title(f"{counts[0]} found" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} found")
