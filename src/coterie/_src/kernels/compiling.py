"""The Numba compiler with the options of all kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(
    function: Callable[..., Any], reorder: bool = False, contract: bool = False, inline: bool = False
) -> Callable[..., Any]:
    """Compile a function to machine code that releases the interpreter's lock and is cached on disk.

    Compiled functions that it calls must be in the same file: Numba's cache detects changes of that file only.

    Parameters
    ----------
    reorder : whether sums may be computed in another order, as SIMD needs; the order is the same in every call.
    contract : whether a product and a sum may become one operation, rounded once.
    inline : whether the function is inlined.
    """
    fastmath = {"reassoc", "contract", "nsz"} if reorder else {"contract"} if contract else False
    options: dict[str, Any] = {"nogil": True, "fastmath": fastmath, "forceinline": inline}
    try:
        machine_code: Callable[..., Any] = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no writable directory for the cache: every process compiles
        machine_code = numba.njit(**options)(function)
    return machine_code
