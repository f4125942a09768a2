"""Clustering of the answers of clients of which a minority may have sent anything."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from coterie._src.aggregators import TrimmedMean, floor_count, median
from coterie._src.experiments import read_config
from coterie._src.experiments.setup import draw_trial
from coterie._src.init import balls, densest_balls, erm, robust, spectral, trimmed_clusters
from coterie._src.init.asking import Find
from coterie._src.init.robust import clipped, leading_directions, without_outliers
from coterie._src.metrics import adjusted_rand_index, matched_distance

SHARE = 0.1


def cloud(rng: np.random.Generator, clusters: int = 4, each: int = 30, dim: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Points of norm-one clusters with noise 0.1 in every direction, and their labels."""
    centres = rng.standard_normal((clusters, dim))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    labels = np.repeat(np.arange(clusters), each)
    return centres[labels] + 0.1 * rng.standard_normal((clusters * each, dim)), labels


def forged_points(kind: str, count: int, honest: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    dim = honest.shape[1]
    if kind == "huge":
        return 1e30 * rng.standard_normal((count, dim))
    if kind == "identical far":
        return np.tile(5.0 * rng.standard_normal(dim), (count, 1))
    if kind == "identical near":
        return np.tile(honest.mean(axis=0), (count, 1))
    if kind == "ball":
        return 2.0 * np.ones(dim) + 1e-3 * rng.standard_normal((count, dim))
    if kind == "ball among them":
        centre = rng.standard_normal(dim)
        return centre / np.linalg.norm(centre) + 0.03 * rng.standard_normal((count, dim))
    return 50.0 * np.eye(dim)[np.arange(count) % dim]  # "spread": every direction gets some variance


@pytest.mark.parametrize("start", [spectral, balls, erm])
@pytest.mark.parametrize("outliers_count", [True, False])
@pytest.mark.parametrize("kind", ["huge", "identical far", "identical near", "ball", "ball among them", "spread"])
def test_a_minority_cannot_take_a_centre_away(start: Find, outliers_count: bool, kind: str) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        honest, labels = cloud(rng)
        count = int(SHARE * len(honest) / (1 - SHARE))
        points = np.concatenate([honest, forged_points(kind, count, honest, rng)])
        centres = start(points, 4, SHARE, rng, outliers_count)
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


@pytest.mark.parametrize(("clusters", "dim", "most"), [(2, 100, 1.0), (5, 20, 1.0), (5, 100, 1.0), (15, 100, 1.03)])
def test_robust_means_in_the_full_space_are_hardly_nearer(clusters: int, dim: int, most: float) -> None:
    """The paper's problems: across the k directions in which the clusters differ, a mean adds nothing but noise."""
    sizes = f"problem.clusters={clusters}", f"problem.clients={40 * clusters}", f"problem.dim={dim}"
    distances = []
    for trial in range(4):
        setup = draw_trial(read_config(None, sizes), trial)
        assert setup.truth is not None
        origin = np.zeros((1, dim), dtype=np.float32)
        sketches = -setup.task.gradients(origin, np.zeros(40 * clusters, dtype=np.int64)).astype(np.float64) / 2
        found = spectral(sketches, clusters, 0.05, np.random.default_rng(trial))
        labels = cdist(sketches, found).argmin(axis=1)
        members = [sketches[labels == j] for j in range(clusters)]
        centres = found, [median(rows) for rows in members], [TrimmedMean(0.25)(rows) for rows in members]
        distances.append([matched_distance(np.stack(list(each)), setup.truth.centres) for each in centres])
    along, medians, trimmed = np.mean(distances, axis=0)
    assert along < (0.9 if clusters < 15 else 0.95) * medians
    assert along < most * trimmed


def test_clipping_keeps_what_is_inside_and_the_direction_of_the_rest() -> None:
    points = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [1e200, 1e200]])
    held = clipped(points, 0.2)
    np.testing.assert_allclose(held[:4], points[:4])
    np.testing.assert_allclose(held[4], np.full(2, np.sqrt(0.5)), rtol=1e-6)
    assert np.array_equal(clipped(np.ones((3, 2)), 0.2), np.ones((3, 2)))


def test_byzantine_clients_may_be_nearly_half() -> None:
    points, _ = cloud(np.random.default_rng(2), clusters=1, each=25)
    for outliers_count in (True, False):
        centre = spectral(points, 1, 0.4, np.random.default_rng(3), outliers_count)
        assert np.linalg.norm(centre - points.mean(axis=0)) < 0.2


def test_copies_of_one_point_are_one_point() -> None:
    rng = np.random.default_rng(1)
    points, _ = cloud(rng)
    inside, left = without_outliers(np.concatenate([points, np.tile(points[:1], (12, 1))]), 0.1, outliers_count=True)
    assert len(inside) == len(points)
    assert int(left * len(inside)) == 1  # of thirteen that may be Byzantine twelve are gone


