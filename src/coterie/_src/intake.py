"""The trust boundary of the server: every reply is checked before it is used.

A malformed reply is refused and recorded. It raises no exception, does not stop the round and reaches no aggregator.
Simulations and real federations use the same checks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from array_api_compat import is_torch_array
from numpy.typing import NDArray

from coterie._src.arrays import Array, Bools, Ints, as_numpy, detached, is_plain, namespace
from coterie._src.kernels.replies import well_formed

INT64 = np.dtype(np.int64)


class Verdict(IntEnum):
    """The result of the checks on a client's reply in a round.

    SILENT: no reply arrived. INCONSISTENT: it is well-formed, but contradicts the client's first update, which is used
    instead (`algorithms.consistency`).
    """

    ACCEPTED = 0
    SILENT = 1
    UNKNOWN_CLIENT = 2
    WRONG_ROUND = 3
    DUPLICATE = 4
    WRONG_LABEL = 5
    WRONG_TYPE = 6
    WRONG_SHAPE = 7
    NOT_FINITE = 8
    INCONSISTENT = 9


class Kept(NamedTuple):
    """An update that a store has checked and kept when it arrived, for one that would take the server's memory."""

    shape: bool
    kind: bool
    finite: bool
    row: int  # in the store; -1 for an update that was not kept
    path: Path | None  # the .npy file

    def load(self) -> NDArray[Any]:
        """The update, mapped from its file."""
        assert self.path is not None, "which is kept"
        found: NDArray[Any] = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return found


class UpdateStore(ABC):
    """Keeps the updates of a round outside of the server's memory."""

    @abstractmethod
    def begin(self, like: Array) -> None:
        """Forget the updates of the last round, and expect such as fit to centres (k, d)."""

    @abstractmethod
    def keep(self, update: Any) -> Kept:
        """Check an update, and keep it if it is well-formed."""

    @abstractmethod
    def rows(self, numbers: Ints) -> Any:
        """(rows, d): some of the updates that are kept, as rules take them."""


@dataclass(frozen=True)
class Replies:
    """The messages of one round, one entry per message, in the order of arrival.

    From a network each field is a list of arbitrary objects. A simulation passes arrays if all entries have the right
    types; these are checked as a whole. buffer: an array with a row per client and the columns and dtype of the
    centres, into which accepted updates are copied; they are valid until its owner reuses it. Or the store that has
    kept the updates.
    """

    clients: Sequence[Any] | Ints
    rounds: Sequence[Any] | Ints
    labels: Sequence[Any] | Ints
    updates: Sequence[Any] | Array
    buffer: Array | UpdateStore | None = None

    def __post_init__(self) -> None:
        if not len(self.clients) == len(self.rounds) == len(self.labels) == len(self.updates):
            lengths = [len(self.clients), len(self.rounds), len(self.labels), len(self.updates)]
            raise ValueError(f"replies must have as many clients as rounds, labels and updates, got {lengths}")


class Accepted(NamedTuple):
    """The accepted replies, in the order of the clients, and the verdict on every client that was asked."""

    clients: Ints  # (rows,), ascending
    labels: Ints  # (rows,)
    updates: Array  # (rows, dim)
    verdicts: Ints  # (m,), the Verdict on each client's first reply; (asked,), where not all were asked
    unknown_senders: int = 0  # the number of replies from unknown clients (Verdict.UNKNOWN_CLIENT)
    asked: Ints | None = None  # (asked,), ascending, the clients that were asked; None: all
    ages: Ints | None = None  # (rows,), how many rounds late each is; None: none is

    def by_client(self, values: NDArray[Any], missing: float) -> NDArray[Any]:
        """(rows,) -> (m,) or (asked,), as `verdicts`: the values, `missing` where no reply was accepted."""
        if len(self.clients) == len(self.verdicts):
            return values
        all_values = np.full(len(self.verdicts), missing, dtype=values.dtype)
        all_values[self.clients if self.asked is None else np.searchsorted(self.asked, self.clients)] = values
        return all_values


