"""Simulated time until a fleet with speeds that differ by 100 times has learnt its clusters, by how rounds end.

Two clusters of a mixed regression, 200 clients, of which a tenth is Byzantine, 100 samples in 20 dimensions, spectral
filter, from a start at a distance of 0.25 times that of the centres. A client takes from 1 to 100 s for an answer,
log-uniform. The target is an error of 1.1 times that of least squares on the honest clients of each true cluster, in
three rounds in a row.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np

from benchmarks.cpu import processor
from coterie._src.aggregators import SpectralFilter
from coterie._src.algorithms import ClusteredDescent
from coterie._src.attacks import Attack, alie, paper
from coterie._src.data import mixed_regression
from coterie._src.fleet import Fleet
from coterie._src.init import warm
from coterie._src.metrics import matched_distance
from coterie._src.server import Server
from coterie._src.simulation import SimulatedNetwork, play
from coterie._src.tasks import linear_regression

CLIENTS, BYZANTINE = 200, 0.1
SEEDS = 5
TARGET, IN_A_ROW = 1.1, 3
ROUNDS, SECONDS = 300, 5_000.0
ENDS: dict[str, tuple[int, bool, int]] = {
    "all replies": (200, False, 0),
    "100 replies, late ones refused": (100, False, 0),
    "50 new replies, late ones count": (50, False, 20),
    "100 new replies, late ones count": (100, False, 20),
    "50 new replies, the last of each client counts": (50, True, 20),
    "100 new replies, the last of each client counts": (100, True, 20),
}
"""wait_for, latest, max_age."""
ATTACKS: dict[str, tuple[Any, float | None]] = {
    "none": (None, None),
    "paper, speeds as others": (Attack(paper), None),
    "paper, at once": (Attack(paper), 0.01),
    "ALIE, at once": (Attack(alie), 0.01),
    "ALIE, slowest": (Attack(alie), 100.0),
}
"""The attack, and the seconds of a Byzantine answer."""


def _time(case: tuple[str, str, int]) -> tuple[float, float]:
    """Simulated seconds until the target, infinite without it, and the last error over that of the oracle."""
    end, attack, seed = case
    (wait_for, latest, max_age), (sent, own_seconds) = ENDS[end], ATTACKS[attack]
    rng = np.random.default_rng(seed)
    drawn = mixed_regression(rng, clients=CLIENTS, clusters=2, samples=100, dim=20, byzantine=BYZANTINE)
    assert drawn.truth is not None
    truth, task = drawn.truth, linear_regression(drawn.clients)
    seconds = np.exp(rng.uniform(0.0, np.log(100.0), CLIENTS))
    if own_seconds is not None:
        seconds[drawn.is_byzantine] = own_seconds
    rule = SpectralFilter(int(BYZANTINE * CLIENTS))
    network = SimulatedNetwork(task, drawn.is_byzantine, sent, rng, aggregate=rule)
    fleet = Fleet(network, seconds, wait_for, latest)
    start = warm(truth, 0.25, rng).astype(np.float32)
    target, reached, ratio = TARGET * _oracle_error(drawn), 0, np.inf
    for finished in play(ClusteredDescent(Server(rule, audit=False), ROUNDS, max_age=max_age), fleet, start, rng):
        error = matched_distance(finished.state.centres, truth.centres)
        ratio, reached = TARGET * error / target, reached + 1 if error <= target else 0
        if reached == IN_A_ROW:
            return fleet.schedule.clock, ratio
        if fleet.schedule.clock > SECONDS:
            break
    return np.inf, ratio


def _oracle_error(drawn: Any) -> float:
    """The error of least squares on all samples of the honest clients of each true cluster."""
    truth, found = drawn.truth, []
    for j in range(len(truth.centres)):
        x, y = zip(
            *(drawn.clients.samples(i) for i in np.flatnonzero((truth.labels == j) & ~truth.is_byzantine)), strict=True
        )
        found.append(np.linalg.lstsq(np.concatenate(x).astype(float), np.concatenate(y).astype(float), rcond=None)[0])
    return matched_distance(np.array(found), truth.centres)


def run() -> tuple[str, list[dict[str, Any]]]:
    """All ends of rounds and attacks, means over seeds with standard errors."""
    cases = [(end, attack, seed) for end in ENDS for attack in ATTACKS for seed in range(SEEDS)]
    with multiprocessing.get_context("spawn").Pool() as pool:
        times = dict(zip(cases, pool.map(_time, cases, chunksize=1), strict=True))
    rows = []
    for end in ENDS:
        row: dict[str, Any] = {"a round ends with": end}
        for attack in ATTACKS:
            row[attack] = _cell([times[end, attack, seed] for seed in range(SEEDS)])
        rows.append(row)
    return f"{processor()}, {SEEDS} seeds, simulated seconds to the target", rows


def _cell(found: list[tuple[float, float]]) -> str:
    """The mean time and its standard error, or in how many seeds the target is reached and the error otherwise."""
    times, ratios = np.array(found).T
    if np.isfinite(times).all():
        return f"{times.mean():.0f} ± {times.std(ddof=1) / np.sqrt(len(times)):.0f}"
    missed = ratios[~np.isfinite(times)]
    return f"{np.isfinite(times).sum()} of {len(times)} (error {np.median(missed):.2f})"
