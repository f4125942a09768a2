"""Every defence against every attack: which one to use when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from coterie import __version__
from coterie._src.data.synthetic import byzantine_count
from coterie._src.experiments.results import Row, aggregate
from coterie._src.experiments.sweep import Grid, parse_grid
from coterie._src.theory import smallest_share, worst_contamination

METHODS: dict[str, tuple[str, ...]] = {
    "nothing": (
        "coterie", "brifca-filter", "brifca-no-regret", "brifca-median", "brifca-trimmed", "brifca-geometric",
        "brifca-krum", "brifca-clipping", "ifca", "three-stage",
    ),
    "mixing": ("brifca-trimmed",),
    "bucketing": ("brifca-geometric",),
}  # fmt: skip
"""By the step before the rule. All but Three-Stage begin at a robust start of the same kind, so that a difference is
one of rules; the steps before are shown with the rules that their authors like best."""

ATTACKS: dict[str, dict[str, Any]] = {
    "paper": {"kind": "paper"},
    "poisoned data": {"kind": "none"},
    "garbage": {"kind": "garbage"},
    "huge noise": {"kind": "gaussian", "target": "smallest", "scale": 1e4},
    "label flip": {"kind": "label-flip", "target": "smallest"},
    "sign flip": {"kind": "sign-flip", "target": "smallest"},
    "constant": {"kind": "constant", "target": "smallest"},
    "trimmed mean": {"kind": "trimmed-mean", "target": "smallest"},
    "ALIE": {"kind": "alie", "target": "smallest"},
    "ALIE, worst": {"kind": "alie", "target": "smallest", "scale": "worst"},
    "disguised, worst": {"kind": "disguised", "target": "smallest", "scale": "worst"},
    "IPM": {"kind": "ipm", "target": "smallest"},
    "IPM, worst": {"kind": "ipm", "target": "smallest", "scale": "worst"},
    "Min-Max": {"kind": "min-max", "target": "smallest"},
    "Min-Sum": {"kind": "min-sum", "target": "smallest"},
    "mimic": {"kind": "mimic", "target": "smallest"},
    "hopping": {"kind": "sign-flip", "target": "hop"},
    "merge": {"kind": "merge", "target": "smallest"},
    "merge, worst": {"kind": "merge", "target": "smallest", "scale": "worst"},
    "cross-mimic": {"kind": "cross-mimic", "target": "smallest"},
    "seed capture": {"kind": "seed-capture"},
    "empty cluster": {"kind": "sign-flip", "target": "emptiest"},
    "phantom": {"kind": "phantom"},
    "sleeper": {"kind": "sign-flip", "target": "smallest", "sleep": 10},
}
"""A name for every attack; those that gather stand on one cluster all together."""


class Field(NamedTuple):
    """The problem that the arena is played on."""

    clusters: int
    clients: int
    dim: int
    byzantine: tuple[float, ...]


FULL = Field(5, 200, 100, (0.0, 0.05, 0.1, 0.16))
QUICK = Field(3, 60, 20, (0.05, 0.23))
"""α < 1/(k + 1), up to 32 liars beside 33 honest clients, and 14 beside 15: with more the liars outnumber the honest
clients of a cluster they gather on."""


def arena(trials: int, quick: bool = False) -> Grid:
    """The grid of all attacks and fractions; every rule is told the bound that the fraction gives."""
    field = QUICK if quick else FULL
    settings = []
    for byzantine in field.byzantine:
        liars = byzantine_count(field.clients, byzantine)
        honest = smallest_share(field.clients, field.clusters, byzantine, None)
        worst = worst_contamination(liars / field.clients, honest)
        bounds = {"most_byzantine": byzantine, "trim": math.ceil(min(worst, 0.499) * 1e4) / 1e4}
        for attack in ATTACKS.values() if byzantine else [ATTACKS["paper"]]:
            for before, methods in METHODS.items():
                settings.append(
                    {
                        "attack": attack,
                        "problem": {"byzantine": byzantine},
                        "algorithm": {**bounds, "before": before},
                        "run": {"methods": list(methods)},
                    }
                )
    return parse_grid(
        {
            "problem": {"clusters": field.clusters, "clients": field.clients, "dim": field.dim},
            "algorithm": {"init": "spectral", "rounds": 40 if quick else 100, "ridge": 0.1},
            "run": {"trials": trials},
            "settings": settings,
        }
    )


def attack_name(row: Row) -> str:
    """The name under which the arena knows the attack of a result."""
    if not row["problem.byzantine"]:
        return "nobody lies"
    own = {"kind": row["attack.kind"], "target": row["attack.target"], "scale": row["attack.scale"]}
    defaults = {"target": "own", "scale": "auto", "sleep": 0}
    for name, attack in ATTACKS.items():
        if {**defaults, **attack} == {**own, "sleep": row["attack.sleep"]}:
            return name
    raise ValueError(f"attack: {own} is not one of the arena's")


def defence_name(before: str, method: str) -> str:
    """A method, and what comes before its rule.

    >>> defence_name("mixing", "brifca-trimmed")
    'mixing + brifca-trimmed'
    """
    return method if before == "nothing" else f"{before} + {method}"


class Bout(NamedTuple):
    """One defence against one attack, over the trials; infinite where it diverged."""

    byzantine: float
    attack: str
    defence: str
    ratio: float  # mean matched distance as a multiple of the oracle's
    error: float  # its standard error
    worst: float  # the same in the worst cluster


def bouts(rows: Sequence[Row]) -> list[Bout]:
    """What a sweep of the arena gave, in the order of the attacks and defences."""
    named = [{**row, "attack": attack_name(row)} for row in rows]
    table = aggregate(named, ["problem.byzantine", "attack", "algorithm.before"])
    found = [
        Bout(
            line["problem.byzantine"],
            line["attack"],
            defence_name(line["algorithm.before"], line["method"]),
            _finite(line["oracle_ratio"]),
            line["oracle_ratio_se"] or 0.0,
            _finite(line["worst_ratio"]),
        )
        for line in table
    ]
    order = ["nobody lies", *ATTACKS]
    defences = [defence_name(before, method) for before, methods in METHODS.items() for method in methods]
    return sorted(found, key=lambda b: (b.byzantine, order.index(b.attack), defences.index(b.defence)))


def _finite(value: float | None) -> float:
    return math.inf if value is None else value


def report(rows: Sequence[Row], command: str) -> str:
    """Markdown: a table for each fraction, the worst case of every defence, and what to use when."""
    found = bouts(rows)
    trials = 1 + max(row["trial"] for row in rows)
    first = rows[0]
    lines = [
        "# The arena",
        "",
        f"`{command}`, Coterie {__version__}: k = {first['problem.clusters']}, m = {first['problem.clients']}, "
        f"n = {first['problem.samples']}, d = {first['problem.dim']}, {trials} trials.",
        "",
        "The matched distance as a multiple of the oracle's (mean over the trials); `worst` is the largest over the",
        "attacks, and `its cluster` the mean there of the cluster that fares worst.",
        "",
        "![Heat map](arena.png)",
        "",
    ]
    for byzantine in dict.fromkeys(bout.byzantine for bout in found):
        here = [bout for bout in found if bout.byzantine == byzantine]
        attacks = list(dict.fromkeys(bout.attack for bout in here))
        lines += [f"## α = {byzantine:g}", "", verdict(here), ""]
        lines += [f"| defence | worst | its cluster | by | {' | '.join(attacks)} |", "|---" * (4 + len(attacks)) + "|"]
        for defence in dict.fromkeys(bout.defence for bout in here):
            own = {bout.attack: bout for bout in here if bout.defence == defence}
            most = worst_of(list(own.values()))
            cells = [number(own[attack].ratio) for attack in attacks]
            lines.append(
                f"| {defence} | {number(most.ratio)} | {number(most.worst)} | {most.attack} | {' | '.join(cells)} |"
            )
        lines.append("")
    return "\n".join(lines)


def worst_of(own: Sequence[Bout]) -> Bout:
    """The bout that a defence fared worst in."""
    return max(own, key=lambda bout: bout.ratio)


def number(ratio: float) -> str:
    """A ratio as a table shows it."""
    return "diverged" if math.isinf(ratio) else f"{ratio:.2f}" if ratio < 100 else f"{ratio:.0e}"


def verdict(here: Sequence[Bout]) -> str:
    """One or two sentences on what to use at this fraction; within a standard error of the best all are as good."""
    worst = {
        defence: worst_of([bout for bout in here if bout.defence == defence])
        for defence in dict.fromkeys(bout.defence for bout in here)
    }
    ranked = sorted(worst.values(), key=lambda bout: bout.ratio)
    best = ranked[0]
    if best.attack == "nobody lies":
        free = [bout.defence for bout in ranked if bout.ratio <= 1.02]
        return f"Where nobody lies, these cost at most 2 %: {', '.join(free) or 'none'}."
    broken = [bout.defence for bout in ranked if bout.ratio > 3]
    # by the best one's own error: who fails once in five trials has a large one
    first = [bout for bout in worst.values() if bout.ratio <= best.ratio + best.error]
    text = f"Use `{first[0].defence}`: at worst {number(first[0].ratio)} × the oracle ({first[0].attack})"
    if len(first) > 1:
        others = ", ".join(f"`{bout.defence}` with {number(bout.ratio)} × ({bout.attack})" for bout in first[1:])
        text += f"; within a standard error of that {others}"
    if runner := next((bout for bout in ranked if bout not in first), None):
        text += f"; next comes `{runner.defence}` with {number(runner.ratio)} × ({runner.attack})"
    text += "."
    return text + (f" Some attack takes these beyond 3 ×: {', '.join(broken)}." if broken else "")
