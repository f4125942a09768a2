"""Messages to nodes and their replies, over a Flower grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import httpx
from flwr.app import Message
from flwr.serverapp import Grid


class Pulled(NamedTuple):
    """What one look for replies found."""

    replies: list[Message]
    unreadable: dict[str, str]  # by message: the error with which Flower failed to decode its reply
    incomplete: bool = False  # an unreadable reply may have taken others with it: ask again


class Mailbox:
    """Sends messages and pulls their replies; after the first reply that Flower cannot decode, one by one."""

    def __init__(self, grid: Grid) -> None:
        self.grid, self.one_by_one = grid, False

    def push(self, messages: Mapping[int, Message]) -> dict[str, int]:
        """Send messages {key: message} and return {message id: key} of those that Flower accepted."""
        pushed = set(self.grid.push_messages(list(messages.values()))) if messages else set()
        ids = {message.metadata.message_id: key for key, message in messages.items()}
        return {message_id: key for message_id, key in ids.items() if message_id in pushed}

    def pull(self, message_ids: Iterable[str]) -> Pulled:
        """Return the replies that have come. An error of the connection to Flower's server is raised."""
        ids = list(message_ids)
        if ids and not self.one_by_one:
            try:
                return Pulled(list(self.grid.pull_messages(ids)), {})
            except httpx.HTTPError:
                raise
            except Exception:
                self.one_by_one = True
                return Pulled([], {}, incomplete=True)
        pulled = Pulled([], {})
        for message_id in ids:
            try:
                pulled.replies.extend(self.grid.pull_messages([message_id]))
            except httpx.HTTPError:
                raise
            except Exception as error:
                pulled.unreadable[message_id] = type(error).__name__
        return pulled
