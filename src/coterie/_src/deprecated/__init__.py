"""Modules that were public in version 0.1.0: their old names keep working for one version, with a warning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

REMOVED_IN = "0.2"
MODULES = {
    "aggregators": "aggregators",
    "algorithms": "algorithms",
    "assignment": "client",
    "attacks": "attacks",
    "data": "data",
    "experiments": "experiments",
    "flower": "federation",
    "initialise": "init",
    "intake": "intake",
    "metrics": "metrics",
    "plot": "plot",
    "report": "report",
    "server": "server",
    "simulate": "simulation",
    "tasks": "tasks",
    "theory": "theory",
}
"""The modules of version 0.1.0 by their old names, and where they are now."""


def old_module(name: str) -> ModuleType:
    """A module by its old name, such as `simulate`, with a warning at the caller of the caller."""
    _warn(name, stacklevel=4)
    return _filled(ModuleType(f"coterie.{name}"), name)


def _warn(name: str, stacklevel: int) -> None:
    warnings.warn(
        f"coterie.{name} is private from version {REMOVED_IN} on; use the names of coterie.__all__",
        DeprecationWarning,
        stacklevel=stacklevel,
    )


def _filled(module: ModuleType, name: str) -> ModuleType:
    """The module with the names of the one that is now private, and with those that are gone from it."""
    from coterie._src.deprecated.names import old_names

    private = importlib.import_module(f"coterie._src.{MODULES[name]}")
    names = {key: value for key, value in vars(private).items() if not key.startswith("__")}
    vars(module).update({**names, **old_names(name), "__doc__": private.__doc__})
    vars(module)["__getattr__"] = lambda key: getattr(private, key)  # what is loaded when somebody asks for it
    return module


class OldModules:
    """Finds `coterie.simulate` and the others where an import statement names them."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, module = name.rpartition(".")
        return ModuleSpec(name, OldModules()) if package == "coterie" and module in MODULES else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """A new module, which `exec_module` fills."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Give it the names of the module that is now private."""
        name = module.__name__.rpartition(".")[2]
        _warn(name, stacklevel=3)
        _filled(module, name)


def install() -> None:
    """Make import statements find the old modules."""
    if not any(isinstance(finder, OldModules) for finder in sys.meta_path):
        sys.meta_path.append(OldModules())
