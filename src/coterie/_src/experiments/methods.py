"""The methods by name: Algorithm 1 with one rule or another, Three-Stage, and the points of reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.random import Generator

from coterie._src.aggregators import (
    Aggregator,
    Bucketing,
    CentredClipping,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    NearestNeighbourMixing,
    SpectralFilter,
    TrimmedMean,
    as_aggregator,
    ceil_count,
)
from coterie._src.algorithms import Algorithm, ClusteredDescent, LocalMinimisers, Oracle, ThreeStage
from coterie._src.arrays import Array
from coterie._src.data import Truth
from coterie._src.experiments.starts import DEFAULT_ASKING, STARTS, asks
from coterie._src.init import RobustStart
from coterie._src.optimisers import Adam, Momentum, Optimiser, PlainSteps
from coterie._src.projections import Box, L2Ball, Projection, Unconstrained, UnitSphere
from coterie._src.registry import Registry
from coterie._src.server import Server
from coterie._src.tasks import LinearModel, Task, squared_loss
from coterie._src.tasks.linear import float32_inverse

if TYPE_CHECKING:
    from coterie._src.experiments.config import AlgorithmSection, ThreeStageSection

PRECISION = 0.01
"""The recommended method stops when every move is less than this share of its own standard error."""


@dataclass(frozen=True)
class RuleSetting:
    """What a rule is built from.

    options: the table `algorithm` of the configuration. clients: m. rng: for the buckets of `algorithm.before`.
    """

    options: AlgorithmSection
    clients: int
    rng: Generator

    @property
    def max_byzantine(self) -> int:
        """The Byzantine clients to expect at most: a share of the clients, rounded up, and never half of them."""
        return max_byzantine_count(self.options.max_byzantine, self.clients)


@dataclass(frozen=True)
class Setting(RuleSetting):
    """What a method is built from.

    Parameters
    ----------
    three_stage : the table of the configuration.
    task : what the clients compute; in a real federation `clients` counts more of them.
    clusters : k.
    truth : of the clients, if it is known.
    audit : whether the server records which replies were extreme.
    origin : (1, d), where a robust start asks for gradients; None for 0.
    shared : leading coordinates that all clusters have in common.
    """

    three_stage: ThreeStageSection
    task: Task
    clusters: int
    truth: Truth | None
    audit: bool = True
    origin: Array | None = None
    shared: int = 0

    def server(self, rule: Aggregator, project: Projection | None = None) -> Server:
        """A server with the options of the configuration."""
        return Server(
            rule,
            projection(self.options) if project is None else project,
            self.options.trim,
            self.audit,
            optimiser(self.options),
            self.shared,
            self.options.quorum,
        )

    def descent(self, rule: Aggregator, project: Projection | None = None, **changes: Any) -> ClusteredDescent:
        """Algorithm 1 with the options of the configuration."""
        options: dict[str, Any] = {
            "rounds": self.options.rounds,
            "step_size": None if self.options.step == "auto" else self.options.step,
            "tolerance": self.options.tolerance,
            "resample": self.options.resample,
            "empty": self.options.empty,
            "participation": self.options.participation,
        }
        return ClusteredDescent(self.server(rule, project), **(options | changes))

    def robust_start(self) -> RobustStart:
        """How the server finds the first centres by asking."""
        name = self.options.init if asks(self.options.init) else DEFAULT_ASKING
        return STARTS[name].asking(
            self.max_byzantine / self.clients,
            self.clusters if self.options.clusters == "known" else None,
            self.options.max_clusters,
            # a step from 0 that reaches the optimum where features are isotropic and the loss as curved as it can be
            self.task.curvature_bound,
            self.options.ridge,
            self.origin,
            self.shared,
        )


def max_byzantine_count(bound: float, clients: int) -> int:
    """⌈bound·clients⌉ for a fraction, a count as it is; never half of the clients."""
    count = bound if isinstance(bound, int) else ceil_count(bound, clients)
    return min(count, (clients - 1) // 2)


def projection(options: AlgorithmSection) -> Projection:
    """Π_Θ by its name."""
    by_name: dict[str, Projection] = {
        "none": Unconstrained(),
        "l2-ball": L2Ball(options.radius),
        "box": Box(options.radius),
    }
    return by_name[options.project]


def optimiser(options: AlgorithmSection) -> Optimiser:
    """The server's optimiser by its name."""
    by_name: dict[str, Optimiser] = {
        "plain": PlainSteps(),
        "momentum": Momentum(options.momentum),
        "adam": Adam(options.momentum),
    }
    return by_name[options.optimiser]


