"""One trial: one draw of data and start, every method on it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from coterie._src.aggregators import Aggregator, median
from coterie._src.algorithms import Algorithm, ClusteredDescent, LocalMinimisers, State
from coterie._src.arrays import Array, Bools, Floats, as_numpy, like
from coterie._src.attacks import Attack
from coterie._src.client import Asking, look_ahead
from coterie._src.data import Truth
from coterie._src.experiments import problems, tables
from coterie._src.experiments.config import IMAGE_KINDS, NAMED_STARTS, ROBUST_STARTS, Config, Images
from coterie._src.intake import Verdict
from coterie._src.metrics import (
    NOT_APPLICABLE,
    Metrics,
    cluster_accuracies,
    cluster_distances,
    contamination,
    evaluate,
)
from coterie._src.server import Server
from coterie._src.simulation import Round, SimulatedNetwork, choices, done, play, stream
from coterie._src.tasks import Task

Row = dict[str, Any]
OnRound = Callable[[], None]

SIDE_BY_SIDE = 4
"""Methods that are played round by round beside each other: more would take more memory for what clients remember."""


@dataclass(frozen=True)
class MethodResult:
    """What one method gave in one trial."""

    metrics: Metrics
    rounds: list[Row]
    audit: list[Row]
    centres: NDArray[Any]
    clusters: list[Row] = field(default_factory=list)  # per true cluster, where there are samples to test on


@dataclass(frozen=True)
class TrialResult:
    """What all methods gave in one trial."""

    trial: int
    methods: dict[str, MethodResult]


def check(config: Config) -> None:
    """Find what only the files can tell (a folder of clients, a file of centres) before any work is done."""
    problem = config.problem
    if problem.kind not in ("folder", *IMAGE_KINDS) and config.algorithm.init in NAMED_STARTS:
        return
    clients = problems.federation(problem, stream(config.run.seed, 0, "data")).clients
    if problem.kind == "folder" and problem.task in ("logistic", "softmax"):
        problems.task(problem, clients)  # are the targets classes?
    elif problem.kind in IMAGE_KINDS:
        problems.on_device(clients.take([0]), config.run.device)
    if problem.clusters > clients.count:
        raise ValueError(
            f"problem.clusters: must be at most the number of clients ({clients.count}), got {problem.clusters}"
        )
    if config.algorithm.clusters == "auto" and clients.sizes.min() < 2:
        raise ValueError("algorithm.clusters: auto needs at least 2 samples per client, the smallest has 1")
    if config.algorithm.init not in NAMED_STARTS:
        draw_trial(config, 0)
    needed = 2 * config.algorithm.rounds
    if config.algorithm.resample and clients.sizes.min() < needed:
        raise ValueError(
            f"algorithm.resample: needs at least 2*rounds = {needed} samples per client, "
            f"the smallest has {clients.sizes.min()}"
        )


@dataclass
class Ground:
    """What the last trial was drawn from, kept for the next: in a sweep many differ in attack or algorithm alone."""

    problem: str = ""
    task: Task | None = None
    truth: Truth | None = None
    oracle: MethodResult | None = None

    def draw(self, config: Config, trial: int) -> tuple[Task, Truth | None]:
        """The clients of a trial and what they compute, anew unless they are those of the last one."""
        problem = f"{config.run.seed} {trial} {config.problem.model_dump_json()}"
        if self.task is None or problem != self.problem:
            self.task = self.truth = self.oracle = None  # the last one's samples go before the next one's come
            drawn = problems.federation(config.problem, stream(config.run.seed, trial, "data"))
            self.problem, self.truth = problem, drawn.truth
            self.task = problems.task(config.problem, drawn.clients)
        return self.task, self.truth


@dataclass(frozen=True)
class Draw:
    """One draw of data and start, which all methods of a trial share."""

    config: Config
    trial: int
    task: Task
    truth: Truth | None
    start: Array
    origin: Array | None = None  # (1, d), where a robust start asks; None for 0

    def stream(self, purpose: str) -> Generator:
        return stream(self.config.run.seed, self.trial, purpose)


class Own(NamedTuple):
    """What is tried beside the tables: rules by names of one's own, an attack in the place of the configured one."""

    rules: Mapping[str, Aggregator] = {}
    attack: Attack | None = None

    def attack_of(self, config: Config) -> Attack:
        return self.attack or tables.attack(config.attack)


NOTHING_OWN = Own()


