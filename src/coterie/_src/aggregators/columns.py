"""Rules over the columns of updates, which are an array in memory or a sequence of shards.

Order statistics work column by column, and the inner products and squared distances of rows add up over columns,
G = Σ_s X_s X_sᵀ. A rule is therefore written once: functions of a block of columns (`by_columns`), and decisions about
rows from what these functions add up to. On an array there is one block, the array itself.

Totals are sums over shards of `SHARD` columns in their order, of an array in memory, too. The result of a rule has
therefore the same bits wherever the columns are, and whoever computes on them.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from coterie._src.arrays import Array, Ints, available_cores, is_plain

SHARD = 1 << 14
"""The columns of a shard."""
READ_NUMBERS = 1 << 24
"""The numbers that are read at once, 64 MB of float32: in long stretches, and little beside the memory."""
MAX_THREADS = 8
"""Each thread reads so many."""
IN_MEMORY = 1 << 28
"""A vector with a number per column that takes more bytes is kept in a temporary file."""


class Result(NamedTuple):
    """What a function of a block of columns returns; either may be None."""

    total: Any  # what adds up over the blocks, by `+`
    columns: Any  # (width,), a number per column


ByColumns = Callable[..., Result]


def by_columns(function: ByColumns) -> ByColumns:
    """Return the function (updates, *vectors, **options) -> Result so that it also takes shards.

    vectors: (d,), of which each block gets its columns. Options must be values that can be pickled.
    """

    @wraps(function)
    def over(updates: Array | Sharded, *vectors: Array, **options: Any) -> Result:
        if isinstance(updates, Sharded):
            return updates.over(partial(over, **options), *vectors)
        return function(updates, *vectors, **options)

    return over


def transformed(updates: Array | Sharded, function: Callable[[Array], Array], rows: int) -> Array | Sharded:
    """function(updates), block by block where they are shards; rows: how many there are after that."""
    return updates.mapped(function, rows) if isinstance(updates, Sharded) else function(updates)


def read_width(rows: int) -> int:
    """The number of columns of so many rows that are read at once: whole shards, except of more than 1024 rows."""
    width = max(1, READ_NUMBERS // max(1, rows))
    return width if width < SHARD else width // SHARD * SHARD


class Sharded(ABC):
    """Updates (rows, d) as a sequence of blocks of columns that need not be in memory at once.

    Totals are added up in the order of the blocks, wherever these are; their widths change totals by rounding.
    """

    ndim = 2

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(rows, d)."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64, the type of the blocks."""

    @abstractmethod
    def over(self, function: ByColumns, *vectors: Array) -> Result:
        """Apply a function to every block and its part of the vectors; return the total, and all columns (d,)."""

    @abstractmethod
    def __getitem__(self, rows: Ints) -> Sharded:
        """Some of the rows."""

    def __len__(self) -> int:
        return self.shape[0]

    def mapped(self, function: Callable[[Array], Array], rows: int) -> Sharded:
        """Every block as a function transforms it; rows: how many there are after that."""
        return Mapped(self, function, rows)


@dataclass(frozen=True)
class Mapped(Sharded):
    """Shards whose rows are transformed, block by block, when they are used."""

    shards: Sharded
    function: Callable[[Array], Array]
    rows: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.shards.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.shards.dtype

    def over(self, function: ByColumns, *vectors: Array) -> Result:
        return self.shards.over(partial(_of_mapped, self.function, function), *vectors)

    def __getitem__(self, rows: Ints) -> Sharded:
        return Mapped(self.shards, partial(_rows_of_mapped, self.function, rows), len(rows))


def _of_mapped(before: Callable[[Array], Array], function: ByColumns, block: Array, *vectors: Array) -> Result:
    return function(before(block), *vectors)


def _rows_of_mapped(before: Callable[[Array], Array], rows: Ints, block: Array) -> Array:
    return before(block)[rows]


