"""Both apps of a federation from one configuration, for a ready-made Flower app."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache, partial
from logging import WARNING
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from safetensors.numpy import save

from coterie._src.algorithms import Algorithm
from coterie._src.attacks import Attack
from coterie._src.data import Clients
from coterie._src.experiments.config import Config
from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.problems import Folder
from coterie._src.experiments.run_folder import write_atomically
from coterie._src.experiments.setup import setting_of
from coterie._src.experiments.starts import first_centres
from coterie._src.experiments.toml import as_toml, read_config
from coterie._src.federation.client import client_app
from coterie._src.federation.page import federation_page
from coterie._src.federation.renamed import with_new_names
from coterie._src.federation.strategy import ClusteredStrategy
from coterie._src.report.html import FILE as PAGE
from coterie._src.simulation import stream
from coterie._src.tasks import Task


class RunSettings(NamedTuple):
    """What a run may set (`flwr run --run-config "deadline=10.0 min_clients=6"`), with the defaults."""

    method: str = "coterie"
    max_clients: int = 100
    min_clients: int = 2
    patience: float = 600.0
    deadline: float = 60.0
    features: int = 0
    folder: str = "federation"


def read_settings(run_config: Mapping[str, Any]) -> RunSettings:
    """Return the settings of a run; other keys belong to Flower and are left out.

    >>> read_settings({"deadline": 10, "min_clients": 6})._replace(folder="")
    RunSettings(method='coterie', max_clients=100, min_clients=6, patience=600.0, deadline=10.0, features=0, folder='')
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
        Byzantine clients attack.

    Returns
    -------
    tuple of ServerApp and ClientApp
        The server writes its state, the audit and, at the end, `centres.safetensors`, which `coterie.load` reads, and
        `report.html` into the `folder` of the run, and goes on from there when it is started again.

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
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run_server(config, read_settings(context.run_config), grid)

    return app, client_app(lambda context: _task(config, context), lambda context: _attack(config, context))


def run_server(config: Config, settings: RunSettings, grid: Grid) -> None:
    """Run a federation to its end and write its models."""
    features = _count_features(config, settings.features)
    if features < 1:
        raise ValueError("features: the run must say how many feature columns the sites' files have")
    if not METHODS[settings.method].served:
        raise ValueError(f"method: a server cannot run {settings.method}")
    algorithm, start = _algorithm_and_start(config, settings, features)
    folder = Path(settings.folder)
    strategy = ClusteredStrategy(
        algorithm,
        max_clients=settings.max_clients,
        min_clients=settings.min_clients,
        patience=settings.patience,
        deadline=settings.deadline,
        folder=folder,
        seed=config.run.seed,
        identity=_identity(config, settings.method, features),
    )
    result = strategy.start(grid, ArrayRecord({"centres": Array(np.ascontiguousarray(start))}))
    assert result.arrays is not None
    models = save({settings.method: result.arrays["centres"].numpy()}, _column_names(config) or None)
    only_this = config.run.model_copy(update={"methods": [settings.method]})
    write_atomically(folder / "config.toml", as_toml(config.model_copy(update={"run": only_this})).encode())
    write_atomically(folder / "centres.safetensors", models)
    try:
        write_atomically(folder / PAGE, federation_page(folder).encode())
    except (OSError, ValueError) as error:  # the models are written, and `coterie report` writes the page again
        log(WARNING, "%s: not written (%s)", folder / PAGE, error)


def _algorithm_and_start(config: Config, settings: RunSettings, features: int) -> tuple[Algorithm, Any]:
    """The algorithm, and first centres; zeros of the right shape where the algorithm finds its own."""
    dtype, seed = config.problem.dtype, config.run.seed
    example = Clients(np.zeros((1, features), dtype), np.zeros(1, dtype), np.array([1]))
    task = config.problem.build_task(example)
    setting = setting_of(config, task, stream(seed, 0, "buckets"), clients=settings.max_clients)
    algorithm = METHODS[settings.method].algorithm(setting)
    if config.asks_for_start:
        return algorithm, np.zeros((config.problem.clusters, task.dim), dtype)
    options, rng = config.algorithm, stream(seed, 0, "start")
    return algorithm, first_centres(options.init, config.problem.clusters, task.dim, None, options.warm, dtype, rng)


def _count_features(config: Config, features_of_run: int) -> int:
    """The number of columns that a model has a weight for."""
    problem = config.problem
    if isinstance(problem, Folder):
        return len(problem.columns) + problem.adds_intercept if problem.columns else features_of_run
    return int(getattr(problem, "dim", 0))


def _identity(config: Config, method: str, features: int) -> str:
    """A hash of what is learnt; it does not depend on rounds, deadlines or the number of clients."""
    learnt = config.problem.model_dump(mode="json", exclude={"path"}), method, features, config.run.seed
    return hashlib.sha256(json.dumps(learnt, sort_keys=True).encode()).hexdigest()[:16]


def _column_names(config: Config) -> dict[str, str]:
    """The names of the weights of a centre, where the columns have names."""
    problem = config.problem
    if not isinstance(problem, Folder) or not problem.columns:
        return {}
    return {"columns": json.dumps([*problem.columns, *(["intercept"] if problem.adds_intercept else [])])}


@lru_cache(maxsize=1)
def _rehearsal(config_json: str) -> Any:
    config = Config.model_validate_json(config_json)
    return config.problem.draw(stream(config.run.seed, 0, "data"))


def _task(config: Config, context: Context) -> Task:
    """The task on the data of this node."""
    problem = config.problem
    if isinstance(problem, Folder):
        if "data" not in context.node_config:
            raise ValueError("node configuration: data must name this site's file")
        return problem.build_task(problem.site_clients(str(context.node_config["data"])))
    return problem.build_task(_rehearsal(config.model_dump_json()).clients.take([_partition(context)]))


def _partition(context: Context) -> int:
    if "partition-id" not in context.node_config:
        raise ValueError("node configuration: partition-id must say which client of the rehearsal this is")
    return int(context.node_config["partition-id"])


def _attack(config: Config, context: Context) -> Attack | None:
    """In a rehearsal the attack of a Byzantine client, each on its own."""
    if isinstance(config.problem, Folder):
        return None
    truth = _rehearsal(config.model_dump_json()).truth
    return config.attack.attack() if truth.is_byzantine[_partition(context)] else None
