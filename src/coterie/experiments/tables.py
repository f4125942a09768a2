"""The only tables from names to functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.random import Generator

from coterie import attacks, initialise, tasks
from coterie.aggregators import Aggregator, mean, mean_over, median, trimmed_mean
from coterie.algorithms import Algorithm, ClusteredDescent, LocalMinimisers, Network, Oracle, ThreeStage
from coterie.arrays import Array, Floats, as_numpy
from coterie.data import Clients, Federation, Truth, gaussian_means, mixed_regression, poisson_means, read_folder
from coterie.experiments.config import (
    AlgorithmSection,
    AttackSection,
    Config,
    Folder,
    GaussianMeans,
    MixedRegression,
    Problem,
)
from coterie.intake import admit
from coterie.server import Projection, Server, box, l2_ball, unconstrained, unit_sphere
from coterie.tasks import Task
from coterie.tasks.linear_model import float32_inverse

PAYLOADS: dict[str, attacks.Payload] = {
    "paper": attacks.paper,
    "sign-flip": attacks.sign_flip,
    "gaussian": attacks.gaussian,
    "constant": attacks.constant,
    "garbage": attacks.garbage,
    "none": attacks.none,
}

TARGETS: dict[str, attacks.Target] = {
    "own": attacks.own,
    "smallest": attacks.smallest,
    "random": attacks.random,
    "hop": attacks.hop,
}

TASKS: dict[str, Callable[[Clients, int], Task]] = {
    "linear": lambda clients, classes: tasks.linear_regression(clients),
    "logistic": lambda clients, classes: tasks.logistic_regression(clients),
    "softmax": tasks.softmax_regression,
    "mean": lambda clients, classes: tasks.mean_estimation(clients),
}


def federation(problem: Problem, rng: Generator) -> Federation:
    """The clients of one trial."""
    if isinstance(problem, Folder):
        target = None if problem.task == "mean" else problem.target
        return Federation(read_folder(problem.path, target, intercept=problem.intercept, dtype=problem.dtype))
    make: Callable[..., Federation]
    if isinstance(problem, MixedRegression):
        make = partial(mixed_regression, noise_variance=problem.noise_variance)
    elif isinstance(problem, GaussianMeans):
        make = partial(gaussian_means, noise_variance=problem.noise_variance)
    else:
        make = poisson_means
    return make(
        rng,
        clients=problem.clients,
        clusters=problem.clusters,
        samples=problem.sample_rule,
        dim=problem.dim,
        byzantine=problem.byzantine,
        shares=None if problem.shares == "equal" else problem.shares,
        dtype=problem.dtype,
    )


def task(problem: Problem, clients: Clients) -> Task:
    """What the clients compute."""
    if isinstance(problem, Folder):
        return TASKS[problem.task](clients, problem.classes)
    return TASKS["linear" if isinstance(problem, MixedRegression) else "mean"](clients, 0)


def attack(section: AttackSection) -> attacks.Attack:
    """What Byzantine clients do."""
    return attacks.Attack(PAYLOADS[section.kind], TARGETS[section.target], section.scale)


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
            raise ValueError(f"algorithm.init: {error} (or use spectral, erm, bernoulli, gaussian, warm)") from None
    return _typed(centres, config)


def robust_start(config: Config, task: Task, network: Network, rng: Generator) -> Array:
    """The first (k, d) centres from one round of answers; those that the intake refuses are left out."""
    section, clusters = config.algorithm, config.problem.clusters
    origin = np.zeros((1, task.dim), dtype=np.dtype(config.problem.dtype))
    if section.init == "spectral":
        # a step from 0 that reaches the optimum where the features are isotropic and the loss as curved as it can be
        curvature = task.loss.curvature if isinstance(task, tasks.LinearModel) else 2.0
        replies, scale = network.gradients(origin, -1), -1 / curvature
        find = initialise.spectral
    else:
        replies, scale = network.minimisers(origin, section.ridge), 1.0
        find = initialise.erm
    accepted = admit(replies, clients=network.count, clusters=1, round=-1, like=origin)
    if len(accepted.clients) < clusters:
        raise ValueError(f"algorithm.init: {section.init} needs at least {clusters} well-formed answers")
    return _typed(find(scale * as_numpy(accepted.updates), clusters, section.most_byzantine, rng), config)


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


def rule(method: str, config: Config, clients: int) -> Aggregator:
    """The aggregator behind a method."""
    section = config.algorithm
    if method == "ifca":
        return mean if section.ifca_divisor == "cluster" else partial(mean_over, clients=clients)
    if method in ("brifca-trimmed", "three-stage"):
        return partial(trimmed_mean, trim=section.trim)
    return median


def method_task(method: str, config: Config, task: Task) -> Task:
    """The task as a method meets it: Three-Stage may be told to compute its local minimisers another way."""
    if method == "three-stage" and config.three_stage.erm == "float32-inverse":
        return tasks.LinearModel(task.clients, tasks.squared_loss(), float32_inverse)
    return task


def algorithm(method: str, config: Config, task: Task, truth: Truth | None, audit: bool = True) -> Algorithm:
    """The method as an algorithm; Algorithm 1 with another rule, another first stage, or a point of reference."""
    section, stages = config.algorithm, config.three_stage
    if method == "local":
        return LocalMinimisers(task, section.ridge)
    if method == "oracle":
        if truth is None:
            raise ValueError("run.methods: oracle needs the truth")
        return Oracle(task, truth.labels)
    project = projection(section)
    if method == "three-stage" and stages.project == "unit-sphere":
        project = unit_sphere
    descent = ClusteredDescent(
        Server(rule(method, config, task.clients.count), project, section.trim, audit),
        rounds=section.rounds,
        size=None if section.step == "auto" else section.step,
        tolerance=section.tolerance,
        resample=section.resample,
        empty=section.empty,
    )
    if method == "three-stage":
        first = truth.labels if truth is not None and stages.first == "truth" else None
        return ThreeStage(descent, stages.iterations, stages.starts, section.ridge, section.trim, first)
    return descent
