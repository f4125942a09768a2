"""What tests of several stations share."""

from __future__ import annotations

import os
from pathlib import Path

# Before NumPy and torch are loaded, and for the processes that tests start: small matrices are faster on one thread.
# Threads wait for each other by spinning, which takes many times as long where other processes use the same cores.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import settings

from coterie._src.data import Clients
from coterie._src.experiments.database import Database
from coterie._src.experiments.engines import local_engine
from coterie._src.experiments.sweep import jobs_left, sweep
from small_sweep import grid

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


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished sweep over `small_sweep.grid()`; tests that write copy its file first."""
    folder = tmp_path_factory.mktemp("finished")
    database = Database(folder, create=True)
    sweep(jobs_left(grid(), database), database, local_engine(1))
    database.close()
    return folder
