"""Both apps of a federation from one configuration, for a ready-made Flower app."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray
from safetensors.numpy import save

from coterie._src.algorithms import Algorithm, ClusteredDescent, RoundInfo, State
from coterie._src.attacks import Attack
from coterie._src.data import Clients, hold_out
from coterie._src.experiments.callbacks import NOTHING, Callback, Callbacks, RunInfo, flattened, start_and_end
from coterie._src.experiments.config import Config
from coterie._src.experiments.methods import METHODS, OWN
from coterie._src.experiments.outcome import MethodResult, TrialResult
from coterie._src.experiments.problems import ClientTables, Folder
from coterie._src.experiments.recorder import reply_columns
from coterie._src.experiments.run_folder import write_atomically
from coterie._src.experiments.setup import setting_of
from coterie._src.experiments.starts import first_centres, is_file
from coterie._src.experiments.toml import as_toml, read_config
from coterie._src.federation.client import client_app
from coterie._src.federation.evaluation import Evaluation, evaluate_sites
from coterie._src.federation.folder_lock import locked
from coterie._src.federation.identity import identity_of
from coterie._src.federation.page import federation_page
from coterie._src.federation.protection import protection
from coterie._src.federation.renamed import with_new_names
from coterie._src.federation.report import TABLE, evaluation_lines
from coterie._src.federation.site import Site
from coterie._src.federation.site_reports import Score
from coterie._src.federation.strategy import END_SECONDS, ClusteredStrategy
from coterie._src.metrics import Metrics
from coterie._src.report.html import FILE as PAGE
from coterie._src.simulation import stream
from coterie._src.tasks import LinearModel, Task
from coterie._src.tracking import tracker

FOR_ALL = "for-all"
"""The folder, in that of a run, with the state of the run that learns one model for all sites."""


class RunSettings(NamedTuple):
    """What a run may set (`flwr run --run-config "deadline=10.0 min_clients=6"`), with the defaults."""

    method: str = "coterie"
    max_clients: int = 100
    min_clients: int = 2
    patience: float = 600.0
    deadline: float = 60.0
    features: int = 0
    folder: str = "federation"
    for_all: bool = False
    min_replies: int = 0  # 0: by `protection`
    track: str = ""  # NAME:TARGET of trackers, quoted and separated as in a shell


def read_settings(run_config: Mapping[str, Any]) -> RunSettings:
    """Return the settings of a run; other keys belong to Flower and are left out.

    >>> read_settings({"deadline": 10, "min_clients": 6})[:6]
    ('coterie', 100, 6, 600.0, 10.0, 0)
    """
    given = with_new_names(run_config, partial(log, WARNING))
    defaults = RunSettings()._asdict()
    return RunSettings(**{name: type(value)(given.get(name, value)) for name, value in defaults.items()})


def apps(config_file: str | Path) -> tuple[ServerApp, ClientApp]:
    """Return the server's app and the sites' app for a configuration.

    Parameters
    ----------
    config_file
        A TOML file as `coterie config` prints it. With problem.kind = "folder" every site reads the file that its node
        configuration names (`data="…"`), of it the `problem.columns`. Where these are not named, the run says how many
        `features` there are (an intercept counts), and all sites must have them in the same order. With a synthetic
        problem, a rehearsal, a site is the client that its node configuration names (`partition-id=3`), and the
        Byzantine clients attack. Every site holds out the fraction `problem.holdout` of its rows, the same ones each
        time.

    Returns
    -------
    tuple of ServerApp and ClientApp
        The server writes its state, the audit and, at the end, `centres.safetensors`, which `coterie.load` reads, and
        the sites' scores (`evaluate_sites`) and `report.html` into the `folder` of the run, and goes on from there when
        it is started again. A site writes its models into the folder that its node configuration names
        (`models="…"`), if it does.

    Examples
    --------
    A module of a Flower project, whose `pyproject.toml` names the two apps:

    >>> server, client = apps("config.toml")  # doctest: +SKIP
    """
    config = read_config(config_file)
    if not config.problem.has_parameters:
        raise ValueError(
            "problem.kind: a federation of images needs an app of its own (see coterie.federation.client_app)"
        )
    if config.algorithm.max_byzantine == "auto":
        raise ValueError("algorithm.max_byzantine: auto is for coterie run and ct.fit; a federation needs a number")
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run_server(config, read_settings(context.run_config), grid)

    return app, client_app(
        lambda context: _site(config, context),
        lambda context: _attack(config, context),
        guarded=isinstance(config.problem, Folder),
    )


def run_server(config: Config, settings: RunSettings, grid: Grid) -> None:
    """Run a federation to its end and write its models; trackers are told of rounds and scores, as of a trial."""
    callback, folder = Callbacks([tracker(text) for text in shlex.split(settings.track)]), Path(settings.folder)
    options = flattened(config) | {f"federation.{name}": value for name, value in settings._asdict().items()}
    with start_and_end(callback, RunInfo("flwr run", config.run.seed, options, folder)):
        callback.on_trial(_serve(config, settings, grid, callback))


def _serve(config: Config, settings: RunSettings, grid: Grid, callback: Callback) -> TrialResult:
    """Run a federation; write its models, the sites' scores and the page; return what trackers are told of it."""
    features = _count_features(config, settings.features)
    if features < 1:
        raise ValueError("features: the run must say how many feature columns the sites' files have")
    if not METHODS[settings.method].served:
        raise ValueError(f"method: a server cannot run {settings.method}")
    if settings.for_all and not config.asks_for_start and is_file(config.algorithm.init):
        raise ValueError("for_all: one model for all cannot begin from a file of centres (algorithm.init)")
    folder = Path(settings.folder)
    with locked(folder, "run", END_SECONDS):
        return _serve_locked(config, settings, grid, features, folder, callback)