def admit_asked(replies: Replies, asked: Ints, *, clusters: int, round: int, like: Array) -> Accepted:
    """As `admit`, if only some clients were asked: (asked,), ascending. The work is that of these.

    A reply of another client is one of an unknown sender.
    """
    own = replace(replies, clients=own_numbers(replies.clients, asked))
    found = admit(own, clients=len(asked), clusters=clusters, round=round, like=like)
    return found._replace(clients=asked[found.clients], asked=asked)


def own_numbers(senders: Sequence[Any] | Ints, clients: Ints) -> Ints:
    """Where the senders stand among ascending numbers of clients; -1 for one that is none of these.

    >>> own_numbers([7, "7", 3, 4, None], np.array([3, 5, 7])).tolist()
    [2, -1, 0, -1, -1]
    """
    if not _is_plain(senders):
        last = int(clients[-1])
        inside = [int(one) if _is_whole(one) and 0 <= one <= last else -1 for one in senders]
        senders = np.array(inside, dtype=np.int64)
    places = np.minimum(np.searchsorted(clients, senders), len(clients) - 1)
    return np.where(clients[places] == senders, places, -1)


def admit(replies: Replies, *, clients: int, clusters: int, round: int, like: Array, max_age: int = 0) -> Accepted:
    """The well-formed replies to this round, or to one of the `max_age` rounds before it, at most one per client.

    The first reply of a client counts. If it is accepted and another follows, the verdict is DUPLICATE.
    like: a (…, dim) array with the number of columns, the array type and the dtype of updates (the centres).

    >>> one = Replies([0, 1], [7, 7], [0, 5], [np.zeros(2), np.zeros(2)])
    >>> admit(one, clients=2, clusters=2, round=7, like=np.zeros((2, 2))).verdicts.tolist()
    [0, 5]
    """
    if _all_in_order(replies, clients, clusters, round, like):
        senders, labels = np.arange(clients), np.array(replies.labels)  # a copy: the sender may change its own
        return Accepted(senders, labels, replies.updates, np.zeros(clients, dtype=np.int64))
    known = _whole_numbers(replies.clients, clients)
    faults = np.full(len(known), int(Verdict.ACCEPTED))
    shape, kind, finite = _check_updates(replies.updates, like)
    # later lines overwrite earlier ones, so that the most basic fault is recorded
    faults[~finite] = Verdict.NOT_FINITE
    faults[~shape] = Verdict.WRONG_SHAPE
    faults[~kind] = Verdict.WRONG_TYPE
    faults[~_whole_numbers(replies.labels, clusters)] = Verdict.WRONG_LABEL
    ages = _ages(replies.rounds, round)
    faults[(ages < 0) | (ages > max_age)] = Verdict.WRONG_ROUND
    faults[~known] = Verdict.UNKNOWN_CLIENT

    senders = _as_numbers(replies.clients, known)
    order = np.unique(senders, return_index=True)[1]  # the first reply of each client, in the order of the clients
    order = order[known[order]]
    passed = order[faults[order] == Verdict.ACCEPTED]

    verdicts = np.full(clients, int(Verdict.SILENT))
    verdicts[senders[order]] = faults[order]
    firsts = np.zeros(len(senders), dtype=np.bool_)
    firsts[order] = True
    again = senders[known & ~firsts]
    verdicts[again] = np.where(verdicts[again] == Verdict.ACCEPTED, Verdict.DUPLICATE, verdicts[again])
    labels = _as_numbers(replies.labels, faults == Verdict.ACCEPTED)[passed]
    updates = _stack(replies.updates, passed, like, replies.buffer)
    return Accepted(
        senders[passed],
        labels,
        updates,
        verdicts,
        int((~known).sum()),
        ages=ages[passed] if ages[passed].any() else None,
    )


def _all_in_order(replies: Replies, clients: int, clusters: int, round: int, like: Array) -> bool:
    """Whether every client has sent one well-formed reply, in the order of the clients, as in most simulated rounds."""
    senders: Any = replies.clients
    rounds: Any = replies.rounds
    labels: Any = replies.labels
    updates: Any = replies.updates
    if not (_is_column(senders, clients) and _is_column(rounds, clients) and _is_column(labels, clients)):
        return False
    if not (is_plain(updates) and _is_table(updates, like) and updates.flags.c_contiguous):
        return False
    return bool(well_formed(senders, rounds, labels, updates, clusters, round))


