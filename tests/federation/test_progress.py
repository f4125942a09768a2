"""The progress of a federation, as a file and as a view."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from coterie._src.aggregators import median
from coterie._src.algorithms import ClusteredDescent, State
from coterie._src.algorithms.base import RoundInfo
from coterie._src.data import Federation
from coterie._src.federation import ClusteredStrategy
from coterie._src.federation.progress import Progress, read_progress
from coterie._src.federation.report import federation_view
from coterie._src.server import Server
from in_process import FAULTS, InProcessGrid
from small_federation import CLIENTS, app, centres_of


def test_how_far_it_is_can_be_watched(drawn: Federation, start: np.ndarray, tmp_path: Path) -> None:
    """The note beside the state says what the last round was like, and the view shows it."""
    grid = InProcessGrid(app(drawn), range(CLIENTS), {3: FAULTS["nan"][0], 5: FAULTS["silent"][0]})
    seen: list[Progress] = []

    def note(state: State, info: RoundInfo) -> None:
        found = read_progress(tmp_path)
        assert found is not None
        seen.append(found[0])

    made = ClusteredStrategy(
        ClusteredDescent(Server(median), rounds=3, step_size=0.1),
        max_clients=CLIENTS,
        deadline=0.1,
        folder=tmp_path,
        on_round=note,
    )
    assert read_progress(tmp_path) is None
    centres_of(grid, start, made)
    assert [(one.round, one.accepted, one.refused, one.silent) for one in seen] == [(r, 10, 1, 1) for r in (1, 2, 3)]
    assert all(sum(one.sizes) == 10 and None not in one.losses and not one.done for one in seen)
    assert seen[0].faults == ("client 3 (node 3): not finite", "client 5 (node 5): silent")
    last = read_progress(tmp_path)
    assert last is not None
    assert last[0] == seen[-1]._replace(done=True, left=last[0].left)
    console = Console(width=100, file=io.StringIO())
    console.print(federation_view(seen[-1]._replace(left=61.0), age=20.0))
    console.print(federation_view(Progress(9, waiting=True, replies=2, asked=4), age=0.0))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("3/3", "0:01:01 left", "no news for 0:00:20", "10 accepted, 1 refused, 1 silent", "not finite"):
        assert words in shown
    assert re.search(r"sites .* 2/4", shown)
    (tmp_path / "progress.json").write_text('{"rounds": 3, "unheard": 1}')
    with pytest.raises(ValueError, match="is not the progress of a federation"):
        read_progress(tmp_path)
