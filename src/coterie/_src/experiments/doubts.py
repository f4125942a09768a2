"""Warnings about configurations that are valid, but probably not intended, and about results that are none."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from coterie._src import theory
from coterie._src.data.synthetic import byzantine_count
from coterie._src.experiments.config import AlgorithmSection, AttackSection, Config
from coterie._src.experiments.method_setting import max_byzantine_count
from coterie._src.experiments.methods import METHODS, OWN
from coterie._src.experiments.outcome import TrialResult
from coterie._src.experiments.plan import smallest_share_of
from coterie._src.experiments.problems import ClientTables, Images, Synthetic, problem_of
from coterie._src.experiments.summary import Summary, summarise

SLOW = 100.0
"""A condition number beyond which the usual 300 rounds are few."""
MAX_COLUMNS = 1000
"""With more columns their condition number would take too long."""
MAX_ADVISED = 8
"""With more columns the advice names no numbers."""


def doubts(config: Config) -> dict[str, str]:
    """By kind, one line about a setting that is valid but probably not intended."""
    found = {
        "trim": _trim_too_small(config),
        "bound": _bound_too_small(config),
        "large bound": _bound_too_large(config),
        "own": _left_to_the_method(config),
        "clusters": _clusters_are_not_used(config),
    }
    if isinstance(config.problem, ClientTables):
        if any(METHODS[name].clusters_clients and not _conditioned(config, name) for name in config.methods):
            found["scale"] = _badly_scaled(config.problem.model_dump_json())
        if config.attack != AttackSection() and not config.problem.byzantine:
            found["attack"] = "attack: changes nothing, since problem.byzantine is 0"
    return {kind: line for kind, line in found.items() if line is not None}


def _conditioned(config: Config, method: str) -> bool:
    """Whether the steps of a method do not depend on the scale of the columns."""
    return config.algorithm.coordinates == "hessian" or (
        config.algorithm.coordinates == "auto" and METHODS[method].finds_start
    )


@lru_cache(maxsize=16)
def _badly_scaled(problem_json: str) -> str | None:
    """A warning where the columns make a descent slow, and standardised columns would not.

    The rounds that a descent with one step size needs grow with the condition number of XᵀX.
    """
    problem: ClientTables = problem_of(json.loads(problem_json))
    if problem.task == "mean":
        return None
    x = np.asarray(problem.own_data().clients.features, dtype=np.float64)[:, : -1 if problem.adds_intercept else None]
    centre, spread = x.mean(axis=0), x.std(axis=0)
    varying = spread > 0
    if not 0 < varying.sum() <= MAX_COLUMNS:
        return None
    as_they_are = np.linalg.eigvalsh(x[:, varying].T @ x[:, varying])
    alike = np.linalg.eigvalsh(np.corrcoef(x[:, varying], rowvar=False).reshape(varying.sum(), -1))
    condition, standardised = as_they_are[-1] / max(as_they_are[0], 1e-300), alike[-1] / max(alike[0], 1e-300)
    if condition < SLOW or condition < 10 * standardised:
        return None
    worst = int(np.argmax(centre**2 + spread**2))
    advice = "set problem.offset and problem.scale"
    if not (problem.offset or problem.scale) and len(centre) <= MAX_ADVISED:
        offset = ", ".join(f"{_to_a_tenth(*pair):.15g}" for pair in zip(centre, spread, strict=True))
        scale = ", ".join(f"{number:.3g}" for number in spread + ~varying)
        advice = f"e.g. --set 'problem.offset=[{offset}]' --set 'problem.scale=[{scale}]'"
    if not problem.intercept:
        advice += " --set problem.intercept=true"
    return (
        f"problem.columns: they differ in scale, or lie far from 0 ({problem.weight_names()[worst]}: mean "
        f"{centre[worst]:.3g}, deviation {spread[worst]:.3g}), so that the descent of methods other than coterie "
        f"may end far from the optimum and miss clusters; set algorithm.coordinates=hessian, or {advice}"
    )


def _to_a_tenth(number: float, spread: float) -> float:
    """The shortest decimal within a tenth of the spread; the number itself where there is none.

    >>> _to_a_tenth(101325.37, 5.2), _to_a_tenth(0.0162, 1.0), _to_a_tenth(3.0, 0.0)
    (101325.0, 0.0, 3.0)
    """
    return round(number, 1 - math.ceil(math.log10(spread))) if spread > 0 else number


def _trim_too_small(config: Config) -> str | None:
    """A warning where the trim is below the worst-case contamination, for the methods that trim."""
    problem = config.problem
    if not isinstance(problem, Synthetic) or not any(METHODS[name].trims for name in config.methods):
        return None
    share = smallest_share_of(problem)
    worst = theory.worst_contamination(byzantine_count(problem.clients, problem.byzantine) / problem.clients, share)
    if config.algorithm.trim >= worst - 1e-12:
        return None
    return (
        f"algorithm.trim = {config.algorithm.trim:g} is below {worst:.3g}, the Byzantine share of the smallest "
        "cluster if all Byzantine clients choose it (see coterie plan)"
    )


def _uses_bound(config: Config) -> bool:
    """Whether a method or the start uses algorithm.max_byzantine."""
    return config.asks_for_start or any(METHODS[name].takes_bound for name in config.methods)


def _bound_too_small(config: Config) -> str | None:
    """A warning where there are more Byzantine clients than algorithm.max_byzantine allows."""
    problem = config.problem
    if not isinstance(problem, Synthetic | Images) or not _uses_bound(config):
        return None
    share, clients, bound = problem.byzantine, problem.clients, config.algorithm.max_byzantine
    if bound == "auto" or byzantine_count(clients, share) <= max_byzantine_count(bound, clients):
        return None
    return (
        f"problem.byzantine = {share:g} is above algorithm.max_byzantine = {bound:g}, the "
        "largest Byzantine fraction that the filter and the robust starts allow for"
    )


def _bound_too_large(config: Config) -> str | None:
    """A warning where the bound allows as many Byzantine clients as the smallest cluster has members.

    The server cannot tell such a cluster from a group of Byzantine clients.
    """
    problem = config.problem
    bound = config.algorithm.max_byzantine
    if bound == "auto" or not isinstance(problem, Synthetic) or not _uses_bound(config):
        return None
    allowed, smallest = (
        max_byzantine_count(bound, problem.clients),
        round(smallest_share_of(problem) * problem.clients),
    )
    if allowed < smallest:
        return None
    return (
        f"algorithm.max_byzantine = {bound:g} allows for {allowed} Byzantine clients, and "
        f"the smallest cluster has {smallest} clients: it may be mistaken for a group of Byzantine clients"
    )


def _left_to_the_method(config: Config) -> str | None:
    """A warning about options that were set and that the method `coterie` ignores."""
    usual = AlgorithmSection()
    own = [name for name in ("step", "tolerance", "before", "empty")
           if getattr(config.algorithm, name) != getattr(usual, name)]  # fmt: skip
    if "coterie" not in config.methods or not own or not config.problem.has_parameters:
        return None
    return f"{', '.join(f'algorithm.{name}' for name in own)}: the method coterie does not use these"


def _clusters_are_not_used(config: Config) -> str | None:
    """A warning where k is given for own data, and estimated all the same."""
    problem = config.problem
    unset = type(problem).model_fields["clusters"].default
    if not isinstance(problem, ClientTables) or config.algorithm.clusters == "known" or problem.clusters == unset:
        return None
    return (
        f"problem.clusters = {problem.clusters}: not used, since algorithm.clusters = auto finds the number; set "
        "algorithm.clusters=known"
    )


RECOMMENDED = "coterie"


def result_doubts(config: Config, trials: Sequence[TrialResult]) -> dict[str, str]:
    """By kind, one line about a result that should not be used as it is, with what to do."""
    if not trials:
        return {}
    summary = summarise(trials)
    found = {
        "bound": _bound_exceeded(trials),
        "fewer clusters": _fewer_clusters(config, trials),
        "no prediction": _worse_than_the_mean(config, summary),
        "worst method": _recommended_is_worst(summary),
    }
    return {kind: line for kind, line in found.items() if line is not None}


def _bound_exceeded(trials: Sequence[TrialResult]) -> str | None:
    """A note where the replies of more clients stand out than the bound allows, and on what was done."""
    for trial in trials:
        for name, result in trial.methods.items():
            found = result.diagnostics
            if found is None or not (found.raised_from >= 0 or found.bound_exceeded):
                continue
            if found.raised_from >= 0:
                done = f"allowed for {found.raised_from} and more stood out: {name} went on with {found.max_byzantine}"
            else:
                done = f"allows for {found.max_byzantine} and {found.standing_out} stand out with {name}"
            return (
                f"algorithm.max_byzantine: in trial {trial.trial} it {done}; expect more Byzantine clients than stated"
            )
    return None


def _fewer_clusters(config: Config, trials: Sequence[TrialResult]) -> str | None:
    """A warning where a method leaves some of the clusters that were asked for without clients."""
    wanted = config.problem.clusters
    if config.algorithm.clusters == "auto":
        return None
    fewer: dict[str, list[int]] = {}
    for name in trials[0].methods:
        plain = name in METHODS and METHODS[name].base is None and not METHODS[name].needs_truth
        if not plain or not METHODS[name].clusters_clients:
            continue
        labels = [trial.methods[name].labels for trial in trials]
        counts = [len(np.unique(own[own >= 0])) for own in labels]
        if any(count < wanted for count in counts):
            fewer[name] = [count for count in counts if count < wanted]
    if not fewer:
        return None
    notes = [
        f"{name} ({min(counts)}" + (f", in {len(counts)} of {len(trials)} trials)" if len(trials) > 1 else ")")
        for name, counts in fewer.items()
    ]
    advice = [
        f"try --set problem.clusters={min(fewer[RECOMMENDED])} or --set algorithm.clusters=auto"
        if RECOMMENDED in fewer
        else "",
        "a start that asks the clients may find more: --set algorithm.init=spectral"
        if set(fewer) - {RECOMMENDED} and not config.asks_for_start
        else "",
    ]
    return (
        f"clusters: fewer than problem.clusters = {wanted} have clients with {', '.join(notes)}; "
        f"{'; '.join(filter(None, advice)) or 'try fewer, or --set algorithm.clusters=auto'}"
    )


def _worse_than_the_mean(config: Config, summary: Summary) -> str | None:
    """A warning where a method's squared loss is above the variance of the target: R² below 0 on held-out samples.

    Without held-out samples the loss of the samples that were learnt from is compared with their variance.
    """
    problem = config.problem
    if not isinstance(problem, ClientTables) or problem.task != "linear":
        return None
    judged = {name: one for name, one in summary.items() if name.removesuffix(OWN) == RECOMMENDED} or summary
    scores = {name: one["test_r2"]["mean"] for name, one in judged.items()}
    poor = [f"{name} (R² {score:.3g})" for name, score in scores.items() if score is not None and score < 0]
    if not problem.holdout:
        variance = float(np.var(np.asarray(problem.own_data().clients.targets, dtype=np.float64)))
        losses = {name: one["loss"]["mean"] for name, one in judged.items()}
        poor = [
            f"{name} (loss {loss:.3g}, variance {variance:.3g})"
            for name, loss in losses.items()
            if loss is not None and loss > variance
        ]
    if not poor:
        return None
    intercept = "" if problem.intercept else "set problem.intercept=true; "
    return (
        f"loss: above the variance of the target with {', '.join(poor)}, so that the target's mean predicts better; "
        f"{intercept}look for wrong units or outliers in problem.target, try fewer clusters, or more rounds "
        "(algorithm.rounds)"
    )


def _recommended_is_worst(summary: Summary) -> str | None:
    """A warning where every other method is better than the recommended one, by more than the standard errors."""
    others = [name for name in summary if name.removesuffix(OWN) not in (RECOMMENDED, "oracle")]
    best_own = RECOMMENDED + OWN if RECOMMENDED + OWN in summary else RECOMMENDED
    if best_own not in summary or not others:
        return None
    for metric, sign in (("matched_dist", 1), ("accuracy", -1), ("test_loss", 1), ("loss", 1)):
        own = summary[best_own][metric]
        rivals = {name: summary[name][metric] for name in others if summary[name][metric]["mean"] is not None}
        if own["mean"] is None or not rivals:
            continue
        better = [
            sign * (own["mean"] - other["mean"]) > math.hypot(own["se"] or 0.0, other["se"] or 0.0)
            for other in rivals.values()
            if other["mean"] is not None
        ]
        if not all(better):
            return None
        return (
            f"methods: {best_own}, the recommended one, has the worst {metric} of this table; the clients may have no "
            "clusters (then global is best), or other numbers of them (--set algorithm.clusters=auto), or more may be "
            "Byzantine than algorithm.max_byzantine says; read the diagnostics"
        )
    return None
