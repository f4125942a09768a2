"""Messages to nodes and their replies, over a Flower grid."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from coterie._src.federation.flower import http_grid
from coterie._src.federation.http_replies import HttpReplies, Pulled


class Mailbox:
    """Sends messages and pulls their replies one by one, so that no reply stands in the way of another."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        over_http = http_grid(grid)
        self._over_http = None if over_http is None else HttpReplies(over_http)

    def push(self, messages: Mapping[int, Message]) -> dict[str, int]:
        """Send messages {key: message} and return {message id: key} of those that Flower accepted."""
        pushed = set(self.grid.push_messages(list(messages.values()))) if messages else set()
        ids = {message.metadata.message_id: key for key, message in messages.items()}
        return {message_id: key for message_id, key in ids.items() if message_id in pushed}

    def pull(self, message_ids: Collection[str], max_bytes: int) -> Pulled:
        """Return the replies that have come. An error of the connection to Flower's server is raised.

        max_bytes: of a reply that comes over HTTP; a larger one is refused.
        """
        if self._over_http is not None:
            return self._over_http.pull(list(message_ids), max_bytes)
        pulled = Pulled({}, {}, set())
        for message_id in list(message_ids):
            try:
                for reply in self.grid.pull_messages([message_id]):
                    pulled.replies[message_id] = reply
            except httpx.HTTPError:
                raise
            except Exception as error:  # a reply that Flower cannot decode
                pulled.refused[message_id] = type(error).__name__
        return pulled

    def forget(self, message_ids: Iterable[str]) -> None:
        """Let go what has come of replies that nobody waits for any more."""
        if self._over_http is not None:
            self._over_http.forget(message_ids)