def draw_trial(config: Config, trial: int, ground: Ground | None = None, own: Own = NOTHING_OWN) -> Draw:
    """The data, the task and the first centres of a trial."""
    rng, origin = stream(config.run.seed, trial, "start"), None
    example: Array
    if isinstance(config.problem, Images):
        drawn = problems.federation(config.problem, stream(config.run.seed, trial, "data"))
        clients, truth = problems.on_device(drawn.clients, config.run.device), drawn.truth
        assert truth is not None
        assert truth.test is not None
        truth = replace(truth, test=problems.on_device(truth.test, config.run.device))
        network_task: Any = problems.task(config.problem, clients)
        example = tables.fresh_start(config, network_task, rng)
        task, origin = cast("Task", replace(network_task, origin=example[0])), example[:1]
    else:
        task, truth = (ground or Ground()).draw(config, trial)
        example = np.zeros((1, task.dim), dtype=np.dtype(config.problem.dtype))
    if config.algorithm.init in ROBUST_STARTS:
        byzantine = _byzantine(task, truth)
        adversary = stream(config.run.seed, trial, "attack on the start")
        network = SimulatedNetwork(task, byzantine, own.attack_of(config), adversary)
        start = tables.robust_start(config, task, origin)(network, example, rng)
    elif config.algorithm.init == "fresh":
        start = example
    else:
        start = like(tables.start(config, task.dim, truth, rng), example)
    return Draw(config, trial, task, truth, start, origin)


def _byzantine(task: Task, truth: Truth | None) -> Bools:
    return np.zeros(task.clients.count, dtype=np.bool_) if truth is None else truth.byzantine


def run_trial(
    config: Config,
    trial: int,
    record: bool = True,
    on_round: OnRound = lambda: None,
    ground: Ground | None = None,
    own: Own = NOTHING_OWN,
) -> TrialResult:
    """All methods on one draw; `record` keeps what happened in every round and to every client.

    ground: of the trial before, if there was one. own: rules that play beside the methods, and an attack (see
    docs/extending.md).
    Same seed, same bits: every stream is keyed by trial and purpose, and the linear algebra runs on one
    thread, since its rounding depends on the number of threads.
    """
    products: AbstractContextManager[None] = nullcontext()
    if isinstance(config.problem, Images):
        products = problems.fast_products()  # loads torch before the number of threads is set, or it would take its own
    # a method that diverges may overflow; the result says so, a warning would not add to it
    with products, threadpool_limits(limits=1), np.errstate(all="ignore"):
        ground = ground or Ground()
        draw = draw_trial(config, trial, ground, own)
        names = [*config.methods, *own.rules]
        results: dict[str, MethodResult] = {}
        for first in range(0, len(names), SIDE_BY_SIDE):
            results |= _run_methods(names[first : first + SIDE_BY_SIDE], draw, record, on_round, own)
        if draw.truth is not None and draw.truth.centres.shape[1]:
            if not (oracle := results.get("oracle") or ground.oracle):
                (oracle,) = _run_methods(["oracle"], draw, False, lambda: None, NOTHING_OWN).values()
                ground.oracle = oracle
            for result in results.values():
                compare(result, oracle, draw.truth)
    return TrialResult(trial, results)


def compare(result: MethodResult, oracle: MethodResult, truth: Truth) -> None:
    """The matched distance relative to the oracle's, over all clusters and in the one where it is worst."""
    floor, metrics = oracle.metrics["matched_dist"], result.metrics
    metrics["oracle_ratio"] = metrics["matched_dist"] / floor if floor > 0 else math.nan
    each = cluster_distances(oracle.centres, truth.centres)
    metrics["worst_ratio"] = math.nan
    if each.min() > 0 and not math.isnan(metrics["clusters"]):
        metrics["worst_ratio"] = float((cluster_distances(result.centres, truth.centres) / each).max())


@dataclass
class Player:
    """A method in the middle of a trial. seconds: its own so far, and its share of the passes in common."""

    algorithm: Algorithm
    network: SimulatedNetwork
    rounds: Iterator[Round]
    recorder: Recorder
    seconds: float = 0.0

    def asking(self) -> Asking | None:
        """What it is about to ask in its next round, if there will be one."""
        last, memory = self.recorder.last, self.network.memory
        if last is None or memory is None or done(self.algorithm, last):
            return None
        return Asking(self.network.task, last.state.centres, memory)

    def advance(self) -> bool:
        """Play a round, and say whether there was one."""
        began = time.perf_counter()
        played = next(self.rounds, None)
        self.seconds += time.perf_counter() - began
        if played is not None:
            self.recorder.add(played)
        return played is not None


