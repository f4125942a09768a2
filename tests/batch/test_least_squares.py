"""Least squares of many clients at once are those of each."""

from __future__ import annotations

import numpy as np
import torch

from coterie._src.batch import Batch
from coterie._src.batch.least_squares import minimisers, oracle
from coterie._src.tasks.linear import least_squares


def test_minimisers_and_the_oracle_are_least_squares() -> None:
    generator = torch.Generator().manual_seed(0)
    for n, d, ridge in [(9, 4, 0.0), (4, 9, 0.0), (5, 5, 0.0), (9, 4, 0.3), (4, 9, 0.3)]:
        x = torch.randn((2, 3, n, d), generator=generator)
        y = torch.randn((2, 3, n), generator=generator)
        batch = Batch(x, y, torch.ones((2, 3)))
        for trial, client in np.ndindex(2, 3):
            expected = least_squares(x[trial, client].double().numpy(), y[trial, client].double().numpy(), ridge)
            np.testing.assert_allclose(minimisers(batch, ridge)[trial, client], expected, rtol=1e-6, atol=1e-6)
            if d < n:
                found = minimisers(batch, ridge, float32=True)[trial, client]
                np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
        pooled = oracle(batch, np.array([0, 0, -1]))
        both = least_squares(x[1, :2].flatten(0, 1).double().numpy(), y[1, :2].flatten().double().numpy(), 0.0)
        np.testing.assert_allclose(pooled[1, 0], both, rtol=1e-6, atol=1e-6)
