"""The paper's grid on a GPU: seconds per cell for all trials, data generation included."""

from __future__ import annotations

import time
from typing import Any

import torch

from coterie._src.batch.engine import device_engine
from coterie._src.experiments.callbacks import NOTHING
from coterie._src.experiments.engines import Job
from coterie._src.studies.figure1 import figure1

TRIALS = 50
DESCENT_METHODS = ("brifca-median", "brifca-trimmed", "ifca")


def run() -> tuple[str, list[dict[str, Any]]]:
    """All cells of the as-published grid with all methods, and again with Algorithm 1 and IFCA alone."""
    engine = device_engine("cuda")
    grid = figure1("as-published", TRIALS)

    def seconds(config: Any, methods: tuple[str, ...]) -> float:
        chosen = config.model_copy(update={"run": config.run.model_copy(update={"methods": list(methods)})})
        torch.cuda.synchronize()
        began = time.perf_counter()
        done = list(engine([Job(chosen, trial, False) for trial in range(TRIALS)], NOTHING, lambda: False))
        torch.cuda.synchronize()
        assert len(done) == TRIALS
        return time.perf_counter() - began

    for config in grid.configs[:5]:  # every dimension once: all kernels are compiled before the measurement
        seconds(config, tuple(config.methods))
    rows = []
    for config in grid.configs:
        problem: Any = config.problem
        rows.append(
            {
                "k": problem.clusters,
                "m": problem.clients,
                "d": problem.dim,
                "all methods, s": seconds(config, tuple(config.methods)),
                "median, trimmed mean, mean, s": seconds(config, DESCENT_METHODS),
            }
        )
    names = list(rows[0])
    rows.append(dict.fromkeys(names[:3], "all") | {name: sum(row[name] for row in rows) for name in names[3:]})
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {TRIALS} trials, as-published"
    return machine, rows
