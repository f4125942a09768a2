"""The choice between the two forms of a kernel: the plain NumPy reference, and the compiled form.

`COTERIE_KERNELS` applies to the whole process: `auto` (the default) uses the compiled form where it repays the time of
compiling, `compiled` always, `reference` never.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

CHOICES = ("auto", "compiled", "reference")


def _choice() -> str:
    chosen = os.environ.get("COTERIE_KERNELS", "auto")
    if chosen not in CHOICES:
        raise ValueError(f'COTERIE_KERNELS must be {", ".join(CHOICES)}, got "{chosen}"')
    return chosen


CHOICE = _choice()
"""The value of `COTERIE_KERNELS`, read once for the whole process."""


@dataclass(frozen=True)
class Kernel:
    """One computation in two forms with the same signature.

    Parameters
    ----------
    reference : the plain NumPy form.
    compiled : "module:function" of this package; the module is imported, and so compiled, at the first use.
    worth : (arguments) -> whether the compiled form repays the time of compiling; None: always.
    """

    reference: Callable[..., Any]
    compiled: str
    worth: Callable[..., bool] | None = None

    def __call__(self, *arguments: Any) -> Any:
        if self.worth is not None and CHOICE == "auto" and not self.worth(*arguments):
            return self.reference(*arguments)
        return self.chosen(*arguments)

    @cached_property
    def chosen(self) -> Callable[..., Any]:
        """The reference if `COTERIE_KERNELS` asks for it, else the compiled form."""
        return self.reference if CHOICE == "reference" else self.loaded

    @cached_property
    def loaded(self) -> Callable[..., Any]:
        """The compiled form."""
        module, _, function = self.compiled.partition(":")
        found: Callable[..., Any] = getattr(importlib.import_module(f"coterie._src.kernels.{module}"), function)
        return found
