"""Three-Stage: its clustering among outliers, and the whole algorithm."""

from __future__ import annotations

import numpy as np

from coterie._src.aggregators import TrimmedMean, median
from coterie._src.algorithms import ClusteredDescent, Oracle, ThreeStage
from coterie._src.attacks import Attack, paper
from coterie._src.attacks.payloads import garbage
from coterie._src.data import Federation, gaussian_means
from coterie._src.metrics import evaluate, matched_distance
from coterie._src.server import Server
from coterie._src.simulation import SimulatedNetwork, choices
from coterie._src.tasks import linear_regression, mean_estimation
from playing import clustered, last, network


def test_the_clustering_survives_any_finite_point(rng: np.random.Generator) -> None:
    points = np.concatenate([rng.standard_normal((30, 2)), [[1e300, -1e300], [-1e308, 1e308]]])
    centres, labels = clustered(points, 2, trim=0.1, iterations=9, starts=3)
    assert np.isfinite(centres).all()
    assert len(labels) == 32


def test_the_clustering_finds_blobs_among_outliers(rng: np.random.Generator) -> None:
    blobs = np.repeat([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]], 20, axis=0)
    points = np.concatenate([blobs + 0.1 * rng.standard_normal(blobs.shape), [[500.0, 500.0], [12.0, 3.0]]])
    # one outlier of the 20 and one is beyond the 95 % quantile of its cluster; the far one needs trimming to be free
    centres, labels = clustered(points, 3, trim=0.05, iterations=50, starts=20)
    assert len({tuple(labels[i * 20 : (i + 1) * 20]) for i in range(3)}) == 3
    assert all(len(set(labels[i * 20 : (i + 1) * 20])) == 1 for i in range(3))
    # standard error of a blob's mean: 0.1/√20 = 0.022 per coordinate
    assert matched_distance(centres, [[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]]) < 0.15


def test_the_clustering_may_begin_with_given_labels(rng: np.random.Generator) -> None:
    points = np.concatenate([rng.standard_normal((20, 2)), 8 + rng.standard_normal((20, 2)), [[100.0, 100.0]]])
    given = np.array([1] * 20 + [0] * 20 + [-1])  # an outlier without a label
    centres, labels = clustered(points, 2, trim=0.05, iterations=9, starts=1, first=given)
    assert np.array_equal(labels[:40], given[:40])
    assert np.linalg.norm(centres[0] - 8) < 1.5  # five standard errors of a mean of 20


def test_three_stage_recovers_separated_clusters(rng: np.random.Generator) -> None:
    drawn = gaussian_means(rng, clients=60, clusters=3, samples=50, dim=10, byzantine=0.05, dtype=np.float64)
    assert drawn.truth is not None
    task = mean_estimation(drawn.clients)
    descent = ClusteredDescent(Server(TrimmedMean(0.1)), rounds=60)
    clients = network(task, drawn, Attack(paper))
    state = last(ThreeStage(descent, trim=0.1), clients, np.zeros((3, 10)))
    oracle = last(Oracle(task, drawn.truth.labels), clients, np.zeros((3, 10)))
    floor = matched_distance(oracle.centres, drawn.truth.centres)
    assert evaluate(state.centres, choices(task, state), drawn.truth)["misclustered"] == 0.0
    assert matched_distance(state.centres, drawn.truth.centres) < 3 * floor


def test_three_stage_without_enough_answers_learns_nothing(easy: Federation, start: np.ndarray) -> None:
    task = linear_regression(easy.clients)
    silent = SimulatedNetwork(task, np.ones(40, np.bool_), Attack(garbage), np.random.default_rng(0))
    state = last(ThreeStage(ClusteredDescent(Server(median), rounds=3)), silent, start)
    assert np.array_equal(state.centres, start)
