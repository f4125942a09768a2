"""Replies whose columns are on the machines of a Ray cluster, where rules are computed on them.

Columns are dealt to actors in chunks, one after the other, as soon as a reply arrives. The reply is also kept in a
file, from which the chunks of an actor that died are dealt again to a new one. What a rule finds has the same bits as
in one process: totals are summed in the order of the columns, whoever computed them.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from coterie._src.aggregators.columns import SHARD, ByColumns, Result, Sharded, added_up, part_of, ranges
from coterie._src.arrays import Array, Ints
from coterie._src.intake import Kept, UpdateStore, check_update

CHUNK = 32
"""The shards of a chunk, at most."""
MAX_DEATHS = 8
"""How many actors may die in a round; more have a cause that a new one does not remove, such as too little memory."""


@contextmanager
def ray_cluster(address: str | None, option: str) -> Iterator[Any]:
    """Ray, connected to the cluster at an address, or to one that is started here; option: what messages name."""
    try:
        import ray
    except ImportError:
        raise ValueError(f"{option}: ray needs Ray (pip install 'coterie[ray]')") from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # no warning about unused GPUs
    own = not ray.is_initialized()
    if own:
        try:
            ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ValueError(f"ray_address: {address}: {str(error).splitlines()[0]}") from None
    try:
        yield ray
    finally:
        if own:
            ray.shutdown()


class ColumnActor:
    """Some chunks of the columns of all replies, on one machine of the cluster."""

    def __init__(self, rows: int, chunks: Sequence[tuple[int, int]], dtype: str) -> None:
        self.parts = {start: np.empty((rows, stop - start), dtype=dtype) for start, stop in chunks}

    def put(self, row: int, parts: dict[int, NDArray[Any]]) -> None:
        """Store the chunks of a reply."""
        for start, part in parts.items():
            self.parts[start][row] = part

    def over(
        self, function: ByColumns, rows: Ints, chunk: int, vectors: Sequence[NDArray[Any]], shard: int
    ) -> list[Result]:
        """The results of a function on the shards of a chunk of some rows."""
        held = self.parts[chunk]
        with threadpool_limits(1, "blas"):
            return [
                function(part_of(held, rows, start, stop), *(vector[start:stop] for vector in vectors))
                for start, stop in ranges(held.shape[1], shard)
            ]


class RayStore(UpdateStore):
    """The replies of a round on a Ray cluster.

    Parameters
    ----------
    ray : the module, connected (`ray_cluster`).
    folder : where a file per reply is kept until the next round.
    rows : how many replies there may be.
    actors : how many actors share the columns; None: one for each processor of the cluster.
    shard : the columns of a shard.
    """

    def __init__(self, ray: Any, folder: Path, rows: int, actors: int | None = None, shard: int = SHARD) -> None:
        self.ray, self.folder, self.capacity, self.shard = ray, folder, rows, shard
        self.count = actors or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self.like: NDArray[Any] | None = None
        self.paths: list[Path] = []
        self.actors: list[Any] = []
        self._dealing: list[Any] = []
        self._deaths = 0

    def begin(self, like: NDArray[Any]) -> None:
        """Forget the replies of the last round, and wait for those to a question about centres (k, d)."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.paths, self._dealing, self._deaths = [], [], 0
        if self.like is None or (self.like.shape[1], self.like.dtype) != (like.shape[1], like.dtype):
            self.like = like[:1]
            shards = -(-like.shape[1] // self.shard)
            self.chunks = ranges(like.shape[1], self.shard * max(1, min(CHUNK, shards // self.count)))
            self.actors = [self._new_actor(i) for i in range(min(self.count, len(self.chunks)))]

    def end(self) -> None:
        """Let go the actors and the files."""
        for actor in self.actors:
            self.ray.kill(actor)
        self.actors, self.like = [], None
        shutil.rmtree(self.folder, ignore_errors=True)

    def keep(self, update: Any) -> Kept:
        assert self.like is not None, "which `begin` sets"
        shape, kind, finite = check_update(update, self.like)
        if not (shape and kind and finite) or len(self.paths) >= self.capacity:
            return Kept(shape, kind, finite, -1, None)
        row, path = len(self.paths), self.folder / f"{len(self.paths)}.npy"
        np.save(path, update, allow_pickle=False)
        self._wait_for_dealing()  # one reply is under way at a time, so that the cluster's object store stays small
        self.paths.append(path)
        self._dealing = [actor.put.remote(row, self._parts(i, update)) for i, actor in enumerate(self.actors)]
        return Kept(shape, kind, finite, row, path)

    def rows(self, numbers: Ints) -> RayShards:
        self._wait_for_dealing()
        return RayShards(self, np.asarray(numbers))

    def result(self, function: ByColumns, rows: Ints, vectors: Sequence[NDArray[Any]]) -> Result:
        """The result for all columns; results of a few chunks are under way at a time."""
        assert self.like is not None, "which `begin` sets"
        return added_up(self._in_order(function, rows, vectors), self.like.shape[1])

    def _in_order(self, function: ByColumns, rows: Ints, vectors: Sequence[NDArray[Any]]) -> Iterator[Result]:
        ahead, todo = deque[tuple[int, Any]](), iter(range(len(self.chunks)))
        while True:
            while len(ahead) < 2 * len(self.actors) and (chunk := next(todo, None)) is not None:
                ahead.append((chunk, self._ask(function, rows, vectors, chunk)))
            if not ahead:
                return
            chunk, asked = ahead.popleft()
            while True:
                try:
                    found = self.ray.get(asked)
                    break
                except self.ray.exceptions.RayActorError:
                    self._rebuild(chunk % len(self.actors))
                    ahead = deque(
                        (other, self._ask(function, rows, vectors, other) if self._same(other, chunk) else answer)
                        for other, answer in ahead
                    )
                    asked = self._ask(function, rows, vectors, chunk)
            yield from found

    def _same(self, chunk: int, other: int) -> bool:
        return (chunk - other) % len(self.actors) == 0

    def _ask(self, function: ByColumns, rows: Ints, vectors: Sequence[NDArray[Any]], chunk: int) -> Any:
        start, stop = self.chunks[chunk]
        parts = [np.asarray(vector[start:stop]) for vector in vectors]
        return self.actors[chunk % len(self.actors)].over.remote(function, rows, start, parts, self.shard)

    def _new_actor(self, number: int) -> Any:
        assert self.like is not None, "which `begin` sets"
        actors = min(self.count, len(self.chunks))
        spread = self.ray.remote(num_cpus=0, scheduling_strategy="SPREAD", max_restarts=0)(ColumnActor)
        return spread.remote(self.capacity, self.chunks[number::actors], str(self.like.dtype))

    def _parts(self, number: int, update: NDArray[Any]) -> dict[int, NDArray[Any]]:
        """The chunks of an update that an actor has."""
        return {start: update[start:stop] for start, stop in self.chunks[number :: len(self.actors)]}

    def _wait_for_dealing(self) -> None:
        for number, dealt in enumerate(self._dealing):
            try:
                self.ray.get(dealt)
            except self.ray.exceptions.RayActorError:
                self._rebuild(number)
        self._dealing = []

    def _rebuild(self, number: int) -> None:
        """Replace an actor that died, and deal all replies to the new one, from their files."""
        while True:
            self._deaths += 1
            if self._deaths > MAX_DEATHS:
                raise OSError(0, f"{self._deaths} actors died in one round (out of memory?)", "Ray")
            self.actors[number] = self._new_actor(number)
            try:
                for row, path in enumerate(self.paths):
                    update = np.load(path, mmap_mode="r", allow_pickle=False)
                    self.ray.get(self.actors[number].put.remote(row, self._parts(number, update)))
                return
            except self.ray.exceptions.RayActorError:
                continue


@dataclass(frozen=True)
class RayShards(Sharded):
    """Some of the replies of a store."""

    store: RayStore
    numbers: Ints

    @property
    def shape(self) -> tuple[int, int]:
        assert self.store.like is not None, "which `begin` sets"
        return len(self.numbers), self.store.like.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        assert self.store.like is not None, "which `begin` sets"
        return self.store.like.dtype

    def over(self, function: ByColumns, *vectors: Array) -> Result:
        return self.store.result(function, self.numbers, vectors)

    def __getitem__(self, rows: Ints) -> RayShards:
        return RayShards(self.store, self.numbers[rows])
