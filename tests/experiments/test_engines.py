"""Engines: Ray gives the same results, and a killed worker is reported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from command import COTERIE
from interrupted import until_kept
from small_sweep import GRID

ON_RAY = """
import logging, sys
import ray
from coterie._src.experiments.database import Database
from coterie._src.experiments.engines import ray_engine
from coterie._src.experiments.sweep import jobs_left, sweep
from small_sweep import grid, table

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
database = Database(sys.argv[2], create=True)
sweep(jobs_left(grid(), database), database, ray_engine())
assert table(database, grid()) == table(Database(sys.argv[1]), grid())
"""


def test_ray_gives_the_same_bits(finished: Path, tmp_path: Path) -> None:
    """In a process of its own: Ray leaves some of its own behind."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", ON_RAY, str(finished), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr


def test_a_killed_worker_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID.replace("trials = 3", "trials = 500"))
    process = subprocess.Popen(
        [*COTERIE, "sweep", "grid.toml", "--workers", "2", "--out", "run"], cwd=tmp_path, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        until_kept(8, tmp_path / "run", process)  # all workers are at work
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        workers = [int(child) for child in children]  # the resource tracker, and two workers
        os.kill(workers[-1], signal.SIGKILL)
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "Traceback" not in stderr
    assert "worker processes: one was killed" in stderr
