"""Coterie: Byzantine-robust clustered federated learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie._src import deprecated

__version__ = "0.1.0"

__all__ = ["__version__", "load"]

if TYPE_CHECKING:
    from coterie._src.experiments.models import load

deprecated.install()


def __getattr__(name: str) -> Any:
    if name == "load":
        from coterie._src.experiments.models import load

        return load
    if name in deprecated.MODULES:
        return deprecated.old_module(name)
    raise AttributeError(f"module 'coterie' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
