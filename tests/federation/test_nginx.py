"""The proxy before a federation's server, as `coterie federate up` writes it: what it lets through, and how much."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from coterie._src.experiments import read_config
from coterie._src.federation.deployment import BURST_PER_SITE, CONNECTIONS_PER_SITE, free_port, write_deployment
from real_processes import end, is_reachable, wait_until

needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")


class Proxy(NamedTuple):
    port: int
    seen: list[str]  # the requests that have come through, as the server behind the proxy sees them

    def ask(self, path: str, method: str = "POST", body: bytes = b"", length: int | None = None) -> int:
        """The status of the answer; length: that is announced, if not the true one."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)) as connection:
            connection.putrequest(method, path)
            connection.putheader("Content-Length", str(len(body) if length is None else length))
            connection.endheaders(body)
            return connection.getresponse().status


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    """Start nginx with the file of a deployment of one site, and a server behind it that writes down what comes."""
    seen: list[str] = []

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *words: object) -> None: ...

    port = free_port()
    write_deployment(tmp_path / "d", read_config(None), ["oslo"], host="fed.example.org", port=port, insecure=True)
    place = tmp_path / "d" / "server"
    file = place / "nginx.conf"
    behind = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    text = file.read_text().replace(f"127.0.0.1:{port + 1}/", f"127.0.0.1:{behind.server_port}/")
    file.write_text(text.replace(f"listen {port};", f"listen 127.0.0.1:{port};"))
    threading.Thread(target=behind.serve_forever, daemon=True).start()
    user = "user root; " if os.getuid() == 0 else ""  # the folders of tests are open to their owner alone
    nginx = subprocess.Popen(
        ["nginx", "-p", str(place), "-c", "nginx.conf", "-g", f"{user}daemon off;"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        wait_until(lambda: is_reachable(port), 30)
        yield Proxy(port, seen)
    finally:
        end(nginx)
        behind.shutdown()
        behind.server_close()


@needs_nginx
@pytest.mark.parametrize("mode", [True, False])
def test_nginx_reads_the_file(mode: bool, tmp_path: Path) -> None:
    write_deployment(tmp_path / "d", read_config(None), ["oslo"], host="fed.example.org", insecure=mode)
    words = ["nginx", "-t", "-p", str(tmp_path / "d" / "server"), "-c", "nginx.conf"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr


@needs_nginx
def test_only_the_api_of_the_sites_is_let_through(proxy: Proxy) -> None:
    assert proxy.ask("/v1/fleet/pull-messages") == 200
    for path in (
        "/v1/control/list-nodes",
        "/v1/control/list-nodes%3f/../../fleet/pull-messages",
        "/v1/fleet/../control/list-nodes",
        "/v1/fleet/%2e%2e/control/list-nodes",
        "/v1/fleet/..%2fcontrol/list-nodes",
        "/v1/fleet//pull-messages",
        "/v1/fleet/pull-messages?x=/v1/control/",
        "/v1/runtime/pull-messages",
        "/",
    ):
        assert proxy.ask(path) == 403, path
    assert proxy.ask("/v1/fleet/pull-messages", "GET") == 403
    assert proxy.seen == ["/v1/fleet/pull-messages"]


@needs_nginx
def test_a_large_request_is_refused_before_it_is_read(proxy: Proxy) -> None:
    """Of 3 GB, as a stranger may send them, nothing reaches the server; a piece of an array does."""
    assert proxy.ask("/v1/fleet/push-object", length=3 << 30) == 413
    assert proxy.seen == []
    assert proxy.ask("/v1/fleet/push-object", body=bytes(5 << 20)) == 200


@needs_nginx
def test_requests_and_connections_of_one_address_are_limited(proxy: Proxy) -> None:
    statuses = [proxy.ask("/v1/fleet/pull-messages") for _ in range(3 * BURST_PER_SITE)]
    assert statuses[:BURST_PER_SITE] == [200] * BURST_PER_SITE
    assert 503 in statuses
    open_requests = []
    for _ in range(CONNECTIONS_PER_SITE + 1):
        one = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
        one.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")  # and no body
        open_requests.append(one)
    assert b" 503 " in open_requests[-1].recv(100)
    for one in open_requests:
        one.close()


def test_the_file_names_its_limits(tmp_path: Path) -> None:
    """Where nginx is not installed: what the tests above try, as far as text can say it."""
    write_deployment(tmp_path / "d", read_config(None), ["oslo"], host="fed.example.org", insecure=True)
    text = (tmp_path / "d" / "server" / "nginx.conf").read_text()
    for line in ("client_max_body_size 8m;", "limit_conn connections 4;", '"^/v1/fleet/[a-z-]+$"', "/v1/fleet/;\n"):
        assert line in text
    assert "@{" not in text
