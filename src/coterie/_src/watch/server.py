"""The page and the metrics of a folder on loopback: read-only, and only for those who know the address."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import uvicorn
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coterie._src.watch.metrics import MEDIA_TYPE, metrics
from coterie._src.watch.page import contents, frame, title
from coterie._src.watch.snapshot import Snapshot, Source

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
"""The names by which a browser may ask; by any other, an address has been made to lead here."""
READ_SECONDS = 1.0
"""Seconds between two looks at the folder, however many pages are open."""
POLL_SECONDS = 0.25
"""Seconds until a page notices that the server ends."""
ALIVE_SECONDS = 15.0
"""Seconds after which something is sent in any case, so that a connection that is gone is noticed."""
MAX_CONNECTIONS = 64
TOKEN_BYTES = 32
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""On every answer; the page has a policy of its own."""


class Watcher:
    """Reads a source when somebody asks, but not more often than once in `READ_SECONDS`."""

    def __init__(self, source: Source) -> None:
        self.source, self.last, self.due = source, source.read(), time.monotonic() + READ_SECONDS
        self.lock = asyncio.Lock()

    async def snapshot(self) -> Snapshot:
        """The last snapshot, or a new one. What cannot be read just now leaves the last one, with the reason."""
        async with self.lock:
            if time.monotonic() >= self.due:
                try:
                    self.last = await asyncio.to_thread(self.source.read)
                except (OSError, ValueError) as error:
                    self.last = replace(self.last, trouble=f"Just now this cannot be read: {error}")
                self.due = time.monotonic() + READ_SECONDS
            return self.last


class Guard:
    """Lets a request through whose host is this machine and whose path begins with the token.

    All others are answered in the same way whatever they ask for: 403 for another host, 404 without the token.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        first, _, rest = str(scope["path"]).removeprefix("/").partition("/")
        known = secrets.compare_digest(first.encode("utf-8", "replace"), self.token)
        if len(hosts) != 1 or hosts[0].partition(":")[0].lower() not in NAMES:
            app: ASGIApp = PlainTextResponse("Forbidden\n", 403)
        elif not known:
            app = PlainTextResponse("Not Found\n", 404)
        else:
            app, scope = self.app, {**scope, "path": f"/{rest}", "raw_path": b"", "root_path": ""}

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, send_guarded)


def application(watcher: Watcher, token: str, stopping: Callable[[], bool] = lambda: False) -> ASGIApp:
    """The application; stopping: whether streams are to end."""

    async def show_page(request: Request) -> Response:
        text, policy = frame(await watcher.snapshot())
        return HTMLResponse(text, headers={"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"})

    async def show_metrics(request: Request) -> Response:
        return Response(metrics(await watcher.snapshot()), media_type=MEDIA_TYPE)

    async def show_events(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return StreamingResponse(_events(watcher, stopping), media_type="text/event-stream")

    routes = [Route("/", show_page), Route("/metrics", show_metrics), Route("/events", show_events)]
    return Guard(Router(routes, redirect_slashes=False), token)


async def _events(watcher: Watcher, stopping: Callable[[], bool]) -> AsyncIterator[str]:
    """All parts of the page at first, then those that have changed."""
    yield "retry: 1000\n\n"
    sent: dict[str, Any] = {}
    spoken = time.monotonic()
    while not stopping():
        snapshot = await watcher.snapshot()
        now = {"title": title(snapshot), **contents(snapshot)}
        changed = {name: text for name, text in now.items() if sent.get(name) != text}
        if changed:
            parts = {name: text for name, text in changed.items() if name != "title"}
            yield f"event: parts\ndata: {json.dumps({'title': now['title'], 'parts': parts})}\n\n"
            sent, spoken = now, time.monotonic()
        elif time.monotonic() - spoken > ALIVE_SECONDS:
            yield ": still there\n\n"
            spoken = time.monotonic()
        until = time.monotonic() + READ_SECONDS
        while not stopping() and time.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)


def serve(source: Source, port: int, on_address: Callable[[str], None]) -> None:
    """Serve a source until Ctrl-C; on_address: called with the address of the page as soon as it can be opened.

    port: 0 for any that is free.
    """
    watcher, token = Watcher(source), secrets.token_urlsafe(TOKEN_BYTES)
    with _bound(port) as listening:
        application_ = application(watcher, token, lambda: server.should_exit)
        server = uvicorn.Server(
            uvicorn.Config(
                application_, loop="asyncio", http="h11", ws="none", lifespan="off", log_level="critical",
                access_log=False, server_header=False, proxy_headers=False, limit_concurrency=MAX_CONNECTIONS,
                timeout_graceful_shutdown=2,
            )
        )  # fmt: skip
        listening.listen()
        on_address(f"http://{HOST}:{listening.getsockname()[1]}/{token}/")
        server.run(sockets=[listening])


def _bound(port: int) -> socket.socket:
    """A socket on loopback; ValueError where the port is in use."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((HOST, port))
    except OSError as error:
        made.close()
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        why = os.strerror(error.errno)
        raise ValueError(f"--port: {port} on {HOST} is not to be had ({why}); choose another, or 0 for any") from None
    return made
