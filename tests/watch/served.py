"""`coterie watch` as a process, and what it answers."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from command import COTERIE, ENVIRONMENT


class Answer(NamedTuple):
    """Status, headers with small letters, and body."""

    status: int
    headers: dict[str, str]
    body: str


class Served(NamedTuple):
    """A process of `coterie watch` and the address that it printed."""

    process: subprocess.Popen[str]
    address: str

    @property
    def port(self) -> int:
        return int(urlsplit(self.address).port or 0)

    @property
    def path(self) -> str:
        return urlsplit(self.address).path

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """The answer to one request; path: as it is sent, without a look at it."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.putrequest(method, path, skip_host="Host" in headers)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode())

    def events(self) -> Iterator[dict[str, Any]]:
        """What the stream of events says, until it is closed."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(f"GET {self.path}events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            with connection.makefile(encoding="utf-8") as lines:
                for line in lines:
                    if line.startswith("data: "):
                        yield json.loads(line.removeprefix("data: "))


@contextmanager
def served(folder: Path, *options: str) -> Iterator[Served]:
    """The page of a folder, by a process that is ended at the end."""
    with subprocess.Popen(
        [*COTERIE, "watch", str(folder), *options], env=ENVIRONMENT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield Served(process, process.stdout.readline().strip())
        finally:
            process.kill()
