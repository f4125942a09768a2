"""A small federation in one process, and what the simulation makes of the same clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from coterie._src import attacks, tasks
from coterie._src.aggregators import median
from coterie._src.algorithms import ClusteredDescent
from coterie._src.data import Federation
from coterie._src.federation import ClusteredStrategy, client_app
from coterie._src.server import Server
from coterie._src.simulation import SimulatedNetwork, play, stream

CLIENTS, BYZANTINE = 12, 2


def app(drawn: Federation, guarded: bool = True) -> ClientApp:
    """Every node is the client of its partition; the Byzantine ones do what the paper's do."""
    assert drawn.truth is not None
    byzantine = drawn.truth.is_byzantine

    def attack(context: Context) -> attacks.Attack | None:
        return attacks.Attack(attacks.paper) if byzantine[int(context.node_config["partition-id"])] else None

    def load(context: Context) -> Any:
        return tasks.linear_regression(drawn.clients.take([int(context.node_config["partition-id"])]))

    return client_app(load, attack, guarded=guarded)


def strategy(rounds: int = 6, **options: Any) -> ClusteredStrategy:
    settings = {"max_clients": CLIENTS, "deadline": 0.3, **options}
    server = settings.pop("server", Server(median))
    return ClusteredStrategy(ClusteredDescent(server, rounds=rounds), **settings)


def centres_of(grid: Grid, start: np.ndarray, made: ClusteredStrategy) -> np.ndarray:
    found = made.start(grid, ArrayRecord({"centres": Array(start)}))
    assert found.arrays is not None
    return found.arrays["centres"].numpy()


def simulated(drawn: Federation, start: np.ndarray, rounds: int = 6, without: Iterable[int] = ()) -> np.ndarray:
    """What the simulation gives on the same clients, with some of them missing."""
    assert drawn.truth is not None
    kept = np.setdiff1d(np.arange(CLIENTS), list(without))
    task = tasks.linear_regression(drawn.clients.take(kept))
    attack = attacks.Attack(attacks.paper)
    network = SimulatedNetwork(task, drawn.truth.is_byzantine[kept], attack, np.random.default_rng(0), median)
    *_, last = play(ClusteredDescent(Server(median), rounds=rounds), network, start, stream(0, 0, "server"))
    centres: np.ndarray = last.state.centres
    return centres
