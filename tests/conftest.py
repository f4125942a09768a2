"""What tests of several stations share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings

from coterie._src.data import Clients

# compiled kernels make a first example slow; examples are derived from the test, so a failure repeats
settings.register_profile("coterie", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("coterie")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261115)


@pytest.fixture
def ragged(rng: np.random.Generator) -> Clients:
    """Six regression clients with 7, 7, 3, 12, 12 and 1 samples in 4 columns, float64."""
    sizes = np.array([7, 7, 3, 12, 12, 1])
    return Clients(rng.standard_normal((sizes.sum(), 4)), rng.standard_normal(sizes.sum()), sizes)
