"""The door of the server: whatever arrives is untrusted.

A malformed reply is refused and recorded. It never raises, never stops a round and never reaches an
aggregator. Simulation and real federation come through here alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from array_api_compat import is_torch_array
from numpy.typing import NDArray

from coterie._src.arrays import Array, Bools, Ints, as_numpy, detached, is_plain, namespace
from coterie._src.kernels.replies import well_formed


class Verdict(IntEnum):
    """What became of a client's reply in a round. SILENT: none came."""

    ACCEPTED = 0
    SILENT = 1
    UNKNOWN_CLIENT = 2
    WRONG_ROUND = 3
    DUPLICATE = 4
    WRONG_LABEL = 5
    WRONG_TYPE = 6
    WRONG_SHAPE = 7
    NOT_FINITE = 8


@dataclass(frozen=True)
class Replies:
    """What arrived in one round, one entry per message, in the order of arrival.

    From the network each field is a list of anything. A simulation passes arrays where all entries are
    well-typed, which is checked as a whole and costs nothing per client. room: a table like the centres with a row
    for every client, which accepted updates are copied into; they last until its owner gives it away again.
    """

    clients: Sequence[Any] | Ints
    rounds: Sequence[Any] | Ints
    labels: Sequence[Any] | Ints
    updates: Sequence[Any] | Array
    room: Array | None = None

    def __post_init__(self) -> None:
        if not len(self.clients) == len(self.rounds) == len(self.labels) == len(self.updates):
            lengths = [len(self.clients), len(self.rounds), len(self.labels), len(self.updates)]
            raise ValueError(f"replies must have as many clients as rounds, labels and updates, got {lengths}")


class Accepted(NamedTuple):
    """The replies that passed, in the order of the clients, however they arrived, and the verdict on every client."""

    clients: Ints  # (rows,), ascending
    labels: Ints  # (rows,)
    updates: Array  # (rows, dim)
    verdicts: Ints  # (m,), the fault of each client's first reply, by Verdict
    unknown_senders: int = 0  # replies under the name of no known client (Verdict.UNKNOWN_CLIENT)

    def by_client(self, values: NDArray[Any], missing: float) -> NDArray[Any]:
        """(rows,) -> (m,): what belongs to every client, `missing` where its reply was not accepted."""
        if len(self.clients) == len(self.verdicts):
            return values
        everybody = np.full(len(self.verdicts), missing, dtype=values.dtype)
        everybody[self.clients] = values
        return everybody


def admit(replies: Replies, *, clients: int, clusters: int, round: int, like: Array) -> Accepted:
    """Let through the well-formed replies of this round; the first one of each client counts.

    like: a (…, dim) array whose last axis, kind and dtype an update must have (the centres).
    A client whose first reply is fine and that sends another keeps the first, with verdict DUPLICATE.

    >>> one = Replies([0, 1], [7, 7], [0, 5], [np.zeros(2), np.zeros(2)])
    >>> admit(one, clients=2, clusters=2, round=7, like=np.zeros((2, 2))).verdicts.tolist()
    [0, 5]
    """
    if _all_in_order(replies, clients, clusters, round, like):
        senders, labels = np.arange(clients), np.array(replies.labels)  # its own, whoever goes on with the sent ones
        return Accepted(senders, labels, replies.updates, np.zeros(clients, dtype=np.int64))
    known = _whole_numbers(replies.clients, clients)
    faults = np.full(len(known), int(Verdict.ACCEPTED))
    shape, kind, finite = _check_updates(replies.updates, like)
    # the later line wins, so the most basic fault is named
    faults[~finite] = Verdict.NOT_FINITE
    faults[~shape] = Verdict.WRONG_SHAPE
    faults[~kind] = Verdict.WRONG_TYPE
    faults[~_whole_numbers(replies.labels, clusters)] = Verdict.WRONG_LABEL
    faults[~_equal_to(replies.rounds, round)] = Verdict.WRONG_ROUND
    faults[~known] = Verdict.UNKNOWN_CLIENT

    senders = _as_numbers(replies.clients, known)
    order = np.unique(senders, return_index=True)[1]  # the first reply of each client, in their order
    order = order[known[order]]
    passed = order[faults[order] == Verdict.ACCEPTED]

    verdicts = np.full(clients, int(Verdict.SILENT))
    verdicts[senders[order]] = faults[order]
    firsts = np.zeros(len(senders), dtype=np.bool_)
    firsts[order] = True
    again = senders[known & ~firsts]
    verdicts[again] = np.where(verdicts[again] == Verdict.ACCEPTED, Verdict.DUPLICATE, verdicts[again])
    labels = _as_numbers(replies.labels, faults == Verdict.ACCEPTED)[passed]
    updates = _stack(replies.updates, passed, like, replies.room)
    return Accepted(senders[passed], labels, updates, verdicts, int((~known).sum()))