def _run_methods(
    methods: Sequence[str], draw: Draw, record: bool, on_round: OnRound, own: Own
) -> dict[str, MethodResult]:
    """Some methods side by side, round by round, so that one pass over the samples may serve them all.

    Their results are those that they would have one after the other, if an attack keeps nothing from call to call.
    """
    players = {method: _player(method, draw, record, own) for method in methods}
    results: dict[str, MethodResult] = {}
    while players:
        began = time.perf_counter()
        asking = {method: question for method, player in players.items() if (question := player.asking())}
        look_ahead(list(asking.values()))
        shared = (time.perf_counter() - began) / max(1, len(asking))
        for method, player in list(players.items()):
            player.seconds += shared if method in asking else 0.0
            if player.advance():
                on_round()
            else:
                results[method] = players.pop(method).recorder.finish(player.seconds)
    return {method: results[method] for method in methods}


def _player(method: str, draw: Draw, record: bool, own: Own) -> Player:
    task, given = tables.method_task(method, draw.config, draw.task), own.rules.get(method)
    algorithm = tables.algorithm(
        method, draw.config, task, draw.truth, draw.stream("buckets"), record, draw.origin, own=given
    )
    guess = given or tables.rule(method, draw.config, task.clients.count, draw.stream("adversary's buckets"))
    guess(draw.start)  # compiled before the clock starts, as is a round
    if not isinstance(draw.config.problem, Images):
        _play_with_one_client(task, draw.start)
    byzantine = _byzantine(task, draw.truth)
    network = SimulatedNetwork(task, byzantine, own.attack_of(draw.config), draw.stream("attack"), guess)
    recorder = Recorder(task, draw.truth, byzantine, record, local=isinstance(algorithm, LocalMinimisers))
    start = draw.start[:1] if method == "global" else draw.start
    return Player(algorithm, network, play(algorithm, network, start, draw.stream("server")), recorder)


def _play_with_one_client(task: Task, start: Array) -> None:
    """A round of the first client: all that clients and server need in one is compiled then."""
    alone, nobody, rng = task.on(task.clients.take([0])), np.zeros(1, dtype=np.bool_), np.random.default_rng(0)
    alone.losses(start)
    alone.gradients(start, np.zeros(1, dtype=np.int64))
    network = SimulatedNetwork(alone, nobody, None, rng)
    ClusteredDescent(Server(median), rounds=1, size=0.0).step(State(0, start), network, rng)


