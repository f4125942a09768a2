"""Clients of different speeds: rounds that end before all have answered, and replies that come late."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie._src.arrays import Array, Floats, Ints, namespace
from coterie._src.coordinates import Coordinates
from coterie._src.intake import Replies
from coterie._src.network import Network


@dataclass
class Schedule:
    """When the clients answer, and what; empty before the first round."""

    clock: float = 0.0  # seconds since the first round began
    due: Floats = field(default_factory=lambda: np.zeros(0))  # (m,), when a client answers; inf for one that waits
    answers: dict[int, tuple[Any, Any, Any]] = field(default_factory=dict)  # by client, under way: round, label, update
    last: dict[int, tuple[Any, Any, Any]] = field(default_factory=dict)  # by client, the last one that arrived


@dataclass(frozen=True)
class Fleet:
    """A network whose clients take different times; a round ends when `wait_for` replies have come.

    A client works on the centres of the round in which it began, and begins again in the round after its reply. A reply
    names the round it answers, so the server refuses it if it is older than `ClusteredDescent.max_age`. A client has
    one reply in a round at most, however fast it is. This is the buffer of Nguyen et al. (2022) with any aggregator.

    With `latest`, the last reply of every client counts in every round, until it is too old. The share of Byzantine
    replies is then that of Byzantine clients, whereas fast Byzantine clients can fill most of a small buffer.

    Parameters
    ----------
    network : of the clients, which answers at once.
    seconds : (m,), how long each takes for an answer.
    wait_for : the replies that end a round.
    latest : whether last replies of the clients that have not answered again count, too.
    schedule : what is under way.

    References
    ----------
    Nguyen et al., Federated learning with buffered asynchronous aggregation, 2022.
    """

    network: Network
    seconds: Floats
    wait_for: int
    latest: bool = False
    schedule: Schedule = field(default_factory=Schedule, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.seconds.shape != (self.count,) or not ((self.seconds > 0) & np.isfinite(self.seconds)).all():
            raise ValueError(f"seconds must be {self.count} positive numbers, one per client")
        if not 1 <= self.wait_for <= self.count:
            raise ValueError(f"wait_for must be from 1 to {self.count}, got {self.wait_for}")

    @property
    def count(self) -> int:
        return self.network.count

    def gradients(
        self,
        centres: Array,
        round: int,
        labels: Ints | None = None,
        part: tuple[int, int] | None = None,
        asked: Ints | None = None,
        coordinates: Coordinates | None = None,
    ) -> Replies:
        if round < 0:  # before the rounds: everybody is awaited
            return self.network.gradients(centres, round, labels, part, asked, coordinates)
        schedule = self.schedule
        if not len(schedule.due):
            schedule.due = np.full(self.count, np.inf)
        idle = np.flatnonzero(np.isinf(schedule.due))
        idle = idle if asked is None else np.intersect1d(idle, asked)
        if len(idle):
            replies = self.network.gradients(centres, round, labels, part, idle, coordinates)
            for client, *answer in zip(replies.clients, replies.rounds, replies.labels, replies.updates, strict=True):
                schedule.answers[int(client)] = (answer[0], answer[1], answer[2])
            schedule.due[idle] = schedule.clock + self.seconds[idle]
        working = np.sort(schedule.due[np.isfinite(schedule.due)])
        schedule.clock = float(working[min(self.wait_for, len(working)) - 1])
        arrived = np.flatnonzero(schedule.due <= schedule.clock)
        schedule.due[arrived] = np.inf
        new = {int(i): schedule.answers.pop(int(i)) for i in arrived if int(i) in schedule.answers}
        schedule.last |= new
        counted = dict(sorted((schedule.last if self.latest else new).items()))
        if not counted:
            return Replies([], [], [], [])
        rounds, chosen, updates = zip(*counted.values(), strict=True)
        return _replies(list(counted), rounds, chosen, updates, centres)

    def minimisers(
        self, like: Array, ridge: float, part: tuple[int, int] | None = None, asked: Ints | None = None
    ) -> Replies:
        return self.network.minimisers(like, ridge, part, asked)

    def losses(
        self,
        centres: Array,
        part: tuple[int, int] | None = None,
        computing: bool = False,
        asked: Ints | None = None,
    ) -> Replies:
        return self.network.losses(centres, part, computing, asked)

    def sizes(self, asked: Ints | None = None) -> Replies:
        return self.network.sizes(asked)

    def curvatures(self, rounds: int | None = None, asked: Ints | None = None) -> Replies:
        return self.network.curvatures(rounds, asked)

    def hessians(self, centres: Array, labels: Ints, asked: Ints | None = None) -> Replies:
        return self.network.hessians(centres, labels, asked)


def _replies(
    clients: list[int], rounds: tuple[Any, ...], labels: tuple[Any, ...], updates: tuple[Any, ...], centres: Array
) -> Replies:
    """Replies as arrays where they are of the right types, so that they are checked as a whole."""
    usual = all(type(each) is type(centres) and each.shape == centres.shape[1:] for each in updates)
    whole = all(isinstance(each, np.integer) for each in (*rounds, *labels))
    if usual and whole and all(each.dtype == centres.dtype for each in updates):
        return Replies(np.array(clients), np.array(rounds), np.array(labels), namespace(centres).stack(list(updates)))
    return Replies(clients, list(rounds), list(labels), list(updates))
