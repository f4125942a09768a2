"""The setup of a trial, which all methods share: one draw of the data and the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from numpy.random import Generator

from coterie._src.aggregators import Aggregator
from coterie._src.arrays import Array, Bools, like
from coterie._src.attacks import Attack
from coterie._src.data import HeldOut, Truth
from coterie._src.experiments.config import AlgorithmSection, Config, ThreeStageSection
from coterie._src.experiments.method_setting import Setting
from coterie._src.experiments.outcome import MethodResult
from coterie._src.experiments.problems import Setup
from coterie._src.experiments.recorder import Recorder
from coterie._src.experiments.starts import STARTS, asks, first_centres, is_file
from coterie._src.init.bound import estimated_bound
from coterie._src.simulation import SimulatedNetwork, stream
from coterie._src.tasks import Task


class Custom(NamedTuple):
    """Additions to a configuration: further aggregation rules by name, and an attack instead of the configured one."""

    rules: Mapping[str, Aggregator | Callable[[Array], Array]] = {}
    attack: Attack | None = None


NOTHING_CUSTOM = Custom()

Observe = Callable[[int, str, int, Recorder], None]
"""Called after every round with the trial, the method, its rounds at most, and its recorder; it changes nothing."""


@dataclass
class DataCache:
    """The data of the last trial, reused if only attack or algorithm change, as for many trials of a sweep."""

    problem: str = ""
    setup: Setup | None = None
    oracle: MethodResult | None = None

    def draw(self, config: Config, trial: int, rng: Generator) -> Setup:
        """The clients and the task of a trial; those of the last call if the problem, seed and trial are the same."""
        seed, problem = config.run.seed, config.problem
        identity = f"{seed} {trial} {problem.model_dump_json()}" if problem.keeps_draws else ""
        if self.setup is None or identity != self.problem or not identity:
            self.setup = self.oracle = None  # free the memory before new data are drawn
            drawn = problem.draw(stream(seed, trial, "data"))
            self.problem, self.setup = identity, problem.setup(drawn, config.run.device, rng)
        return self.setup


@dataclass(frozen=True)
class TrialSetup:
    """One draw of the data and the start, which all methods of a trial share.

    Attributes
    ----------
    seed, trial : the keys of all random streams.
    options, three_stage, clusters : the settings of the methods.
    task, truth, is_byzantine : the clients' task, the true clusters if known, and (m,) which clients are Byzantine.
    attack : the attack of the Byzantine clients; None: they send honest replies from their own data.
    start : (k, d), the first centres.
    origin : (1, d), the point at which a robust start asks for gradients; None for 0.
    shared : the number of leading coordinates that all clusters share.
    held_out : samples of the clients that no method sees, for evaluation.
    observe : called after every round; None: nothing is.
    estimated : whether `options.max_byzantine` is an estimate.
    """

    seed: int
    trial: int
    options: AlgorithmSection
    three_stage: ThreeStageSection
    clusters: int
    task: Task
    truth: Truth | None
    is_byzantine: Bools
    attack: Attack | None
    start: Array
    origin: Array | None = None
    shared: int = 0
    held_out: HeldOut | None = None
    observe: Observe | None = None
    estimated: bool = False

    def stream(self, purpose: str) -> Generator:
        """The random generator for one purpose."""
        return stream(self.seed, self.trial, purpose)

    def setting(self, rng: Generator, audit: bool = True) -> Setting:
        """The setting from which methods are built; rng: for the buckets of `algorithm.before`."""
        return Setting(
            options=self.options,
            clients=self.task.clients.count,
            rng=rng,
            three_stage=self.three_stage,
            task=self.task,
            clusters=self.clusters,
            truth=self.truth,
            audit=audit,
            origin=self.origin,
            shared=self.shared,
        )

    def bounded(self) -> TrialSetup:
        """The setup with a number in the place of "auto" as the bound on the Byzantine fraction."""
        if self.options.max_byzantine != "auto":
            return self
        return replace(self.with_bound(self.estimated_bound()), estimated=True)

    def with_bound(self, count: int) -> TrialSetup:
        """The setup with a bound of `count` clients."""
        fraction = count / self.task.clients.count
        return replace(self, options=self.options.model_copy(update={"max_byzantine": fraction}))

    def estimated_bound(self) -> int:
        """An upper bound on the number of Byzantine clients by what the clients answer (`init.bound`)."""
        rng = self.stream("bound")
        network = SimulatedNetwork(self.task, self.is_byzantine, self.attack, self.stream("attack on the bound"))
        return estimated_bound(self.with_bound(0).setting(rng).robust_start(), network, self.start, rng)

    def started(self, dtype: str, rng: Generator) -> TrialSetup:
        """The setup with the first centres of `options.init`, as an array like `self.start`.

        dtype: of random centres.
        """
        init = self.options.init
        if asks(init):
            adversary = self.stream("attack on the start")
            network = SimulatedNetwork(self.task, self.is_byzantine, self.attack, adversary)
            return replace(self, start=self.setting(rng).robust_start()(network, self.start, rng))
        if not is_file(init) and STARTS[init].for_modules:
            return self
        drawn = first_centres(init, self.clusters, self.task.dim, self.truth, self.options.warm, dtype, rng)
        return replace(self, start=like(drawn, self.start))


def draw_trial(
    config: Config, trial: int, cache: DataCache | None = None, custom: Custom = NOTHING_CUSTOM
) -> TrialSetup:
    """The data, the task and the first centres of a trial."""
    rng = stream(config.run.seed, trial, "start")
    task, federation, example, origin, shared = (cache or DataCache()).draw(config, trial, rng)
    setup = TrialSetup(
        seed=config.run.seed,
        trial=trial,
        options=config.algorithm,
        three_stage=config.three_stage,
        clusters=config.problem.clusters,
        task=task,
        truth=federation.truth,
        is_byzantine=federation.is_byzantine,
        attack=custom.attack or config.attack.attack(),
        start=example,
        origin=origin,
        shared=shared,
        held_out=federation.held_out,
    )
    return setup.bounded().started(config.problem.dtype, rng)


def setting_of(config: Config, task: Task, rng: Generator, clients: int) -> Setting:
    """The setting of a real federation with this many clients; task: that of one of them."""
    return Setting(
        options=config.algorithm,
        clients=clients,
        rng=rng,
        three_stage=config.three_stage,
        task=task,
        clusters=config.problem.clusters,
        truth=None,
    )


def check(config: Config) -> None:
    """Raise a ValueError if the files of a configuration (a folder of clients, a file of centres) do not fit it."""
    problem, from_file = config.problem, is_file(config.algorithm.init)
    if not problem.reads_data() and not from_file:
        return
    clients = problem.draw(stream(config.run.seed, 0, "data")).clients
    problem.check(clients, config.run.device)
    estimated = config.algorithm.clusters == "auto" and config.asks_for_start
    if problem.clusters > clients.count and not estimated:
        raise ValueError(
            f"problem.clusters: must be at most the number of clients ({clients.count}), got {problem.clusters}"
        )
    if from_file:
        draw_trial(config, 0)
    fewest = int(clients.sizes.min())
    config.check_samples(fewest, f"the smallest has {fewest}")
