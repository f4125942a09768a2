"""What the theory says about a configuration, in numbers and in plain words."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from coterie._src import theory
from coterie._src.data.synthetic import byzantine_count
from coterie._src.experiments.config import (
    ROBUST_STARTS,
    AlgorithmSection,
    AttackSection,
    Config,
    Folder,
    GaussianMeans,
    Images,
    MixedRegression,
    Synthetic,
)
from coterie._src.experiments.problems import own_clients, weight_names
from coterie._src.experiments.tables import most_liars

BOUNDED = {"coterie", "brifca-filter", "brifca-no-regret"}
"""Methods that are told how many may lie."""
SLOW = 100.0
"""A condition number beyond which the usual 300 rounds are few."""
MOST_JUDGED = 1000
"""Columns whose condition number is worth the seconds."""
MOST_ADVISED = 8
"""Columns for which numbers are proposed."""


class Line(NamedTuple):
    """One finding: what, a number or both sides of an inequality (None: there is none), and what it means."""

    name: str
    found: float | theory.Condition | None
    meaning: str

    @property
    def value(self) -> str:
        """What was found, to be read."""
        if isinstance(self.found, theory.Condition):
            return f"{self.found.left:.4g} <= {self.found.right:.4g}"
        return "-" if self.found is None else f"{self.found:.4g}"


def _smallest_share(problem: Synthetic) -> float:
    shares = None if problem.shares == "equal" else problem.shares
    return theory.smallest_share(problem.clients, problem.clusters, problem.byzantine, shares)


def setting(config: Config, constants: theory.Constants) -> theory.Setting:
    """The setting of a synthetic problem.

    The spreads are taken at a distance Δ from a client's own centre: the theorems ask for a bound over Θ, and
    what decides between clusters is the loss at the centre of another one.
    """
    problem = config.problem
    if not isinstance(problem, Synthetic):
        raise ValueError("plan: needs a synthetic problem, or the numbers of one; a folder's truth is unknown")
    share = _smallest_share(problem)
    counts = problem.sample_counts
    samples = counts[0] if isinstance(counts, range) else min(counts)
    separation = theory.typical_separation(problem.clusters, problem.dim)
    reach = separation if math.isfinite(separation) else 1.0
    if isinstance(problem, MixedRegression):
        quantities = theory.mixed_regression_quantities(problem.dim, problem.noise_variance, reach)
    elif isinstance(problem, GaussianMeans):
        quantities = theory.gaussian_means_quantities(problem.dim, problem.noise_variance, reach)
    else:
        quantities = theory.poisson_means_quantities(problem.dim, reach)
    liars = round(problem.byzantine * problem.clients)
    honest = problem.clients - liars
    mean_count = (counts[0] + counts[-1]) / 2 if isinstance(counts, range) else sum(counts) / len(counts)
    return theory.Setting(
        clients=problem.clients,
        clusters=problem.clusters,
        byzantine=liars / problem.clients,
        share=share,
        samples=samples,
        total=round(honest * mean_count),
        dim=problem.dim,
        trim=config.algorithm.trim,
        separation=separation,
        start=config.algorithm.warm * reach if config.algorithm.init == "warm" else 1.0,
        quantities=quantities,
        constants=constants,
    )


def doubts(config: Config) -> dict[str, str]:
    """By kind, one line for what is allowed but hardly meant."""
    found = {
        "trim": _trim_too_small(config),
        "bound": _bound_too_small(config),
        "large bound": _bound_too_large(config),
        "own": _left_to_the_method(config),
    }
    if isinstance(config.problem, Folder):
        found["scale"] = _badly_scaled(config.problem.model_dump_json())
        if config.attack != AttackSection():
            found["attack"] = "attack: changes nothing, since nobody in a folder is known to lie"
    return {kind: line for kind, line in found.items() if line is not None}


@lru_cache(maxsize=16)
def _badly_scaled(problem_json: str) -> str | None:
    """Where a user's columns keep a descent from its end, and standardised ones would not.

    A descent with one step for all directions needs as many rounds as the condition number of XᵀX.
    """
    problem = Folder.model_validate_json(problem_json)
    if problem.task == "mean":
        return None
    x = np.asarray(own_clients(problem, problem.path).features, dtype=np.float64)[
        :, : -1 if problem.intercept else None
    ]
    centre, spread = x.mean(axis=0), x.std(axis=0)
    varying = spread > 0
    if not 0 < varying.sum() <= MOST_JUDGED:
        return None
    as_they_are = np.linalg.eigvalsh(x[:, varying].T @ x[:, varying])
    alike = np.linalg.eigvalsh(np.corrcoef(x[:, varying], rowvar=False).reshape(varying.sum(), -1))
    slow, least = as_they_are[-1] / max(as_they_are[0], 1e-300), alike[-1] / max(alike[0], 1e-300)
    if slow < SLOW or slow < 10 * least:
        return None
    worst = int(np.argmax(centre**2 + spread**2))
    advice = "set problem.offset and problem.scale"
    if not (problem.offset or problem.scale) and len(centre) <= MOST_ADVISED:
        offset = ", ".join(f"{_to_a_tenth(*pair):.15g}" for pair in zip(centre, spread, strict=True))
        scale = ", ".join(f"{number:.3g}" for number in spread + ~varying)
        advice = f"e.g. --set 'problem.offset=[{offset}]' --set 'problem.scale=[{scale}]'"
    if not problem.intercept:
        advice += " --set problem.intercept=true"
    return (
        f"problem.columns: they differ in scale, or lie far from 0 ({weight_names(problem)[worst]}: mean "
        f"{centre[worst]:.3g}, deviation {spread[worst]:.3g}), so that a descent may stop far from its end and miss "
        f"clusters; {advice}"
    )


def _to_a_tenth(number: float, spread: float) -> float:
    """The shortest decimal that lies within a tenth of the spread; the number itself where there is none.

    >>> _to_a_tenth(101325.37, 5.2), _to_a_tenth(0.0162, 1.0), _to_a_tenth(3.0, 0.0)
    (101325.0, 0.0, 3.0)
    """
    return round(number, 1 - math.ceil(math.log10(spread))) if spread > 0 else number


def _trim_too_small(config: Config) -> str | None:
    """Where the chosen trim is below the worst-case contamination, for the methods that trim."""
    problem = config.problem
    trimming = {"brifca-trimmed", "three-stage"} & set(config.methods)
    if not isinstance(problem, Synthetic) or not trimming:
        return None
    share = _smallest_share(problem)
    worst = theory.worst_contamination(byzantine_count(problem.clients, problem.byzantine) / problem.clients, share)
    if config.algorithm.trim >= worst - 1e-12:
        return None
    return (
        f"algorithm.trim = {config.algorithm.trim:g} is below {worst:.3g}, the Byzantine share of the smallest "
        "cluster if all of them gather there (coterie plan says more)"
    )


def _bound_too_small(config: Config) -> str | None:
    """Where there are more liars than the methods that go by a bound are told."""
    problem, bounded = config.problem, BOUNDED & set(config.methods)
    if isinstance(problem, Folder) or not (bounded or config.algorithm.init in ROBUST_STARTS):
        return None
    share, clients = problem.byzantine, problem.clients
    if byzantine_count(clients, share) <= most_liars(config.algorithm, clients):
        return None
    return (
        f"problem.byzantine = {share:g} is above algorithm.most_byzantine = {config.algorithm.most_byzantine:g}, the "
        "share of liars that the filter and the robust starts reckon with"
    )


def _bound_too_large(config: Config) -> str | None:
    """Where as many liars are reckoned with as the smallest cluster has members: these cannot be told from it."""
    problem, bounded = config.problem, BOUNDED & set(config.methods)
    if not isinstance(problem, Synthetic) or not (bounded or config.algorithm.init in ROBUST_STARTS):
        return None
    liars, smallest = most_liars(config.algorithm, problem.clients), round(_smallest_share(problem) * problem.clients)
    if liars < smallest:
        return None
    return (
        f"algorithm.most_byzantine = {config.algorithm.most_byzantine:g} reckons with {liars} liars, and the smallest "
        f"cluster has {smallest} clients: it may be taken for theirs"
    )


def _left_to_the_method(config: Config) -> str | None:
    """Options that were set, and that the method `coterie` does not look at."""
    usual = AlgorithmSection()
    own = [name for name in ("step", "tolerance", "before", "empty")
           if getattr(config.algorithm, name) != getattr(usual, name)]  # fmt: skip
    if "coterie" not in config.methods or not own or isinstance(config.problem, Images):
        return None
    return f"{', '.join(f'algorithm.{name}' for name in own)}: the method coterie goes its own way there"


def plan(config: Config, constants: theory.Constants) -> list[Line]:
    """The findings, from what an adversary can do to what to set."""
    s = setting(config, constants)
    worst = theory.worst_contamination(s.byzantine, s.share)
    lines = [
        Line("smallest cluster p", s.share, f"{round(s.share * s.clients)} of {s.clients} clients"),
        Line("worst contamination a/(a+p)", worst, "if all Byzantine clients gather on the smallest cluster"),
    ]
    for rule in ("median", "trimmed-mean", "mean"):
        limit = theory.breakdown_limit(rule, s.trim)
        stands = worst < limit or (worst <= limit and rule != "median")
        verdict = "holds" if stands else "CAN BE MOVED ANYWHERE"
        lines.append(Line(f"breakdown of the {rule}", limit, f"{verdict} at that contamination"))
    return lines + _guarantees(s, config.algorithm.init in ROBUST_STARTS) + _choices(s) + _errors(s)


def _guarantees(s: theory.Setting, robust_start: bool) -> list[Line]:
    lines = []
    for name, condition in (("1 (median)", theory.theorem1_condition), ("2 (trimmed mean)", theory.theorem2_condition)):
        found = condition(s)
        edge = theory.largest_byzantine(s, condition)
        reach = f"would up to a = {edge:.3g}" if edge > 0 else ""
        if condition is theory.theorem2_condition and found.right < 0:
            reach = f"it admits no trim above 1/2 - epsilon = {0.5 - s.constants.epsilon:g}"
        elif not found.holds and not reach:
            reach = "would for no a, not even 0"
        word = "applies" if found.holds else "NO GUARANTEE"
        lines.append(Line(f"Theorem {name}", found, "; ".join(filter(None, [word, reach]))))
    start = theory.start_condition(s)
    if robust_start:
        words = f"unknown; both theorems ask for {start.right:.4g}, and know of no robust start"
    else:
        words = "as both theorems ask" if start.holds else "NOT from a random start (algorithm.init = warm has it)"
    lines.append(Line("start within", None if robust_start else start, words))
    assumed = {
        "samples": theory.samples_condition,
        "cluster size": theory.share_condition,
        "separation": theory.separation_condition,
    }
    for name, condition in assumed.items():
        found = condition(s)
        lines.append(Line(f"Assumption 5, {name}", found, "holds, up to a constant" if found.holds else "NOT met"))
    chance = theory.failure_probability(s)
    lines.append(Line("both may fail with probability", chance, "delta, and what the clients' number leaves"))
    return lines


def _choices(s: theory.Setting) -> list[Line]:
    worst = theory.worst_contamination(s.byzantine, s.share)
    admitted = theory.theorem2_trim(s)
    trim = math.ceil(1000 * (worst if admitted is None else admitted)) / 1000
    why = "the worst contamination; Theorem 2 admits none below 1/2" if admitted is None else "the least for Theorem 2"
    noises = [theory.theorem1_noise(s), theory.theorem2_noise(s)]
    own = " and ".join(str(theory.rounds_needed(s, noise)) if noise > 0 else "-" for noise in noises)
    floor = theory.oracle_error(s)
    reachable = 0 < floor < math.inf
    rounds = theory.rounds_needed(s, 0.1 * floor * s.quantities.strong_convexity / 2) if reachable else None
    return [
        Line(
            "set algorithm.trim to",
            trim if trim < 0.5 else None,
            why if trim < 0.5 else "too many liars",
        ),
        Line("step 1/L_F", 1 / s.quantities.smoothness, "for the population; small clusters at d >= n need less"),
        Line("rounds", rounds, f"until the start counts a tenth of the oracle's error (the theorems ask for {own})"),
    ]


def _errors(s: theory.Setting) -> list[Line]:
    first, second, proven = (
        theory.error_bound(s, noise(s), 10_000)
        for noise in (theory.theorem1_noise, theory.theorem2_noise, theory.theorem1_noise_of_proof)
    )
    if theory.theorem1_condition(s).holds:
        words = "with every unnamed constant as given: an order of magnitude"
    else:
        words = "not promised here; its size, for comparison"
    likewise = "likewise" if theory.theorem2_condition(s).holds else "not promised here"
    return [
        Line("oracle's error", theory.oracle_error(s), "pooled least squares on the smallest cluster"),
        Line("lower bound, k = 1", theory.lower_bound(s), "sigma sqrt(a/n + d/(mn)), up to a constant"),
        Line("bound of Theorem 1", first, words),
        Line("the same by its proof", proven, "which names its constants, and has 4a/p in the place of a"),
        Line("bound of Theorem 2", second, likewise),
        Line("rate of Three-Stage", theory.three_stage_rate(s), "Section 5.3 and Appendix C"),
    ]


def as_dict(lines: list[Line]) -> dict[str, Any]:
    """The findings by name, as JSON has them: what is not finite is a string."""

    def number(value: float) -> float | str:
        return value if math.isfinite(value) else str(value)

    found: dict[str, Any] = {}
    for line in lines:
        if isinstance(line.found, theory.Condition):
            sides = {"left": number(line.found.left), "right": number(line.found.right), "holds": line.found.holds}
            found[line.name] = {**sides, "meaning": line.meaning}
        else:
            found[line.name] = {"value": None if line.found is None else number(line.found), "meaning": line.meaning}
    return found
