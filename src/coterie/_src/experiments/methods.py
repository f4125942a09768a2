"""The registry of methods: Algorithm 1 with different rules, Three-Stage, and the baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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
)
from coterie._src.algorithms import Algorithm, LocalMinimisers, Oracle, ThreeStage
from coterie._src.arrays import Array
from coterie._src.experiments.method_setting import RuleSetting, Setting
from coterie._src.experiments.starts import asks
from coterie._src.optimisers import Momentum
from coterie._src.projections import UnitSphere
from coterie._src.registry import Registry
from coterie._src.tasks import LinearModel, Task, squared_loss
from coterie._src.tasks.linear import float32_inverse

if TYPE_CHECKING:
    from coterie._src.experiments.config import AlgorithmSection

PRECISION = 0.01
"""The recommended method stops when every move of a centre is less than this share of the move's standard error."""
MOMENTUM = 0.5
"""The server's momentum in the recommended method where the clients' Hessians are known and not asked for. The steps of
1/(3L_j) are short for Hessians with small eigenvalues, as those of a cluster with d parameters and few times as many
samples are; with momentum such a descent takes less than half the rounds. It is stable up to steps of 3/L_j."""


def check_bound(options: AlgorithmSection, methods: Sequence[Method], prefix: str = "algorithm.") -> None:
    """Raise a ValueError where the bound is to be estimated, or must hold, and no method uses it; prefix: of keys."""
    takers, asking = [method for method in methods if method.takes_bound], asks(options.init)
    if options.max_byzantine == "auto":
        if not takers and not asking:
            users = ", ".join(method.name for method in METHODS if method.takes_bound)
            raise ValueError(f"{prefix}max_byzantine: auto needs a method that takes the bound ({users})")
        without = [method.name for method in takers if not method.finds_start]
        if without and not asking:
            raise ValueError(
                f"{prefix}max_byzantine: auto needs a start that asks the clients with {', '.join(without)}; "
                f"set {prefix}init=spectral"
            )
    if options.strict and not takers:
        users = ", ".join(method.name for method in METHODS if method.takes_bound)
        raise ValueError(f"{prefix}strict: needs a method that takes the bound ({users})")


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
    """The rule, after the transformation that `algorithm.before` names."""
    if setting.options.before == "mixing":
        return NearestNeighbourMixing(rule, setting.options.trim)
    if setting.options.before == "bucketing":
        return Bucketing(rule, 2, setting.rng)
    return rule


