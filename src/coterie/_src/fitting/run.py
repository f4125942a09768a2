"""`ct.fit`: find the clusters of some clients and learn one model for each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from threadpoolctl import threadpool_limits

from coterie._src.aggregators import Aggregator
from coterie._src.algorithms import Algorithm
from coterie._src.arrays import Array, as_numpy, like, namespace
from coterie._src.attacks import Attack
from coterie._src.data import Clients, Federation
from coterie._src.experiments.callbacks import Callback, Callbacks, RunInfo, replay_rounds, start_and_end
from coterie._src.experiments.config import AlgorithmSection, ThreeStageSection
from coterie._src.experiments.continuation import EarlierRun, continue_methods, read_run
from coterie._src.experiments.engines import round_listener
from coterie._src.experiments.methods import METHODS, with_personal_models
from coterie._src.experiments.models import Models
from coterie._src.experiments.outcome import MethodResult, TrialResult
from coterie._src.experiments.setup import TrialSetup
from coterie._src.experiments.trial import compare, judged_clients, run_method, run_methods
from coterie._src.fitting.inputs import (
    Data,
    Tables,
    as_federation,
    as_task,
    whole_number,
    with_holdout,
    without_test,
)
from coterie._src.fitting.options import as_method, as_section, check_task, check_truth, cluster_count, is_auto
from coterie._src.fitting.result import Result
from coterie._src.simulation import stream
from coterie._src.tasks import Task


def fit(
    clients: Data,
    task: str | Task | Callable[[Clients], Task] = "linear",
    clusters: int | Literal["auto"] = "auto",
    max_byzantine: float | Literal["auto"] = 0.05,
    method: str | Aggregator | Algorithm = "coterie",
    seed: int = 0,
    *,
    attack: Attack | None = None,
    intercept: bool | None = None,
    target: str | None = None,
    client: str | None = None,
    columns: Sequence[str] = (),
    classes: int | None = None,
    holdout: float | None = None,
    dtype: Literal["float32", "float64"] = "float64",
    three_stage: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    on_round: Callable[[], None] | None = None,
    state: Result | Models | str | Path | None = None,
    **options: Any,
) -> Result:
    """Find the clusters of some clients and learn one model for each, although some of the clients are Byzantine.

    Parameters
    ----------
    clients : Clients, Federation, mapping, path or frame
        The clients' data: a `ct.Clients`; a `ct.Federation`, whose truth says which clients are Byzantine; a mapping
        from names to `(x, y)`, or to `x` for the mean task, with x an array or a frame of numbers (then all are, and
        columns go by their names); a folder with a .csv, .tsv, .parquet or .npz file per client; or one such file, or a
        pandas, Polars or Arrow frame, with a column `client`. Text columns and missing values of files and of one frame
        are turned into numbers; `Result.encoding` says how.
    task : str, Task or function, default "linear"
        "linear", "logistic", "softmax" or "mean"; a `Task`; or a function from clients to one, such as `ct.module`
        makes (which needs samples in PyTorch tensors, and a number for the option `step`).
    clusters : int or "auto", default "auto"
        k, or "auto" to find it (with the method "coterie", or with a start that asks the clients).
    max_byzantine : float or "auto", default 0.05
        Bound on the fraction of Byzantine clients; below the share of the smallest cluster. "auto" estimates one, for
        methods that take it and start by asking the clients. Where the replies of more clients stand out, the fit goes
        on with a larger bound, or, with the option `strict=True`, raises a ValueError.
    method : str, Aggregator or Algorithm, default "coterie"
        A registered name (`ct.registered("methods")` lists them), an aggregator, which makes Algorithm 1 with it, or an
        algorithm.
    seed : int, default 0
        Everything random follows from it.
    attack : Attack, optional
        What the Byzantine clients of a federation's truth do; None: they answer by their own data.
    intercept : bool, optional
        Add a column of ones. By default for a mapping, files or a frame with a linear model that is named, and not for
        `Clients` and `Federation`, whose columns are taken as they are.
    target : str, default "y"
        The target column of files or of a frame.
    client : str, optional
        The column of one file or of a frame that says which client a row belongs to.
    columns : sequence of str, optional
        The features of files or of a frame, in this order; by default all columns but the target and the client.
    classes : int, optional
        Number of classes of the softmax task; by default one more than the largest target.
    holdout : float, optional
        Fraction of each client's samples that is held out, drawn at random: `result.metrics` and `result.clients` then
        have scores on samples that no method has seen. By default 0.25 for a mapping, a folder, a file or a frame, and
        0 for `Clients` and `Federation`; 0 learns from all samples.
    dtype : "float32" or "float64", default "float64"
        Precision of data that come from a mapping, files or a frame.
    three_stage : mapping, optional
        Options of the method "three-stage", by the names of the table `[three_stage]` of `coterie config`.
    callbacks : sequence of Callback, optional
        Objects of `coterie.callbacks`, such as trackers; they are called after every round and at the end.
    on_round : function, optional
        Called after every round; in version 0.2 it goes, and `callbacks` stay.
    state : Result, Models or path, optional
        An earlier fit, or run of `coterie run`, to continue with these clients: its centres are the first ones, its
        clusters keep their numbers, and `changes` of the result says what is different. If more clients than may be
        Byzantine fit none of its clusters, these are also searched for anew, `clusters` of them, and taken if they are
        better. For methods of Algorithm 1.
    **options
        Every other option of a method, by the names of the table `[algorithm]` of `coterie config`: `rounds`, `init`,
        `step`, `trim`, `personalise`, … By default `personalise` is "shrink" for a mapping, a folder, a file or a
        frame: every client also gets a model of its own, shrunk towards that of its cluster.

    Returns
    -------
    Result
        Centres, labels, rounds, audit and metrics; the same numbers that `coterie run` stores.

    Examples
    --------
    >>> import coterie as ct
    >>> federation = ct.mixed_regression(0, clients=40, clusters=2, samples=50, dim=10, byzantine=0.1)
    >>> result = ct.fit(federation, clusters=2, max_byzantine=0.1, attack=ct.attack("sign-flip"))
    >>> result.centres.shape, round(result.metrics["ari"], 2)
    ((2, 10), 1.0)
    """
    seed = whole_number("seed", seed, 0)
    tables = Tables(target, client, columns, max_byzantine)
    federation, added, encoding = as_federation(clients, task, tables, intercept, dtype)
    own_data = not isinstance(clients, Clients | Federation)
    federation = with_holdout(federation, (0.25 if own_data else 0.0) if holdout is None else holdout, seed)
    found, task_name, classes = as_task(task, federation.clients, classes)
    if not hasattr(found, "accuracies"):
        federation = without_test(federation)
    chosen = as_method(method, options, three_stage)
    if not found.has_curvatures:
        options.setdefault("init", "fresh" if hasattr(found, "fresh") else "spectral")
    if own_data and isinstance(method, str):
        options = {"personalise": "shrink", "coordinates": "hessian", **options}
    bounds = {"clusters": "auto" if is_auto(clusters) else "known", "max_byzantine": max_byzantine}
    section: AlgorithmSection = as_section(AlgorithmSection, {**bounds, **options}, function=fit)
    stages: ThreeStageSection = as_section(ThreeStageSection, dict(three_stage or {}), "three_stage.")
    if section.personalise == "shrink" and chosen.base is None and not chosen.needs_truth:
        chosen = with_personal_models(chosen)
    count = cluster_count(clusters, chosen, section, federation.clients)
    check_truth(federation, found, chosen, section, stages, attack, count)
    check_task(found, federation.clients, task_name, section, stages)
    rng = stream(seed, 0, "start")
    found, example, origin = _example(found, count, rng)
    setup = TrialSetup(
        seed=seed,
        trial=0,
        options=section,
        three_stage=stages,
        clusters=count,
        task=found,
        truth=federation.truth,
        is_byzantine=federation.is_byzantine,
        attack=attack,
        start=example,
        origin=origin,
        held_out=federation.held_out,
    )
    methods = [chosen] if chosen.base is None else [chosen.base, chosen]
    callback = Callbacks([*callbacks, *([] if on_round is None else [_EveryRound(on_round)])])
    params = {
        **{"task": task_name or type(found).__name__, "clusters": clusters, "method": chosen.name, "attack": attack},
        **{"clients": federation.clients.count, "samples": int(federation.clients.sizes.sum()), "holdout": holdout},
        **{f"algorithm.{name}": value for name, value in section.model_dump(mode="json").items()},
        **{f"three_stage.{name}": value for name, value in stages.model_dump(mode="json").items()},
    }
    try:
        with (
            threadpool_limits(limits=1),
            np.errstate(all="ignore"),
            start_and_end(callback, RunInfo("ct.fit", seed, params)),
        ):
            setup = setup.bounded()
            if not chosen.finds_start:
                setup = setup.started(str(as_numpy(example).dtype), rng)
            changes = None
            if state is None:
                results = run_methods(methods, setup, on_round=round_listener(callback))
            else:
                results, changes = continue_methods(methods, setup, _earlier_run(state))
            result = results[chosen.name]
            _judge(result, setup)
            rows, sentences = judged_clients(methods, results, setup)
            trial = TrialResult(0, results, rows, sentences, changes)
            if state is not None:
                replay_rounds(callback, trial)
            callback.on_trial(trial)
    except ValueError as error:  # options have no table here
        raise ValueError(str(error).removeprefix("algorithm.")) from None
    return Result(
        chosen.name,
        result.centres,
        result.labels,
        result.rounds,
        result.audit,
        result.metrics,
        result.diagnostics,
        result.personal,
        rows,
        sentences.get(chosen.name, ""),
        federation.clients.names,
        METHODS["local"].task(setup.setting(setup.stream("buckets"))),
        task_name,
        classes,
        added,
        encoding,
        result.membership,
        changes,
    )


class _EveryRound(Callback):
    """Calls a function after every round."""

    def __init__(self, on_round: Callable[[], None]) -> None:
        warnings.warn("on_round is now called callbacks; the old name goes in 0.2", DeprecationWarning, stacklevel=3)
        self._on_round = on_round

    def on_progress(self, rounds: int) -> None:
        self._on_round()


def _earlier_run(state: Any) -> EarlierRun:
    if isinstance(state, Result):
        return EarlierRun(state.centres, state.names, state.labels, state.membership)
    if isinstance(state, Models):
        if state.source is None:
            raise ValueError("state: the models must be those of trial 0 of a run")
        return read_run(*state.source)
    if isinstance(state, str | Path):
        return read_run(state)
    raise ValueError(f"state must be a Result, Models or the folder of a run, got {type(state).__name__}")


def _example(task: Any, clusters: int, rng: np.random.Generator) -> tuple[Any, Array, Array | None]:
    """The task, the kind of its (k, d) centres, and where gradients are asked for: for a module fresh ones."""
    if not hasattr(task, "fresh"):
        return task, like(np.zeros((clusters, task.dim)), task.clients.features), None
    modules = [task.fresh(rng) for _ in range(clusters)]
    example = namespace(modules[0]).stack(modules)
    return replace(task, origin=example[0]), example, example[:1]


def _judge(result: MethodResult, setup: TrialSetup) -> None:
    """With true centres, the distances relative to the oracle's."""
    if setup.truth is not None and setup.truth.centres.shape[1]:
        compare(result, run_method(METHODS["oracle"], setup, False), setup.truth)
