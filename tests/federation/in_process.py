"""Flower's grid in one process, and sites that send invalid replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

Fault = Callable[[Message, Message], Message | None]
"""From a question and the honest reply to what comes instead; None: nothing ever does."""


class InProcessGrid(Grid):
    """Flower's grid without a network: real messages to the real app of every node, at once."""

    def __init__(
        self,
        client: ClientApp,
        nodes: Iterable[int],
        faults: dict[int, Fault] | None = None,
        configs: dict[int, dict[str, Any]] | None = None,
    ) -> None:
        self.client, self.nodes, self.faults, self.configs = client, list(nodes), faults or {}, configs or {}
        self.replies: dict[str, Message] = {}
        self.asked: list[int] = []

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            name = f"{len(self.asked)}"
            self.asked.append(node)
            message.metadata.__dict__["_message_id"] = name
            ids.append(name)
            config = {"partition-id": node % 100, **self.configs.get(node, {})}
            context = Context(1, node, config, RecordDict(), {})
            try:
                honest = self.client(message, context)
            except Exception as error:
                honest = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message)
            honest.metadata.__dict__["_src_node_id"] = node
            reply = self.faults[node](message, honest) if node in self.faults else honest
            if reply is not None:
                self.replies[name] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = [self.replies.pop(name) for name in message_ids if name in self.replies]
        for reply in found:
            if isinstance(reply, Unreadable):
                raise ValueError("cannot be inflated")
        return found


class Unreadable(Message):
    """A reply that Flower itself cannot take apart."""


def changed(**changes: Any) -> Fault:
    """An answer with other numbers."""

    def fault(question: Message, honest: Message) -> Message:
        content = RecordDict(dict(honest.content))
        content["answer"] = MetricRecord({**honest.content.metric_records["answer"], **changes})
        return _from(question, content)

    return fault


def reporting(**changes: Any) -> Fault:
    """A report with other numbers; None: without this number. An answer is as it was."""

    def fault(question: Message, honest: Message) -> Message:
        if question.metadata.message_type != "evaluate":
            return honest
        numbers = {**honest.content.metric_records["report"], **changes}
        kept = {name: value for name, value in numbers.items() if value is not None}
        return _from(question, RecordDict({"report": MetricRecord(kept)}))

    return fault


def sending(update: Callable[[np.ndarray], Any]) -> Fault:
    """An answer with another row."""

    def fault(question: Message, honest: Message) -> Message:
        row = update(honest.content.array_records["update"]["update"].numpy())
        content = RecordDict(dict(honest.content))
        content["update"] = ArrayRecord({"update": row if isinstance(row, Array) else Array(row)})
        return _from(question, content)

    return fault


def _from(question: Message, content: RecordDict, node: int | None = None) -> Message:
    reply = Message(content, reply_to=question)
    reply.metadata.__dict__["_src_node_id"] = question.metadata.dst_node_id if node is None else node
    return reply


def failing(question: Message, honest: Message) -> Message:
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "no data\nTraceback …"), reply_to=question)


def unreadable(question: Message, honest: Message) -> Message:
    return Unreadable(honest.content, reply_to=question)


FAULTS: dict[str, tuple[Fault, str]] = {
    "raises": (failing, "failed"),
    "silent": (lambda question, honest: None, "silent"),
    "unavailable": (
        lambda question, honest: Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=question), "silent",
    ),
    "shape": (sending(lambda row: row[:-1]), "wrong_shape"),
    "two axes": (sending(lambda row: row[None]), "wrong_shape"),
    "dtype": (sending(lambda row: row.astype(np.float64)), "wrong_type"),
    "nan": (sending(lambda row: row * np.nan), "not_finite"),
    "garbage bytes": (sending(lambda row: Array("float32", (6,), "numpy.ndarray", b"\x93NUMPY garbage")), "wrong_type"),
    "pickle": (sending(lambda row: Array("object", (1,), "numpy.ndarray", b"\x80\x04K\x01.")), "wrong_type"),
    "another kind of array": (sending(lambda row: Array("float32", (6,), "who knows", row.tobytes())), "wrong_type"),
    "cluster": (changed(label=2), "wrong_label"),
    "negative cluster": (changed(label=-1), "wrong_label"),
    "half a cluster": (changed(label=0.5), "wrong_label"),
    "round": (changed(round=99), "wrong_round"),
    "no record": (lambda question, honest: _from(question, RecordDict({})), "failed"),
    "only a question": (
        lambda question, honest: _from(question, RecordDict({"question": ConfigRecord({"kind": "?"})})), "failed",
    ),
    "another node's name": (lambda question, honest: _from(question, honest.content, node=5), "failed"),
    "cannot be taken apart": (unreadable, "failed"),
}  # fmt: skip
