"""One trial: every method on one draw of data and start."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from coterie._src.aggregators import median
from coterie._src.algorithms import Algorithm, ClusteredDescent, State
from coterie._src.arrays import Array, as_numpy, like
from coterie._src.data import Truth
from coterie._src.diagnostics import diagnose, excess, replies_left_out
from coterie._src.evaluation import cluster_models, held_out_metrics, held_out_scores
from coterie._src.evaluation import compare as compare_scores
from coterie._src.experiments.callbacks import OnRound
from coterie._src.experiments.client_rows import ALONE, FOR_ALL, client_rows
from coterie._src.experiments.config import Config
from coterie._src.experiments.directions import leading_directions
from coterie._src.experiments.method_setting import Setting
from coterie._src.experiments.methods import METHODS, Method, custom_method
from coterie._src.experiments.outcome import MethodResult, Row, TrialResult
from coterie._src.experiments.recorder import Recorder
from coterie._src.experiments.setup import NOTHING_CUSTOM, Custom, DataCache, Observe, TrialSetup, draw_trial
from coterie._src.experiments.starts import asks
from coterie._src.membership import Membership, membership_of
from coterie._src.metrics import NOT_APPLICABLE, cluster_distances
from coterie._src.personal import personalise
from coterie._src.server import Server
from coterie._src.simulation import KnownServer, SimulatedNetwork, choices, play
from coterie._src.suspicion import suspicion
from coterie._src.tasks import Task


def run_trial(
    config: Config,
    trial: int,
    record: bool = True,
    on_round: OnRound = lambda trial, method, row: None,
    cache: DataCache | None = None,
    custom: Custom = NOTHING_CUSTOM,
    observe: Observe | None = None,
) -> TrialResult:
    """All methods on one draw; `record` keeps what happened in every round and to every client.

    cache: of the trial before, if there was one. custom: rules that play beside the methods, and an attack (see
    docs/extending.md). observe: called after every round of the methods.
    Same seed, same bits: every stream is keyed by trial and purpose, and the linear algebra runs on one
    thread, since its rounding depends on the number of threads.
    """
    computing = config.problem.computing()  # loads torch, if need be, before the number of threads is set
    # a method that diverges may overflow; the result says so, a warning would not add to it
    with computing, threadpool_limits(limits=1), np.errstate(all="ignore"):
        cache = cache or DataCache()
        setup = draw_trial(config, trial, cache, custom)
        methods = [METHODS[name] for name in config.methods] + [
            custom_method(name, rule) for name, rule in custom.rules.items()
        ]
        results = run_methods(methods, replace(setup, observe=observe), record, on_round)
        if setup.truth is not None and setup.truth.centres.shape[1]:
            oracle = results.get("oracle") or cache.oracle
            if oracle is None:
                oracle = cache.oracle = run_method(METHODS["oracle"], setup, False)
            for result in results.values():
                compare(result, oracle, setup.truth)
        clients, comparisons = judged_clients(methods, results, setup) if record else ([], {})
    return TrialResult(trial, results, clients, comparisons)


def run_methods(
    methods: Sequence[Method],
    setup: TrialSetup,
    record: bool = True,
    on_round: OnRound = lambda trial, method, row: None,
    known: Mapping[str, MethodResult] | None = None,
) -> dict[str, MethodResult]:
    """The results of some methods by name; a method with personal models begins where the one without them ended.

    known: results that are there already.
    """
    found = dict(known or {})
    for method in methods:
        plain = method.base or method
        if plain.name not in found:
            found[plain.name] = run_method(plain, setup, record, on_round)
        if method.base is not None:
            found[method.name] = with_personal_models(found[plain.name], plain, setup)
    return {method.name: found[method.name] for method in methods}


def with_personal_models(result: MethodResult, method: Method, setup: TrialSetup) -> MethodResult:
    """The result of a method after which every client has fitted a model of its own, shrunk towards its cluster's."""
    centres, began = like(result.centres, setup.start), time.perf_counter()
    labels = np.full(len(result.labels), -1) if method.name == "local" else result.labels  # alone: in no cluster
    alone = METHODS["local"].task(setup.setting(setup.stream("buckets")))  # a network's own fit has as many steps
    found = personalise(alone, centres, labels)
    seconds = result.metrics["seconds"] + time.perf_counter() - began
    # the training loss of a model of one client is not comparable
    metrics = result.metrics | {"loss": NOT_APPLICABLE, "seconds": seconds}
    personal = replace(result, metrics=metrics, personal=as_numpy(found.models))
    return evaluated(personal, found.models, setup)


