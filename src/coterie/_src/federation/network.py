"""The sites as an algorithm sees them: it asks, and gets whatever came back before the deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import numpy as np
from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from coterie._src.arrays import Array, Ints, as_numpy
from coterie._src.federation.messages import NOTHING, TYPE, Answer, Question, read_answer
from coterie._src.intake import Replies

POLL_SECONDS = 0.02
ENOUGH = 3
"""Questions in a row without an answer, after which nobody waits for a client; it is asked all the same."""
TRIES = 2
"""How often a client is asked whose reply was lost on the way."""
SLOWEST_POLL = 0.5
"""Between two looks for replies: at first, and where they are long in coming. Flower's own loop looks every 3 s."""


class Members:
    """Which node is which client, for good: an algorithm knows clients by their number.

    There are at most `places` of them. A node that is new takes the first free place or, where there is none, that of a
    node that is gone. places: also the number of clients that an algorithm counts with; who is missing is silent.
    """

    def __init__(self, places: int, nodes: Iterable[int | None] = ()) -> None:
        if places < 1:
            raise ValueError(f"places must be at least 1, got {places}")
        self.places = places
        self.nodes: list[int | None] = [*nodes][:places]
        self.nodes += [None] * (places - len(self.nodes))
        self.turned_away: set[int] = set()

    def update(self, present: Iterable[int]) -> dict[int, int]:
        """{node: its number} of the nodes that are there now."""
        here = sorted(set(present))
        for node in [node for node in here if node not in self.nodes]:
            free = [i for i, known in enumerate(self.nodes) if known is None]
            gone = [i for i, known in enumerate(self.nodes) if known is not None and known not in here]
            place = next(iter(free or gone), None)
            if place is None:
                self.turned_away.add(node)
            else:
                self.nodes[place] = node
                self.turned_away.discard(node)
        return {node: self.nodes.index(node) for node in here if node in self.nodes}


