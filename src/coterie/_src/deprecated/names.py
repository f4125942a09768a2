"""Names of version 0.1.0 that are gone from their modules, made of the present ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from coterie._src.arrays import Array

Class = TypeVar("Class", bound=type)


def old_names(module: str) -> dict[str, Any]:
    """What a module of version 0.1.0 had and its successor has not, or has with other parameters."""
    made = _MODULES.get(module)
    return {} if made is None else made()


def _function(function: Callable[..., Any], **renamed: str) -> Callable[..., Any]:
    """The function with parameters by their old names as well."""

    @functools.wraps(function)
    def called(*values: Any, **named: Any) -> Any:
        return function(*values, **{renamed.get(name, name): value for name, value in named.items()})

    return called


def _class(kind: Class, **renamed: str) -> Class:
    """The class with parameters by their old names as well."""

    def __init__(self: Any, *values: Any, **named: Any) -> None:  # noqa: N807 - of the class below
        super(made, self).__init__(*values, **{renamed.get(name, name): value for name, value in named.items()})

    made: Any = type(kind.__name__, (kind,), {"__init__": __init__, "__doc__": kind.__doc__})
    return made  # type: ignore[no-any-return]


def _aggregators() -> dict[str, Any]:
    from coterie._src import aggregators as now

    def trimmed_mean(updates: Array, trim: float) -> Array:
        return now.TrimmedMean(trim)(updates)

    def mean_over(updates: Array, clients: int) -> Array:
        return now.Mean(clients)(updates)

    def geometric_median(updates: Array, iterations: int = 100, tolerance: float = 1e-8) -> Array:
        return now.GeometricMedian(iterations, tolerance)(updates)

    def krum(updates: Array, byzantine: float, selected: float = 0.0) -> Array:
        return now.Krum(byzantine, selected)(updates)

    def centred_clipping(updates: Array, radius: float | None = None, iterations: int = 10) -> Array:
        return now.CentredClipping(radius, iterations)(updates)

    def filtered_mean(updates: Array, liars: int, weights: Any = None, how: Any = "removal") -> Array:
        return now.SpectralFilter(liars, how)(updates, weights)

    def mixed(updates: Array, rule: Any, byzantine: float) -> Array:
        return now.NearestNeighbourMixing(now.as_aggregator(rule), byzantine)(updates)

    def bucketed(updates: Array, rule: Any, size: int, rng: Any) -> Array:
        return now.Bucketing(now.as_aggregator(rule), size, rng)(updates)

    def per_cluster(aggregate: Any, updates: Array, labels: Any, clusters: int, weights: Any = None) -> Any:
        return now.per_cluster(aggregate, updates, labels, clusters, weights)[:2]

    made = (
        *(trimmed_mean, mean_over, geometric_median, krum, centred_clipping, filtered_mean, mixed, bucketed),
        per_cluster,
    )
    return {function.__name__: function for function in made}


def _algorithms() -> dict[str, Any]:
    from coterie._src import algorithms as now
    from coterie._src.aggregators import median, trim_count
    from coterie._src.init import RobustStart
    from coterie._src.init.kmeans import trimmed_kmeans
    from coterie._src.network import Network
    from coterie._src.server import Server

    def three_stage_kmeans(
        points: Any, clusters: int, *, trim: float, iterations: int, starts: int, rng: Any, first: Any = None
    ) -> tuple[Any, Any]:
        stages = now.ThreeStage(now.ClusteredDescent(Server(median)), trim=trim)
        kept = len(points) - trim_count(len(points), trim)
        options: dict[str, Any] = {"starts": starts, "iterations": iterations, "labels": first}
        found = trimmed_kmeans(
            points, clusters, kept, rng, centre=stages._trimmed_centre, centres_of_all=True, **options
        )
        return found.centres, found.labels

    return {
        "ClusteredDescent": _class(now.ClusteredDescent, size="step_size"),
        "RobustStart": _class(RobustStart, ask="question", byzantine="byzantine_fraction", most="max_clusters"),
        "SelfStarting": lambda descent, start: replace(descent, init=start),
        "Told": lambda descent, labels: replace(descent, labels=labels),
        "Exchange": now.RoundInfo,
        "Network": Network,
        "trimmed_kmeans": three_stage_kmeans,
    }


def _assignment() -> dict[str, Any]:
    from coterie._src.client import AssignmentCache, respond

    return {"Memory": AssignmentCache, "respond": _function(respond, memory="cache")}


def _attacks() -> dict[str, Any]:
    from coterie._src.attacks import crafted, payloads, targets

    names = {
        payloads: ("constant", "garbage", "gaussian", "inner_product", "label_flip"),
        crafted: (
            *("cross_mimic", "merge", "mimic", "min_max", "min_sum", "phantom", "seed_capture"),
            "trimmed_mean_attack",
        ),
        targets: ("emptiest", "random"),
    }
    present = {name: getattr(module, name) for module, some in names.items() for name in some}
    return {**present, "none": payloads.data_poisoning, "disguised": crafted.noisy_alie, "hop": targets.rotating}


def _experiments() -> dict[str, Any]:
    from coterie._src import experiments as now
    from coterie._src.experiments.callbacks import Callback, RunInfo, Status

    class Progress(Callback):
        def __init__(self, on_progress: Callable[[int], None]) -> None:
            self._on_progress = on_progress

        def on_progress(self, rounds: int) -> None:
            self._on_progress(rounds)

    class RunFolder(now.RunFolder):
        def open(self) -> None:
            self.on_start(RunInfo("", self.config.run.seed))

        def add(self, result: now.TrialResult) -> None:
            self.on_trial(result)

        def close(self, status: Status) -> None:
            self.on_end(status)

    def run_trials(
        config: now.Config, on_progress: Callable[[int], None] = lambda rounds: None, *values: Any, **named: Any
    ) -> Any:
        return now.run_trials(config, Progress(on_progress), *values, **named)

    return {"METRICS": now.METRICS.names, "RunFolder": RunFolder, "run_trials": run_trials}


def _initialise() -> dict[str, Any]:
    from coterie._src import init
    from coterie._src.init.kmeans import plus_plus

    renamed = {"byzantine": "byzantine_fraction", "thrifty": "outliers_count", "forgiving": "reconsider"}
    names = ("balls", "densest_balls", "erm", "spectral", "trimmed_clusters")
    return {"plus_plus": plus_plus, **{name: _function(getattr(init, name), **renamed) for name in names}}


def _server() -> dict[str, Any]:
    from coterie._src import optimisers, projections, step_sizes

    def optimiser(kind: str = "plain", momentum: float = 0.9, second: float = 0.99, floor: float = 1e-3) -> Any:
        if kind == "adam":
            return optimisers.Adam(momentum, second, floor)
        return optimisers.Momentum(momentum) if kind == "momentum" else optimisers.PlainSteps()

    return {
        "unconstrained": projections.Unconstrained(),
        "unit_sphere": projections.UnitSphere(),
        "l2_ball": lambda centres, radius: projections.L2Ball(radius)(centres),
        "box": lambda centres, radius: projections.Box(radius)(centres),
        "Optimiser": optimiser,
        "automatic_steps": step_sizes.automatic_steps,
    }


def _simulate() -> dict[str, Any]:
    from coterie._src.simulation import SimulatedNetwork

    return {"SimulatedNetwork": _class(SimulatedNetwork, byzantine="is_byzantine", memory="cache")}


_MODULES: dict[str, Callable[[], dict[str, Any]]] = {
    "aggregators": _aggregators,
    "algorithms": _algorithms,
    "assignment": _assignment,
    "attacks": _attacks,
    "experiments": _experiments,
    "initialise": _initialise,
    "server": _server,
    "simulate": _simulate,
}
