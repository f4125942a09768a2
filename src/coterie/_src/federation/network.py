"""The sites as an algorithm sees them: it asks a question and gets the answers that came before the deadline."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import WARNING
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid

from coterie._src.arrays import Array, Ints, as_numpy
from coterie._src.coordinates import Coordinates
from coterie._src.experiments.printable import printable
from coterie._src.federation.audit import DECLINED
from coterie._src.federation.messages import OWN_CHOICE, TYPE, Answer, Question, read_answer
from coterie._src.federation.numbering import ClientNumbers
from coterie._src.federation.replies import Mailbox
from coterie._src.federation.server_folder import Participants
from coterie._src.federation.site_reports import EVALUATE, Request, read_report
from coterie._src.intake import Replies

POLL_SECONDS, MAX_POLL_SECONDS = 0.02, 0.5
"""Pause between two looks for replies: after a reply, and at most. Flower's own loop looks every 3 s."""
MAX_UNANSWERED = 3
"""Questions in a row that a client may leave unanswered before it is no longer awaited; it is still asked."""
MAX_ATTEMPTS = 2
"""How often a client is asked whose reply was lost."""
MESSAGE_BYTES = 1 << 16
"""What a reply may take beside the numbers that were asked for."""


class Received(NamedTuple):
    """The reply of one client to the last question."""

    answer: Any  # an Answer or, to a request for a report, its numbers
    fault: str  # what was wrong with the reply; empty for nothing
    seconds: float
    bytes: int = 0  # of its records


class Exchange(NamedTuple):
    """A question to some clients, and how their replies are read."""

    records: Mapping[int, RecordDict]  # by client
    nodes: Mapping[int, int]  # by client
    type: str
    group: str
    read: Callable[[Message], tuple[Any, str]]
    nothing: Any  # the answer of a reply that cannot be read
    max_bytes: int = MESSAGE_BYTES  # of a reply


