"""Replies over Flower's HTTP grid, pulled one by one and object by object: none is waited for, and each has a size.

A site sends a reply as a tree of objects: first their names, then their contents. `HttpGrid.pull_messages` waits up to
two hours for contents that a site withholds, takes them at any size, and joins the chunks of an array as often as the
array names them. Here a look for replies asks for each missing object once, and a reply that is larger than it may be,
on the wire or taken apart, is refused before it is taken apart.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import httpx
from flwr.app import Message

from coterie._src.federation.flower import ObjectsError, announced, message_pb2, runtime_pb2, taken_apart

if TYPE_CHECKING:
    from flwr.superlink.grid import HttpGrid

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
    tree: message_pb2.ObjectTree
    missing: list[str] | None = None  # the names of its objects that have not come
    contents: dict[str, bytes] = field(default_factory=dict)
    bytes: int = 0


class HttpReplies:
    """Pulls the replies to messages over an `HttpGrid`."""

    def __init__(self, grid: HttpGrid) -> None:
        self.grid, self._arriving = grid, dict[str, Arriving]()

    def pull(self, message_ids: Collection[str], max_bytes: int) -> Pulled:
        """Return the replies that have come as a whole, which are refused and why, and which never will be whole."""
        pulled = Pulled({}, {}, set())
        self._find_announced([name for name in message_ids if name not in self._arriving])
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
                pulled.refused[message_id] = str(error) if isinstance(error, ObjectsError) else type(error).__name__
            self.forget([message_id])
        return pulled

    def forget(self, message_ids: Iterable[str]) -> None:
        """Let Flower's server delete what has come of these replies."""
        for message_id in message_ids:
            arriving = self._arriving.pop(message_id, None)
            if arriving is not None:
                self._confirm(arriving)

    def _pull_one(self, message_id: str, max_bytes: int) -> Message | None:
        arriving = self._arriving.get(message_id)
        if arriving is None:
            return None
        if arriving.missing is None:
            arriving.missing = announced(arriving.tree, max_bytes)
        while arriving.missing:
            content = self._pull_object(arriving.missing[-1])
            if not content:
                return None
            arriving.bytes += len(content)
            if arriving.bytes > max_bytes:
                raise ObjectsError(f"more than {max_bytes} bytes")
            arriving.contents[arriving.missing.pop()] = content
        return self._take_apart(message_id, max_bytes)

    def _find_announced(self, message_ids: list[str]) -> None:
        """Look which of these replies are announced; each is told only once.

        All are asked for in one request, and singly if Flower's server fails at one of them.
        """
        if not message_ids:
            return
        try:
            found = self.grid._runtime_client.PullMessages(runtime_pb2.PullAppMessagesRequest(message_ids=message_ids))
        except httpx.HTTPStatusError as error:
            if _concerns_server(error) or len(message_ids) == 1:
                raise
            for message_id in message_ids:
                with contextlib.suppress(httpx.HTTPStatusError):
                    self._find_announced([message_id])
            return
        for header, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            if header.metadata.reply_to_message_id in message_ids:
                arriving = Arriving(header.metadata.message_id, header.metadata.src_node_id, tree)
                self._arriving[header.metadata.reply_to_message_id] = arriving

    def _pull_object(self, name: str) -> bytes:
        """The content of an object; empty where it has not come."""
        request = message_pb2.PullObjectRequest(node=self.grid.node, run_id=self._run_id, object_id=name)
        found = self.grid._runtime_client.PullObject(request)
        if not found.object_found:
            raise LostReplyError
        return bytes(found.object_content) if found.object_available else b""

    def _take_apart(self, message_id: str, max_bytes: int) -> Message:
        arriving = self._arriving.pop(message_id)
        self._confirm(arriving)
        reply = taken_apart(arriving.message_id, arriving.contents, max_bytes)
        # what the site wrote of itself is not to be believed; whose reply it is, Flower's server knows by the key
        told = {"_message_id": arriving.message_id, "_src_node_id": arriving.node, "_reply_to_message_id": message_id}
        reply.metadata.__dict__.update(told)
        return reply

    def _confirm(self, arriving: Arriving) -> None:
        self.grid._runtime_client.ConfirmMessageReceived(
            message_pb2.ConfirmMessageReceivedRequest(
                node=self.grid.node, run_id=self._run_id, message_object_id=arriving.message_id
            )
        )

    @property
    def _run_id(self) -> int:
        assert self.grid._run is not None
        return self.grid._run.run_id


class LostReplyError(Exception):
    """The upload of a reply was broken off, and Flower's server has let it go."""


def _concerns_server(error: Exception) -> bool:
    """Whether an error is one of the connection to Flower's server, and not of the reply."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in UNAUTHORISED
    return isinstance(error, httpx.HTTPError)
