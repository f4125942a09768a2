"""Repeating work on tensors, on a CUDA device as a graph that is captured once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

WARM_UP = 2
"""How often the work is done before it is captured as a CUDA graph: its kernels are compiled and loaded then."""


def repeated(work: Callable[[], None], times: int, replayed: bool) -> Iterator[None]:
    """Do `work`, which changes tensors in place, `times` times; replayed: after the first few as a CUDA graph."""
    eager = min(times, WARM_UP) if replayed else times
    for _ in range(eager):
        work()
        yield
    if times > eager:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            work()
        for _ in range(times - eager):
            graph.replay()
            yield
