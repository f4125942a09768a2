"""Names of version 0.1.0 that are still understood, with a warning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

RENAMED = {"places": "max_clients", "least": "min_clients"}
"""New names of settings by their old ones; the old ones go with version 0.2."""

P = ParamSpec("P")
R = TypeVar("R")


def with_new_names(settings: Mapping[str, Any], warn: Callable[[str], None]) -> dict[str, Any]:
    """Return the settings under their new names; an old name, which somebody wrote on purpose, overrules the new one.

    >>> with_new_names({"least": 3, "min_clients": 20, "deadline": 9.0}, print)
    least is now called min_clients; the old name will be removed in version 0.2
    {'deadline': 9.0, 'min_clients': 3}
    """
    old = [name for name in RENAMED if name in settings]
    for name in old:
        warn(f"{name} is now called {RENAMED[name]}; the old name will be removed in version 0.2")
    renamed = {RENAMED[name]: settings[name] for name in old}
    return {name: value for name, value in settings.items() if name not in (*old, *renamed)} | renamed


def takes_old_names(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function take its keyword arguments under their old names as well, with a DeprecationWarning."""

    @functools.wraps(function)
    def translated(*arguments: P.args, **options: P.kwargs) -> R:
        def warn(text: str) -> None:
            warnings.warn(text, DeprecationWarning, stacklevel=4)

        return function(*arguments, **with_new_names(options, warn))

    return translated
