"""The recommended method on the paper's problem: CPU time, rounds, and questions to the clients.

To compare two checkouts, run it in turn with the `src` of each on PYTHONPATH.
"""

from __future__ import annotations

import time
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.cpu import processor
from coterie._src.experiments import read_config, run_trial
from coterie._src.simulation import SimulatedNetwork

CELLS = ((2, 20), (2, 100), (5, 20), (5, 50), (5, 100), (5, 200), (10, 100), (15, 100), (15, 200), (5, 500))
"""k and d; m = 40k."""
TRIALS = 5
QUESTIONS = ("gradients", "minimisers", "losses", "curvatures", "sizes", "hessians")


def run() -> tuple[str, list[dict[str, Any]]]:
    """Per cell the median over the trials; the first trial, which may compile, is repeated."""
    rows = []
    for clusters, dim in CELLS:
        changes = [f"problem.clusters={clusters}", f"problem.clients={40 * clusters}", f"problem.dim={dim}"]
        config = read_config(None, [*changes, "run.methods=['coterie']"])
        run_trial(config, 0, record=False)
        found = [_trial(config, trial) for trial in range(TRIALS)]
        seconds, rounds, questions, ratio = np.median(np.array(found), axis=0).tolist()
        rows.append({"k": clusters, "m": 40 * clusters, "d": dim, "CPU s": seconds, "rounds": rounds,
                     "questions": questions, "x oracle": ratio})  # fmt: skip
    return f"{processor()}, coterie under the paper's attack, n = 100, median of {TRIALS} trials", rows


def _trial(config: Any, trial: int) -> tuple[float, float, float, float]:
    """CPU seconds of the whole trial with its oracle, rounds, questions, and the error relative to the oracle's."""
    asked = 0

    def counted(name: str) -> Any:
        ask = getattr(SimulatedNetwork, name)

        def wrapper(*arguments: Any, **options: Any) -> Any:
            nonlocal asked
            asked += 1
            return ask(*arguments, **options)

        return patch.object(SimulatedNetwork, name, wrapper)

    patches = [counted(name) for name in QUESTIONS if hasattr(SimulatedNetwork, name)]
    for one in patches:
        one.start()
    began = time.process_time()
    metrics = run_trial(config, trial, record=False).methods["coterie"].metrics
    seconds = time.process_time() - began
    for one in patches:
        one.stop()
    return seconds, metrics["rounds"], float(asked), metrics["oracle_ratio"]
