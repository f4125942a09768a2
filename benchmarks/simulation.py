"""A round of the simulation on one thread: against one sum over X, against the authors' code, and how it grows."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.cpu import processor
from coterie._src.aggregators import Aggregator, Mean, Median, TrimmedMean
from coterie._src.algorithms import ClusteredDescent
from coterie._src.attacks import Attack, paper
from coterie._src.data import mixed_regression
from coterie._src.init import bernoulli
from coterie._src.server import Server
from coterie._src.simulation import SimulatedNetwork
from coterie._src.studies.figure1 import DIMENSIONS, SETTINGS
from coterie._src.studies.published import seconds_per_round
from coterie._src.tasks import linear_regression

ROUNDS = 299
TURN = 13
"""Rounds, and then sums, at a time: a round follows a round, as in a trial, and both see a machine's same moments."""
PASSES, REPEATS, SECONDS = 2, 3, 0.5
"""Passes over the grid, and in each descents at fastest, and time: a machine that is shared may be slow for a while."""
RULES: dict[str, Aggregator] = {
    "brifca_median": Median(),
    "brifca_trimmed": TrimmedMean(0.05),
    "ifca": Mean(),
}
BASE = {"clients": 200, "samples": 200, "dim": 200, "clusters": 8}
SPANS = {"clients": (200, 400, 800, 1600), "samples": (100, 200, 400, 800), "dim": (200, 400, 800),
         "clusters": (4, 8, 16, 32)}  # fmt: skip

Row = dict[str, Any]


def round_seconds(rule: Aggregator, **shape: int) -> tuple[float, float]:
    """The time of a round of Algorithm 1 under the paper's attack, and of one sum over X, a few of each in turn.

    Both are means over one descent, the fastest of some.
    """
    rng = np.random.default_rng(0)
    drawn = mixed_regression(rng, byzantine=0.05, **shape)  # type: ignore[arg-type]
    start = bernoulli(shape["clusters"], shape["dim"], rng).astype(np.float32)
    task = linear_regression(drawn.clients)
    algorithm = ClusteredDescent(Server(rule, audit=False), rounds=ROUNDS, step_size=0.01)

    def begin() -> tuple[Any, Any]:
        network = SimulatedNetwork(task, drawn.is_byzantine, Attack(paper), rng)
        return network, algorithm.initial_state(network, start, rng)

    def play(game: tuple[Any, Any]) -> tuple[Any, Any]:
        network, state = game
        return network, algorithm.step(state, network, rng)[0]

    _descent(begin, play, drawn.clients.features)  # until all that a round needs is compiled
    found, began = [], time.perf_counter()
    while len(found) < REPEATS or time.perf_counter() < began + SECONDS:
        found.append(_descent(begin, play, drawn.clients.features))
    return min(found)


def _descent(begin: Callable[[], Any], play: Callable[[Any], Any], features: Any) -> tuple[float, float]:
    """The mean seconds of a round, and of a sum."""
    games, rounds, sums = begin(), 0.0, 0.0
    for turn in range(0, ROUNDS, TURN):
        count, began = min(TURN, ROUNDS - turn), time.perf_counter()
        for _ in range(count):
            games = play(games)
        between = time.perf_counter()
        for _ in range(count):
            features.sum()
        rounds, sums = rounds + between - began, sums + time.perf_counter() - between
    return rounds / ROUNDS, sums / ROUNDS


def run() -> tuple[str, list[Row]]:
    """Every cell of the paper's grid, then the exponents in m, n, d and k."""
    authors = seconds_per_round()
    rows: list[Row] = []
    fastest: dict[tuple[int, int, str], tuple[float, float]] = {}
    with threadpool_limits(limits=1):
        for _, (k, m), d, (name, rule) in product(range(PASSES), SETTINGS, DIMENSIONS, RULES.items()):
            found = round_seconds(rule, clients=m, samples=100, dim=d, clusters=k)
            fastest[k, d, name] = min(found, fastest.get((k, d, name), found))
        for (k, m), d in product(SETTINGS, DIMENSIONS):
            line: Row = {"what": f"k={k} m={m} d={d}"}
            for name in RULES:
                ours = fastest[k, d, name][0]
                line |= {f"{name} ms": 1e3 * ours, f"{name} x authors": authors[k, d, name] / ours}
            line |= {"sum of X ms": 1e3 * min(fastest[k, d, name][1] for name in RULES)}
            line |= {"slowest / sum": max(ours / once for ours, once in (fastest[k, d, name] for name in RULES))}
            rows.append(line)
        for name, values in SPANS.items():
            seconds = [round_seconds(Median(), **{**BASE, name: value})[0] for value in values]
            slope = np.polyfit(np.log(values), np.log(seconds), 1)[0]
            rows.append({"what": f"exponent in {name} {values}", "brifca_median ms": float(slope)})
    names = list(rows[0])
    rows = [{name: row.get(name, "") for name in names} for row in rows]
    descents = PASSES * REPEATS
    return (
        f"{processor()}, one thread, float32, mean over {ROUNDS} rounds, fastest of {descents} descents or more",
        rows,
    )
