"""The grids of the study beyond the paper's experiments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie._src.experiments.sweep import Grid, parse_grid
from coterie._src.studies.arena import ATTACKS
from coterie._src.studies.figure1 import DIMENSIONS, SETTINGS

UNEVEN: dict[str, dict[str, Any]] = {
    "smallest cluster 5 %": {"shares": [[0.05, 0.2, 0.25, 0.25, 0.25]]},
    "n_i from 20 to 500": {"samples": "20..500"},
    "Poisson means": {"kind": "poisson-means"},
}
RULES = ("brifca-median", "brifca-trimmed", "brifca-geometric", "brifca-filter", "brifca-no-regret")
WIDTHS = (20, 50, 100, 200, 500, 1000, 2000, 5000)
STRONGEST = ("constant", "trimmed mean", "ALIE, worst", "noisy ALIE, worst", "Min-Max", "Min-Sum", "mimic")
"""The attacks of the grid over dimensions; of each aggregator and dimension the worst of them is reported."""
BOUNDS = (0.05, 0.1, 0.15, 0.18, 0.2, 0.3)
"""Upper bounds on the Byzantine fraction, which is 0.05; the share of the smallest of the five clusters is 0.19."""
AUTO_SETTINGS = ((2, 80), (3, 120), (5, 200))
AUTO_SHARES = (0.0, 0.05, 0.1, 0.15)
"""Byzantine fractions of the grid in which the bound is estimated, all below 1/(k + 1)."""
ATTACKED_BOUNDS: dict[str, dict[str, Any]] = {
    "paper": {"kind": "paper"},
    "ALIE, smallest": {"kind": "alie", "target": "smallest"},
    "sign flip, smallest": {"kind": "sign-flip", "target": "smallest"},
    "phantom": {"kind": "phantom"},
}
"""The attacks of that grid."""
TABLES: dict[str, dict[str, Any]] = {
    "independent normal": {},
    "correlation 0.5": {"correlation": 0.5},
    "correlation 0.9": {"correlation": 0.9},
    "scales 1.5": {"scales": 1.5},
    "3 factors": {"factors": 3},
    "mean 2": {"mean": 2.0},
    "binary": {"binary": 1.0, "samples": 200},
    "counts and heavy tails": {"counts": 0.5, "heavy": 0.5},
    "means of clients": {"client_means": 1.0},
    "covariances of clients": {"client_covariances": 0.5},
    "all mixed": {
        "correlation": 0.5, "factors": 2, "scales": 1.0, "mean": 1.0, "binary": 0.2, "counts": 0.2, "heavy": 0.2
    },
    "unequal shares, correlation 0.9": {"shares": [[0.1, 0.15, 0.2, 0.25, 0.3]], "correlation": 0.9},
    "spread 0.1": {"spread": 0.1},
    "logistic, mean 1": {"task": "logistic", "samples": 2000, "dim": 20, "mean": 1.0},
    "logistic, correlation 0.5": {"task": "logistic", "samples": 500, "dim": 20, "correlation": 0.5},
    "softmax, correlation 0.5": {"task": "softmax", "classes": 3, "samples": 300, "dim": 10, "correlation": 0.5},
}  # fmt: skip
"""Families of features, in the form of a grid: what differs from the problem `tabular` as it is by default."""
UNKNOWN_TABLES: dict[str, dict[str, Any]] = {
    **TABLES,
    "4 centres, 0.35 apart": {"clusters": 4, "separation": 0.35},
    "n = 20": {"samples": 20},
    "one cluster, correlation 0.9": {"clusters": 1, "correlation": 0.9},
    "one cluster, means of clients": {"clusters": 1, "client_means": 1.0},
}
"""The families of the grid in which k is estimated."""
ATTACKED_TABLES = ("correlation 0.9", "means of clients", "all mixed", "logistic, correlation 0.5")
"""The families that all attacks of the arena are tried on."""
TILTED: tuple[dict[str, Any], ...] = (
    {"clusters": 5, "clients": 200, "dim": 20, "byzantine": 0.05},
    {"clusters": 5, "clients": 200, "dim": 20, "byzantine": 0.1},
    {"clusters": 3, "clients": 60, "dim": 20, "byzantine": 0.23},
    {"clusters": 10, "clients": 400, "dim": 20, "byzantine": 0.05},
    {"clusters": 5, "clients": 200, "dim": 50, "byzantine": 0.05},
    {"clusters": 15, "clients": 600, "dim": 100, "byzantine": 0.05},
)
"""The cells in which the adversary searches."""
SEARCHES = ("tilt", "tilt, error", "search")
ONE_CLUSTER = {"clients": 500, "samples": 1, "byzantine": 0.2, "noise_variance": 0.2}


def grids(trials: int, quick: bool = False) -> dict[str, Grid]:
    """The grids of the study.

    paper: the paper's grid and attack. honest: the same without Byzantine clients. attacked: every attack of the
    arena. uneven: clusters of unequal size, clients with unequal numbers of samples, counts. bound: an upper bound
    on the Byzantine fraction that is too large. unknown: k is estimated, under the paper's attack and under
    `phantom`. bound_auto: bounds that are estimated, beside the true ones. tables: features that look like real
    tables, with and without Byzantine clients. tables_unknown: the same where k is estimated, and clusters that are
    harder to count. tables_attacked: some of them under every attack. dimension: one cluster in 20 to 5,000
    dimensions. tilt: adversaries that search, a bound that is too small, and clients of very different size.
    unknown, tables_unknown and dimension have a fifth of the trials, tables_attacked, bound_auto and tilt a tenth.

    quick: d ≤ 100, k ≤ 5, and d ≤ 500 in the grid over dimensions.
    """
    settings = [{"problem": {"clusters": k, "clients": m}} for k, m in SETTINGS if not quick or k <= 5]
    dims = [d for d in DIMENSIONS if not quick or d <= 100]

    def grid(trials: int, problem: dict[str, Any], settings: Sequence[dict[str, Any]], **sections: Any) -> Grid:
        methods = {"methods": ["coterie"], "trials": trials}
        return parse_grid({"problem": {"dim": dims, **problem}, "run": methods, "settings": list(settings), **sections})

    few = max(2, trials // 5)

    def tables(trials: int, families: dict[str, dict[str, Any]], **sections: Any) -> Grid:
        settings = [{"problem": {"dim": 50, **family}} for family in families.values()]
        return grid(trials, {"kind": "tabular", "byzantine": [0.05, 0.0]}, settings, **sections)

    each = [{**cell, "attack": attack} for cell in settings for attack in ATTACKS.values()]
    one_cluster = {
        "kind": "gaussian-means",
        "clusters": 1,
        **ONE_CLUSTER,
        "dim": [d for d in WIDTHS if not quick or d <= 500],
    }
    searched = [
        {"problem": cell, "algorithm": {"max_byzantine": cell["byzantine"]}, "attack": ATTACKS[name]}
        for cell in TILTED
        if not quick or cell["clients"] <= 60
        for name in SEARCHES
    ]
    too_small = {
        "problem": {"clusters": 5, "clients": 200, "dim": 50},
        "algorithm": {"max_byzantine": 0.02},
        "attack": ATTACKS["sign flip"],
    }
    sizes = {"problem": {"clusters": 5, "clients": 200, "dim": 20, "byzantine": 0.0, "samples": "10..2000"}}
    return {
        "paper": grid(trials, {}, settings),
        "honest": grid(trials, {"byzantine": 0.0}, settings),
        "attacked": grid(trials, {}, each),
        "uneven": grid(trials, {}, [{"problem": problem} for problem in UNEVEN.values()]),
        "bound": grid(
            trials,
            {"clusters": 5, "clients": 200, "dim": [20, 100]},
            [{"attack": ATTACKS[name]} for name in ("paper", "noisy ALIE, worst")],
            algorithm={"max_byzantine": list(BOUNDS)},
        ),
        "bound_auto": grid(
            max(2, trials // 10),
            {"dim": 20},
            [
                {
                    "problem": {"clusters": k, "clients": m, "byzantine": share},
                    "attack": ATTACKED_BOUNDS[name],
                    "algorithm": {"max_byzantine": ["auto", share]},
                }
                for k, m in AUTO_SETTINGS[: 1 if quick else None]
                for share in AUTO_SHARES
                for name in (ATTACKED_BOUNDS if share else ["paper"])
            ],
        ),
        "unknown": grid(
            few,
            {"dim": [d for d in dims if d <= 200]},
            [{**cell, "attack": {"kind": kind}} for cell in settings[:3] for kind in ("paper", "phantom")],
            algorithm={"clusters": "auto"},
        ),
        "tables": tables(trials, TABLES),
        "tables_unknown": tables(few, UNKNOWN_TABLES, algorithm={"clusters": "auto"}),
        "tables_attacked": grid(
            max(2, trials // 10),
            {"kind": "tabular", "dim": 50},
            [
                {"problem": {**TABLES[family]}, "attack": attack}
                for family in ATTACKED_TABLES
                for attack in ATTACKS.values()
            ],
        ),
        "tilt": grid(max(2, trials // 10), {"dim": 20}, [*searched, too_small, sizes]),
        "dimension": parse_grid(
            {
                "problem": one_cluster,
                # a step of ½ on ‖θ − z‖² leads from any point to the aggregate of the clients' means
                "algorithm": {"step": 0.5, "rounds": 1, "max_byzantine": 0.2, "trim": 0.2},
                "run": {"methods": list(RULES), "trials": few},
                "settings": [{"attack": {**ATTACKS[name], "target": "own"}} for name in STRONGEST],
            }
        ),
    }