@dataclass
class Recorder:
    """Collects per-round rows and the audit of one method."""

    task: Task
    truth: Truth | None
    byzantine: Bools
    record: bool = True
    local: bool = False  # one model per client
    rows: list[Row] = field(default_factory=list)
    last: Round | None = None

    def __post_init__(self) -> None:
        m = self.task.clients.count
        self.refused = np.zeros(m, dtype=np.int64)
        self.silent = np.zeros(m, dtype=np.int64)
        self.changed = np.zeros(m, dtype=np.int64)
        self.trimmed = np.zeros(m)
        self.counted = np.zeros(m, dtype=np.int64)
        self.labels = np.full(m, -1)
        test = None if self.truth is None else self.truth.test
        self.tests = [] if test is None else [self.task.on(test.take([j])) for j in range(test.count)]
        self.faults = np.zeros(m, dtype=np.int64)  # a bit for each verdict

    def add(self, played: Round) -> None:
        """Take in one round."""
        self.last = played
        state, exchange = played
        if exchange is None or not self.record:
            return
        row: Row = {"round": state.round}
        if self.truth is not None:
            row |= evaluate(state.centres, exchange.labels, self.truth)
            share = contamination(exchange.labels, self.byzantine, state.centres.shape[0])
            row["contamination"] = " ".join(f"{part:.4f}" for part in share)
            if self.tests:
                each = self._accuracies(exchange.labels)
                row["accuracy"] = self._accuracy(each)
                row["accuracies"] = " ".join(f"{part:.4f}" for part in each)
        row["movement"] = exchange.movement
        row["strangers"] = exchange.strangers
        row["refused"] = int(_refused(exchange.verdicts).sum())
        row["silent"] = int((exchange.verdicts == Verdict.SILENT).sum())
        row["empty"] = int((exchange.sizes == 0).sum())
        row["stuck"] = exchange.stuck
        row["sizes"] = " ".join(str(size) for size in exchange.sizes)
        self.rows.append(row)
        self._audit(exchange.labels, exchange.verdicts, exchange.trimmed)

    def _audit(self, labels: NDArray[Any], verdicts: NDArray[Any], trimmed: NDArray[Any] | None) -> None:
        refused = _refused(verdicts)
        self.refused += refused
        self.faults |= np.where(refused, 1 << verdicts, 0)
        self.silent += verdicts == Verdict.SILENT
        self.changed += (labels >= 0) & (self.labels >= 0) & (labels != self.labels)
        self.labels = np.where(labels >= 0, labels, self.labels)
        self.trimmed += 0.0 if trimmed is None else np.nan_to_num(trimmed)
        self.counted += labels >= 0

    def finish(self, seconds: float) -> MethodResult:
        """The final metrics, on the labels that the clients would choose now."""
        assert self.last is not None
        state = self.last.state
        labels = choices(self.task, state)
        metrics: Metrics = dict.fromkeys(
            (
                *("dist", "matched_dist", "ari", "misclustered", "oracle_ratio", "worst_ratio", "clusters"),
                *("accuracy", "worst_accuracy"),
            ),
            NOT_APPLICABLE,
        )
        if self.truth is not None:
            metrics |= evaluate(state.centres, labels, self.truth, self.local)
        elif not self.local:
            metrics["clusters"] = float(state.centres.shape[0])
        metrics["loss"] = self._loss(labels)
        metrics["rounds"] = float(state.round)
        metrics["seconds"] = seconds
        audit = self._audit_rows(labels) if self.record else []
        clusters: list[Row] = []
        if self.tests and self.truth is not None:
            each = self._accuracies(labels)
            metrics |= {"accuracy": self._accuracy(each), "worst_accuracy": float(each.min())}
            sizes = np.bincount(self.truth.labels[~self.byzantine], minlength=len(each))
            clusters = [{"cluster": j, "clients": int(sizes[j]), "accuracy": float(each[j])} for j in range(len(each))]
        return MethodResult(metrics, self.rows, audit, as_numpy(state.centres), clusters)

    def _accuracies(self, labels: NDArray[Any]) -> Floats:
        """(k,): per true cluster, see `cluster_accuracies`."""
        assert self.last is not None
        assert self.truth is not None
        centres = self.last.state.centres
        right = np.full((len(self.tests), len(centres)), np.nan)
        for j, test in enumerate(self.tests):
            used = np.unique(labels[(self.truth.labels == j) & (labels >= 0)])
            network: Any = test
            right[j, used] = network.accuracies(centres[used])[0]
        return cluster_accuracies(right, labels, self.truth)

    def _accuracy(self, each: Floats) -> float:
        """Over the honest clients."""
        assert self.truth is not None
        return float(each[self.truth.labels[~self.byzantine]].mean())

    def _loss(self, labels: NDArray[Any]) -> float:
        """The mean local loss of the honest clients at the centre of their cluster."""
        assert self.last is not None
        centres = self.last.state.centres
        if self.local:
            return NOT_APPLICABLE  # a model fitted to the client's own samples says nothing
        judged = ~self.byzantine & (labels >= 0)
        losses = as_numpy(self.task.losses(centres))
        return float(losses[judged, labels[judged]].mean()) if judged.any() else NOT_APPLICABLE

    def _audit_rows(self, labels: NDArray[Any]) -> list[Row]:
        rounds = max(1, len(self.rows))
        rows = []
        for client, name in enumerate(self.task.clients.names):
            truth: Row = {}
            if self.truth is not None:
                truth = {"byzantine": int(self.byzantine[client]), "true_cluster": int(self.truth.labels[client])}
            rows.append(
                {
                    "client": name,
                    **truth,
                    "cluster": int(labels[client]),
                    "trimmed": round(float(self.trimmed[client] / max(1, self.counted[client])), 6),
                    "refused": round(float(self.refused[client] / rounds), 6),
                    "silent": round(float(self.silent[client] / rounds), 6),
                    "reasons": _reasons(int(self.faults[client])),
                    "changed": int(self.changed[client]),
                }
            )
        return rows


def _reasons(faults: int) -> str:
    return " ".join(verdict.name.lower().replace("_", "-") for verdict in Verdict if faults >> verdict & 1)


def _refused(verdicts: NDArray[Any]) -> NDArray[np.bool_]:
    """Whose answer was turned down; who gave none, or was not asked, is silent."""
    refused: NDArray[np.bool_] = (verdicts != Verdict.ACCEPTED) & (verdicts != Verdict.SILENT)
    return refused
