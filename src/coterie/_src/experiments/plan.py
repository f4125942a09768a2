"""The quantities and conditions of the paper's theorems for a configuration, with their meaning in words."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from coterie._src import theory
from coterie._src.experiments.config import Config
from coterie._src.experiments.problems import GaussianMeans, MixedRegression, Synthetic, Tabular


class Line(NamedTuple):
    """One finding: its name, a number or both sides of an inequality (None: neither), and its meaning."""

    name: str
    found: float | theory.Condition | None
    meaning: str

    @property
    def value(self) -> str:
        """The number or the inequality as text."""
        if isinstance(self.found, theory.Condition):
            return f"{self.found.left:.4g} <= {self.found.right:.4g}"
        return "-" if self.found is None else f"{self.found:.4g}"

    @property
    def is_alarm(self) -> bool:
        """Whether the meaning is that something does not hold, which it says in capitals."""
        return any(word.isupper() and len(word) > 2 for word in self.meaning.split())


def smallest_share_of(problem: Synthetic) -> float:
    """The share of the clients that are honest and belong to the smallest cluster."""
    return theory.smallest_share(problem.clients, problem.clusters, problem.byzantine, problem.share_list)


def setting(config: Config, constants: theory.Constants) -> theory.Setting:
    """The setting of a synthetic problem.

    The theorems bound the spreads over all of Θ. Here they are taken at a distance Δ from a client's own centre, since
    a client compares its losses at the centres.
    """
    problem = config.problem
    if not isinstance(problem, Synthetic):
        raise ValueError("plan: needs a synthetic problem, or the numbers of one; a folder's truth is unknown")
    if isinstance(problem, Tabular):
        raise ValueError("plan: the paper's quantities are not known for tabular features; use mixed-regression")
    share = smallest_share_of(problem)
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
    byzantine = round(problem.byzantine * problem.clients)
    honest = problem.clients - byzantine
    mean_count = (counts[0] + counts[-1]) / 2 if isinstance(counts, range) else sum(counts) / len(counts)
    return theory.Setting(
        clients=problem.clients,
        clusters=problem.clusters,
        byzantine=byzantine / problem.clients,
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


def plan(config: Config, constants: theory.Constants) -> list[Line]:
    """The findings: the worst contamination, the guarantees, the settings to choose, the errors to expect."""
    s = setting(config, constants)
    worst = theory.worst_contamination(s.byzantine, s.share)
    lines = [
        Line("smallest cluster p", s.share, f"{round(s.share * s.clients)} of {s.clients} clients"),
        Line("worst contamination a/(a+p)", worst, "if all Byzantine clients choose the smallest cluster"),
    ]
    for rule in ("median", "trimmed-mean", "mean"):
        limit = theory.breakdown_limit(rule, s.trim)
        stands = worst < limit or (worst <= limit and rule != "median")
        verdict = "holds" if stands else "CAN BE MOVED ANYWHERE"
        lines.append(Line(f"breakdown of the {rule}", limit, f"{verdict} at that contamination"))
    return lines + _guarantees(s, config.asks_for_start) + _choices(s) + _errors(s)


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
        words = f"unknown; both theorems ask for {start.right:.4g}, and say nothing about robust starts"
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
    lines.append(
        Line("both may fail with probability", chance, "delta, and a term that falls with the number of clients")
    )
    return lines


def _choices(s: theory.Setting) -> list[Line]:
    worst = theory.worst_contamination(s.byzantine, s.share)
    admitted = theory.theorem2_trim(s)
    trim = math.ceil(1000 * (worst if admitted is None else admitted)) / 1000
    why = (
        "the worst contamination; Theorem 2 admits none below 1/2" if admitted is None else "the smallest for Theorem 2"
    )
    noises = [theory.theorem1_noise(s), theory.theorem2_noise(s)]
    own = " and ".join(str(theory.rounds_needed(s, noise)) if noise > 0 else "-" for noise in noises)
    floor = theory.oracle_error(s)
    reachable = 0 < floor < math.inf
    rounds = theory.rounds_needed(s, 0.1 * floor * s.quantities.strong_convexity / 2) if reachable else None
    return [
        Line(
            "set algorithm.trim to",
            trim if trim < 0.5 else None,
            why if trim < 0.5 else "too many Byzantine clients",
        ),
        Line("step 1/L_F", 1 / s.quantities.smoothness, "for the population; small clusters at d >= n need less"),
        Line(
            "rounds", rounds, f"until the start contributes a tenth of the oracle's error (the theorems ask for {own})"
        ),
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
        Line("the same by its proof", proven, "with the constants of the proof, and 4a/p in the place of a"),
        Line("bound of Theorem 2", second, likewise),
        Line("rate of Three-Stage", theory.three_stage_rate(s), "Section 5.3 and Appendix C"),
    ]


def as_dict(lines: list[Line]) -> dict[str, Any]:
    """The findings by name, ready for JSON: a number that is not finite becomes a string."""

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
