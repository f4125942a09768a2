"""Both apps of a federation from one configuration, for a ready-made Flower app."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from safetensors.numpy import save

from coterie._src.attacks import Attack
from coterie._src.data import Clients
from coterie._src.experiments import problems, tables
from coterie._src.experiments.config import NEEDS_TRUTH, Config, Folder, Images
from coterie._src.experiments.run_folder import write_atomically
from coterie._src.experiments.toml import as_toml, read_config
from coterie._src.federation.client import client_app
from coterie._src.federation.strategy import ClusteredStrategy
from coterie._src.simulation import stream
from coterie._src.tasks import Task

SETTINGS: dict[str, Any] = {
    "method": "coterie",
    "places": 100,
    "least": 2,
    "patience": 600.0,
    "deadline": 60.0,
    "features": 0,
    "folder": "federation",
}
"""What a run may set (`flwr run --run-config "deadline=10 least=6"`), and what stands for it otherwise."""


def apps(config_file: str | Path) -> tuple[ServerApp, ClientApp]:
    """The server's and the sites' app for a configuration as `coterie config` prints it.

    With problem.kind = "folder" every site reads the file that its node configuration names (`data="…"`), of it the
    `problem.columns`; where these are not named, the run says how many `features` there are (an intercept counts), and
    all sites must have them in the same order. With a synthetic problem a site is one of its clients, by
    `partition-id`, Byzantine ones included: a rehearsal. The server keeps its rounds, its audit and, at the end,
    `centres.safetensors` in `folder`, which `coterie.load` reads, and goes on there when it is started again.
    """
    config = read_config(config_file)
    if isinstance(config.problem, Images):
        raise ValueError("problem.kind: a federation of images needs an app of its own (see coterie.flower.client_app)")
    return _server(config), client_app(lambda context: _task(config, context), lambda context: _attack(config, context))


def _server(config: Config) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = SETTINGS | {key: value for key, value in context.run_config.items() if key in SETTINGS}
        method, places = str(settings["method"]), int(settings["places"])
        features = _features(config, int(settings["features"]))
        if features < 1:
            raise ValueError("features: the run must say how many feature columns the sites' files have")
        if method in (*NEEDS_TRUTH, "local"):
            raise ValueError(f"method: {method} is nothing that a server can play")
        example = Clients(
            np.zeros((1, features), config.problem.dtype), np.zeros(1, config.problem.dtype), np.array([1])
        )
        task = problems.task(config.problem, example)
        rng = stream(config.run.seed, 0, "buckets")
        algorithm = tables.algorithm(method, config, task, None, rng, True, clients=places)
        if config.algorithm.init in tables.STARTS:
            start = np.zeros((config.problem.clusters, task.dim), config.problem.dtype)
        else:
            start = tables.start(config, task.dim, None, stream(config.run.seed, 0, "start"))
        folder = Path(str(settings["folder"]))
        strategy = ClusteredStrategy(
            algorithm,
            places=places,
            least=int(settings["least"]),
            patience=float(settings["patience"]),
            deadline=float(settings["deadline"]),
            folder=folder,
            seed=config.run.seed,
            identity=_identity(config, method, features),
        )
        result = strategy.start(grid, ArrayRecord({"centres": Array(np.ascontiguousarray(start))}))
        assert result.arrays is not None
        models = save({method: result.arrays["centres"].numpy()}, _names(config) or None)
        played = config.model_copy(update={"run": config.run.model_copy(update={"methods": [method]})})
        write_atomically(folder / "config.toml", as_toml(played).encode())  # for `coterie.load`
        write_atomically(folder / "centres.safetensors", models)

    return app


def _features(config: Config, told: int) -> int:
    """The columns that a model has a weight for; told: by the run."""
    problem = config.problem
    if isinstance(problem, Folder):
        return len(problem.columns) + problem.intercept if problem.columns else told
    return int(getattr(problem, "dim", 0))


def _identity(config: Config, method: str, features: int) -> str:
    """Of what is learnt: the same where a run may go on that was begun with other rounds, deadlines or places."""
    learnt = config.problem.model_dump(mode="json", exclude={"path"}), method, features, config.run.seed
    return hashlib.sha256(json.dumps(learnt, sort_keys=True).encode()).hexdigest()[:16]


def _names(config: Config) -> dict[str, str]:
    """What a centre's coordinates are the weights of, where the columns have names."""
    problem = config.problem
    if not isinstance(problem, Folder) or not problem.columns:
        return {}
    return {"columns": json.dumps(problems.weight_names(problem))}


@lru_cache(maxsize=1)
def _rehearsal(config_json: str) -> Any:
    config = Config.model_validate_json(config_json)
    return problems.federation(config.problem, stream(config.run.seed, 0, "data"))


def _task(config: Config, context: Context) -> Task:
    """What this node computes on."""
    problem = config.problem
    if isinstance(problem, Folder):
        if "data" not in context.node_config:
            raise ValueError("node configuration: data must name this site's file")
        return problems.task(problem, problems.own_clients(problem, str(context.node_config["data"])))
    return problems.task(problem, _rehearsal(config.model_dump_json()).clients.take([_partition(context)]))


def _partition(context: Context) -> int:
    if "partition-id" not in context.node_config:
        raise ValueError("node configuration: partition-id must say which client of the rehearsal this is")
    return int(context.node_config["partition-id"])


def _attack(config: Config, context: Context) -> Attack | None:
    """In a rehearsal the Byzantine clients lie, each by itself."""
    if isinstance(config.problem, Folder):
        return None
    truth = _rehearsal(config.model_dump_json()).truth
    return tables.attack(config.attack) if truth.is_byzantine[_partition(context)] else None