def evaluated(result: MethodResult, models: Array, setup: TrialSetup) -> MethodResult:
    """The result with the scores of (m, d) models, one per client, on the held-out samples, if there are any."""
    if setup.held_out is None:
        return result
    honest = ~setup.is_byzantine
    scores = held_out_scores(setup.task, setup.held_out, models, honest)
    return replace(result, scores=scores, metrics=result.metrics | held_out_metrics(scores, honest))


def judged_clients(
    methods: Sequence[Method], results: Mapping[str, MethodResult], setup: TrialSetup
) -> tuple[list[Row], dict[str, str]]:
    """With held-out samples, a row per client and clustering method, and a sentence per method: who is better off.

    A client is compared with what it has alone (`local+own`) and with one model for all (`global`); both are fitted
    for that where they are not among the methods.
    """
    if setup.held_out is None:
        return [], {}
    missing = [METHODS[name] for name in (ALONE, FOR_ALL) if name not in results]
    known = {**results, **run_methods(missing, setup, False)}
    plain = [method.name for method in methods if method.clusters_clients and method.base is None]
    rows = [row for name in plain for row in client_rows(name, known, setup.task.clients, setup.held_out)]
    honest, alone = ~setup.is_byzantine, known[ALONE].scores
    assert alone is not None
    sentences = {
        method.name: compare_scores(found, alone, honest).sentence("alone")
        for method in methods
        if method.name != ALONE and (found := known[method.name].scores) is not None
    }
    return rows, sentences


def compare(result: MethodResult, oracle: MethodResult, truth: Truth) -> None:
    """The matched distance relative to the oracle's, over all clusters and in the one where it is worst."""
    floor, metrics = oracle.metrics["matched_dist"], result.metrics
    metrics["oracle_ratio"] = metrics["matched_dist"] / floor if floor > 0 else math.nan
    each = cluster_distances(oracle.centres, truth.centres)
    metrics["worst_ratio"] = math.nan
    if each.min() > 0 and not math.isnan(metrics["clusters"]):
        metrics["worst_ratio"] = float((cluster_distances(result.centres, truth.centres) / each).max())


def run_method(
    method: Method,
    setup: TrialSetup,
    record: bool = True,
    on_round: OnRound = lambda trial, method, row: None,
) -> MethodResult:
    """One method from the common start to its end; with a larger bound if the replies of more clients stand out.

    The larger bound is estimated (`init.bound`); if that is none, the result is left as it is, and its diagnostics say
    so. With the option `strict` there is no result then, but a ValueError.
    """
    ended = _play_method(method, setup, record, on_round)
    left_out, stated = _left_out(method, ended), -1
    bound, count = ended.setting.max_byzantine, setup.task.clients.count
    if left_out is not None and excess(left_out[1], bound, count):
        if setup.options.strict:
            raise ValueError(
                f"algorithm.max_byzantine: allows for {bound} Byzantine clients of {count}, and the replies of "
                f"{left_out[1]} stand out with {method.name}; nothing is published, since algorithm.strict is true"
            )
        if (larger := setup.estimated_bound()) > bound:
            setup, stated = setup.with_bound(larger), bound
            if not method.finds_start and asks(setup.options.init):
                setup = setup.started("float64", setup.stream("start"))
            ended = _play_method(method, setup, record, on_round)
            left_out = _left_out(method, ended)
    result, recorder, setting, algorithm, network = ended
    if setup.held_out is not None:
        centres = like(result.centres, setup.start)
        result = evaluated(result, cluster_models(setup.task, centres, result.labels), setup)
    if record and method.clusters_clients and recorder.last is not None:
        state, first, task = recorder.last.state, setup.trial == 0, setting.task
        members = membership_of(task, state.centres, result.labels, setting.max_byzantine)
        found = diagnose(algorithm, network, state, left_out)
        result = replace(
            result,
            diagnostics=None
            if found is None
            else replace(found, raised_from=stated, estimated=int(setup.estimated and stated < 0)),
            membership=members,
            directions=leading_directions(network, state) if first else None,
            audit=_with_evidence(result.audit, network, state, members, setting.max_byzantine)
            if first
            else result.audit,
        )
    return result


