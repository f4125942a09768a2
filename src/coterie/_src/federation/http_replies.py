"""Replies over Flower's HTTP grid, pulled one by one and object by object: none is waited for, and each has a size.

A site sends a reply as a tree of objects: first their names, then their contents. `HttpGrid.pull_messages` waits up to
two hours for contents that a site withholds, takes them at any size, and joins the chunks of an array as often as the
array names them. Here a look for replies asks for each missing object once, and a reply that is larger than it may be,
on the wire or taken apart, is refused before it is taken apart.

What is used of Flower 1.41 is not public: `HttpGrid._runtime_client`, `HttpGrid._run`, `flwr.proto`, and
`flwr.supercore.inflatable`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import httpx
from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_object_head_values_from_object_content,
    get_object_id,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.superlink.grid import HttpGrid

MAX_OBJECTS = 32
"""Objects of a reply with a small array; one with an update has six, and one more per chunk of Flower's 5 MB."""
BYTES_PER_OBJECT = 1 << 20
"""A larger reply may have one object more for each of these."""
UNAUTHORISED = (401, 403)


class Pulled(NamedTuple):
    """What one look for replies found, by the message that is replied to."""

    replies: dict[str, Message]
    refused: dict[str, str]  # why
    lost: set[str]


@dataclass
class Arriving:
    """A reply that is announced, and what has come of it."""

    message_id: str
    node: int
    missing: list[str]  # the names of its objects
    contents: dict[str, bytes] = field(default_factory=dict)
    bytes: int = 0


class HttpReplies:
    """Pulls the replies to messages over an `HttpGrid`."""

    def __init__(self, grid: HttpGrid) -> None:
        self.grid, self._arriving = grid, dict[str, Arriving]()

    def pull(self, message_ids: Collection[str], max_bytes: int) -> Pulled:
        """Return the replies that have come as a whole, which are refused and why, and which never will be whole."""
        pulled = Pulled({}, {}, set())
        for message_id in message_ids:
            try:
                reply = self._pull_one(message_id, max_bytes)
                if reply is not None:
                    pulled.replies[message_id] = reply
                continue
            except LostReplyError:
                pulled.lost.add(message_id)
            except Exception as error:  # a hostile reply may raise anything
                if _concerns_server(error):
                    raise
                pulled.refused[message_id] = str(error) if isinstance(error, ReplyError) else type(error).__name__
            self.forget([message_id])
        return pulled

    def forget(self, message_ids: Iterable[str]) -> None:
        """Let Flower's server delete what has come of these replies."""
        for message_id in message_ids:
            arriving = self._arriving.pop(message_id, None)
            if arriving is not None:
                self._confirm(arriving)

    def _pull_one(self, message_id: str, max_bytes: int) -> Message | None:
        if message_id not in self._arriving and not self._find_announced(message_id, max_bytes):
            return None
        arriving = self._arriving[message_id]
        while arriving.missing:
            content = self._pull_object(arriving.missing[-1])
            if not content:
                return None
            arriving.bytes += len(content)
            if arriving.bytes > max_bytes:
                raise ReplyError(f"more than {max_bytes} bytes")
            arriving.contents[arriving.missing.pop()] = content
        return self._take_apart(message_id, max_bytes)

    def _find_announced(self, message_id: str, max_bytes: int) -> bool:
        """Look whether the reply is announced; it is told only once."""
        found = self.grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=[message_id]))
        for header, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            if header.metadata.reply_to_message_id == message_id:
                arriving = Arriving(header.metadata.message_id, header.metadata.src_node_id, [])
                self._arriving[message_id] = arriving
                most = MAX_OBJECTS + max_bytes // BYTES_PER_OBJECT
                names = [node.object_id for node in islice(iterate_object_tree(tree), most + 1)]
                if len(names) > most:
                    raise ReplyError(f"more than {most} objects")
                arriving.missing = list(dict.fromkeys(names))
        return message_id in self._arriving

    def _pull_object(self, name: str) -> bytes:
        """The content of an object; empty where it has not come."""
        request = PullObjectRequest(node=self.grid.node, run_id=self._run_id, object_id=name)
        found = self.grid._runtime_client.PullObject(request)
        if not found.object_found:
            raise LostReplyError
        return bytes(found.object_content) if found.object_available else b""

    def _take_apart(self, message_id: str, max_bytes: int) -> Message:
        arriving = self._arriving.pop(message_id)
        self._confirm(arriving)
        if any(get_object_id(content) != name for name, content in arriving.contents.items()):
            raise ReplyError("an object is not what its name says")
        size = sum(_size_taken_apart(content, arriving.contents) for content in arriving.contents.values())
        if size > 2 * max_bytes:  # the chunks of an array, and the array
            raise ReplyError(f"more than {2 * max_bytes} bytes taken apart")
        reply = inflate_object_from_contents(arriving.message_id, arriving.contents)
        if not isinstance(reply, Message):
            raise ReplyError("no message")
        # what the site wrote of itself is not to be believed; whose reply it is, Flower's server knows by the key
        told = {"_message_id": arriving.message_id, "_src_node_id": arriving.node, "_reply_to_message_id": message_id}
        reply.metadata.__dict__.update(told)
        return reply

    def _confirm(self, arriving: Arriving) -> None:
        self.grid._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self.grid.node, run_id=self._run_id, message_object_id=arriving.message_id
            )
        )

    @property
    def _run_id(self) -> int:
        assert self.grid._run is not None
        return self.grid._run.run_id


class ReplyError(Exception):
    """Why a reply is refused."""


class LostReplyError(Exception):
    """The upload of a reply was broken off, and Flower's server has let it go."""


def _concerns_server(error: Exception) -> bool:
    """Whether an error is one of the connection to Flower's server, and not of the reply."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in UNAUTHORISED
    return isinstance(error, httpx.HTTPError)


def _size_taken_apart(content: bytes, contents: dict[str, bytes]) -> int:
    """The bytes that an object takes; an array those of its chunks, each as often as it names it."""
    kind, children, body = get_object_head_values_from_object_content(content)
    if kind != "Array":
        return len(content)
    told: Any = json.loads(content[-body:])
    return len(content) + sum(len(contents[children[i]]) for i in told["arraychunk_ids"])
