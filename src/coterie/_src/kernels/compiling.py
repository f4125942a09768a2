"""Numba's compiler as all kernels use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(
    function: Callable[..., Any], reorder: bool = False, contract: bool = False, inline: bool = False
) -> Callable[..., Any]:
    """Compile a function to machine code that releases the interpreter's lock and is kept on disk.

    The compiled functions that it calls must stand in the same file: Numba's cache notices a change of that file alone.

    Parameters
    ----------
    reorder : sums may be added up in another order than written, as SIMD needs; the order is the same in every call.
    contract : a product and a sum may become one operation, rounded once.
    inline : the function becomes part of those that call it.
    """
    fastmath = {"reassoc", "contract", "nsz"} if reorder else {"contract"} if contract else False
    options: dict[str, Any] = {"nogil": True, "fastmath": fastmath, "forceinline": inline}
    try:
        machine_code: Callable[..., Any] = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # there is no writable place for the cache: compile anew in every process
        machine_code = numba.njit(**options)(function)
    return machine_code