class Ended(NamedTuple):
    """A method at the end of its rounds."""

    result: MethodResult
    recorder: Recorder
    setting: Setting
    algorithm: Algorithm
    network: SimulatedNetwork


def _left_out(method: Method, ended: Ended) -> tuple[int, int] | None:
    """See `replies_left_out`; None for a method that takes no bound."""
    algorithm, last = ended.algorithm, ended.recorder.last
    if not method.takes_bound or last is None or not isinstance(algorithm, ClusteredDescent):
        return None
    return replies_left_out(algorithm, ended.network, last.state)


def _play_method(method: Method, setup: TrialSetup, record: bool, on_round: OnRound) -> Ended:
    """All rounds of a method."""
    setting = setup.setting(setup.stream("buckets"), record)
    task = method.task(setting)
    setting = replace(setting, task=task)
    algorithm = method.algorithm(setting)
    # the adversary knows the rule, but not the buckets that are drawn
    known_rule = method.aggregator(setup.setting(setup.stream("adversary's buckets")))
    known_rule(setup.start)  # compiled before the clock starts, as is a round
    if task.has_curvatures:
        _compile_round(task, setup.start)
    recorder = Recorder(
        task, setup.truth, setup.is_byzantine, record, local=method.immediate and not method.needs_truth
    )
    start = setup.start[:1] if method.one_centre else setup.start
    server = KnownServer(algorithm, start)
    network = SimulatedNetwork(
        task, setup.is_byzantine, setup.attack, setup.stream("attack"), known_rule, truth=setup.truth, server=server
    )
    seconds, began = 0.0, time.perf_counter()
    for played in play(algorithm, network, start, setup.stream("server")):
        seconds += time.perf_counter() - began
        row = recorder.add(played)
        server.state = played.state
        if setup.observe is not None:
            setup.observe(setup.trial, method.name, algorithm.rounds, recorder)
        on_round(setup.trial, method.name, row)
        began = time.perf_counter()
    return Ended(recorder.finish(seconds), recorder, setting, algorithm, network)


def _with_evidence(
    audit: list[Row], network: SimulatedNetwork, state: State, members: Membership, max_byzantine: int
) -> list[Row]:
    """The audit with what the clients' losses say, those of Byzantine clients on the data with which they compute."""
    task = network.working_task
    refused = np.array([row["refused"] for row in audit])
    found = suspicion(task, state.centres, choices(task, state), members, refused, max_byzantine)
    return [
        {**row, "loss": _digits(loss), "suspicion": _digits(score), "evidence": reasons}
        for row, loss, score, reasons in zip(
            audit, found.losses.tolist(), found.scores.tolist(), found.reasons, strict=True
        )
    ]


def _digits(value: float) -> float | str:
    """The value with six digits; empty where it is not finite."""
    return float(f"{value:.6g}") if math.isfinite(value) else ""


def _compile_round(task: Task, start: Array) -> None:
    """A round of the first client: all that clients and server need in one is compiled then."""
    alone, nobody, rng = task.on(task.clients.take([0])), np.zeros(1, dtype=np.bool_), np.random.default_rng(0)
    alone.losses(start)
    alone.gradients(start, np.zeros(1, dtype=np.int64))
    network = SimulatedNetwork(alone, nobody, None, rng)
    ClusteredDescent(Server(median), rounds=1, step_size=0.0).step(State(0, start), network, rng)