def test_far_points_are_left_out_and_count_towards_the_share() -> None:
    points = np.concatenate([np.eye(18), 50.0 * np.eye(18)[:2]])
    inside, left = without_outliers(points, 0.1, outliers_count=True)
    assert np.array_equal(inside, np.eye(18))
    assert left == 0.0
    assert int(without_outliers(points, 0.1, outliers_count=False)[1] * 18) == 2
    inside, left = without_outliers(points, 0.2, outliers_count=True)
    assert len(inside) == 18
    assert int(left * 18) == 2  # two of the four are still to be found


def test_never_half_of_what_is_left_may_still_be_trimmed() -> None:
    points = np.concatenate([np.eye(6), 50.0 * np.eye(6)[:4]])
    inside, left = without_outliers(points, 0.4, outliers_count=False)
    assert len(inside) == 6
    assert floor_count(left, 6) == 2  # of the four that are allowed


def test_the_densest_balls_are_the_same_some_points_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(0).standard_normal((50, 2))
    expected = densest_balls(points, 4, 0.1, np.random.default_rng(1))
    monkeypatch.setattr(robust, "PAIRS", 120)
    found = densest_balls(points, 4, 0.1, np.random.default_rng(1))
    assert np.array_equal(found.centres, expected.centres)
    assert np.array_equal(found.labels, expected.labels)


def test_the_densest_balls_need_no_luck() -> None:
    rng = np.random.default_rng(0)
    points, labels = cloud(rng, clusters=6, each=25, dim=8)
    for seed in range(3):
        found = densest_balls(points, 6, 0.05, np.random.default_rng(seed))
        assert adjusted_rand_index(found.labels, labels) == 1.0
    assert densest_balls(np.zeros((5, 2)), 3, 0.0, rng).centres.shape == (3, 2)


def test_settings_out_of_range_are_named() -> None:
    points = np.zeros((3, 2))
    with pytest.raises(ValueError, match="clusters"):
        trimmed_clusters(points, 4, 0.1, np.random.default_rng(0))
    with pytest.raises(ValueError, match="byzantine_fraction"):
        trimmed_clusters(points, 2, 0.5, np.random.default_rng(0))
    same = trimmed_clusters(points, 2, 0.1, np.random.default_rng(0))
    assert np.array_equal(same.centres, np.zeros((2, 2)))


def test_clients_so_precise_that_they_agree_are_no_copies() -> None:
    rng = np.random.default_rng(0)
    centre = np.zeros(20)
    centre[0] = 10.0
    points = np.concatenate([rng.standard_normal((60, 20)), centre + 0.01 * rng.standard_normal((40, 20))])
    for start in (spectral, balls, erm):
        found = start(points, 2, 0.05, rng)
        assert matched_distance(found, np.stack([np.zeros(20), centre])) < 0.7
    inside, _ = without_outliers(np.tile(points[:1], (5, 1)), 0.4, outliers_count=True, fewest=3)
    assert len(inside) == 5  # fewer would not do


@pytest.mark.parametrize("kind", ["none", "huge", "identical far", "ball"])
def test_many_columns_are_seen_along_their_leading_directions(kind: str) -> None:
    """Points among few directions keep the distances between clusters, whatever a tenth of the rows does."""
    rng = np.random.default_rng(5)
    honest, labels = cloud(rng, dim=3000)
    honest = honest.astype(np.float32)
    rows = (
        honest if kind == "none" else np.concatenate([honest, forged_points(kind, 12, honest, rng).astype(np.float32)])
    )
    points, embed = leading_directions(rows, 20)
    assert points.shape == (len(rows), 20)
    found = trimmed_clusters(points, 4, SHARE, rng)
    assert adjusted_rand_index(found.labels[: len(labels)], labels) == 1.0
    centres = embed(np.stack([points[: len(labels)][labels == j].mean(axis=0) for j in range(4)]))
    means = np.stack([honest[labels == j].mean(axis=0) for j in range(4)])
    assert centres.shape == (4, 3000)
    # what is lost lies across the leading directions: noise of the means
    assert np.linalg.norm(centres - means, axis=1).max() < 0.1 * np.sqrt(3000 / 30) * 1.2


def test_rows_of_few_directions_come_back_as_they_were() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 5)) @ rng.standard_normal((5, 200)) + 3.0
    points, embed = leading_directions(rows, 8)  # five, and one more for the median
    np.testing.assert_allclose(embed(points), rows, atol=1e-5)
    apart = np.linalg.norm(rows[:, None] - rows, axis=2)
    np.testing.assert_allclose(np.linalg.norm(points[:, None] - points, axis=2), apart, atol=1e-5)


def test_rows_without_differences_are_one_point() -> None:
    points, embed = leading_directions(np.ones((5, 30)), 3)
    assert not points.any()
    np.testing.assert_array_equal(embed(np.zeros((2, points.shape[1]))), np.ones((2, 30)))
