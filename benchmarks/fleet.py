"""Simulated time until a fleet with speeds that differ by 100 times has learnt its clusters, by how rounds end.

Two clusters of a mixed regression, 200 clients, of which a tenth is Byzantine, 100 samples in 20 dimensions, spectral
filter, from a start at a distance of 0.25 times that of the centres. A client takes from 1 to 100 s for an answer,
log-uniform. The target is an error of twice that of least squares on the honest clients of each true cluster, in three
rounds in a row. A run ends after 200 rounds or 1500 simulated seconds.
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
SEEDS = 4
TARGET, IN_A_ROW = 2.0, 3
ROUNDS, SECONDS = 200, 1_500.0
ENDS: dict[str, tuple[int, bool, int]] = {
    "all replies": (200, False, 0),
    "100 replies, late ones refused": (100, False, 0),
    "50 new replies, late ones count": (50, False, 40),
    "50 new replies, the last of each client counts": (50, True, 40),
}
"""wait_for, latest, max_age."""
ATTACKS: dict[str, tuple[Any, float | None]] = {
    "none": (None, None),
    "paper, at once": (Attack(paper), 0.01),
    "ALIE, at once": (Attack(alie), 0.01),
}
"""The attack, and the seconds of a Byzantine answer."""


def _time(case: tuple[str, str, int]) -> tuple[float, float]:
    """Simulated seconds until the target, infinite without it, and the last error over that of least squares."""
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
    oracle, reached, ratio, seconds_to_target = _oracle_error(drawn), 0, np.inf, np.inf
    for finished in play(ClusteredDescent(Server(rule, audit=False), ROUNDS, max_age=max_age), fleet, start, rng):
        ratio = matched_distance(finished.state.centres, truth.centres) / oracle
        reached = reached + 1 if ratio <= TARGET else 0
        if reached == IN_A_ROW:
            seconds_to_target = min(seconds_to_target, fleet.schedule.clock)
        if fleet.schedule.clock > SECONDS:
            break
    return seconds_to_target, ratio


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
        times = dict(zip(cases, pool.imap(_time, cases), strict=True))
    rows = []
    for end in ENDS:
        row: dict[str, Any] = {"a round ends with": end}
        for attack in ATTACKS:
            row[attack] = _cell([times[end, attack, seed] for seed in range(SEEDS)])
        rows.append(row)
    return f"{processor()}, {SEEDS} seeds, time to twice the error of least squares; last error over that", rows


def _cell(found: list[tuple[float, float]]) -> str:
    """The mean time and the mean last error with standard errors; or in how many seeds the target was reached."""
    times, ratios = np.array(found).T
    if not np.isfinite(times).all():
        return f"{np.isfinite(times).sum()} of {len(times)}; {_mean(ratios, 2)}"
    return f"{_mean(times, 0)} s; {_mean(ratios, 2)}"


def _mean(values: Any, digits: int) -> str:
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1) / np.sqrt(len(values)):.{digits}f}"