@dataclass
class FlowerNetwork:
    """The nodes of a Flower grid as a `coterie.algorithms.Network`.

    deadline: seconds that a question stays open; who has not answered then is silent in it. heard: what the last
    question brought, by client: answer, fault ("" for none) and seconds. watch: told before the first reply and after
    each. careful: fetch replies one by one; so it is once a reply has been met that cannot be taken apart. missed: by
    client, the questions in a row that it has not answered. called, answered: the nodes that have been asked whether
    they are there, by message, and those that are. room: memory for the updates of a round, kept for the next: for long
    ones to get it anew from the system costs more than to fill it.
    """

    grid: Grid
    members: Members
    deadline: float = 60.0
    watch: Callable[[int, int], None] = lambda got, asked: None
    heard: dict[int, tuple[Answer, str, float]] = field(default_factory=dict)
    careful: bool = False
    missed: dict[int, int] = field(default_factory=dict)
    called: dict[str, int] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)
    room: Array | None = None

    @property
    def given_up(self) -> set[int]:
        """The clients whom nobody waits for: they did not answer several times in a row."""
        return {client for client, count in self.missed.items() if count >= ENOUGH}

    @property
    def count(self) -> int:
        return self.members.places

    def gradients(
        self,
        centres: Array,
        round: int,
        labels: Ints | None = None,
        part: tuple[int, int] | None = None,
        asked: Ints | None = None,
    ) -> Replies:
        whom = set(range(self.count) if asked is None else asked.tolist())
        if labels is not None:
            whom &= set(np.flatnonzero(labels >= 0).tolist())
        chosen = {client: NOTHING if labels is None else int(labels[client]) for client in whom}
        replies = self._ask(Question("gradient", round, as_numpy(centres), part=part), chosen)
        if labels is not None:  # a second question of the same round, whose answers stand beside those of the first
            return replies
        if self.room is None:
            self.room = np.empty((self.count, centres.shape[1]), dtype=centres.dtype)
        return replace(replies, room=self.room)

    def minimisers(self, like: Array, ridge: float, part: tuple[int, int] | None = None) -> Replies:
        return self._ask(Question("minimiser", -1, as_numpy(like), part=part, ridge=ridge))

    def losses(self, centres: Array, part: tuple[int, int] | None = None, computing: bool = False) -> Replies:
        return self._ask(Question("loss", -1, as_numpy(centres), part=part, computing=computing))

    def sizes(self) -> Replies:
        return self._ask(Question("size", -1, np.zeros((1, 1))))

    def curvatures(self, rounds: int | None = None) -> Replies:
        return self._ask(Question("curvature", -1, np.zeros((1, 1)), part=None if rounds is None else (0, rounds)))

    def present(self, seconds: float) -> int:
        """How many nodes are there: they are listed, and have answered a question that costs nothing.

        The list alone may be older than a restart of the server, and a node that has not come back yet would miss the
        question that comes next. A node is asked once, when it is first seen, and has so many seconds.
        """
        listed = set(self.grid.get_node_ids())
        new = sorted(listed - self.answered - set(self.called.values()))
        record = Question("size", -1, np.zeros((1, 1))).record()
        messages = [Message(record, dst_node_id=node, message_type=TYPE, ttl=seconds + 1.0) for node in new]
        pushed = set(self.grid.push_messages(messages)) if messages else set()
        self.called |= {
            message.metadata.message_id: node
            for node, message in zip(new, messages, strict=True)
            if message.metadata.message_id in pushed
        }
        before, lost = set(self.called.values()), set()
        replies = self._pull(self.called) if self.called else []
        if replies is None:  # they may be lost: ask again
            self.called = {}
            return len(listed & self.answered)
        for reply in replies:
            node = self.called.pop(reply.metadata.reply_to_message_id, None)
            if reply.has_error() and reply.error.code in (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE):
                lost.add(node)
        self.answered |= before - set(self.called.values()) - lost
        return len(listed & self.answered)

    def _ask(self, question: Question, chosen: dict[int, int] | None = None) -> Replies:
        """One question to the nodes that are there, and their answers in the order in which they came.

        chosen: per client that is asked the cluster to answer for; None: all, by their own choice. A reply is told by
        the message that it replies to, which only its own node has seen; one that says it came from another is refused.
        """
        places = self.members.update(self.grid.get_node_ids())
        asked = {i: node for node, i in places.items() if chosen is None or i in chosen}
        self.heard = {}
        began = time.monotonic()
        again: dict[int, int] = asked
        for _ in range(TRIES):
            again = self._exchange(question, again, chosen or {}, began)
            if not again:
                break
        self.missed = {client: 0 if client in self.heard else self.missed.get(client, 0) + 1 for client in asked} | {
            client: count for client, count in self.missed.items() if client not in asked
        }
        return _replies(self.heard)

    def _exchange(
        self, question: Question, asked: dict[int, int], chosen: dict[int, int], began: float
    ) -> dict[int, int]:
        """Ask the clients {client: node} and wait; gives back those whose reply was lost on the way."""
        # one record serves all who are asked the same
        labels = {client: chosen.get(client, NOTHING) for client in asked}
        records = {label: question._replace(label=label).record() for label in set(labels.values())}
        messages = {
            client: Message(
                records[labels[client]],
                dst_node_id=node,
                message_type=TYPE,
                ttl=self.deadline + 1.0,
                group_id=str(question.round),
            )
            for client, node in asked.items()
        }
        self.watch(len(self.heard), len(self.heard) + len(asked))
        pushed = set(self.grid.push_messages(list(messages.values()))) if messages else set()
        waiting = {m.metadata.message_id: client for client, m in messages.items() if m.metadata.message_id in pushed}
        lost: dict[int, int] = {}
        pause, total = POLL_SECONDS, len(self.heard) + len(asked)
        dear = set(asked) - self.given_up or set(asked)  # if all are given up, all are waited for
        while waiting and time.monotonic() < began + self.deadline:
            replies = self._pull(waiting)
            if replies is None:
                return lost | {client: asked[client] for client in waiting.values()}
            for reply in replies:
                client = waiting.pop(reply.metadata.reply_to_message_id, None)
                if client is None:
                    continue
                if reply.has_error() and reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE:
                    lost[client] = asked[client]
                    continue
                if reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE:
                    continue  # it is silent
                answer, fault = read_answer(reply)
                if not reply.has_error() and reply.metadata.src_node_id != asked[client]:
                    answer, fault = Answer(None, None, None), f"came from node {reply.metadata.src_node_id}"
                self.heard[client] = answer, fault, time.monotonic() - began
                self.watch(len(self.heard), total)
            if dear.isdisjoint(waiting.values()):
                break
            pause = POLL_SECONDS if replies else min(2 * pause, SLOWEST_POLL)
            time.sleep(pause)
        return lost

    def _pull(self, waiting: dict[str, int]) -> list[Message] | None:
        """The replies that are there; None where one of them cannot be taken apart and may have cost the others.

        From then on they are fetched one by one.
        """
        if not self.careful:
            try:
                return list(self.grid.pull_messages(list(waiting)))
            except httpx.HTTPError:
                raise  # the server itself is out of reach
            except Exception:
                self.careful = True
                return None
        found: list[Message] = []
        for message, client in list(waiting.items()):
            try:
                found += self.grid.pull_messages([message])
            except httpx.HTTPError:
                raise
            except Exception as error:
                del waiting[message]
                self.heard[client] = Answer(None, None, None), f"cannot be taken apart ({type(error).__name__})", 0.0
        return found


def _replies(heard: dict[int, tuple[Answer, str, float]]) -> Replies:
    answers: list[tuple[int, Any]] = [(client, found[0]) for client, found in sorted(heard.items())]
    return Replies(
        [client for client, _ in answers],
        [answer.round for _, answer in answers],
        [answer.label for _, answer in answers],
        [answer.update for _, answer in answers],
    )
