"""A relay between a browser and a server, whose connections a test can cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self


class Relay:
    """Listens on a port of its own and passes everything on, while it is `open`; `cut` ends all connections."""

    def __init__(self, port: int) -> None:
        self.target, self.open = port, True
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.connections: list[socket.socket] = []
        self.threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *error: object) -> None:
        self.open = False
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self.cut()
        for thread in self.threads:
            thread.join(10)

    def cut(self) -> None:
        """End all connections."""
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.connections.clear()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it is closed at the end
            while True:
                client, _ = self.listening.accept()
                if not self.open:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self.target))
                self.connections += [client, server]
                self._start(self._pass_on, client, server)
                self._start(self._pass_on, server, client)

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with one, contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