def _is_column(values: Any, count: int) -> bool:
    return type(values) is np.ndarray and values.dtype == INT64 and values.shape == (count,)


def _whole_numbers(values: Sequence[Any] | Ints, limit: int) -> Bools:
    """Which entries are whole numbers in [0, limit)."""
    if _is_plain(values):
        inside: Bools = (values >= 0) & (values < limit)
        return inside
    return np.array([_is_whole(value) and 0 <= value < limit for value in values], dtype=np.bool_)


def _as_numbers(values: Sequence[Any] | Ints, sound: Bools) -> Ints:
    """The entries as integers, -1 where they are not valid."""
    if _is_plain(values):
        return np.where(sound, values, -1)
    return np.array([int(value) if ok else -1 for value, ok in zip(values, sound, strict=True)], dtype=np.int64)


def _ages(values: Sequence[Any] | Ints, round: int) -> Ints:
    """(replies,): how many rounds ago the round was that a reply answers; -1 for no round, or one to come."""
    if _is_plain(values):
        return np.where((values >= 0) & (values <= round) | (values == round), round - values, -1)
    return np.array(
        [
            round - int(value) if _is_whole(value) and (0 <= value <= round or value == round) else -1
            for value in values
        ],
        dtype=np.int64,
    )


def _is_plain(values: Sequence[Any] | Ints) -> TypeGuard[Ints]:
    return type(values) is np.ndarray and values.dtype.kind == "i" and values.ndim == 1


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_table(updates: Any, like: Array) -> TypeGuard[Array]:
    """Whether it is one array of exactly the type, dtype and number of columns of `like`."""
    return _is_like(updates, like) and updates.ndim == 2 and updates.shape[1] == like.shape[-1]


def _is_like(update: Any, like: Array) -> bool:
    # a subclass may behave otherwise: a masked array hides a NaN from isfinite
    if type(update) is not type(like) or update.dtype != like.dtype:
        return False
    return type(like) is np.ndarray or bool(update.device == like.device)


def _check_updates(updates: Sequence[Any] | Array, like: Array) -> tuple[Bools, Bools, Bools]:
    """Three masks over the updates: right shape, right type and dtype, only finite values."""
    count, xp = len(updates), namespace(like)
    if _is_table(updates, like):
        sound = np.ones(count, dtype=np.bool_)
        if is_torch_array(updates):  # in one pass: the largest is not finite if any value is not
            return sound, sound, as_numpy(xp.isfinite(xp.linalg.vector_norm(updates, ord=np.inf, axis=-1)))
        return sound, sound, as_numpy(xp.all(xp.isfinite(updates), axis=-1))
    shape, kind, finite = np.zeros((3, count), dtype=np.bool_)
    for i, update in enumerate(updates):
        checked = (update.shape, update.kind, update.finite) if isinstance(update, Kept) else check_update(update, like)
        shape[i], kind[i], finite[i] = checked
    return shape, kind, finite


def check_update(update: Any, like: Array) -> tuple[bool, bool, bool]:
    """Whether an update has the right shape, the right type and dtype, and only finite values."""
    shape = False
    try:
        kind = _is_like(update, like)
        shape = kind and tuple(update.shape) == (like.shape[-1],)
        return shape, kind, shape and bool(namespace(like).all(namespace(like).isfinite(update)))
    except Exception:  # an object that raises on any access, a sparse tensor, …
        return shape, False, False


def _stack(updates: Sequence[Any] | Array, rows: Ints, like: Array, buffer: Array | UpdateStore | None = None) -> Array:
    """(rows, dim): the given rows of the updates, in the buffer if there is one that fits, or of the store."""
    if isinstance(buffer, UpdateStore):
        return buffer.rows(np.array([updates[row].row for row in rows], dtype=np.int64))
    if _is_table(updates, like):
        return updates if np.array_equal(rows, np.arange(len(updates))) else updates[rows]
    xp = namespace(like)
    memory: Array = buffer
    if buffer is None or not _is_table(buffer, like) or len(buffer) < len(rows):
        memory = xp.zeros((len(rows), like.shape[-1]), dtype=like.dtype, device=like.device)
    for i, row in enumerate(rows):
        memory[i] = detached(updates[row])
    return memory[: len(rows)]