def _serve_locked(
    config: Config, settings: RunSettings, grid: Grid, features: int, folder: Path, callback: Callback
) -> TrialResult:
    """Run a federation to its end, with its folder locked."""
    centres, metrics = _learn(config, settings, grid, features, folder, callback)
    models = save({settings.method: centres}, _column_names(config) or None)
    write_atomically(folder / "config.toml", _with_method(config, settings.method))
    write_atomically(folder / "centres.safetensors", models)
    found = {settings.method: metrics}
    if getattr(config.problem, "holdout", 0.0):
        evaluation = _evaluate(config, settings, grid, features, centres)
        found = {
            settings.method: metrics | _summary(evaluation, "cluster"),
            settings.method + OWN: metrics | _summary(evaluation, "personal"),
        }
    try:
        write_atomically(folder / PAGE, federation_page(folder).encode())
    except (OSError, ValueError) as error:  # the models are written, and `coterie report` writes the page again
        log(WARNING, "%s: not written (%s)", folder / PAGE, error)
    return TrialResult(0, {name: MethodResult(known, [], [], centres) for name, known in found.items()})


def _summary(evaluation: Evaluation, model: str) -> Metrics:
    """What the sites report of a model, as the metrics of a method."""
    known = evaluation.summary[model]
    name = {"r2": "r2", "accuracy": "accuracy"}.get(evaluation.score)
    scores = {f"test_{name}": known["test_score"], f"test_worst_{name}": known["test_worst"]} if name else {}
    return Metrics({"test_loss": known["test_loss"], **scores})


def _evaluate(config: Config, settings: RunSettings, grid: Grid, features: int, centres: NDArray[Any]) -> Evaluation:
    """Ask the sites for their scores on held-out samples; write and log the table."""
    folder, for_all, bound = Path(settings.folder), None, config.algorithm.max_byzantine
    assert bound != "auto", "which `apps` refuses"
    if settings.for_all and config.problem.clusters > 1:
        for_all, _ = _learn(_with_one_cluster(config), settings, grid, features, folder / FOR_ALL)
    evaluation = evaluate_sites(
        grid,
        centres,
        max_byzantine=bound,
        score=_score(config, features),
        folder=folder,
        max_clients=settings.max_clients,
        deadline=settings.deadline,
        for_all=for_all,
    )
    lines = evaluation_lines(evaluation)
    write_atomically(folder / TABLE, "\n".join([*lines, ""]).encode())
    for line in lines:
        log(INFO, line)
    return evaluation


def _learn(
    config: Config, settings: RunSettings, grid: Grid, features: int, folder: Path, callback: Callback = NOTHING
) -> tuple[NDArray[Any], Metrics]:
    """The centres that a run ends with, and how long it took; its state is kept in the folder."""
    needed = protection(config, settings.max_clients, settings.method)
    config = _with_quorum(config, needed.quorum)
    algorithm, start = _algorithm_and_start(config, settings, features)
    min_replies = settings.min_replies or needed.min_replies
    began, rounds = time.perf_counter(), 0

    def on_round(state: State, info: RoundInfo) -> None:
        nonlocal rounds
        rounds = state.round
        callback.on_round(0, settings.method, {"round": state.round, **reply_columns(info, len(info.verdicts))})

    strategy = ClusteredStrategy(
        algorithm,
        max_clients=settings.max_clients,
        min_clients=max(settings.min_clients, min_replies),
        min_replies=min_replies,
        patience=settings.patience,
        deadline=settings.deadline,
        folder=folder,
        seed=config.run.seed,
        max_suspects=needed.allowed if config.algorithm.strict else None,
        identity=identity_of(config, settings.method, features),
        on_round=on_round,
    )
    result = strategy.start(grid, ArrayRecord({"centres": Array(np.ascontiguousarray(start))}))
    assert result.arrays is not None
    found = result.arrays["centres"].numpy()
    seconds = time.perf_counter() - began
    return found, Metrics({"clusters": float(len(found)), "rounds": float(rounds), "seconds": seconds})


