"""Running an algorithm to its end."""

from __future__ import annotations

import numpy as np

from coterie._src.algorithms import Algorithm, State
from coterie._src.attacks import Attack
from coterie._src.data import Federation
from coterie._src.network import Network
from coterie._src.simulation import SimulatedNetwork, play
from coterie._src.tasks import Task


def network(task: Task, federation: Federation, attack: Attack | None = None, seed: int = 0) -> Network:
    assert federation.truth is not None
    return SimulatedNetwork(task, federation.truth.is_byzantine, attack, np.random.default_rng(seed))


def last(algorithm: Algorithm, clients: Network, start: np.ndarray, seed: int = 0) -> State:
    *_, final = play(algorithm, clients, start, np.random.default_rng(seed))
    return final.state
