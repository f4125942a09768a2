"""The thread pool of the kernels."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

from coterie._src.arrays import available_cores


@cache
def threads() -> ThreadPoolExecutor:
    """A pool with one thread per core that this process may use."""
    return ThreadPoolExecutor(max_workers=available_cores(), thread_name_prefix="coterie")
