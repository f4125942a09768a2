"""The tables from names to methods, attacks and starts, and what is made of them. (Those of problems: `problems`.)"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.random import Generator

from coterie._src import attacks, tasks
from coterie._src import init as initialise
from coterie._src.aggregators import (
    Aggregator,
    bucketed,
    centred_clipping,
    filtered_mean,
    geometric_median,
    krum,
    mean,
    mean_over,
    median,
    mixed,
    trimmed_mean,
)
from coterie._src.algorithms import (
    Algorithm,
    ClusteredDescent,
    LocalMinimisers,
    Oracle,
    RobustStart,
    SelfStarting,
    ThreeStage,
    Told,
)
from coterie._src.algorithms.start import Find
from coterie._src.arrays import Array, Floats, namespace
from coterie._src.data import (
    Truth,
)
from coterie._src.experiments.config import (
    AlgorithmSection,
    AttackSection,
    Config,
    Images,
)
from coterie._src.server import Optimiser, Projection, Server, box, l2_ball, unconstrained, unit_sphere
from coterie._src.tasks import Task
from coterie._src.tasks.linear import float32_inverse

if TYPE_CHECKING:
    from coterie._src.tasks.torch_module import NetworkTask

PRECISION = 0.01
"""The recommended method stops when every move is less than this share of its own standard error."""

PAYLOADS: dict[str, attacks.Payload] = {
    "paper": attacks.paper,
    "sign-flip": attacks.sign_flip,
    "gaussian": attacks.gaussian,
    "constant": attacks.constant,
    "garbage": attacks.garbage,
    "none": attacks.none,
    "ipm": attacks.inner_product,
    "alie": attacks.alie,
    "disguised": attacks.disguised,
    "min-max": attacks.min_max,
    "min-sum": attacks.min_sum,
    "mimic": attacks.mimic,
    "trimmed-mean": attacks.trimmed_mean_attack,
    "label-flip": attacks.label_flip,
    "merge": attacks.merge,
    "cross-mimic": attacks.cross_mimic,
    "seed-capture": attacks.seed_capture,
    "phantom": attacks.phantom,
}

TARGETS: dict[str, attacks.Target] = {
    "own": attacks.own,
    "smallest": attacks.smallest,
    "emptiest": attacks.emptiest,
    "random": attacks.random,
    "hop": attacks.hop,
}

STARTS: dict[str, Find] = {"spectral": initialise.spectral, "balls": initialise.balls, "erm": initialise.erm}


def most_liars(section: AlgorithmSection, clients: int) -> int:
    """How many liars to reckon with: a share of the clients, rounded up, and never half of them."""
    return min(math.ceil(section.most_byzantine * clients - 1e-9), (clients - 1) // 2)


def _filter(section: AlgorithmSection, clients: int) -> partial[Array]:
    return partial(filtered_mean, liars=most_liars(section, clients))


RULES: dict[str, Callable[[AlgorithmSection, int], Aggregator]] = {
    "brifca-median": lambda section, clients: median,
    "brifca-trimmed": lambda section, clients: partial(trimmed_mean, trim=section.trim),
    "brifca-geometric": lambda section, clients: geometric_median,
    "brifca-krum": lambda section, clients: partial(krum, byzantine=section.trim, selected=0.5),
    "brifca-clipping": lambda section, clients: centred_clipping,
    "brifca-filter": _filter,
    "brifca-no-regret": lambda section, clients: partial(_filter(section, clients), how="no-regret"),
    "coterie": _filter,
    "ifca": lambda section, clients: mean if section.ifca_divisor == "cluster" else partial(mean_over, clients=clients),
    "three-stage": lambda section, clients: partial(trimmed_mean, trim=section.trim),
}
"""The aggregator behind a method; any other one takes the median."""


def fresh_start(config: Config, task: NetworkTask, rng: Generator) -> Array:
    """(k, dim): newly initialised networks, one in what they share."""
    drawn = [task.fresh(rng) for _ in range(config.problem.clusters)]
    centres = namespace(drawn[0]).stack(drawn)
    centres[:, : shared(config, task)] = centres[:1, : shared(config, task)]
    return centres


def shared(config: Config, task: Task) -> int:
    """The leading coordinates that all clusters have in common."""
    if not isinstance(config.problem, Images) or not config.problem.shared_layers:
        return 0
    network: Any = task
    return int(network.leading(config.problem.shared_layers))


def attack(section: AttackSection) -> attacks.Attack:
    """What Byzantine clients do."""
    scale = None if section.scale == "auto" else section.scale
    return attacks.Attack(PAYLOADS[section.kind], TARGETS[section.target], scale, section.sleep)


def start(config: Config, dim: int, truth: Truth | None, rng: Generator) -> Array:
    """The first (k, d) centres."""
    clusters, init = config.problem.clusters, config.algorithm.init
    if init == "bernoulli":
        centres = initialise.bernoulli(clusters, dim, rng)
    elif init == "gaussian":
        centres = initialise.gaussian(clusters, dim, rng)
    elif init == "warm" and truth is not None:
        centres = initialise.warm(truth, config.algorithm.warm, rng)
    else:
        try:
            centres = initialise.from_file(init, clusters, dim)
        except ValueError as error:
            raise ValueError(
                f"algorithm.init: {error} (or use spectral, balls, erm, bernoulli, gaussian, warm)"
            ) from None
    return _typed(centres, config)


def robust_start(config: Config, task: Task, origin: Array | None = None, clients: int | None = None) -> RobustStart:
    """How the server finds the first centres by asking; origin: (1, d), where it asks for gradients, if not at 0.

    clients: how many there are, if not those of the task.
    """
    section, count = config.algorithm, clients or task.clients.count
    curvature = 1.0 if isinstance(config.problem, Images) else 2.0  # what training did is the whole way
    init = section.init if section.init in STARTS else "spectral"
    return RobustStart(
        STARTS[init],
        "minimiser" if init == "erm" else "gradient",
        most_liars(section, count) / count,
        config.problem.clusters if section.clusters == "known" else None,
        section.most_clusters,
        # a step from 0 that reaches the optimum where the features are isotropic and the loss as curved as it can be
        task.loss.curvature if isinstance(task, tasks.LinearModel) else curvature,
        section.ridge,
        origin,
        shared(config, task),
    )


def _typed(centres: Floats, config: Config) -> Array:
    with np.errstate(over="ignore"):
        typed = centres.astype(np.dtype(config.problem.dtype))
    if not np.isfinite(typed).all():
        init = config.algorithm.init
        raise ValueError(f"algorithm.init: {init}: a value is too large for {config.problem.dtype}")
    return typed


def projection(section: AlgorithmSection) -> Projection:
    constraints: dict[str, Projection] = {
        "none": unconstrained,
        "l2-ball": partial(l2_ball, radius=section.radius),
        "box": partial(box, radius=section.radius),
    }
    return constraints[section.project]


def rule(method: str, config: Config, clients: int, rng: Generator) -> Aggregator:
    """The aggregator behind a method; rng: for the buckets of `algorithm.before`."""
    section = config.algorithm
    chosen = RULES.get(method, RULES["brifca-median"])(section, clients)
    if method == "coterie" or section.before == "nothing":
        return chosen
    if section.before == "mixing":
        return partial(mixed, rule=chosen, byzantine=section.trim)
    return partial(bucketed, rule=chosen, size=2, rng=rng)


def method_task(method: str, config: Config, task: Task) -> Task:
    """The task as a method meets it: Three-Stage may be told to compute its local minimisers another way.

    A network that a client trains alone gets as many steps as one that it trains with others.
    """
    if method == "local" and isinstance(config.problem, Images):
        network: Any = task
        return cast("Task", network.fitting(config.algorithm.rounds, config.algorithm.step))
    if method == "three-stage" and config.three_stage.erm == "float32-inverse":
        return tasks.LinearModel(task.clients, tasks.squared_loss(), float32_inverse)
    return task


def algorithm(
    method: str,
    config: Config,
    task: Task,
    truth: Truth | None,
    rng: Generator,
    audit: bool = True,
    origin: Array | None = None,
    clients: int | None = None,
    own: Aggregator | None = None,
) -> Algorithm:
    """The method as an algorithm; Algorithm 1 with another rule, another first stage, or a point of reference.

    origin: (1, d), where a robust start asks; None for 0. clients: how many there are, if not those of the task. own:
    the rule of a method that is not in the table.
    """
    section, stages = config.algorithm, config.three_stage
    network = isinstance(config.problem, Images)
    if method == "local":
        return LocalMinimisers(task, section.ridge)
    if method == "oracle":
        if truth is None:
            raise ValueError("run.methods: oracle needs the truth")
        if not network:
            return Oracle(task, truth.labels)
    project = projection(section)
    if method == "three-stage" and stages.project == "unit-sphere":
        project = unit_sphere
    server = Server(
        own or (mean if method == "oracle" else rule(method, config, clients or task.clients.count, rng)),
        project,
        section.trim,
        audit,
        Optimiser(section.optimiser, section.momentum),
        shared(config, task),
        section.quorum,
    )
    if method == "coterie":
        descent = ClusteredDescent(
            server,
            section.rounds,
            # where nobody knows a curvature, nobody knows when it is enough
            size=section.step if network and section.step != "auto" else None,
            resample=section.resample,
            precision=0.0 if network else PRECISION,
            weighted=True,
            participation=section.participation,
        )
        return SelfStarting(descent, robust_start(config, task, origin, clients))
    descent = ClusteredDescent(
        server,
        rounds=section.rounds,
        size=None if section.step == "auto" else section.step,
        tolerance=section.tolerance,
        resample=section.resample,
        empty=section.empty,
        participation=section.participation,
    )
    if method == "oracle":
        assert truth is not None
        return Told(descent, truth.labels)
    if method == "three-stage":
        first = truth.labels if truth is not None and stages.first == "truth" else None
        return ThreeStage(descent, stages.iterations, stages.starts, section.ridge, section.trim, first)
    return descent
