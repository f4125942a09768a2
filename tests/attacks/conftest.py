"""What the tests of attacks share: a round as the adversary sees it."""

from __future__ import annotations

import numpy as np
import pytest

from coterie._src.aggregators import mean
from coterie._src.attacks import View
from coterie._src.data import mixed_regression
from coterie._src.tasks import linear_regression


@pytest.fixture
def view(rng: np.random.Generator) -> View:
    drawn = mixed_regression(rng, clients=20, clusters=3, samples=8, dim=4, byzantine=0.2)
    assert drawn.truth is not None
    task = linear_regression(drawn.clients, "direct")
    centres = drawn.truth.centres
    labels = task.losses(centres).argmin(axis=1)
    is_byzantine = drawn.truth.is_byzantine
    byzantine_task = task.on(drawn.clients.take(np.flatnonzero(is_byzantine)))
    return View(5, centres, labels, task.gradients(centres, labels), is_byzantine, byzantine_task, mean, rng)
