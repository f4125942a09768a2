"""What all methods of a trial share: one draw of data and start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from coterie._src.aggregators import Aggregator
from coterie._src.arrays import Array, Bools, like
from coterie._src.attacks import Attack
from coterie._src.data import Truth
from coterie._src.experiments.config import Config
from coterie._src.experiments.methods import Setting
from coterie._src.experiments.outcome import MethodResult
from coterie._src.experiments.problems import Setup
from coterie._src.experiments.starts import STARTS, first_centres, is_file
from coterie._src.simulation import SimulatedNetwork, stream
from coterie._src.tasks import Task


class Custom(NamedTuple):
    """What is tried beside the registries: rules by names of one's own, an attack in the place of the configured one."""

    rules: Mapping[str, Aggregator | Callable[[Array], Array]] = {}
    attack: Attack | None = None

    def attack_of(self, config: Config) -> Attack:
        return self.attack or config.attack.attack()


NOTHING_CUSTOM = Custom()


@dataclass
class DataCache:
    """What the last trial was drawn from, kept for the next: in a sweep many differ in attack or algorithm alone."""

    problem: str = ""
    setup: Setup | None = None
    oracle: MethodResult | None = None

    def draw(self, config: Config, trial: int, rng: Generator) -> Setup:
        """The clients of a trial and what they compute, anew unless they are those of the last one."""
        seed, problem = config.run.seed, config.problem
        identity = f"{seed} {trial} {problem.model_dump_json()}" if problem.keeps_draws else ""
        if self.setup is None or identity != self.problem or not identity:
            self.setup = self.oracle = None  # the last one's samples go before the next one's come
            drawn = problem.draw(stream(seed, trial, "data"))
            self.problem, self.setup = identity, problem.setup(drawn, config.run.device, rng)
        return self.setup


@dataclass(frozen=True)
class TrialSetup:
    """One draw of data and start, which all methods of a trial share."""

    config: Config
    trial: int
    task: Task
    truth: Truth | None
    start: Array
    origin: Array | None = None  # (1, d), where a robust start asks for gradients; None for 0
    shared: int = 0  # leading coordinates that all clusters have in common
    is_byzantine: Bools = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))

    def stream(self, purpose: str) -> Generator:
        return stream(self.config.run.seed, self.trial, purpose)

    def setting(self, rng: Generator, audit: bool = True) -> Setting:
        """What methods are built from; rng: for the buckets of `algorithm.before`."""
        return setting_of(self.config, self.task, self.truth, rng, audit, self.origin, self.shared)


def setting_of(
    config: Config,
    task: Task,
    truth: Truth | None,
    rng: Generator,
    audit: bool = True,
    origin: Array | None = None,
    shared: int = 0,
    clients: int | None = None,
) -> Setting:
    """The setting of a method under a configuration; clients: how many there are, if not those of the task."""
    return Setting(
        options=config.algorithm,
        clients=clients or task.clients.count,
        rng=rng,
        three_stage=config.three_stage,
        task=task,
        clusters=config.problem.clusters,
        truth=truth,
        audit=audit,
        origin=origin,
        shared=shared,
    )


def draw_trial(
    config: Config, trial: int, cache: DataCache | None = None, custom: Custom = NOTHING_CUSTOM
) -> TrialSetup:
    """The data, the task and the first centres of a trial."""
    seed, rng = config.run.seed, stream(config.run.seed, trial, "start")
    task, federation, example, origin, shared = (cache or DataCache()).draw(config, trial, rng)
    truth = federation.truth
    byzantine = np.zeros(task.clients.count, dtype=np.bool_) if truth is None else truth.is_byzantine
    if config.asks_for_start:
        adversary = stream(seed, trial, "attack on the start")
        network = SimulatedNetwork(task, byzantine, custom.attack_of(config), adversary)
        setting = setting_of(config, task, truth, rng, True, origin, shared)
        start = setting.robust_start()(network, example, rng)
    elif not is_file(config.algorithm.init) and STARTS[config.algorithm.init].for_modules:
        start = example
    else:
        options, problem = config.algorithm, config.problem
        given = first_centres(options.init, problem.clusters, task.dim, truth, options.warm, problem.dtype, rng)
        start = like(given, example)
    return TrialSetup(config, trial, task, truth, start, origin, shared, byzantine)


def check(config: Config) -> None:
    """Find what only the files can tell (a folder of clients, a file of centres) before any work is done."""
    problem, from_file = config.problem, is_file(config.algorithm.init)
    if not problem.reads_data() and not from_file:
        return
    clients = problem.draw(stream(config.run.seed, 0, "data")).clients
    problem.check(clients, config.run.device)
    if problem.clusters > clients.count:
        raise ValueError(
            f"problem.clusters: must be at most the number of clients ({clients.count}), got {problem.clusters}"
        )
    if from_file:
        draw_trial(config, 0)
    fewest = int(clients.sizes.min())
    config.check_samples(fewest, f"the smallest has {fewest}")
