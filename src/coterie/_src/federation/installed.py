"""What a site runs: the ready-made app by its configuration, or an app of its own; nothing that the server sends."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

from coterie._src.attacks import Attack
from coterie._src.data import Clients, hold_out
from coterie._src.experiments.config import Config
from coterie._src.experiments.problems import ClientTables, Folder, Networks, OwnNetwork
from coterie._src.experiments.problems.networks import imported, on_device
from coterie._src.experiments.toml import as_toml, read_config
from coterie._src.federation.client import client_app
from coterie._src.federation.site import Site
from coterie._src.federation.site_policy import SitePolicy, read_policy
from coterie._src.simulation import stream
from coterie._src.tasks import Task

POLICY, CONFIG, MODELS = "site.toml", "config.toml", "models"
"""The files of a site's folder, and the folder in it with its models."""
METHOD = "coterie"
"""The method of a run that names none."""
MAX_QUESTION_BYTES = 1 << 30
"""The largest question to an app whose number of parameters is not known, or is large."""
QUESTION_BYTES = 1 << 16
"""What a question may take beside its centres."""


OWN_DATA = (Folder, OwnNetwork)
"""The problems whose sites have data of their own; all others are rehearsals."""


class InstalledApp(NamedTuple):
    """An app and what it finds in its context."""

    app: ClientApp
    node_config: dict[str, Any]
    run_config: dict[str, Any]
    max_question_bytes: int


def installed_app(folder: Path, data: Path | None, client: int | None = None) -> InstalledApp:
    """Return the app of a site, with its data loaded.

    Parameters
    ----------
    folder
        The site's folder, with `site.toml`, which may name an app of the site's own, and `config.toml` for the
        ready-made one.
    data
        The site's file.
    client
        In a rehearsal, the client of the synthetic problem that this site is.
    """
    node: dict[str, Any] = {MODELS: str(folder / MODELS)}
    policy = SitePolicy()
    if (folder / POLICY).is_file():
        node["policy"] = str(folder / POLICY)
        policy = read_policy(folder / POLICY)
    if data is not None:
        if not data.is_file():
            raise ValueError(f"{data}: no such file")
        node["data"] = str(data.resolve())
    if client is not None:
        node["partition-id"] = client
    config, method = None, METHOD
    if (folder / CONFIG).is_file() or policy.app is None:
        config = read_config(folder / CONFIG)
        method = config.methods[0]
    run: dict[str, Any] = {"method": method}
    context = Context(0, 0, node, RecordDict(), run)
    if policy.app is not None:
        found = imported("app", policy.app)
        if isinstance(found, ClientApp):
            return InstalledApp(found, node, run, MAX_QUESTION_BYTES)
        loaded = found(context)
        site, attack, guarded = loaded if isinstance(loaded, Site) else Site(loaded), None, True
    else:
        assert config is not None
        site, attack = ready_made_site(config, context), ready_made_attack(config, context)
        guarded = isinstance(config.problem, OWN_DATA)
    largest = QUESTION_BYTES + 8 * site.task.dim * (policy.max_centres + 1)
    app = client_app(lambda context: site, lambda context: attack, guarded=guarded)
    return InstalledApp(app, node, run, min(largest, MAX_QUESTION_BYTES))


def ready_made_site(config: Config, context: Context) -> Site:
    """The data of this node: the rows to learn from, and those held out, which are the same whenever they are read."""
    problem, fraction = config.problem, getattr(config.problem, "holdout", 0.0)
    if isinstance(problem, OWN_DATA):
        if "data" not in context.node_config:
            raise ValueError("node configuration: data must name this site's file")
        rows = problem.site_clients(str(context.node_config["data"]))
        clients, held_out = hold_out(rows, fraction, stream(config.run.seed, 0, "data"))
        tested = None if held_out is None else held_out.clients
    else:
        number, drawn = _partition(context), rehearsal(config.model_dump_json())
        clients, tested = drawn.clients.take([number]), None
        if drawn.held_out is not None and number in drawn.held_out.owners:
            tested = drawn.held_out.clients.take(np.flatnonzero(drawn.held_out.owners == number))
    models, method = context.node_config.get(MODELS), str(context.run_config.get("method", METHOD))
    if isinstance(problem, Networks):
        clients = on_device(clients, config.run.device)
        tested = None if tested is None else on_device(tested, config.run.device)
    return Site(
        _task(config, clients),
        tested,
        None if models is None else Path(str(models)),
        method,
        {CONFIG: config_of_run(config, method)},
        column_names(config),
    )


def _task(config: Config, clients: Clients) -> Task:
    """The task on a site's samples. A network of its own has as many local steps, from fresh parameters, as the run."""
    task, options = config.problem.build_task(clients), config.algorithm
    if not isinstance(config.problem, Networks):
        return task
    network: Any = task
    assert options.step != "auto", "which the configuration refuses"
    fitted: Task = replace(
        network.fitting(options.rounds, options.step), origin=network.fresh(stream(config.run.seed, 0, "start"))
    )
    return fitted


def ready_made_attack(config: Config, context: Context) -> Attack | None:
    """In a rehearsal the attack of a Byzantine client, each on its own."""
    if isinstance(config.problem, OWN_DATA):
        return None
    drawn = rehearsal(config.model_dump_json())
    return config.attack.attack() if drawn.is_byzantine[_partition(context)] else None


def config_of_run(config: Config, method: str) -> bytes:
    """The file of the configuration, with the method that was run."""
    return as_toml(config.model_copy(update={"run": config.run.model_copy(update={"methods": [method]})})).encode()


def column_names(config: Config) -> dict[str, str]:
    """The names of the weights of a centre, where the columns have names."""
    problem = config.problem
    if isinstance(problem, ClientTables) and not isinstance(problem, Folder):
        return {"columns": json.dumps(problem.weight_names())}
    if not isinstance(problem, Folder) or not problem.columns:
        return {}
    return {"columns": json.dumps([*problem.columns, *(["intercept"] if problem.adds_intercept else [])])}


@lru_cache(maxsize=1)
def rehearsal(config_json: str) -> Any:
    """Return the clients of a rehearsal."""
    config = Config.model_validate_json(config_json)
    return config.problem.draw(stream(config.run.seed, 0, "data"))


def _partition(context: Context) -> int:
    if "partition-id" not in context.node_config:
        raise ValueError("node configuration: partition-id must say which client of the rehearsal this is")
    return int(context.node_config["partition-id"])
