"""The peers, each as a function of one array; what is not installed is left out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from scipy import stats

Side = Callable[[], Any]


class Anything(ModuleType):
    """Stands in for torchvision, which ByzFL imports and its aggregators do not use."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name)

    def __call__(self, *_: Any, **__: Any) -> None:
        return None


def _byzfl() -> Any:
    for name in ("torchvision", "torchvision.transforms", "torchvision.datasets"):
        sys.modules.setdefault(name, Anything(name))
    import byzfl

    return byzfl


def found(*makers: Callable[[], dict[str, Side]]) -> dict[str, Side]:
    """What the makers give, without those whose package is missing."""
    sides: dict[str, Side] = {}
    for make in makers:
        try:
            sides |= make()
        except ImportError as missing:
            print(f"left out: {missing}", file=sys.stderr)
    return sides


def medians(x: np.ndarray) -> dict[str, Side]:
    tensor = torch.from_numpy(x)

    def flower() -> dict[str, Side]:
        from flwr.server.strategy.aggregate import aggregate_median

        return {"Flower aggregate_median": partial(aggregate_median, [([row], 1) for row in x])}

    return {
        "numpy.median": partial(np.median, x, axis=0),
        "numpy.sort": partial(np.sort, x, axis=0),
        "numpy.partition": partial(np.partition, x, len(x) // 2, axis=0),
        "torch.median": partial(torch.median, tensor, 0),
        "torch.sort": partial(torch.sort, tensor, 0),
        **({"torch.quantile": partial(torch.quantile, tensor, 0.5, 0)} if x.size < 1 << 24 else {}),
        **found(lambda: {"ByzFL Median": partial(_byzfl().Median(), tensor)}, flower),
    }


def trimmed_means(x: np.ndarray, trim: float) -> dict[str, Side]:
    tensor = torch.from_numpy(x)
    cut = int(trim * len(x))

    def flower() -> dict[str, Side]:
        from flwr.server.strategy.aggregate import aggregate_trimmed_avg

        return {"Flower aggregate_trimmed_avg": partial(aggregate_trimmed_avg, [([row], 1) for row in x], trim)}

    return {
        "numpy.sort + mean": lambda: np.sort(x, axis=0)[cut : len(x) - cut].mean(axis=0),
        "numpy.sort": partial(np.sort, x, axis=0),
        "scipy.stats.trim_mean": partial(stats.trim_mean, x, trim, axis=0),
        "torch.sort + mean": lambda: torch.sort(tensor, 0).values[cut : len(x) - cut].mean(0),
        **found(lambda: {"ByzFL TrMean": partial(_byzfl().TrMean(cut), tensor)}, flower),
    }


def by_distance(x: np.ndarray, byzantine: int) -> dict[str, dict[str, Side]]:
    """Per rule the peers that have it, with as many Byzantine rows; the geometric median by its own criterion."""
    tensor = torch.from_numpy(x)
    rows = list(tensor)

    def byzfl() -> dict[str, Side]:
        library = _byzfl()
        return {
            "krum": partial(library.Krum(byzantine), tensor),
            "multi-krum": partial(library.MultiKrum(byzantine), tensor),
            "mixing": partial(library.NNM(byzantine), tensor),
            "clipping": lambda: library.CenteredClipping(L=10, tau=float(x.shape[1]) ** 0.5)(tensor),
            "geometric median": partial(library.GeometricMedian(T=10), tensor),
        }

    def byzpy() -> dict[str, Side]:
        from byzpy.aggregators.geometric_wise.geometric_median import GeometricMedian
        from byzpy.aggregators.geometric_wise.krum import Krum, MultiKrum
        from byzpy.aggregators.norm_wise.center_clipping import CenteredClipping
        from byzpy.pre_aggregators.nnm import NearestNeighborMixing

        return {
            "krum": partial(Krum(byzantine).aggregate, rows),
            "multi-krum": partial(MultiKrum(byzantine, len(x) - byzantine).aggregate, rows),
            "mixing": partial(NearestNeighborMixing(byzantine).pre_aggregate, rows),
            "clipping": partial(CenteredClipping(c_tau=float(x.shape[1]) ** 0.5, M=10).aggregate, rows),
            "geometric median": partial(GeometricMedian().aggregate, rows),
        }

    sides: dict[str, dict[str, Side]] = {}
    for library, make in (("ByzFL", byzfl), ("ByzPy", byzpy)):
        for rule, side in found(make).items():
            sides.setdefault(rule, {})[library] = side
    return sides
