"""The server of a small federation in a process of its own, which a test kills and starts again.

`federation_server.py FOLDER`, with `tests/federation` on the path.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(folder: Path) -> None:
    """Run the federation, whose clients answer in this process; client 3 sends what is not finite."""
    import numpy as np
    from flwr.supercore.task_identity import TaskIdentity

    from coterie._src.aggregators import median
    from coterie._src.algorithms import ClusteredDescent
    from coterie._src.data import mixed_regression
    from coterie._src.federation import ClusteredStrategy
    from coterie._src.init import warm
    from coterie._src.server import Server
    from in_process import FAULTS, InProcessGrid
    from small_federation import CLIENTS, app, centres_of

    for name in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, name, 1)
    drawn = mixed_regression(np.random.default_rng(0), clients=CLIENTS, clusters=2, samples=40, dim=6, byzantine=1 / 6)
    assert drawn.truth is not None
    start = warm(drawn.truth, 0.2, np.random.default_rng(1)).astype(np.float32)
    grid = InProcessGrid(app(drawn, guarded=False), range(CLIENTS), {3: FAULTS["nan"][0]})
    descent = ClusteredDescent(Server(median), rounds=100_000, step_size=0.01)
    centres_of(grid, start, ClusteredStrategy(descent, max_clients=CLIENTS, deadline=60.0, folder=folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
