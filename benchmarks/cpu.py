"""Aggregation on a CPU: ours beside NumPy, SciPy, torch, ByzFL, ByzPy and Flower on the same arrays, in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import peers
from coterie._src.aggregators import CentredClipping, GeometricMedian, Krum, Median, TrimmedMean, per_cluster
from coterie._src.aggregators.preaggregation import mixed
from coterie._src.arrays import available_cores

SHAPES = [(20, 1_000_000), (40, 500_000), (100, 200_000), (400, 50_000), (1000, 20_000)]
WIDE = [(100, 100_000), (20, 1_000_000)]
TRIM = 0.1
REPEATS = 9
SLOW_SECONDS = 2.0
"""A side that takes longer than this is measured once."""

Row = dict[str, Any]


def processor() -> str:
    """The name of the CPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "?")


def measured(sides: dict[str, Callable[[], Any]]) -> dict[str, tuple[float, float, float]]:
    """Per side: best and median milliseconds of REPEATS interleaved calls, and megabytes at its peak."""
    memory = {name: _peak_megabytes(side) for name, side in sides.items()}  # and everything is compiled
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(REPEATS):
        for name, side in sides.items():
            if times[name] and times[name][0] > SLOW_SECONDS:
                continue
            began = time.perf_counter()
            side()
            times[name].append(time.perf_counter() - began)
    return {name: (1e3 * min(values), 1e3 * statistics.median(values), memory[name]) for name, values in times.items()}


def _peak_megabytes(work: Callable[[], Any]) -> float:
    """How far the resident memory rises above where it was, on the second call."""
    work()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    except OSError:
        return float("nan")
    before = _status("VmRSS")
    work()
    return (_status("VmHWM") - before) / 1024


def _status(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(key)).split()[1])


def _rows(what: str, x: np.ndarray, ours: str, sides: dict[str, Callable[[], Any]]) -> list[Row]:
    found = measured(sides)
    return [
        {
            "what": what,
            "shape": "x".join(map(str, x.shape)),
            "side": name,
            "best ms": best,
            "median ms": middle,
            "times ours": best / found[ours][0],
            "extra MB": memory,
            "of input": memory / (x.nbytes / 2**20),
        }
        for name, (best, middle, memory) in found.items()
    ]


def run() -> tuple[str, list[Row]]:
    """Order statistics on five shapes, the per-cluster form, and the rules that look at distances."""
    rng = np.random.default_rng(0)
    rows: list[Row] = []
    for shape in SHAPES:
        x = rng.standard_normal(shape, dtype=np.float32)
        rows += _rows("median", x, "ours", {"ours": partial(Median(), x), "x.copy()": x.copy} | peers.medians(x))
        trimmed = {"ours": partial(TrimmedMean(TRIM), x), "x.copy()": x.copy}
        rows += _rows("trimmed mean", x, "ours", trimmed | peers.trimmed_means(x, TRIM))
    x, labels = rng.standard_normal((600, 500), dtype=np.float32), rng.integers(15, size=600)
    loop = {"loop of numpy.median": lambda: [np.median(x[labels == j], axis=0) for j in range(15)]}
    rows += _rows("median per cluster", x, "ours", {"ours": partial(per_cluster, Median(), x, labels, 15)} | loop)
    for shape in WIDE:
        x = rng.standard_normal(shape, dtype=np.float32)
        share = 0.2
        byzantine = int(share * len(x))
        ours = {
            "krum": partial(Krum(share), x),
            "multi-krum": partial(Krum(share, 1 - share), x),
            "mixing": partial(mixed, x, share),
            "clipping": partial(CentredClipping(float(x.shape[1]) ** 0.5), x),
            "geometric median": partial(GeometricMedian(), x),
        }
        others = peers.by_distance(x, byzantine)
        for rule, side in ours.items():
            rows += _rows(rule, x, "ours", {"ours": side} | others.get(rule, {}))
    threads = f"{available_cores()} cores; ours and torch use all ({torch.get_num_threads()} torch threads)"
    return f"{processor()}, {threads}, float32, best and median of {REPEATS}, interleaved", rows