class FlowerNetwork:
    """The nodes of a Flower grid as the `Network` that an algorithm asks.

    Parameters
    ----------
    grid
        Flower's grid, as a server app gets it.
    clients
        The numbers of the nodes.
    deadline
        Seconds that a question stays open. A client that has not answered by then is silent in this question.
    on_reply
        Called with the number of answers and the number of clients asked, before the first reply and after each.
    participants
        Which nodes are asked, and their names; None: all.

    Attributes
    ----------
    received
        The answers to the last question, by client.
    unanswered
        By client, the number of its last questions in a row that it has not answered.
    """

    def __init__(
        self,
        grid: Grid,
        clients: ClientNumbers,
        deadline: float = 60.0,
        on_reply: Callable[[int, int], None] = lambda received, asked: None,
        participants: Participants | None = None,
    ) -> None:
        self.grid, self.clients, self.deadline, self.on_reply = grid, clients, deadline, on_reply
        self.participants = Participants() if participants is None else participants
        self.received: dict[int, Received] = {}
        self.unanswered: dict[int, int] = {}
        self._mailbox = Mailbox(grid)
        self._logged: set[tuple[str, str]] = set()
        self._presence_calls: dict[str, int] = {}  # node by message
        self._present_nodes: set[int] = set()
        self._update_memory: Array | None = None  # reused: for long updates new memory costs more than filling it

    @property
    def not_awaited(self) -> set[int]:
        """The clients that have left `MAX_UNANSWERED` questions in a row unanswered."""
        return {client for client, count in self.unanswered.items() if count >= MAX_UNANSWERED}

    @property
    def count(self) -> int:
        """The number of clients, silent ones included."""
        return self.clients.max_clients

    def gradients(
        self,
        centres: Array,
        round: int,
        labels: Ints | None = None,
        part: tuple[int, int] | None = None,
        asked: Ints | None = None,
        coordinates: Coordinates | None = None,
    ) -> Replies:
        whom = set(range(self.count) if asked is None else asked.tolist())
        if labels is not None:
            whom &= set(np.flatnonzero(labels >= 0).tolist())
        chosen = {client: OWN_CHOICE if labels is None else int(labels[client]) for client in whom}
        replies = self._ask(Question("gradient", round, as_numpy(centres), part=part), chosen)
        if labels is not None:  # a second question of the same round must not overwrite the updates of the first
            return replies
        if self._update_memory is None:
            self._update_memory = np.empty((self.count, centres.shape[1]), dtype=centres.dtype)
        return replace(replies, buffer=self._update_memory)

    def minimisers(
        self, like: Array, ridge: float, part: tuple[int, int] | None = None, asked: Ints | None = None
    ) -> Replies:
        return self._ask(Question("minimiser", -1, as_numpy(like), part=part, ridge=ridge), _choosing(asked))

    def losses(
        self,
        centres: Array,
        part: tuple[int, int] | None = None,
        computing: bool = False,
        asked: Ints | None = None,
    ) -> Replies:
        return self._ask(Question("loss", -1, as_numpy(centres), part=part, computing=computing), _choosing(asked))

    def sizes(self, asked: Ints | None = None) -> Replies:
        return self._ask(Question("size", -1, np.zeros((1, 1))), _choosing(asked))

    def curvatures(self, rounds: int | None = None, asked: Ints | None = None) -> Replies:
        part = None if rounds is None else (0, rounds)
        return self._ask(Question("curvature", -1, np.zeros((1, 1)), part=part), _choosing(asked))

    def hessians(self, centres: Array, labels: Ints, asked: Ints | None = None) -> Replies:
        whom = range(len(labels)) if asked is None else asked.tolist()
        chosen = {client: max(int(label), 0) for client, label in zip(whom, labels, strict=True)}
        round_answers = self.received  # the audit of a round is about its updates
        replies = self._ask(Question("hessian", -1, as_numpy(centres)), chosen)
        self.received = round_answers
        return replies

    def count_present(self, seconds: float) -> int:
        """Return how many nodes are listed by Flower and have answered a question that costs them nothing.

        The list alone may be older than a restart of the server, and a node that has not reconnected yet would miss the
        next question. A node is asked once, when it is first listed, and has `seconds` to answer.
        """
        listed = set(self.participants.of(self.grid.get_node_ids()))
        record = Question("size", -1, np.zeros((1, 1))).record()
        self._presence_calls |= self._mailbox.push(
            {
                node: Message(record, dst_node_id=node, message_type=TYPE, ttl=seconds + 1.0)
                for node in sorted(listed - self._present_nodes - set(self._presence_calls.values()))
            }
        )
        pulled = self._mailbox.pull(self._presence_calls, MESSAGE_BYTES)
        for message_id in pulled.lost:  # it is asked again when it is next looked for
            del self._presence_calls[message_id]
        for message_id in pulled.refused:
            self._present_nodes.add(self._presence_calls.pop(message_id))
        for message_id, reply in pulled.replies.items():
            node = self._presence_calls.pop(message_id)
            if not _failed_with(reply, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE):
                self._present_nodes.add(node)
        return len(listed & self._present_nodes)

    def reports(self, request: Request) -> dict[int, Received]:
        """Ask the nodes that are present for a report, and return the numbers that came, by client; None for none."""
        numbers, record = self._numbers(), request.record()
        nodes = {client: node for node, client in numbers.items()}
        return self._exchange(Exchange(dict.fromkeys(nodes, record), nodes, EVALUATE, EVALUATE, read_report, None))

    def _numbers(self) -> dict[int, int]:
        """The nodes that are present and take part, with the numbers of their clients."""
        return self.clients.assign(self.participants.of(self.grid.get_node_ids()), self.participants.name)

    def _ask(self, question: Question, chosen: Mapping[int, int] | None = None) -> Replies:
        """Ask the nodes that are present and return their answers in the order of the clients.

        chosen: per client that is asked the cluster to answer for; None: all clients, by their own choice.
        """
        numbers = self._numbers()
        asked = {client: node for node, client in numbers.items() if chosen is None or client in chosen}
        labels = {client: (chosen or {}).get(client, OWN_CHOICE) for client in asked}
        by_label = {label: question._replace(label=label).record() for label in set(labels.values())}
        records = {client: by_label[label] for client, label in labels.items()}
        self.received = self._exchange(
            Exchange(
                records, asked, TYPE, str(question.round), read_answer, Answer(None, None, None), _max_bytes(question)
            )
        )
        self._log_declined(question)
        clients = sorted(self.received)
        answers = [self.received[client].answer for client in clients]
        return Replies(
            clients,
            [answer.round for answer in answers],
            [answer.label for answer in answers],
            [answer.update for answer in answers],
        )

    def _log_declined(self, question: Question) -> None:
        """Log, once for each kind of question and reason, that sites decline to answer by rules of their own."""
        faults = Counter(received.fault for received in self.received.values())
        for fault, count in faults.items():
            if fault.startswith(DECLINED) and (question.kind, fault) not in self._logged:
                self._logged.add((question.kind, fault))
                log(WARNING, "asked for a %s, %s of %s sites: %s", question.kind, count, faults.total(), fault)

    def _exchange(self, exchange: Exchange) -> dict[int, Received]:
        """Ask the clients of an exchange, and again those whose reply was lost; return what came, by client."""
        received: dict[int, Received] = {}
        began, ask_again = time.monotonic(), set(exchange.nodes)
        for _ in range(MAX_ATTEMPTS):
            if ask_again:
                waiting = self._send(exchange, ask_again, len(received))
                ask_again = self._collect(exchange, waiting, ask_again, received, began)
        for client in exchange.nodes:
            self.unanswered[client] = 0 if client in received else self.unanswered.get(client, 0) + 1
        return received

    def _send(self, exchange: Exchange, asked: set[int], received: int) -> dict[str, int]:
        """Send the question to some clients and return {message id: client}."""
        self.on_reply(received, received + len(asked))
        return self._mailbox.push(
            {
                client: Message(
                    exchange.records[client],
                    dst_node_id=exchange.nodes[client],
                    message_type=exchange.type,
                    ttl=self.deadline + 1.0,
                    group_id=exchange.group,
                )
                for client in exchange.nodes
                if client in asked
            }
        )

    def _collect(
        self, exchange: Exchange, waiting: dict[str, int], asked: set[int], received: dict[int, Received], began: float
    ) -> set[int]:
        """Receive answers until no awaited client is left or the deadline is over; return those whose reply was lost.

        received: to which the answers are added.
        """
        total = len(received) + len(asked)
        awaited = asked - self.not_awaited or asked
        lost: set[int] = set()
        pause = POLL_SECONDS
        while waiting:
            is_last = time.monotonic() >= began + self.deadline  # what has come by now counts
            pulled = self._mailbox.pull(waiting, exchange.max_bytes)
            seconds = time.monotonic() - began
            lost |= {waiting.pop(message_id) for message_id in pulled.lost}
            for message_id, error in pulled.refused.items():
                fault = printable(f"cannot be taken apart ({error})")
                received[waiting.pop(message_id)] = Received(exchange.nothing, fault, seconds)
            for message_id, reply in pulled.replies.items():
                client = waiting.pop(message_id)
                if _failed_with(reply, ErrorCode.NODE_UNAVAILABLE):
                    continue
                if _failed_with(reply, ErrorCode.MESSAGE_UNAVAILABLE):
                    lost.add(client)
                    continue
                received[client] = Received(
                    *_answer_of(exchange, reply, exchange.nodes[client]), seconds, _bytes_of(reply)
                )
                self.on_reply(len(received), total)
            if is_last or awaited.isdisjoint(waiting.values()):
                break
            pause = POLL_SECONDS if pulled.replies else min(2 * pause, MAX_POLL_SECONDS)
            time.sleep(pause)
        self._mailbox.forget(waiting)
        return lost


