"""From what a rule or a method is built: the options, the task, the number of clients and clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.random import Generator

from coterie._src.aggregators import Aggregator, ceil_count
from coterie._src.algorithms import ClusteredDescent
from coterie._src.arrays import Array
from coterie._src.data import Truth
from coterie._src.experiments.starts import DEFAULT_ASKING, STARTS, asks
from coterie._src.init import RobustStart
from coterie._src.init.conditioning import MAX_NUMBERS, Conditioned
from coterie._src.init.sampling import SAMPLE
from coterie._src.optimisers import Adam, Momentum, Optimiser, PlainSteps
from coterie._src.projections import Box, L2Ball, Projection, Unconstrained
from coterie._src.server import Server
from coterie._src.tasks import Task

if TYPE_CHECKING:
    from coterie._src.experiments.config import AlgorithmSection, ThreeStageSection


@dataclass(frozen=True)
class RuleSetting:
    """The setting from which a rule is built.

    options: the section `algorithm` of the configuration. clients: m. rng: for the buckets of `algorithm.before`.
    """

    options: AlgorithmSection
    clients: int
    rng: Generator

    @property
    def max_byzantine(self) -> int:
        """The bound on the number of Byzantine clients: a fraction of the clients, rounded up, less than half."""
        bound = self.options.max_byzantine
        if bound == "auto":
            raise ValueError("algorithm.max_byzantine: auto is for simulations and ct.fit; give a number")
        return max_byzantine_count(bound, self.clients)


@dataclass(frozen=True)
class Setting(RuleSetting):
    """The setting from which a method is built.

    Parameters
    ----------
    three_stage : the section `three_stage` of the configuration.
    task : the task of the clients; in a real federation that of one of the `clients`.
    clusters : k.
    truth : the true clusters and centres, if known.
    audit : whether the server records which replies were extreme.
    origin : (1, d), the point at which a robust start asks for gradients; None for 0.
    shared : the number of leading coordinates that all clusters share.
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
            "conditioned": self.hessians if self.options.coordinates == "hessian" and self._few_numbers else "no",
            "max_byzantine": self.max_byzantine,
        }
        return ClusteredDescent(self.server(rule, project), **(options | changes))

    @property
    def hessians(self) -> Conditioned:
        """Whether the server may ask for Hessians, and whether these vary with the parameters."""
        known = getattr(self.task, "hessians_known", "never")  # a task of one's own may lack it
        if self.options.coordinates == "raw" or known == "never":
            return "no"
        if known == "constant":  # of many clients a sample can be asked
            return "constant" if min(self.clients, SAMPLE) * self.task.dim**2 <= MAX_NUMBERS else "no"
        return "varying" if self._few_numbers else "no"

    @property
    def hessians_left_out(self) -> bool:
        """Whether the task knows Hessians and the server does not ask for them."""
        return getattr(self.task, "hessians_known", "never") != "never" and self.hessians == "no"

    @property
    def _few_numbers(self) -> bool:
        """Whether all clients can be asked for Hessians."""
        return self.clients * self.task.dim**2 <= MAX_NUMBERS

    def robust_start(self) -> RobustStart:
        """The robust start: the configured one, or the default where that asks no clients."""
        name = self.options.init if asks(self.options.init) else DEFAULT_ASKING
        return STARTS[name].asking(
            self.max_byzantine / self.clients,
            self.clusters if self.options.clusters == "known" else None,
            self.options.max_clusters,
            # origin − gradient/curvature is the optimum for isotropic features and a loss of this curvature
            self.task.curvature_bound,
            self.options.ridge,
            self.origin,
            self.shared,
            self.hessians,
        )


def max_byzantine_count(bound: float, clients: int) -> int:
    """⌈bound·clients⌉ for a fraction (float), the bound itself for a count (int); less than half of the clients."""
    count = bound if isinstance(bound, int) else ceil_count(bound, clients)
    return min(count, (clients - 1) // 2)


def projection(options: AlgorithmSection) -> Projection:
    """The configured projection Π_Θ."""
    by_name: dict[str, Projection] = {
        "none": Unconstrained(),
        "l2-ball": L2Ball(options.radius),
        "box": Box(options.radius),
    }
    return by_name[options.project]


def optimiser(options: AlgorithmSection) -> Optimiser:
    """The configured optimiser of the server."""
    by_name: dict[str, Optimiser] = {
        "plain": PlainSteps(),
        "momentum": Momentum(options.momentum),
        "adam": Adam(options.momentum),
    }
    return by_name[options.optimiser]
