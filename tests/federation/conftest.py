"""Fixtures of the tests of federations."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
from flwr.supercore.task_identity import TaskIdentity

from coterie._src.data import Federation, mixed_regression
from coterie._src.init import warm
from in_process import InProcessGrid
from real_processes import end
from small_federation import CLIENTS, app, centres_of, strategy


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the identity that Flower gives to the process of an app, which messages carry."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture(scope="module")
def drawn() -> Federation:
    return mixed_regression(np.random.default_rng(0), clients=CLIENTS, clusters=2, samples=40, dim=6, byzantine=1 / 6)


@pytest.fixture(scope="module")
def start(drawn: Federation) -> np.ndarray:
    assert drawn.truth is not None
    return warm(drawn.truth, 0.2, np.random.default_rng(1)).astype(np.float32)


@pytest.fixture(scope="module", autouse=True)
def compiled(drawn: Federation, start: np.ndarray) -> None:
    """Compile what a round needs before deadlines of fractions of a second count."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_task_id", "_run_id", "_node_id"):
            patch.setattr(TaskIdentity, name, 1)
        centres_of(InProcessGrid(app(drawn), range(CLIENTS)), start, strategy(rounds=1, deadline=120.0))


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Collect the processes that a test starts, and end them with all that they started."""
    begun: list[subprocess.Popen[bytes]] = []
    yield begun
    for process in reversed(begun):
        end(process)