def _with_one_cluster(config: Config) -> Config:
    """The configuration by which the same method learns one model for all sites."""
    return config.model_copy(
        update={
            "problem": config.problem.model_copy(update={"clusters": 1}),
            "algorithm": config.algorithm.model_copy(update={"clusters": "known"}),
        }
    )


def _with_quorum(config: Config, quorum: int) -> Config:
    """The configuration with at least this quorum."""
    chosen = max(quorum, config.algorithm.quorum)
    return config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"quorum": chosen})})


def _score(config: Config, features: int) -> Score:
    """What the table shows beside the loss."""
    task = _example_task(config, features)
    if isinstance(task, LinearModel) and not task.loss.square:
        return "accuracy"
    return "loss" if task.clients.targets is None or config.problem.loss_of() is None else "r2"


def _algorithm_and_start(config: Config, settings: RunSettings, features: int) -> tuple[Algorithm, Any]:
    """The algorithm, and first centres; zeros of the right shape where the algorithm finds its own."""
    dtype, seed = config.problem.dtype, config.run.seed
    task = _example_task(config, features)
    setting = setting_of(config, task, stream(seed, 0, "buckets"), clients=settings.max_clients)
    method = METHODS[settings.method]
    algorithm, count = method.algorithm(setting), 1 if method.one_centre else config.problem.clusters
    if config.asks_for_start:
        if isinstance(algorithm, ClusteredDescent) and algorithm.init is None and not method.one_centre:
            algorithm = replace(algorithm, init=setting.robust_start())
        return algorithm, np.zeros((count, task.dim), dtype)
    options, rng, clusters = config.algorithm, stream(seed, 0, "start"), config.problem.clusters
    start = first_centres(options.init, clusters, task.dim, None, options.warm, dtype, rng)
    return algorithm, start[:count]


def _example_task(config: Config, features: int) -> Task:
    """The task on one sample of zeros."""
    dtype = config.problem.dtype
    return config.problem.build_task(Clients(np.zeros((1, features), dtype), np.zeros(1, dtype), np.array([1])))


def _count_features(config: Config, features_of_run: int) -> int:
    """The number of columns that a model has a weight for."""
    problem = config.problem
    if isinstance(problem, Folder):
        return len(problem.columns) + problem.adds_intercept if problem.columns else features_of_run
    if isinstance(problem, ClientTables):  # a table that is known by name
        return len(problem.weight_names())
    return int(getattr(problem, "dim", 0))


def _column_names(config: Config) -> dict[str, str]:
    """The names of the weights of a centre, where the columns have names."""
    problem = config.problem
    if isinstance(problem, ClientTables) and not isinstance(problem, Folder):
        return {"columns": json.dumps(problem.weight_names())}
    if not isinstance(problem, Folder) or not problem.columns:
        return {}
    return {"columns": json.dumps([*problem.columns, *(["intercept"] if problem.adds_intercept else [])])}


@lru_cache(maxsize=1)
def _rehearsal(config_json: str) -> Any:
    config = Config.model_validate_json(config_json)
    return config.problem.draw(stream(config.run.seed, 0, "data"))


def _site(config: Config, context: Context) -> Site:
    """The data of this node: the rows to learn from, and those held out, which are the same whenever they are read."""
    problem, fraction = config.problem, getattr(config.problem, "holdout", 0.0)
    if isinstance(problem, Folder):
        if "data" not in context.node_config:
            raise ValueError("node configuration: data must name this site's file")
        rows = problem.site_clients(str(context.node_config["data"]))
        clients, held_out = hold_out(rows, fraction, stream(config.run.seed, 0, "data"))
        tested = None if held_out is None else held_out.clients
    else:
        number, drawn = _partition(context), _rehearsal(config.model_dump_json())
        clients, tested = drawn.clients.take([number]), None
        if drawn.held_out is not None and number in drawn.held_out.owners:
            tested = drawn.held_out.clients.take(np.flatnonzero(drawn.held_out.owners == number))
    models, method = context.node_config.get("models"), read_settings(context.run_config).method
    return Site(
        problem.build_task(clients),
        tested,
        None if models is None else Path(str(models)),
        method,
        {"config.toml": _with_method(config, method)},
        _column_names(config),
    )


def _with_method(config: Config, method: str) -> bytes:
    """The file of the configuration, with the method that was run."""
    return as_toml(config.model_copy(update={"run": config.run.model_copy(update={"methods": [method]})})).encode()


def _partition(context: Context) -> int:
    if "partition-id" not in context.node_config:
        raise ValueError("node configuration: partition-id must say which client of the rehearsal this is")
    return int(context.node_config["partition-id"])


def _attack(config: Config, context: Context) -> Attack | None:
    """In a rehearsal the attack of a Byzantine client, each on its own."""
    if isinstance(config.problem, Folder):
        return None
    drawn = _rehearsal(config.model_dump_json())
    return config.attack.attack() if drawn.is_byzantine[_partition(context)] else None
