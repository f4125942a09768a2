"""The whole of `coterie` by the number of clients: start, number of clusters, rounds, filter, stop, audit, diagnostics.

    python -m benchmarks scale --sizes 1000 10000 100000 1000000

Each size in a process of its own, after a small one that compiles. CPU seconds, so that others on the machine do not
count; `exponent` is that of the CPU seconds since the row before, and `over all` in the last row that of a line through
the logarithms of all. `ARI of the truth` is that of the labels by the true centres, which no clustering can be expected
to exceed it.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import coterie as ct
from benchmarks.cpu import processor
from benchmarks.memory import Peak
from coterie._src.metrics import agreement
from coterie._src.tasks import assign, linear_regression

SIZES = (1_000, 10_000, 100_000)
SHAPE: dict[str, Any] = {"clusters": 10, "samples": 20, "dim": 20, "byzantine": 0.05}
ATTACK = "paper"
SEED = 0


def measure(clients: int) -> dict[str, Any]:
    """One fit; the number of clusters is estimated."""
    _fit(ct.mixed_regression(SEED, clients=300, **{**SHAPE, "clusters": 2}))  # compiles
    with Peak() as peak:
        began = time.process_time()
        federation = ct.mixed_regression(SEED, clients=clients, **SHAPE)
        drawn, clock = time.process_time(), time.perf_counter()
        found = _fit(federation)
        ended, over = time.process_time(), time.perf_counter()
    truth = federation.truth
    assert truth is not None
    labels = assign(linear_regression(federation.clients).losses(truth.centres))
    return {
        "clients": clients,
        "drawing, CPU s": drawn - began,
        "CPU s": ended - drawn,
        "wall s": over - clock,
        "peak GiB": peak.most / 2**30,
        "process GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "clusters": int(found.metrics["clusters"]),
        "rounds": len(found.rounds),
        "distance / oracle": f"{found.metrics['oracle_ratio']:.4f}",
        "ARI": f"{found.metrics['ari']:.4f}",
        "ARI of the truth": f"{agreement(labels, truth)['ari']:.4f}",
    }


def _fit(federation: Any) -> Any:
    return ct.fit(federation, clusters="auto", max_byzantine=0.05, attack=ct.attack(ATTACK))


def run(sizes: Sequence[int] = SIZES) -> tuple[str, list[dict[str, Any]]]:
    """All sizes, the smallest first."""
    rows: list[dict[str, Any]] = []
    for size in sorted(sizes):
        command = [sys.executable, "-m", "benchmarks.scale", str(size)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        row = json.loads(done.stdout)
        before = rows[-1] if rows else row
        ratio = row["clients"] / before["clients"]
        row["exponent"] = math.log(row["CPU s"] / before["CPU s"]) / math.log(ratio) if ratio > 1 else math.nan
        rows.append(row)
    counts, seconds = ([math.log(row[name]) for row in rows] for name in ("clients", "CPU s"))
    over_all = float(np.polyfit(counts, seconds, 1)[0]) if len(rows) > 1 else math.nan
    rows = [row | {"over all": over_all if row is rows[-1] else ""} for row in rows]
    return f"{processor()}, {SHAPE}, attack {ATTACK}, seed {SEED}, one trial each, float32", rows


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
