"""Coterie: Byzantine-robust clustered federated learning.

    import numpy as np
    from coterie import aggregators, data, tasks

`import coterie` itself loads nothing heavy; the stations of the design are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "aggregators",
    "algorithms",
    "assignment",
    "attacks",
    "data",
    "experiments",
    "initialise",
    "intake",
    "load",
    "metrics",
    "plot",
    "report",
    "server",
    "simulate",
    "tasks",
    "theory",
]

if TYPE_CHECKING:
    from coterie import (
        aggregators,
        algorithms,
        assignment,
        attacks,
        data,
        experiments,
        initialise,
        intake,
        metrics,
        plot,
        report,
        server,
        simulate,
        tasks,
        theory,
    )
    from coterie.experiments.load import load


def __getattr__(name: str) -> Any:
    if name == "load":
        from coterie.experiments.load import load

        return load
    if name in __all__:
        return importlib.import_module(f"coterie.{name}")
    raise AttributeError(f"module 'coterie' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