Rule = Callable[[RuleSetting], Aggregator]


def _median(setting: RuleSetting) -> Aggregator:
    return Median()


def _trimmed(setting: RuleSetting) -> Aggregator:
    return TrimmedMean(setting.options.trim)


def _filter(setting: RuleSetting) -> Aggregator:
    return SpectralFilter(setting.max_byzantine)


def _mean(setting: RuleSetting) -> Aggregator:
    return Mean(None if setting.options.ifca_divisor == "cluster" else setting.clients)


def before_rule(setting: RuleSetting, rule: Aggregator) -> Aggregator:
    """The rule behind the step that `algorithm.before` names."""
    if setting.options.before == "mixing":
        return NearestNeighbourMixing(rule, setting.options.trim)
    if setting.options.before == "bucketing":
        return Bucketing(rule, 2, setting.rng)
    return rule


@dataclass(frozen=True)
class Method:
    """A method by its name.

    Parameters
    ----------
    name, summary : for tables and help.
    rule : the aggregator behind it.
    build : from a setting and the rule to the algorithm.
    colour : of its line in pictures.
    prepare : from the task and the setting to the task as the method meets it.
    needs_truth : whether it must know the true clusters.
    compared : whether a run compares it unless told otherwise.
    in_arena : the steps before the rule with which it stands in the arena.
    takes_bound : whether it is told how many clients may be Byzantine.
    trims : whether `algorithm.trim` bounds what it withstands.
    takes_step_before : whether `algorithm.before` applies to it.
    batched : whether a sweep can run it in batches on a GPU.
    served : whether the server of a real federation can run it.
    one_centre : whether it learns one model for all.
    immediate : whether it is done before the first round.
    clusters_clients : whether it puts the clients into clusters.
    finds_start : whether it asks the clients for its own first centres.
    aliases : older names.

    Examples
    --------
    A package offers it by an entry point of the group `coterie.methods`; see docs/extending.md.

    >>> import coterie as ct
    >>> ct.Method("brifca-bulyan", "Algorithm 1 with a rule of one's own", rule=lambda setting: ct.Median()).name
    'brifca-bulyan'
    """

    name: str
    summary: str
    rule: Rule = _median
    build: Callable[[Setting, Aggregator], Algorithm] = lambda setting, rule: setting.descent(rule)
    colour: str = "tab:gray"
    prepare: Callable[[Task, Setting], Task] | None = None
    needs_truth: bool = False
    compared: bool = False
    in_arena: tuple[str, ...] = ()
    takes_bound: bool = False
    trims: bool = False
    takes_step_before: bool = True
    batched: bool = False
    served: bool = True
    one_centre: bool = False
    immediate: bool = False
    clusters_clients: bool = True
    finds_start: bool = False
    aliases: tuple[str, ...] = ()

    def aggregator(self, setting: RuleSetting) -> Aggregator:
        """The rule, behind the step before it."""
        rule = self.rule(setting)
        return before_rule(setting, rule) if self.takes_step_before else rule

    def algorithm(self, setting: Setting) -> Algorithm:
        """The method as a server-side program."""
        if self.needs_truth and setting.truth is None:
            raise ValueError(f"run.methods: {self.name} needs the truth")
        return self.build(setting, self.aggregator(setting))

    def task(self, setting: Setting) -> Task:
        """The task as the method meets it."""
        return setting.task if self.prepare is None else self.prepare(setting.task, setting)


def _coterie(setting: Setting, rule: Aggregator) -> Algorithm:
    judged = setting.task.has_curvatures  # without a curvature nobody knows a step size, nor when it is enough
    return setting.descent(
        rule,
        step_size=None if judged or setting.options.step == "auto" else setting.options.step,
        precision=PRECISION if judged else 0.0,
        tolerance=0.0,
        empty="keep",
        weighted=True,
        init=setting.robust_start(),
    )


def _three_stage(setting: Setting, rule: Aggregator) -> Algorithm:
    stages, options = setting.three_stage, setting.options
    descent = setting.descent(rule, UnitSphere() if stages.project == "unit-sphere" else None)
    first = setting.truth.labels if setting.truth is not None and stages.first == "truth" else None
    return ThreeStage(descent, stages.iterations, stages.starts, options.ridge, options.trim, first)


