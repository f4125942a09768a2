"""CPU time of rounds of small federations in this checkout and in another one, in turn.

    python -m benchmarks checkouts --against ../other

The other checkout is measured by its own `benchmarks.simulation.round_seconds`, in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.cpu import processor

CELLS = ((2, 20), (5, 20), (2, 100))
"""k and d; m = 40k, n = 100."""
PASSES = 5
HERE = Path(__file__).resolve().parent.parent
MEASURE = """
import json, sys, time
time.perf_counter = time.thread_time  # a shared machine: the clock counts what others compute
from threadpoolctl import threadpool_limits
from benchmarks.simulation import RULES, round_seconds
found = {}
with threadpool_limits(limits=1):
    for k, d in json.loads(sys.argv[1]):
        for name, rule in RULES.items():
            found[f"k={k} d={d} {name}"] = round_seconds(rule, clients=40 * k, samples=100, dim=d, clusters=k)[0]
print(json.dumps(found))
"""


def measured(checkout: Path) -> dict[str, float]:
    """The seconds of a round in every cell, by the code of a checkout."""
    paths = os.pathsep.join([str(checkout / "src"), str(checkout)])
    command = [sys.executable, "-c", MEASURE, json.dumps(CELLS)]
    process = subprocess.run(
        command, cwd=checkout, env={**os.environ, "PYTHONPATH": paths}, check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, float] = json.loads(process.stdout)
    return found


def run(against: Path) -> tuple[str, list[dict[str, Any]]]:
    """The fastest round of all passes on either side: a shared machine may be slow for a while."""
    passes = [(measured(against), measured(HERE)) for _ in range(PASSES)]
    rows = []
    for cell in passes[0][1]:
        before, now = (1e3 * min(found[side][cell] for found in passes) for side in (0, 1))
        rows.append({"round": cell, "other ms": before, "this ms": now, "ratio": now / before})
    return f"{processor()}, CPU time of one thread, float32, fastest of {PASSES} passes in turn", rows
