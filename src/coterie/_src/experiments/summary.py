"""From trials to means and standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from coterie._src.experiments.trial import TrialResult

METRICS = (
    "dist", "matched_dist", "ari", "misclustered", "oracle_ratio", "worst_ratio", "clusters", "loss", "rounds",
    "seconds", "accuracy", "worst_accuracy",
)  # fmt: skip

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
    names = list(ordered[0].methods) if ordered else []
    return {
        name: {
            metric: statistic([t.methods[name].metrics.get(metric, math.nan) for t in ordered]) for metric in METRICS
        }
        for name in names
    }