@dataclass(frozen=True)
class Method:
    """The record of a method.

    Parameters
    ----------
    name, summary : for tables and help.
    rule : (setting) -> its aggregator.
    build : (setting, aggregator) -> its algorithm.
    colour : of the method in pictures and reports, as #rrggbb; those of the methods that are compared by default can be
        told apart with any kind of colour vision.
    prepare : (task, setting) -> the task that the method uses; None: unchanged.
    needs_truth : whether it uses the true clusters.
    compared : whether a run includes it by default.
    in_arena : the values of `algorithm.before` with which it takes part in the arena.
    takes_bound : whether it uses `algorithm.max_byzantine`.
    trims : whether it tolerates a fraction `algorithm.trim` of Byzantine clients per cluster.
    takes_step_before : whether `algorithm.before` applies to it.
    batched : whether a sweep can run it in batches on a GPU.
    served : whether the server of a real federation can run it.
    one_centre : whether it learns one model for all clients.
    immediate : whether it has no rounds.
    clusters_clients : whether it assigns the clients to clusters.
    finds_start : whether it computes its own first centres from answers of the clients.
    base : of a method with personal models, the method that finds the centres; None for another.
    aliases : older names.
    numerics : raised when a change of the method changes its results by more than rounding, so that a sweep does not
        use old results as new ones.

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
    colour: str = "#66749a"
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
    base: Method | None = None
    aliases: tuple[str, ...] = ()
    numerics: int = 0

    def aggregator(self, setting: RuleSetting) -> Aggregator:
        """The aggregator, with the transformation of `algorithm.before` if it applies."""
        rule = self.rule(setting)
        return before_rule(setting, rule) if self.takes_step_before else rule

    def algorithm(self, setting: Setting) -> Algorithm:
        """The algorithm of the method."""
        if self.needs_truth and setting.truth is None:
            raise ValueError(f"run.methods: {self.name} needs the truth")
        return self.build(setting, self.aggregator(setting))

    def task(self, setting: Setting) -> Task:
        """The task that the method uses."""
        return setting.task if self.prepare is None else self.prepare(setting.task, setting)


def _coterie(setting: Setting, rule: Aggregator) -> Algorithm:
    smooth = setting.task.has_curvatures  # which the automatic step size and the stopping rule need
    descent = setting.descent(
        rule,
        step_size=None if smooth or setting.options.step == "auto" else setting.options.step,
        precision=PRECISION if smooth else 0.0,
        tolerance=0.0,
        empty="keep",
        weighted=True,
        init=setting.robust_start(),
        conditioned=setting.hessians,
    )
    if smooth and setting.hessians_left_out and setting.options.optimiser == "plain":
        return replace(descent, server=replace(descent.server, optimiser=Momentum(MOMENTUM)))
    return descent


def _three_stage(setting: Setting, rule: Aggregator) -> Algorithm:
    stages, options = setting.three_stage, setting.options
    descent = setting.descent(rule, UnitSphere() if stages.project == "unit-sphere" else None)
    first = setting.truth.labels if setting.truth is not None and stages.first == "truth" else None
    return ThreeStage(descent, stages.iterations, stages.starts, options.ridge, options.trim, first)


def _three_stage_task(task: Task, setting: Setting) -> Task:
    """The task with the configured computation of local minimisers."""
    if setting.three_stage.erm == "float32-inverse":
        return LinearModel(task.clients, squared_loss(), float32_inverse)
    return task


def _local_task(task: Task, setting: Setting) -> Task:
    """The task whose local fits of a network have as many steps as all rounds together."""
    if not hasattr(task, "fitting"):
        return task
    fitted: Task = task.fitting(setting.options.rounds, setting.options.step)
    return fitted


def _oracle(setting: Setting, rule: Aggregator) -> Algorithm:
    assert setting.truth is not None
    if setting.task.has_curvatures:
        return Oracle(setting.task, setting.truth.labels)
    # a network has no closed-form minimiser: descent over the honest clients of the true clusters
    return setting.descent(rule, labels=setting.truth.labels)


def custom_method(name: str, rule: Aggregator | Callable[[Array], Array]) -> Method:
    """The method that runs Algorithm 1 with a given rule."""
    return Method(name, "Algorithm 1 with a custom rule", lambda setting: as_aggregator(rule), takes_step_before=False)


OWN = "+own"
"""The suffix of a method after which every client fits a model of its own, shrunk towards that of its cluster."""


def with_personal_models(method: Method) -> Method:
    """The method after which every client fits a model of its own (`personal.personalise`): NAME+own."""
    if method.needs_truth:
        raise ValueError(f"must be a method that needs no truth before {OWN}, got {method.name}{OWN}")
    if method.name == "local":
        summary = "every client learns alone: its own minimiser, shrunk by validation"
    else:
        summary = f"{method.name}, then a model for every client, shrunk towards that of its cluster"
    return replace(
        method,
        name=method.name + OWN,
        summary=summary,
        base=method,
        compared=False,
        in_arena=(),
        batched=False,
        aliases=(),
        numerics=method.numerics + PERSONAL_NUMERICS,
    )


PERSONAL_NUMERICS = 300
"""Added to the numerics of a method with personal models; raised by 100 when a change moves those models."""

EVERYWHERE = ("nothing",)

METHODS: Registry[Method] = Registry(
    "method",
    [
        Method(
            "coterie",
            "recommended: Algorithm 1 from a robust start, with a spectral filter, Newton steps and an automatic stop",
            _filter,
            _coterie,
            "#e8501c",
            compared=True,
            in_arena=EVERYWHERE,
            takes_bound=True,
            takes_step_before=False,
            finds_start=True,
            numerics=8,
        ),
        Method(
            "brifca-median",
            "Algorithm 1 with the coordinate-wise median (Option I)",
            _median,
            colour="#1347bf",
            compared=True,
            in_arena=EVERYWHERE,
            batched=True,
        ),
        Method(
            "brifca-trimmed",
            "Algorithm 1 with the coordinate-wise trimmed mean (Option II)",
            _trimmed,
            colour="#008a46",
            compared=True,
            in_arena=("nothing", "mixing"),
            trims=True,
            batched=True,
        ),
        Method(
            "brifca-geometric",
            "Algorithm 1 with the geometric median",
            lambda setting: GeometricMedian(),
            colour="#1187a5",
            in_arena=("nothing", "bucketing"),
        ),
        Method(
            "brifca-krum",
            "Algorithm 1 with Multi-Krum",
            lambda setting: Krum(setting.options.trim, selected=0.5),
            colour="#c04a8f",
            in_arena=EVERYWHERE,
        ),
        Method(
            "brifca-clipping",
            "Algorithm 1 with centred clipping",
            lambda setting: CentredClipping(),
            colour="#7a5c1e",
            in_arena=EVERYWHERE,
        ),
        Method(
            "brifca-filter",
            "Algorithm 1 with the spectral filter",
            _filter,
            colour="#b8600b",
            in_arena=EVERYWHERE,
            takes_bound=True,
            numerics=4,
        ),
        Method(
            "brifca-no-regret",
            "Algorithm 1 with the spectral filter in its no-regret form",
            lambda setting: SpectralFilter(setting.max_byzantine, "no-regret"),
            colour="#5d6b13",
            in_arena=EVERYWHERE,
            takes_bound=True,
            numerics=4,
        ),
        Method(
            "ifca",
            "Algorithm 1 with the mean, which is IFCA: not robust",
            _mean,
            colour="#a10d48",
            compared=True,
            in_arena=EVERYWHERE,
            batched=True,
        ),
        Method(
            "three-stage",
            "local minimisers, trimmed k-means, trimmed-mean descent with fixed clusters",
            _trimmed,
            _three_stage,
            "#978722",
            prepare=_three_stage_task,
            compared=True,
            in_arena=EVERYWHERE,
            trims=True,
            batched=True,
        ),
        Method(
            "local",
            "every client learns alone: its own minimiser",
            build=lambda setting, rule: LocalMinimisers(setting.task, setting.options.ridge),
            colour="#66749a",
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
            colour="#b06ad0",
            compared=True,
            one_centre=True,
            clusters_clients=False,
        ),
        Method(
            "oracle",
            "the pooled minimiser of the honest clients of each true cluster",
            lambda setting: Mean(),
            _oracle,
            "#101010",
            needs_truth=True,
            compared=True,
            takes_step_before=False,
            batched=True,
            served=False,
            immediate=True,
        ),
    ],
    group="coterie.methods",
    variant=(OWN, with_personal_models),
)
