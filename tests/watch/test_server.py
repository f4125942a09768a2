"""The server as a process: who gets an answer, which one, and how it ends."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from command import coterie
from coterie._src.experiments.process import Process
from coterie._src.experiments.progress import ProgressFile
from hostile import NAMES
from watch.exposition import parsed
from watch.folders import ESCAPE, as_if_killed, run_under_way, write_trial
from watch.served import Served, served


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("watched") / "run"
    run_under_way(made, (*NAMES, ESCAPE))
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with served(folder) as found:
        yield found


def test_the_address_is_on_loopback_with_a_long_token(server: Served) -> None:
    assert server.address.startswith(f"http://127.0.0.1:{server.port}/")
    assert len(server.path.strip("/")) >= 43  # 256 bits
    with socket.socket() as probe:  # another address of this machine's loopback is not listened on
        assert probe.connect_ex(("127.0.0.2", server.port)) != 0


@pytest.mark.parametrize("what", ["", "metrics", "events"])
def test_with_the_token_there_is_an_answer_with_safe_headers(what: str, server: Served) -> None:
    answer = server.ask(server.path + what, method="HEAD" if what == "events" else "GET")
    assert answer.status == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers
    assert server.path.strip("/") not in answer.body
    if what == "metrics":
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        parsed(answer.body)


def test_without_the_token_nothing_is_there(server: Served) -> None:
    """The same answer for every path, whether or not something is there."""
    token = server.path.strip("/")
    wrong = [
        "/", "/metrics", "/events", "//", f"/{token[:-1]}/", f"/{token}x/metrics", f"/{token.swapcase()}/",
        f"/x/{token}/", f"/{token[:-1]}%00/", "/%C3%A4/metrics", "/%FF/", f"/?token={token}",
        f"/..;/{token}", "/" + "a" * 5000,
    ]  # fmt: skip
    answers = {server.ask(path).status for path in wrong} | {server.ask("/", "POST").status}
    assert answers == {404}
    assert len({server.ask(path).body for path in wrong}) == 1
    assert "frame-ancestors" in server.ask("/").headers["content-security-policy"]
    assert server.ask(f"{server.path}nowhere").status == 404
    assert server.ask(f"{server.path}metrics/").status == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1]", "0.0.0.0"])
def test_a_name_that_was_made_to_lead_here_gets_nothing(host: str, server: Served) -> None:
    for path in (server.path, f"{server.path}metrics", "/"):
        assert server.ask(path, Host=host).status == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:9999", "127.0.0.1:1"])
def test_the_names_of_loopback_are_answered_on_any_port(host: str, server: Served) -> None:
    """A tunnel may have another port at its other end."""
    assert server.ask(server.path, Host=host).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_reading_is_allowed(method: str, server: Served) -> None:
    for path in (server.path, f"{server.path}metrics", f"{server.path}events"):
        answer = server.ask(path, method)
        assert answer.status == 405
        assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}
    head = server.ask(server.path, "HEAD")
    assert (head.status, head.body) == (200, "")


def test_hostile_names_stay_text(server: Served) -> None:
    page = server.ask(server.path).body
    sent = next(server.events())
    for text in (page, *sent["parts"].values()):
        assert "\x1b" not in text
        for tag in ("<img", "<script>window", 'onerror="', "<iframe"):
            assert tag not in text
    for name in (*NAMES, ESCAPE):
        assert name.replace("\x1b", "\ufffd").replace("\x07", "\ufffd")[:100] in unescape(sent["parts"]["refused"])


def test_only_what_has_changed_is_sent_again(folder: Path, server: Served) -> None:
    events = server.events()
    assert set(next(events)["parts"]) == {"progress", "clusters", "refused", "audit", "results"}
    write_trial(folder, ("a new one",), round=8)
    changed = next(events)["parts"]
    assert {"clusters", "refused", "audit"} <= set(changed)
    assert "results" not in changed
    assert "a new one" in changed["refused"]


def test_a_run_that_dies_and_goes_on_is_said_so(folder: Path, server: Served, gone: Process) -> None:
    events = server.events()
    assert 'data-state="running"' in next(events)["parts"]["progress"]
    as_if_killed(folder, gone)
    assert any('data-state="gone"' in one["parts"].get("progress", "") for one in events)
    (folder / "progress.json").write_text("{")  # what cannot be read leaves what was known
    message = next(one["parts"]["progress"] for one in events if "cannot be read" in one["parts"].get("progress", ""))
    assert 'data-state="gone"' in message
    ProgressFile(folder, 3).__enter__()
    assert any(
        'data-state="running"' in one["parts"].get("progress", "") and "cannot" not in one["parts"]["progress"]
        for one in events
    )


def test_ctrl_c_ends_it_while_somebody_watches(folder: Path) -> None:
    with served(folder) as server:
        events = server.events()
        next(events)
        server.process.send_signal(signal.SIGINT)
        _, errors = server.process.communicate(timeout=30)
        assert server.process.returncode == 0
        assert errors == "Ctrl-C ends this page, not what it shows.\n"


def test_mistakes_are_one_line(folder: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments, named in (
            ([str(tmp_path)], f"{tmp_path}: is the folder of no run, federation or sweep"),
            ([str(tmp_path / "nowhere")], "is the folder of no run"),
            ([str(folder), "--port", port], f"--port: {port} on 127.0.0.1 is not to be had"),
            ([str(folder), "--port", "99999"], "--port"),
        ):
            done = coterie("watch", *arguments, cwd=tmp_path)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
            assert named in done.stderr


@pytest.mark.parametrize("missing", ["uvicorn", "starlette.routing"])
def test_without_the_extra_one_line_says_so(
    missing: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "coterie._src.watch.server", raising=False)
    done = coterie("watch", str(folder), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "coterie: watch: needs Starlette and uvicorn (pip install 'coterie[watch]')\n"