def _choosing(asked: Ints | None) -> dict[int, int] | None:
    """The clients that are asked, each of which answers by its own choice; None: all."""
    return None if asked is None else dict.fromkeys(asked.tolist(), OWN_CHOICE)


def _max_bytes(question: Question) -> int:
    """The bytes of the longest reply to a question: Hessians are packed, all others have a number per weight or centre.

    A row of float64 is admitted here, and refused by `intake` where the centres are of another type.
    """
    clusters, weights = question.centres.shape
    numbers: int = weights * (weights + 1) // 2 if question.kind == "hessian" else max(clusters, weights)
    return MESSAGE_BYTES + 8 * numbers


def _failed_with(reply: Message, *codes: int) -> bool:
    return reply.has_error() and reply.error.code in codes


def _bytes_of(reply: Message) -> int:
    """The bytes of the records of a reply; 0 for one that has none, or cannot be taken apart."""
    try:
        return 0 if reply.has_error() else sum(record.count_bytes() for record in reply.content.values())
    except Exception:  # a hostile record may raise anything
        return 0


def _answer_of(exchange: Exchange, reply: Message, node: int) -> tuple[Any, str]:
    """The answer and its fault. Only the node that was asked knows the message; a reply of another node is refused."""
    if not reply.has_error() and reply.metadata.src_node_id != node:
        return exchange.nothing, f"came from node {reply.metadata.src_node_id}"
    answer, fault = exchange.read(reply)
    return answer, printable(fault)