def _three_stage_task(task: Task, setting: Setting) -> Task:
    """Three-Stage may be told to compute its local minimisers another way."""
    if setting.three_stage.erm == "float32-inverse":
        return LinearModel(task.clients, squared_loss(), float32_inverse)
    return task


def _local_task(task: Task, setting: Setting) -> Task:
    """A network that a client trains alone gets as many steps as one that it trains with others."""
    network: Any = task
    if task.has_curvatures:
        return task
    fitted: Task = network.fitting(setting.options.rounds, setting.options.step)
    return fitted


def _oracle(setting: Setting, rule: Aggregator) -> Algorithm:
    assert setting.truth is not None
    if setting.task.has_curvatures:
        return Oracle(setting.task, setting.truth.labels)
    # where nobody can write down a minimiser: a descent over the honest clients of the true clusters
    return setting.descent(rule, labels=setting.truth.labels)


def custom_method(name: str, rule: Aggregator | Callable[[Array], Array]) -> Method:
    """Algorithm 1 with a rule of one's own."""
    return Method(name, "a rule of one's own", lambda setting: as_aggregator(rule), takes_step_before=False)


EVERYWHERE = ("nothing",)

METHODS: Registry[Method] = Registry(
    "method",
    [
        Method(
            "coterie",
            "recommended: Algorithm 1 from a robust start, with a spectral filter, an automatic step size and stop",
            _filter,
            _coterie,
            "tab:orange",
            compared=True,
            in_arena=EVERYWHERE,
            takes_bound=True,
            takes_step_before=False,
            finds_start=True,
        ),
        Method(
            "brifca-median",
            "Algorithm 1 with the coordinate-wise median (Option I)",
            _median,
            colour="tab:blue",
            compared=True,
            in_arena=EVERYWHERE,
            batched=True,
        ),
        Method(
            "brifca-trimmed",
            "Algorithm 1 with the coordinate-wise trimmed mean (Option II)",
            _trimmed,
            colour="tab:green",
            compared=True,
            in_arena=("nothing", "mixing"),
            trims=True,
            batched=True,
        ),
        Method(
            "brifca-geometric",
            "Algorithm 1 with the geometric median",
            lambda setting: GeometricMedian(),
            colour="tab:cyan",
            in_arena=("nothing", "bucketing"),
        ),
        Method(
            "brifca-krum",
            "Algorithm 1 with Multi-Krum",
            lambda setting: Krum(setting.options.trim, selected=0.5),
            colour="tab:pink",
            in_arena=EVERYWHERE,
        ),
        Method(
            "brifca-clipping",
            "Algorithm 1 with centred clipping",
            lambda setting: CentredClipping(),
            colour="darkkhaki",
            in_arena=EVERYWHERE,
        ),
        Method(
            "brifca-filter",
            "Algorithm 1 with the spectral filter",
            _filter,
            colour="tab:orange",
            in_arena=EVERYWHERE,
            takes_bound=True,
        ),
        Method(
            "brifca-no-regret",
            "Algorithm 1 with the spectral filter in its no-regret form",
            lambda setting: SpectralFilter(setting.max_byzantine, "no-regret"),
            colour="tab:olive",
            in_arena=EVERYWHERE,
            takes_bound=True,
        ),
        Method(
            "ifca",
            "Algorithm 1 with the mean, which is IFCA: not robust",
            _mean,
            colour="tab:red",
            compared=True,
            in_arena=EVERYWHERE,
            batched=True,
        ),
        Method(
            "three-stage",
            "local minimisers, trimmed k-means, trimmed-mean descent with fixed clusters",
            _trimmed,
            _three_stage,
            "tab:purple",
            prepare=_three_stage_task,
            compared=True,
            in_arena=EVERYWHERE,
            trims=True,
            batched=True,
        ),
        Method(
            "local",
            "every client alone: its own minimiser",
            build=lambda setting, rule: LocalMinimisers(setting.task, setting.options.ridge),
            colour="tab:gray",
            prepare=_local_task,
            compared=True,
            served=False,
            immediate=True,
            clusters_clients=False,
        ),
        Method(
            "global",
            "one robust model for all: Algorithm 1 with one centre",
            _median,
            colour="tab:brown",
            compared=True,
            one_centre=True,
            clusters_clients=False,
        ),
        Method(
            "oracle",
            "the pooled minimiser of the honest clients of each true cluster",
            lambda setting: Mean(),
            _oracle,
            "black",
            needs_truth=True,
            compared=True,
            takes_step_before=False,
            batched=True,
            served=False,
            immediate=True,
        ),
    ],
    group="coterie.methods",
)
