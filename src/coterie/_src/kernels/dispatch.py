"""The choice between the two forms of a kernel: the plain NumPy reference, and the compiled form.

`COTERIE_KERNELS` applies to the whole process: `auto` (the default) uses the compiled form where it repays the time of
compiling, `compiled` always, `reference` never.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
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
    _loaded: list[Callable[..., Any]] = field(default_factory=list, repr=False, compare=False)

    def __call__(self, *arguments: Any) -> Any:
        if CHOICE == "reference" or (CHOICE == "auto" and self.worth is not None and not self.worth(*arguments)):
            return self.reference(*arguments)
        return (self._loaded[0] if self._loaded else self.load())(*arguments)

    def load(self) -> Callable[..., Any]:
        """The compiled form."""
        if not self._loaded:
            module, _, function = self.compiled.partition(":")
            self._loaded.append(getattr(importlib.import_module(f"coterie._src.kernels.{module}"), function))
        return self._loaded[0]
