"""The saved state: a server that was killed goes on from it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie._src.aggregators import CentredClipping, median
from coterie._src.algorithms import ClusteredDescent, State
from coterie._src.algorithms.base import RoundInfo
from coterie._src.data import Federation
from coterie._src.federation import ClusteredStrategy
from coterie._src.federation.checkpoint import AUDIT, COLUMNS, Checkpoint, Saved
from coterie._src.optimisers import Momentum
from coterie._src.server import Server, ServerMemory
from in_process import InProcessGrid
from small_federation import CLIENTS, app, centres_of


class Killed(BaseException):
    """The server's process ends here."""


@pytest.mark.parametrize(
    "server", [Server(median), Server(median, optimiser=Momentum()), Server(CentredClipping(history=True))]
)
def test_a_killed_server_goes_on(server: Server, drawn: Federation, start: np.ndarray, tmp_path: Path) -> None:
    """After any round, with the same answers: the same bits as a server that was never killed."""
    algorithm = ClusteredDescent(server, rounds=6, participation=0.7)

    def run(folder: Path, **options: Any) -> np.ndarray:
        grid = InProcessGrid(app(drawn), range(CLIENTS))
        return centres_of(
            grid, start, ClusteredStrategy(algorithm, max_clients=CLIENTS, deadline=0.3, folder=folder, **options)
        )

    whole = run(tmp_path / "whole")

    def kill(state: State, info: RoundInfo) -> None:
        if state.round in (1, 4):
            raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            run(tmp_path / "torn", on_round=kill)
    assert np.array_equal(run(tmp_path / "torn"), whole)
    run(tmp_path / "named", identity="age, dose")
    with pytest.raises(
        ValueError, match=r"named: holds the rounds of another configuration \(identity differs\); move it away"
    ):
        run(tmp_path / "named", identity="dose, age")
    rows = Checkpoint(tmp_path / "torn").rows()
    assert len(rows) == 6 * CLIENTS

    def without_clock(folder: str) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in Checkpoint(tmp_path / folder).rows()]

    assert without_clock("torn") == without_clock("whole")


def test_the_audit_of_an_earlier_version_is_read_and_continued(tmp_path: Path) -> None:
    """Without the column `bytes`, which came last."""
    with closing(sqlite3.connect(tmp_path / AUDIT)) as old, old:
        columns = ", ".join(name for name in COLUMNS if name != "bytes")
        old.execute(f"CREATE TABLE replies ({columns}, PRIMARY KEY (round, client))")
        old.execute("INSERT INTO replies (round, client, fault) VALUES (1, 0, 'late')")
    checkpoint = Checkpoint(tmp_path)
    checkpoint.save(
        Saved(State(2, np.ones((1, 2))), np.random.default_rng(0), []), [{"round": 2, "client": 0, "bytes": 8}]
    )
    first, second = checkpoint.rows()
    assert (first["round"], first["fault"], first["bytes"]) == (1, "late", None)
    assert (second["round"], second["fault"], second["bytes"]) == (2, None, 8)


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.load() is None
    curvatures, memory = np.full((5, 2), np.nan), ServerMemory(None, np.full((2, 4), 3.0), np.full((1, 2), 4.0))
    state = State(3, np.ones((2, 4)), curvatures=curvatures, smallest_move=0.5, rounds_since=2, memory=memory)
    checkpoint.save(Saved(state, np.random.default_rng(7), [3, None, 2**64 - 1]))
    found = checkpoint.load()
    assert found is not None
    assert (found.state.round, found.state.smallest_move, found.state.rounds_since) == (3, 0.5, 2)
    assert found.state.memory.moments is None
    np.testing.assert_array_equal(found.state.memory.aggregator, memory.aggregator)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found.state.memory.shared, memory.shared)  # type: ignore[arg-type]
    assert found.nodes == [3, None, 2**64 - 1]
    assert found.rng.integers(2**60) == np.random.default_rng(7).integers(2**60)
    (tmp_path / "state.safetensors").write_bytes(b"not a state")
    with pytest.raises(ValueError, match="is not the state of a federation"):
        checkpoint.load()