Reader = Callable[[Ints, int, int], NDArray[Any]]
"""(rows, start, stop) -> (rows, stop − start): the numbers of some rows in a range of columns. It is called by several
threads, and the array is not used after the thread's next call."""


@dataclass(frozen=True)
class ReadShards(Sharded):
    """Shards that are read, some at a time, by several threads, and forgotten after their use.

    Parameters
    ----------
    read : returns a part of the updates.
    rows : the numbers of the rows.
    columns : d.
    kind : float32 or float64.
    width : the columns that are read at once.
    shard : the columns of a shard; the last one of each reading may be narrower.
    """

    read: Reader
    rows: Ints
    columns: int
    kind: np.dtype[Any]
    width: int
    shard: int = SHARD

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.columns

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.kind

    def __getitem__(self, rows: Ints) -> ReadShards:
        return replace(self, rows=self.rows[rows])

    def over(self, function: ByColumns, *vectors: Array) -> Result:
        return added_up(self._in_order(function, vectors), self.columns)

    def _in_order(self, function: ByColumns, vectors: tuple[Array, ...]) -> Iterator[Result]:
        """Yield the results of the shards in their order; a few readings are ahead of it at a time.

        Linear algebra uses one thread per shard: its rounding depends on the number of threads.
        """
        ahead, threads = deque[Future[list[Result]]](), min(available_cores(), MAX_THREADS)
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(threads, "coterie-shards") as pool:
            try:
                for start, stop in ranges(self.columns, self.width):
                    ahead.append(pool.submit(self._on, function, start, stop, vectors))
                    if len(ahead) > threads:
                        yield from ahead.popleft().result()
                while ahead:
                    yield from ahead.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _on(self, function: ByColumns, start: int, stop: int, vectors: tuple[Array, ...]) -> list[Result]:
        parts = [vector[start:stop] for vector in vectors]
        return on_shards(function, self.read(self.rows, start, stop), parts, self.shard)


def on_shards(function: ByColumns, updates: Array, vectors: Sequence[Array], shard: int) -> list[Result]:
    """The results of a function on the shards of an array."""
    return [
        function(updates[:, start:stop], *(vector[start:stop] for vector in vectors))
        for start, stop in ranges(updates.shape[1], shard)
    ]


def added_up(results: Iterable[Result], columns: int) -> Result:
    """The result for all columns from those of the shards, in their order."""
    total, out, start = None, None, 0
    for part in results:
        if part.total is not None:
            total = part.total if total is None else total + part.total
        if part.columns is not None:
            out = new_vector(columns, part.columns.dtype) if out is None else out
            out[start : start + len(part.columns)] = part.columns
            start += len(part.columns)
    return Result(total, out)


def shards_of(updates: NDArray[Any], shard: int = SHARD) -> ReadShards:
    """An array (rows, d) of float32 or float64, in memory or mapped from a file, as shards of so many columns."""
    if updates.ndim != 2 or not is_plain(np.asarray(updates)):
        raise ValueError(f"updates must be (rows, d) of float32 or float64, got {updates.shape} of {updates.dtype}")
    rows, columns = updates.shape
    width = max(shard, read_width(rows) // shard * shard)
    return ReadShards(partial(_part, updates), np.arange(rows), columns, updates.dtype, width, shard)


def _part(updates: NDArray[Any], rows: Ints, start: int, stop: int) -> NDArray[Any]:
    return np.ascontiguousarray(updates[rows, start:stop])


def ranges(columns: int, width: int) -> list[tuple[int, int]]:
    """The first and last column, exclusive, of every shard; one empty range where there are no columns.

    >>> ranges(5, 2)
    [(0, 2), (2, 4), (4, 5)]
    """
    return [(start, min(start + width, columns)) for start in range(0, columns, width)] or [(0, 0)]


def new_vector(columns: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """(columns,), in memory or, where it is long, in a temporary file that ends with the array."""
    if columns * dtype.itemsize <= IN_MEMORY:
        return np.empty(columns, dtype=dtype)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype=dtype, mode="w+", shape=(columns,))