def _all_in_order(replies: Replies, clients: int, clusters: int, round: int, like: Array) -> bool:
    """Whether every client has sent one sound reply, in their order: a simulated round where nobody is malformed."""
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
    return type(values) is np.ndarray and values.dtype == np.int64 and values.shape == (count,)


def _whole_numbers(values: Sequence[Any] | Ints, limit: int) -> Bools:
    """Which entries are whole numbers in [0, limit)."""
    if _is_plain(values):
        inside: Bools = (values >= 0) & (values < limit)
        return inside
    return np.array([_is_whole(value) and 0 <= value < limit for value in values], dtype=np.bool_)


def _as_numbers(values: Sequence[Any] | Ints, sound: Bools) -> Ints:
    """The entries as integers, -1 where they are not sound."""
    if _is_plain(values):
        return np.where(sound, values, -1)
    return np.array([int(value) if ok else -1 for value, ok in zip(values, sound, strict=True)], dtype=np.int64)


def _equal_to(values: Sequence[Any] | Ints, expected: int) -> Bools:
    if _is_plain(values):
        return np.asarray(values == expected)
    return np.array([_is_whole(value) and value == expected for value in values], dtype=np.bool_)


def _is_plain(values: Sequence[Any] | Ints) -> TypeGuard[Ints]:
    return type(values) is np.ndarray and values.dtype.kind == "i" and values.ndim == 1


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_table(updates: Any, like: Array) -> TypeGuard[Array]:
    """Is it one array, of exactly the kind, dtype and width that is wanted?"""
    return _is_like(updates, like) and updates.ndim == 2 and updates.shape[1] == like.shape[-1]


def _is_like(update: Any, like: Array) -> bool:
    # a subclass may behave otherwise: a masked array hides a NaN from isfinite
    if type(update) is not type(like) or update.dtype != like.dtype:
        return False
    return type(like) is np.ndarray or bool(update.device == like.device)


def _check_updates(updates: Sequence[Any] | Array, like: Array) -> tuple[Bools, Bools, Bools]:
    """Per update: has it the right shape, the right kind and dtype, only finite values."""
    count, dim = len(updates), like.shape[-1]
    xp = namespace(like)
    if _is_table(updates, like):
        sound = np.ones(count, dtype=np.bool_)
        if is_torch_array(updates):  # in one pass: the largest is not finite where one is not
            return sound, sound, as_numpy(xp.isfinite(xp.linalg.vector_norm(updates, ord=np.inf, axis=-1)))
        return sound, sound, as_numpy(xp.all(xp.isfinite(updates), axis=-1))
    shape, kind, finite = np.zeros((3, count), dtype=np.bool_)
    for i, update in enumerate(updates):
        try:
            kind[i] = _is_like(update, like)
            shape[i] = kind[i] and tuple(update.shape) == (dim,)
            finite[i] = shape[i] and bool(xp.all(xp.isfinite(update)))
        except Exception:  # an object made to raise when it is looked at, a sparse tensor, …
            kind[i] = False
    return shape, kind, finite


def _stack(updates: Sequence[Any] | Array, rows: Ints, like: Array, room: Array | None = None) -> Array:
    if _is_table(updates, like):
        return updates if np.array_equal(rows, np.arange(len(updates))) else updates[rows]
    xp = namespace(like)
    if room is None or not _is_table(room, like) or len(room) < len(rows):
        room = xp.zeros((len(rows), like.shape[-1]), dtype=like.dtype, device=like.device)
    for place, row in enumerate(rows):
        room[place] = detached(updates[row])
    return room[: len(rows)]
