"""The points of reference: the oracle, and every client alone."""

from __future__ import annotations

import numpy as np
import pytest

from coterie._src.algorithms import LocalMinimisers, Oracle
from coterie._src.data import Federation
from coterie._src.tasks import linear_regression
from playing import last, network


def test_oracle_and_local_minimisers(easy: Federation, start: np.ndarray) -> None:
    assert easy.truth is not None
    task = linear_regression(easy.clients)
    clients = network(task, easy)
    pooled = last(Oracle(task, easy.truth.labels), clients, start).centres
    for j in range(2):
        own = easy.clients.pool(np.flatnonzero(easy.truth.labels == j))
        np.testing.assert_allclose(pooled[j], np.linalg.lstsq(own.features, own.targets, rcond=None)[0], rtol=1e-8)
    local = last(LocalMinimisers(task), clients, start)
    assert np.array_equal(local.centres, task.minimisers())
    with pytest.raises(ValueError, match="no rounds"):
        LocalMinimisers(task).step(local, clients, np.random.default_rng(0))
