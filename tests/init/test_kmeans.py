"""Trimmed k-means: seeds, Lloyd's iteration, and points that are left out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from coterie._src.init.kmeans import lloyd, plus_plus, trimmed_kmeans

BLOBS = np.repeat([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]], 20, axis=0)


def test_seeds_are_apart_and_none_is_an_outlier() -> None:
    points = np.concatenate([BLOBS, [[1e6, 1e6]]])
    for seed in range(20):
        chosen = plus_plus(points, 3, 60, np.random.default_rng(seed))
        if chosen[0] < 60:  # the first is drawn from all points
            assert sorted(place // 20 for place in chosen) == [0, 1, 2]


def test_the_best_of_several_starts_keeps_the_nearest_points(rng: np.random.Generator) -> None:
    points = np.concatenate([BLOBS + 0.1 * rng.standard_normal(BLOBS.shape), [[500.0, 500.0], [-300.0, 9.0]]])
    found = trimmed_kmeans(points, 3, 60, rng, starts=5, iterations=50)
    assert np.array_equal(np.flatnonzero(~found.kept), [60, 61])
    means = [points[:60][found.labels[:60] == j].mean(axis=0) for j in range(3)]
    np.testing.assert_allclose(found.centres, means)
    assert cdist(found.centres, [[0, 0], [10, 0], [0, 10]]).min(axis=1).max() < 0.15


def test_lloyd_takes_any_centre_of_a_cluster_and_all_of_its_points(rng: np.random.Generator) -> None:
    points = np.array([[0.0], [1.0], [5.0], [40.0]])
    found = lloyd(points, np.array([[0.0]]), 3, 1, lambda rows: np.median(rows, axis=0), centres_of_all=True)
    assert found.centres.tolist() == [[3.0]]
    assert found.kept.tolist() == [True, True, True, False]
    assert lloyd(points, np.array([[0.0]]), 3, 1).centres.tolist() == [[2.0]]
    alone = lloyd(points, np.array([[0.0], [99.0]]), 4, 1, labels=np.zeros(4, dtype=np.int64))
    assert alone.centres[1].tolist() == [99.0]  # a centre without points stays
    with pytest.raises(ValueError, match="clusters must be from 1 to the number of points"):
        trimmed_kmeans(points, 5, 4, rng, starts=1, iterations=1)
