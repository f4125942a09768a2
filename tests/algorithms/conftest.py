"""What the tests of algorithms share: an easy problem, and a start near its truth."""

from __future__ import annotations

import numpy as np
import pytest

from coterie._src.data import Federation, mixed_regression
from coterie._src.init import warm


@pytest.fixture
def easy(rng: np.random.Generator) -> Federation:
    return mixed_regression(rng, clients=40, clusters=2, samples=60, dim=8, byzantine=0.1, dtype=np.float64)


@pytest.fixture
def start(easy: Federation, rng: np.random.Generator) -> np.ndarray:
    assert easy.truth is not None
    return warm(easy.truth, 0.2, rng)
