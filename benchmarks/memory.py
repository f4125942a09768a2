"""How much memory a simulation takes, each case in a process of its own; a file larger than the machine's memory, too.

What counts is memory of the process itself. Pages of a mapped file are the system's, which takes them back as it needs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.cpu import processor
from benchmarks.peak import Peak
from coterie._src.aggregators import median
from coterie._src.algorithms import ClusteredDescent
from coterie._src.attacks import Attack, paper
from coterie._src.data import gaussian_means, mixed_regression
from coterie._src.experiments.config import Config
from coterie._src.experiments.trial import run_trial
from coterie._src.init import bernoulli
from coterie._src.server import Server
from coterie._src.simulation import SimulatedNetwork
from coterie._src.studies.figure1 import METHODS, PRESETS
from coterie._src.tasks import linear_regression, mean_estimation

ROUNDS = 3
CASES: dict[str, dict[str, Any]] = {
    "regression, the paper's largest cell": {"clients": 600, "samples": 100, "dim": 500, "clusters": 15},
    "all methods of Figure 1 on it": {
        "methods": METHODS,
        "clients": 600,
        "samples": 100,
        "dim": 500,
        "clusters": 15,
    },
    "regression, ten times its clients": {"clients": 6_000, "samples": 100, "dim": 500, "clusters": 15},
    "regression, 100,000 clients": {"clients": 100_000, "samples": 50, "dim": 50, "clusters": 10},
    "regression in Gram form, d = n / 5": {"clients": 60_000, "samples": 100, "dim": 20, "clusters": 15},
    "regression, d = n / 2": {"clients": 24_000, "samples": 100, "dim": 50, "clusters": 15},
    "coterie, 20,000 clients": {"methods": ["coterie"], "clients": 20_000, "samples": 100, "dim": 20, "clusters": 5},
    "Three-Stage, 20,000 clients": {
        "methods": ["three-stage"],
        "clients": 20_000,
        "samples": 100,
        "dim": 20,
        "clusters": 5,
    },
    "means, 10,000,000 dimensions": {"clients": 100, "samples": 1, "dim": 10_000_000, "clusters": 2},
    "median of a mapped file, 100 x 70,000,000": {"file": (100, 70_000_000)},
}


def measure(name: str, file: str) -> dict[str, Any]:
    """Draw the data, run some rounds of Algorithm 1 with the median, and look at the peak of this process.

    The file is for the case that has one: a memory-mapped array, sparse on disk, larger than what may be held.
    """
    case = CASES[name]
    work = _of_a_file if "file" in case else _of_a_trial if "methods" in case else _of_rounds
    small = {"file": (100, 1000)} if "file" in case else {**case, "clients": 2 * case["clusters"], "dim": 8}
    work(file, **small)  # imports and compiles
    with Peak() as peak:
        data, seconds = work(file, **case)
    return {
        "what": name,
        "data GiB": data / 2**30,
        "peak GiB": peak.most / 2**30,
        "peak / data": peak.most / data,
        "s": seconds,
    }


def _of_rounds(_: str, **shape: int) -> tuple[int, float]:
    rng = np.random.default_rng(0)
    means = shape["samples"] == 1
    draw: Callable[..., Any] = gaussian_means if means else mixed_regression
    began = time.perf_counter()
    drawn = draw(rng, byzantine=0.05, **shape)
    task = (mean_estimation if means else linear_regression)(drawn.clients)
    network = SimulatedNetwork(task, drawn.is_byzantine, Attack(paper), rng)
    algorithm = ClusteredDescent(Server(median, audit=False), rounds=ROUNDS, step_size=0.01)
    state = algorithm.initial_state(network, bernoulli(shape["clusters"], shape["dim"], rng).astype(np.float32), rng)
    for _round in range(ROUNDS):
        state, _info = algorithm.step(state, network, rng)
    targets = drawn.clients.targets
    return drawn.clients.features.nbytes + (0 if targets is None else targets.nbytes), time.perf_counter() - began


def _of_a_trial(_: str, methods: Sequence[str], **shape: int) -> tuple[int, float]:
    sections: dict[str, Any] = PRESETS["as-published"]
    config = Config.model_validate(
        {
            "problem": {"kind": "mixed-regression", **shape},
            "algorithm": {**sections["algorithm"], "rounds": ROUNDS},
            "three_stage": sections["three_stage"],
            "run": {"methods": list(methods)},
        }
    )
    began = time.perf_counter()
    run_trial(config, 0, record=False)
    return 4 * shape["clients"] * shape["samples"] * (shape["dim"] + 1), time.perf_counter() - began


def _of_a_file(path: str, file: tuple[int, int]) -> tuple[int, float]:
    rows = np.memmap(path, dtype=np.float32, mode="w+", shape=file)
    rows[:, :: max(1, file[1] // 100)] = np.arange(file[0], dtype=np.float32)[:, None]
    rows.flush()
    began = time.perf_counter()
    found = median(rows)
    assert found[0] == (file[0] - 1) / 2
    return rows.nbytes, time.perf_counter() - began


def run() -> tuple[str, list[dict[str, Any]]]:
    """All cases."""
    rows = []
    with tempfile.NamedTemporaryFile() as file:
        for name in CASES:
            command = [sys.executable, "-m", "benchmarks.memory", name, file.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{name}: {done.stderr.strip().splitlines()[-1:]}")
            rows.append(json.loads(done.stdout))
    return f"{processor()}, float32, {ROUNDS} rounds with the data's making", rows


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2])))
