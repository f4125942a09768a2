"""Order statistics on a GPU: the fraction of the read bandwidth that they reach, and the ratio to torch."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from coterie._src.aggregators import Median, TrimmedMean

SHAPES = [(20, 25_000_000), (40, 12_500_000), (100, 5_000_000), (200, 2_500_000), (400, 1_250_000), (1000, 500_000)]
REPEATS = 7
CALLS = 5


def milliseconds(work: Callable[[], Any]) -> float:
    """The time of one call on the device's own clock: CALLS run in a row, which hides the time that Python takes."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(CALLS):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / CALLS


def run() -> tuple[str, list[dict[str, Any]]]:
    """Interleaved medians of REPEATS calls; all sides on the same array, 2 GB of float32."""
    rows = []
    for count, columns in SHAPES:
        x = torch.randn((count, columns), device="cuda")
        sides: dict[str, Callable[[], Any]] = {
            "read (torch.sum)": partial(torch.sum, x),
            "median": partial(Median(), x),
            "trimmed mean": partial(TrimmedMean(0.1), x),
            "torch.median": partial(torch.median, x, 0),
        }
        for work in sides.values():
            work()  # compiles the kernels
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(REPEATS):
            for name, work in sides.items():
                times[name].append(milliseconds(work))
        found = {name: statistics.median(values) for name, values in times.items()}
        read = found["read (torch.sum)"]
        gigabytes = x.numel() * 4 / 1e9
        rows.append(
            {
                "shape": f"{count}x{columns}",
                "read GB/s": gigabytes / read * 1e3,
                "median ms": found["median"],
                "of read": read / found["median"],
                "trimmed ms": found["trimmed mean"],
                "trimmed of read": read / found["trimmed mean"],
                "x torch.median": found["torch.median"] / found["median"],
            }
        )
        del x
        torch.cuda.empty_cache()
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, float32, median of {REPEATS}", rows
