"""Every defence against every attack: which one to use when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie import __version__
from coterie._src.attacks import PAYLOADS
from coterie._src.data.synthetic import byzantine_count
from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.results import Row, aggregate
from coterie._src.experiments.sweep import Grid, parse_grid
from coterie._src.plot import WIDTH, new_figure, save, styled
from coterie._src.studies.markdown import or_infinite, table
from coterie._src.studies.study import OUT, Options, Study, on_cpu_only
from coterie._src.theory import smallest_share, worst_contamination

DEFENCES: dict[str, tuple[str, ...]] = {
    before: tuple(m.name for m in sorted(METHODS, key=lambda m: not m.takes_bound) if before in m.in_arena)
    for before in ("nothing", "mixing", "bucketing")
}
"""By the step before the aggregator. All methods but Three-Stage have a robust start of the same kind, so that they
differ in their aggregators only; each step before is combined with the aggregator that its authors recommend."""

ATTACKS: dict[str, dict[str, Any]] = {
    entry.name: {
        "kind": payload.name,
        "target": entry.target,
        "scale": entry.scale,
        "sleep": entry.sleep,
        "objective": entry.objective,
    }
    for payload in PAYLOADS
    for entry in payload.arena
}
"""A name for every attack; with the target `smallest` all Byzantine clients choose the smallest cluster."""

NO_ATTACK = "no Byzantine clients"


class Problem(NamedTuple):
    """The sizes of the arena's problem, and its Byzantine fractions."""

    clusters: int
    clients: int
    dim: int
    byzantine: tuple[float, ...]


FULL = Problem(5, 200, 100, (0.0, 0.05, 0.1, 0.16))
QUICK = Problem(3, 60, 20, (0.05, 0.23))
"""α < 1/(k + 1): up to 32 Byzantine beside 33 honest clients, and 14 beside 15. With more, the Byzantine clients could
outnumber the honest clients of one cluster."""


def arena(trials: int, quick: bool = False) -> Grid:
    """The grid of all attacks and fractions; the bounds of all methods are set from the true fraction."""
    problem = QUICK if quick else FULL
    settings = []
    for byzantine in problem.byzantine:
        count = byzantine_count(problem.clients, byzantine)
        honest = smallest_share(problem.clients, problem.clusters, byzantine, None)
        worst = worst_contamination(count / problem.clients, honest)
        bounds = {"max_byzantine": byzantine, "trim": math.ceil(min(worst, 0.499) * 1e4) / 1e4}
        for attack in ATTACKS.values() if byzantine else [ATTACKS["paper"]]:
            for before, methods in DEFENCES.items():
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
            "problem": {"clusters": problem.clusters, "clients": problem.clients, "dim": problem.dim},
            "algorithm": {"init": "spectral", "rounds": 40 if quick else 100, "ridge": 0.1},
            "run": {"trials": trials},
            "settings": settings,
        }
    )


def attack_name(row: Row) -> str:
    """The name under which the arena knows the attack of a result."""
    if not row["problem.byzantine"]:
        return NO_ATTACK
    own = {"kind": row["attack.kind"], "target": row["attack.target"], "scale": row["attack.scale"]}
    objective = row.get("attack.objective", "auto")  # results from before a key was there
    for name, attack in ATTACKS.items():
        if attack == {**own, "sleep": row["attack.sleep"], "objective": objective}:
            return name
    raise ValueError(f"attack: {own} is not one of the arena's")


def defence_name(before: str, method: str) -> str:
    """A method, and the step before its aggregator.

    >>> defence_name("mixing", "brifca-trimmed")
    'mixing + brifca-trimmed'
    """
    return method if before == "nothing" else f"{before} + {method}"


class Outcome(NamedTuple):
    """What one attack does to one defence, over the trials; infinite where it diverged."""

    byzantine: float
    attack: str
    defence: str
    ratio: float  # mean matched distance as a multiple of the oracle's
    error: float  # its standard error
    worst: float  # the same in the worst cluster


def outcomes(rows: Sequence[Row]) -> list[Outcome]:
    """The results of the arena, in the order of the attacks and defences."""
    named = [{**row, "attack": attack_name(row)} for row in rows]
    means = aggregate(named, ["problem.byzantine", "attack", "algorithm.before"])
    found = [
        Outcome(
            line["problem.byzantine"],
            line["attack"],
            defence_name(line["algorithm.before"], line["method"]),
            or_infinite(line["oracle_ratio"]),
            line["oracle_ratio_se"] or 0.0,
            or_infinite(line["worst_ratio"]),
        )
        for line in means
    ]
    order = [NO_ATTACK, *ATTACKS]
    defences = [defence_name(before, method) for before, methods in DEFENCES.items() for method in methods]
    return sorted(found, key=lambda one: (one.byzantine, order.index(one.attack), defences.index(one.defence)))


