"""Trimmed k-means of many trials at once is that of each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie._src.batch.three_stage import trimmed_kmeans
from devices import DEVICES
from playing import clustered


@pytest.mark.parametrize("device", DEVICES)
def test_clustering_in_a_batch_is_clustering_one_by_one(device: str) -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], 20)
    points = np.stack([rng.standard_normal((60, 4)) + 3 * rng.standard_normal((3, 4))[truth] for _ in range(3)])
    points[:, 0] = 1e6  # an outlier
    first = np.where(rng.random((3, 60)) < 0.3, rng.integers(3, size=(3, 60)), truth)
    first[:, 5] = -1
    centres, labels = trimmed_kmeans(
        torch.from_numpy(points).to(device), torch.from_numpy(first).to(device), 3, trim=0.1, iterations=50
    )
    for trial in range(3):
        expected = clustered(points[trial], 3, trim=0.1, iterations=50, starts=1, first=first[trial])
        assert np.array_equal(labels[trial].cpu(), expected[1])
        np.testing.assert_allclose(centres[trial].cpu(), expected[0], rtol=1e-4, atol=1e-4)
