"""Robust starts: they find the clusters of the paper's problems, and the attacks that could aim at them fail."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.experiments import read_config, run_trial
from coterie.experiments.trial import draw_trial
from coterie.initialise import erm, spectral, trimmed_clusters
from coterie.initialise.robust import clipped
from coterie.metrics import adjusted_rand_index, matched_distance

SHARE = 0.1


def cloud(rng: np.random.Generator, clusters: int = 4, each: int = 30, dim: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Points of norm-one clusters with noise 0.1 in every direction, and their labels."""
    centres = rng.standard_normal((clusters, dim))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    labels = np.repeat(np.arange(clusters), each)
    return centres[labels] + 0.1 * rng.standard_normal((clusters * each, dim)), labels


def lies(kind: str, count: int, honest: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    dim = honest.shape[1]
    if kind == "huge":
        return 1e30 * rng.standard_normal((count, dim))
    if kind == "identical far":
        return np.tile(5.0 * rng.standard_normal(dim), (count, 1))
    if kind == "identical near":
        return np.tile(honest.mean(axis=0), (count, 1))
    if kind == "ball":
        return 2.0 * np.ones(dim) + 1e-3 * rng.standard_normal((count, dim))
    return 50.0 * np.eye(dim)[np.arange(count) % dim]  # "spread": every direction gets some variance


@pytest.mark.parametrize("start", [spectral, erm])
@pytest.mark.parametrize("kind", ["huge", "identical far", "identical near", "ball", "spread"])
def test_a_minority_cannot_take_a_centre_away(start: object, kind: str) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        honest, labels = cloud(rng)
        count = int(SHARE * len(honest) / (1 - SHARE))
        points = np.concatenate([honest, lies(kind, count, honest, rng)])
        centres = start(points, 4, SHARE, rng)  # type: ignore[operator]
        truth = np.stack([honest[labels == j].mean(axis=0) for j in range(4)])
        assert matched_distance(centres, truth) < 0.15, (kind, seed)


@pytest.mark.parametrize("seed", range(4))
def test_many_clusters_are_all_found(seed: int) -> None:
    """Fifteen clusters: where k-means++ with many starts merges two and splits another, moving a centre helps."""
    rng = np.random.default_rng(seed)
    points, labels = cloud(rng, clusters=15, each=20, dim=20)
    found = trimmed_clusters(points, 15, 0.05, rng)
    assert adjusted_rand_index(found.labels, labels) == 1.0
    assert (~found.kept).sum() == 15


def test_clipping_keeps_what_is_inside_and_the_direction_of_the_rest() -> None:
    points = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [1e200, 1e200]])
    held = clipped(points, 0.2)
    np.testing.assert_allclose(held[:4], points[:4])
    np.testing.assert_allclose(held[4], np.full(2, np.sqrt(0.5)), rtol=1e-6)
    assert np.array_equal(clipped(np.ones((3, 2)), 0.2), np.ones((3, 2)))


def test_settings_out_of_range_are_named() -> None:
    points = np.zeros((3, 2))
    with pytest.raises(ValueError, match="clusters"):
        trimmed_clusters(points, 4, 0.1, np.random.default_rng(0))
    with pytest.raises(ValueError, match="byzantine"):
        trimmed_clusters(points, 2, 0.5, np.random.default_rng(0))
    same = trimmed_clusters(points, 2, 0.1, np.random.default_rng(0))
    assert np.array_equal(same.centres, np.zeros((2, 2)))


@pytest.mark.parametrize("attack", ["paper", "sign-flip", "constant", "garbage"])
@pytest.mark.parametrize("init", ["spectral", "erm"])
def test_a_run_from_a_robust_start_finds_every_client_s_cluster(init: str, attack: str) -> None:
    config = read_config(
        None,
        [f"algorithm.init={init}", f"attack.kind={attack}", "problem.dim=20", "problem.clusters=4",
         "problem.clients=80", "algorithm.rounds=60", "run.methods=['brifca-median']"],
    )  # fmt: skip
    for trial in range(3):
        found = run_trial(config, trial, record=False).methods["brifca-median"].metrics
        assert found["ari"] == 1.0
        assert found["oracle_ratio"] < 2.0


@pytest.mark.parametrize("kind", ["gaussian-means", "poisson-means"])
def test_means_have_robust_starts_too(kind: str) -> None:
    config = read_config(None, [f"problem.kind={kind}", "problem.dim=20", "algorithm.init=spectral"])
    draw = draw_trial(config, 0)
    assert draw.truth is not None
    assert matched_distance(draw.start, draw.truth.centres) < 0.25 * draw.truth.separation
