"""Coterie: Byzantine-robust clustered federated learning.

    import coterie as ct

    result = ct.fit(clients, task="linear", clusters=5, max_byzantine=0.05)
    result.centres, result.labels

The names of `__all__` are public and documented; everything else is private (`coterie._src`) and may change in any
version. A public name that goes keeps working for one version, with a DeprecationWarning. `import coterie` loads
nothing heavy; a name is loaded when it is first used.
"""

import importlib as _importlib
import typing as _typing

from coterie._src import deprecated as _deprecated

__version__ = "0.1.0"

if _typing.TYPE_CHECKING:
    from coterie._src.aggregators import (
        Aggregator,
        Bucketing,
        CentredClipping,
        GeometricMedian,
        Krum,
        Mean,
        Median,
        NearestNeighbourMixing,
        SpectralFilter,
        TrimmedMean,
    )
    from coterie._src.algorithms import Algorithm
    from coterie._src.attacks import Attack, Payload
    from coterie._src.data import Clients, Federation, Truth, gaussian_means, mixed_regression, read_folder, tabular
    from coterie._src.diagnostics import Diagnostics
    from coterie._src.experiments.methods import Method
    from coterie._src.experiments.models import load
    from coterie._src.fitting import Result, attack, fit, registered
    from coterie._src.tasks import Task, module

__all__ = [
    "Aggregator",
    "Algorithm",
    "Attack",
    "Bucketing",
    "CentredClipping",
    "Clients",
    "Diagnostics",
    "Federation",
    "GeometricMedian",
    "Krum",
    "Mean",
    "Median",
    "Method",
    "NearestNeighbourMixing",
    "Payload",
    "Result",
    "SpectralFilter",
    "Task",
    "TrimmedMean",
    "Truth",
    "__version__",
    "attack",
    "fit",
    "gaussian_means",
    "load",
    "mixed_regression",
    "module",
    "read_folder",
    "registered",
    "tabular",
]

_MODULES = {
    "aggregators": (
        "Aggregator", "Bucketing", "CentredClipping", "GeometricMedian", "Krum", "Mean", "Median",
        "NearestNeighbourMixing", "SpectralFilter", "TrimmedMean",
    ),
    "algorithms": ("Algorithm",),
    "attacks": ("Attack", "Payload"),
    "data": ("Clients", "Federation", "Truth", "gaussian_means", "mixed_regression", "read_folder", "tabular"),
    "diagnostics": ("Diagnostics",),
    "experiments.methods": ("Method",),
    "experiments.models": ("load",),
    "fitting": ("Result", "attack", "fit", "registered"),
    "tasks": ("Task", "module"),
}  # fmt: skip

_deprecated.install()


def __getattr__(name: str) -> _typing.Any:
    for module, names in _MODULES.items():
        if name in names:
            found = getattr(_importlib.import_module(f"coterie._src.{module}"), name)
            globals()[name] = found
            return found
    if name in _deprecated.MODULES:
        return _deprecated.old_module(name)
    raise AttributeError(f"module 'coterie' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
