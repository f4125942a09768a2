"""Rounds of a federation in Flower's simulation: how long one takes, what of it is Coterie's, and what is sent.

The clients estimate a mean of d numbers, which costs them nothing. Beside it: the same question by Flower's own loop,
`grid.send_and_receive`, without any aggregation; and numpy.median of the same updates, where Flower's FedMedian spends
its time.
"""

from __future__ import annotations

import logging
import os
import resource
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from flwr.app import Array, ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from coterie._src import tasks
from coterie._src.aggregators import median
from coterie._src.algorithms import ClusteredDescent
from coterie._src.data import Clients
from coterie._src.federation import ClusteredStrategy, FlowerNetwork, Question, client_app
from coterie._src.federation.messages import TYPE
from coterie._src.server import Server

SETTINGS = [(20, 1_000), (100, 1_000), (20, 1_000_000), (100, 1_000_000)]
CLUSTERS, ROUNDS = 2, 3


def measure(clients: int, dim: int) -> dict[str, Any]:
    """ROUNDS rounds, the first of which starts the clients' processes and is left out."""

    def load(context: Context) -> Any:
        rng = np.random.default_rng(int(context.node_config["partition-id"]))
        features = rng.standard_normal((1, dim), dtype=np.float32) + (int(context.node_config["partition-id"]) % 2)
        return tasks.mean_estimation(Clients(features, None, np.array([1])))

    asking: list[float] = []
    plain = FlowerNetwork._ask

    def timed(self: FlowerNetwork, *arguments: Any) -> Any:
        began = time.perf_counter()
        replies = plain(self, *arguments)
        asking.append(time.perf_counter() - began)
        return replies

    ends: list[float] = []
    plainly: list[float] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        start = np.stack([np.full(dim, j, np.float32) for j in range(CLUSTERS)])
        descent = ClusteredDescent(Server(median, audit=False), rounds=ROUNDS, size=0.5)
        strategy = ClusteredStrategy(
            descent,
            max_clients=clients,
            min_clients=clients,
            deadline=600.0,
            on_round=lambda state, exchange: ends.append(time.perf_counter()),
        )
        strategy.start(grid, ArrayRecord({"centres": Array(start)}))
        record = Question("gradient", ROUNDS, start).record()
        for _ in range(ROUNDS - 1):  # the same question by Flower's own loop
            messages = [Message(record, dst_node_id=node, message_type=TYPE) for node in grid.get_node_ids()]
            plainly.append(_seconds(partial(_all_replies, grid, messages)))

    with patch.object(FlowerNetwork, "_ask", timed), warnings.catch_warnings(action="ignore"):
        run_simulation(app, client_app(load), clients, backend_config={"client_resources": {"num_cpus": 1}})
    rounds = np.diff(ends)
    own = rounds - np.array(asking[1 : len(ends)])
    updates = np.random.default_rng(0).standard_normal((clients, dim), dtype=np.float32)
    return {
        "clients": clients,
        "d": dim,
        "s per round": float(rounds.min()),
        "Flower's own loop s": min(plainly),
        "of it Coterie's": float(own.min()),
        "share": float(own.min() / rounds.min()),
        "numpy.median s": _seconds(lambda: np.median(updates, axis=0)),
        "MB sent per round": clients * dim * 4 * (CLUSTERS + 1) / 1e6,
        "server's peak GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def _all_replies(grid: Grid, messages: list[Message]) -> list[Message]:
    return list(grid.send_and_receive(messages))


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def run() -> tuple[str, list[dict[str, Any]]]:
    """All settings; the peak memory is that of the process so far."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    rows = [measure(*setting) for setting in SETTINGS]
    return f"Flower simulation on {os.cpu_count()} cores, {CLUSTERS} clusters, median, best of {ROUNDS - 1}", rows