def report(rows: Sequence[Row], command: str) -> str:
    """Markdown: a table for each fraction, the worst case of every defence, and what to use when."""
    found = outcomes(rows)
    trials = 1 + max(row["trial"] for row in rows)
    first = rows[0]
    lines = [
        "# The arena",
        "",
        f"`{command}`, Coterie {__version__}: k = {first['problem.clusters']}, m = {first['problem.clients']}, "
        f"n = {first['problem.samples']}, d = {first['problem.dim']}, {trials} trials.",
        "",
        "The matched distance as a multiple of the oracle's (mean over the trials); `worst` is the largest over the",
        "attacks, and `worst cluster` the multiple in the worst cluster under that attack.",
        "",
        "![Heat map](arena.png)",
        "",
    ]
    for byzantine in dict.fromkeys(one.byzantine for one in found):
        here = [one for one in found if one.byzantine == byzantine]
        attacks = list(dict.fromkeys(one.attack for one in here))
        lines += [f"## α = {byzantine:g}", "", verdict(here), ""]
        rows_of_table = []
        for defence in dict.fromkeys(one.defence for one in here):
            own = {one.attack: one for one in here if one.defence == defence}
            most = worst_of(list(own.values()))
            cells = [number(own[attack].ratio) for attack in attacks]
            rows_of_table.append([defence, number(most.ratio), number(most.worst), most.attack, *cells])
        lines += [*table(["defence", "worst", "worst cluster", "attack", *attacks], rows_of_table), ""]
    return "\n".join(lines)


def worst_of(own: Sequence[Outcome]) -> Outcome:
    """The outcome with the largest error."""
    return max(own, key=lambda one: one.ratio)


def number(ratio: float) -> str:
    """A ratio as a table shows it."""
    return "diverged" if math.isinf(ratio) else f"{ratio:.2f}" if ratio < 100 else f"{ratio:.0e}"


def verdict(here: Sequence[Outcome]) -> str:
    """One or two sentences on what to use at this fraction.

    Defences within a standard error of the best one count as equally good.
    """
    worst = {
        defence: worst_of([one for one in here if one.defence == defence])
        for defence in dict.fromkeys(one.defence for one in here)
    }
    ranked = sorted(worst.values(), key=lambda one: one.ratio)
    best = ranked[0]
    if best.attack == NO_ATTACK:
        free = [one.defence for one in ranked if one.ratio <= 1.02]
        return f"Without Byzantine clients, these cost at most 2 %: {', '.join(free) or 'none'}."
    broken = [one.defence for one in ranked if one.ratio > 3]
    # the standard error of the best: a defence that fails in one of five trials has a large one
    first = [one for one in worst.values() if one.ratio <= best.ratio + best.error]
    text = f"Use `{first[0].defence}`: at worst {number(first[0].ratio)} × the oracle ({first[0].attack})"
    if len(first) > 1:
        others = ", ".join(f"`{one.defence}` with {number(one.ratio)} × ({one.attack})" for one in first[1:])
        text += f"; within a standard error of that {others}"
    if runner := next((one for one in ranked if one not in first), None):
        text += f"; next comes `{runner.defence}` with {number(runner.ratio)} × ({runner.attack})"
    text += "."
    return text + (f" Some attack takes these beyond 3 ×: {', '.join(broken)}." if broken else "")


@styled
def heat_map(outcomes: Sequence[Outcome], path: str | Path) -> None:
    """Attacks by defences, one panel for each Byzantine fraction: the ratio to the oracle, and each defence's worst."""
    from matplotlib.colors import LogNorm

    panels = [
        [one for one in outcomes if one.byzantine == byzantine]
        for byzantine in dict.fromkeys(one.byzantine for one in outcomes)
    ]
    defences = list(dict.fromkeys(one.defence for one in outcomes))
    widest = max(len({one.attack for one in panel}) for panel in panels)
    figure = new_figure(WIDTH, len(panels) * (2.4 + 0.29 * (widest + 1)))
    for axes, panel in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        attacks = list(dict.fromkeys(one.attack for one in panel))
        known = {(one.defence, one.attack): one.ratio for one in panel}
        ratios = np.array([[known.get((defence, attack), np.nan) for defence in defences] for attack in attacks])
        ratios = np.vstack([ratios, ratios.max(axis=0)])
        axes.imshow(np.clip(ratios, 1.0, 10.0), cmap="YlOrRd", norm=LogNorm(1.0, 10.0), aspect="auto")
        for (i, j), value in np.ndenumerate(ratios):
            text = (
                "∞" if np.isinf(value) else f"{value:.2f}" if value < 9.995 else f"{value:.0f}" if value < 1e3 else "≫"
            )
            axes.text(j, i, text, ha="center", va="center", fontsize=11, color="white" if value > 4 else "black")
        shown = [defence.replace(" + ", " +\n") for defence in defences]
        axes.set_xticks(range(len(defences)), shown, rotation=45, ha="right", rotation_mode="anchor", fontsize=11)
        axes.set_yticks(range(len(attacks) + 1), [*attacks, "worst"], fontsize=11)
        axes.axhline(len(attacks) - 0.5, color="black")
        axes.set_title(f"α = {panel[0].byzantine:g}: matched distance as a multiple of the oracle's")
        axes.grid(visible=False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    save(figure, path)


def command_of(options: Options) -> str:
    """The command that makes the same report."""
    quick = " --quick" if options.quick else ""
    seed = f" --seed {options.seed}" if options.seed else ""
    return f"coterie arena{quick} --trials {options.trials}{seed}"


STUDY = Study(
    name="arena",
    summary="every defence against every attack, and which defence to use when (the same as `coterie arena`)",
    grids=lambda options: {OUT: arena(options.trials, options.quick)},
    reports={"arena.md": lambda rows, options: report(rows[OUT], command_of(options))},
    figures={"arena.png": lambda rows, path, options: heat_map(outcomes(rows[OUT]), path)},
    trials=10,
    quick_trials=2,
    check=on_cpu_only,
    prints_tables=False,
)
