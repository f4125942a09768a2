"""The options of `ct.fit` as sections and a method, and whether they suit the clients, the task and the truth."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from coterie._src.aggregators import Aggregator, median
from coterie._src.algorithms import ThreeStage
from coterie._src.attacks import Attack
from coterie._src.data import Clients, Federation
from coterie._src.experiments.config import AlgorithmSection, ThreeStageSection
from coterie._src.experiments.methods import METHODS, Method, check_bound, custom_method
from coterie._src.experiments.starts import STARTS, asks, is_file
from coterie._src.experiments.toml import explain
from coterie._src.fitting.inputs import named
from coterie._src.tasks import Task

START_OPTIONS = ("init", "warm", "max_clusters", "ridge")
"""Options that find the first centres; a given algorithm brings all the others."""


def is_auto(clusters: Any) -> bool:
    """Whether the number of clusters is to be estimated."""
    return isinstance(clusters, str) and clusters == "auto"


def as_method(method: Any, options: Mapping[str, Any], three_stage: Mapping[str, Any] | None) -> Method:
    """The record of the method; options that it would ignore are refused."""
    if isinstance(method, str):
        found: Method = named(METHODS, method)
        if three_stage and found.name != "three-stage":
            raise ValueError(f"three_stage: is for the method three-stage, got {found.name}")
        return found
    if three_stage:
        raise ValueError("three_stage: is for the method three-stage")
    if hasattr(method, "initial_state") and hasattr(method, "step"):
        for name in options:
            if name in AlgorithmSection.model_fields and name not in START_OPTIONS:
                raise ValueError(f"{name}: is an option of named methods; an algorithm has its own")
        return _algorithm_method(method)
    if not callable(method):
        raise ValueError(f"method must be a name, an Aggregator or an Algorithm, got {type(method).__name__}")
    if "before" in options:
        raise ValueError("before: is an option of named methods; use NearestNeighbourMixing or Bucketing")
    return custom_method(repr(method) if isinstance(method, Aggregator) else method.__name__, method)


def _algorithm_method(algorithm: Any) -> Method:
    """An algorithm as a method; an adversary knows its rule, if it has one."""
    descent = algorithm.descent if isinstance(algorithm, ThreeStage) else algorithm
    rule = getattr(getattr(descent, "server", None), "aggregate", median)
    return Method(
        type(algorithm).__name__,
        "an algorithm of one's own",
        rule=lambda setting: rule,
        build=lambda setting, rule: algorithm,
        takes_step_before=False,
        finds_start=getattr(algorithm, "init", None) is not None,
    )


def as_section(
    section: Any, values: dict[str, Any], prefix: str = "", function: Callable[..., Any] | None = None
) -> Any:
    """The validated section of the configuration; function: its parameters are suggested for an unknown option, too."""
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    if isinstance(plain.get("init"), Path):
        plain["init"] = str(plain["init"])
    try:
        return section.model_validate(plain)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] != "extra_forbidden":
            raise ValueError(prefix + explain(error, section)) from None
        name, known = str(first["loc"][0]), [*section.model_fields]
        if function is not None:
            known += [
                name for name, one in inspect.signature(function).parameters.items() if one.kind != one.VAR_KEYWORD
            ]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{prefix}{name}: unknown option{hint}") from None


def cluster_count(clusters: Any, method: Method, options: AlgorithmSection, clients: Clients) -> int:
    """How many centres there are at first: k, or 1 where the number is to be found or of no matter."""
    if not is_auto(clusters):
        whole = isinstance(clusters, int | np.integer) and not isinstance(clusters, bool)
        if not whole or not 1 <= clusters <= clients.count:
            raise ValueError(
                f'clusters must be "auto" or a whole number from 1 to the number of clients ({clients.count}), '
                f"got {clusters!r}"
            )
        return int(clusters)
    if method.immediate or method.one_centre:
        return 1
    if not (method.finds_start or asks(options.init)):
        raise ValueError('clusters: "auto" needs the method "coterie" or a start that asks, such as init="spectral"')
    if clients.sizes.min() < 2:
        raise ValueError('clusters: "auto" needs at least 2 samples per client, the smallest has 1')
    return 1


def check_truth(
    federation: Federation,
    task: Task,
    method: Method,
    options: AlgorithmSection,
    stages: ThreeStageSection,
    attack: Attack | None,
    clusters: int,
) -> None:
    """Whether what needs the truth has it, and whether it fits the task."""
    check_bound(options, [method], prefix="")
    truth = federation.truth
    if attack is not None and not isinstance(attack, Attack):
        raise ValueError(f"attack must be None or made by ct.attack, got {attack!r}")
    if truth is not None and truth.centres.shape[1] not in (0, task.dim):
        raise ValueError(
            f"clients: the centres of the truth must have {task.dim} columns, as those of the task, or none, "
            f"got {truth.centres.shape[1]}"
        )
    if attack is not None and truth is None and federation.byzantine is None:
        raise ValueError("attack: needs a Federation whose truth says which clients are Byzantine")
    if method.needs_truth and truth is None:
        raise ValueError(f"method: {method.name} needs a Federation with a truth")
    if stages.first == "truth" and truth is None:
        raise ValueError("three_stage.first: truth needs a Federation with a truth")
    if not is_file(options.init) and STARTS[options.init].needs_truth:
        if truth is None or not truth.centres.shape[1]:
            raise ValueError(f"init: {options.init} needs a Federation whose truth has centres")
        if clusters != len(truth.centres):
            raise ValueError(
                f"init: {options.init} has the {len(truth.centres)} centres of the truth, and clusters is {clusters}"
            )


def check_task(
    task: Task, clients: Clients, name: str | None, options: AlgorithmSection, stages: ThreeStageSection
) -> None:
    """Whether the options fit the task and its samples."""
    start = None if is_file(options.init) else STARTS[options.init]
    if not task.has_curvatures and options.step == "auto":
        raise ValueError("step must be a number: this task has no curvature to judge it by")
    if start is not None and start.for_modules and not hasattr(task, "fresh"):
        raise ValueError(f"init: {start.name} is a module's start; use spectral, bernoulli or gaussian")
    if stages.erm == "float32-inverse" and name != "linear":
        raise ValueError("three_stage.erm: float32-inverse is for the task linear")
    fewest = int(clients.sizes.min())
    if options.resample and fewest < 2 * options.rounds:
        raise ValueError(
            f"resample: needs at least 2*rounds = {2 * options.rounds} samples per client, the smallest has {fewest}"
        )
