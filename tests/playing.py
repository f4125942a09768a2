"""Running an algorithm to its end, and the clustering of Three-Stage by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie._src.aggregators import median
from coterie._src.algorithms import Algorithm, ClusteredDescent, State, ThreeStage
from coterie._src.attacks import Attack
from coterie._src.data import Clients, Federation
from coterie._src.network import Network
from coterie._src.server import Server
from coterie._src.simulation import SimulatedNetwork, play
from coterie._src.tasks import Task, mean_estimation


def network(task: Task, federation: Federation, attack: Attack | None = None, seed: int = 0) -> Network:
    assert federation.truth is not None
    return SimulatedNetwork(task, federation.truth.is_byzantine, attack, np.random.default_rng(seed))


def last(algorithm: Algorithm, clients: Network, start: np.ndarray, seed: int = 0) -> State:
    *_, final = play(algorithm, clients, start, np.random.default_rng(seed))
    return final.state


def clustered(points: np.ndarray, clusters: int, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Centres and labels after the second stage, for clients whose local minimisers are the points: one sample each."""
    task = mean_estimation(Clients(points, None, np.ones(len(points), dtype=np.int64)))
    clients = SimulatedNetwork(task, np.zeros(len(points), np.bool_), None, np.random.default_rng(0))
    algorithm = ThreeStage(ClusteredDescent(Server(median), rounds=0), **options)
    with np.errstate(over="ignore", invalid="ignore"):
        state = algorithm.initial_state(clients, np.zeros((clusters, points.shape[1])), np.random.default_rng(1))
    assert state.fixed is not None
    return state.centres, state.fixed
