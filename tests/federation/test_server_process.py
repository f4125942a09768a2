"""The server of a federation as an operator starts, stops and moves it: the very scripts, as processes on loopback."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from coterie._src.experiments import read_config
from coterie._src.federation.deployment import free_port, write_deployment
from coterie._src.federation.folder_lock import holder
from coterie._src.federation.progress import read_progress
from coterie._src.federation.server_folder import node_of, read_settings_of
from coterie._src.federation.server_process import control_of
from coterie._src.federation.server_status import status_of
from real_processes import ENVIRONMENT, coterie, end, started, wait_until

CONFIG = [
    "problem.clusters=2", "problem.clients=20", "problem.dim=5", "problem.samples=40", "algorithm.rounds=2",
    "algorithm.max_byzantine=0",
]  # fmt: skip


def script(place: Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the server to its end."""
    command = [str(place / "server" / name), *words]
    return subprocess.run(
        command, env=ENVIRONMENT, cwd=place.parent, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A deployment that has been moved since it was written, to a path with what a shell splits at."""
    config = read_config(None, CONFIG)
    write_deployment(
        tmp_path / "written", config, ["oslo", "rome"], host="127.0.0.1", port=free_port(), method="brifca-median"
    )
    return shutil.move(tmp_path / "written", tmp_path / "moved here's $one")


@pytest.mark.slow
def test_the_daily_business_of_a_server(place: Path, tmp_path: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    """A moved folder starts; a second server and a second run say one line; Ctrl-C stops a run; codes are true."""
    server, log = place / "server", tmp_path / "server-run.sh.log"
    begin = partial(started, processes, tmp_path, place)
    assert "is it started" in coterie("federate", "run", "--folder", str(server), cwd=tmp_path).stderr
    link = begin("server/start.sh")
    wait_until((server / "ready").exists, 90)
    assert all(node_of(server / "nodes" / f"{name}.json") for name in ("oslo", "rome"))
    assert (server / "superlink.sqlite").stat().st_mode & 0o077 == 0
    again = script(place, "start.sh")
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "another server works here (process" in again.stderr

    run = begin("server/run.sh", "patience=300.0")
    wait_until(lambda: holder(server / "federation") is not None, 60)
    serving = holder(server / "federation")
    assert serving is not None
    words = Path(f"/proc/{serving.pid}/cmdline").read_text().split("\0")
    assert "--token-file" in words  # and the token itself where nobody else reads it
    assert "--token" not in words
    limits = Path(f"/proc/{serving.pid}/limits").read_text().splitlines()
    [limit] = [line.split()[3] for line in limits if line.startswith("Max data size")]
    assert int(limit) == read_settings_of(server).memory_mb << 20
    second = script(place, "run.sh")
    assert (second.returncode, second.stderr.count("\n")) == (2, 1)
    assert "another run works here (process" in second.stderr
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 130
    assert holder(server / "federation") is None
    died = coterie("federate", "watch", str(server / "federation"), cwd=tmp_path)
    assert died.returncode == 2
    assert "the run has died after round 0 of 2" in died.stderr

    failed = script(place, "run.sh", "patience=0.5")
    assert failed.returncode == 2
    assert failed.stderr.splitlines()[-1].startswith("coterie: run: failed (min_clients: only 0 of 2 nodes answered")
    found = read_progress(server / "federation")
    assert found is not None
    assert found[0].error.startswith("min_clients: only 0 of 2")
    unknown = coterie("federate", "run", "--folder", str(server), "patient=0.5", cwd=tmp_path)
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    assert "settings: a run has no 'patient'" in unknown.stderr

    begin("server/run.sh", "patience=300.0")
    wait_until(lambda: holder(server / "federation") is not None, 60)
    stopped = script(place, "stop.sh")
    assert stopped.returncode == 0, stopped.stderr
    assert link.wait(60) == 0
    assert processes[-1].wait(60) != 0
    assert holder(server) is None
    assert "was stopped" in log.read_text()
    assert not (server / "ready").exists()
    assert "No server is running." in coterie("federate", "stop", "--folder", str(server), cwd=tmp_path).stdout


@pytest.mark.slow
def test_two_federations_on_one_server(tmp_path: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    """With folders and ports of their own they do not know of each other; keys come and go while they run."""
    places = [tmp_path / "one", tmp_path / "two"]
    for place, name in zip(places, ("oslo", "rome"), strict=True):
        write_deployment(place, read_config(None, CONFIG), [name], host="127.0.0.1", port=free_port())
        started(processes, tmp_path, place, "server/start.sh")
    wait_until(lambda: all((place / "server" / "ready").exists() for place in places), 120)
    server = places[0] / "server"
    assert coterie("site", "init", "lyon", cwd=tmp_path).returncode == 0
    added = coterie("federate", "add", "lyon", "--key", "lyon/lyon.pub", "--folder", str(server), cwd=tmp_path)
    assert added.returncode == 0, added.stderr
    wait_until((server / "nodes" / "lyon.json").exists, 30)  # without a restart
    assert coterie("federate", "revoke", "lyon", "--folder", str(server), cwd=tmp_path).returncode == 0
    wait_until(lambda: "lyon.pub is withdrawn" in (tmp_path / "server-start.sh.log").read_text(), 30)
    (server / "nodes" / "bad.pub").write_text("nonsense")
    wait_until(lambda: "bad.pub: is not a public key" in (tmp_path / "server-start.sh.log").read_text(), 30)
    (server / "nodes" / "bad.pub").unlink()
    for place, name in zip(places, ("oslo", "rome"), strict=True):
        shown = coterie("federate", "status", "--folder", str(place / "server"), cwd=tmp_path)
        assert shown.returncode == 0, shown.stderr
        assert f" {name} " in shown.stdout
        assert script(place, "stop.sh").returncode == 0


@pytest.mark.slow
def test_a_site_whose_key_is_revoked_is_refused(
    place: Path, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """And one with a further key connects with either, until the old one is withdrawn."""
    server, begin = place / "server", partial(started, processes, tmp_path, place)

    def states() -> dict[str, str]:
        return {one.key: one.state for one in status_of(server).sites}

    begin("server/start.sh")
    wait_until((server / "ready").exists, 90)
    begin("oslo/start.sh", RUNTIME_PORT=str(free_port()))
    wait_until(lambda: states()["oslo.pub"] == "connected", 60)
    for words in (
        ("site", "init", str(place / "oslo"), "--renew"),
        ("federate", "add", "oslo", "--key", str(place / "oslo" / "oslo.next.pub"), "--folder", str(server)),
        ("site", "init", str(place / "oslo"), "--use-next"),
    ):
        done = coterie(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    wait_until(lambda: "oslo.2.pub" in states() and states()["oslo.2.pub"] != "not registered yet", 30)
    assert states()["oslo.pub"] == "connected"
    end(processes[-1])
    begin("oslo/start.sh", RUNTIME_PORT=str(free_port()))
    wait_until(lambda: states()["oslo.2.pub"] == "connected", 60)
    assert coterie("federate", "revoke", "oslo", "--folder", str(server), cwd=tmp_path).returncode == 0
    wait_until(lambda: "oslo.2.pub is withdrawn" in (tmp_path / "server-start.sh.log").read_text(), 30)
    assert set(states()) == {"rome.pub"}
    with closing(control_of(server, read_settings_of(server))) as control:
        assert [node.online for node in control.nodes()] == [False]  # rome alone is known
    log = tmp_path / "server-start.sh.log"
    wait_until(lambda: '"POST /v1/fleet/pull-messages HTTP/1.1" 401' in log.read_text(), 60)


def test_a_server_says_when_its_port_is_taken(place: Path, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", read_settings_of(place / "server").inner_port))
        other.listen()
        refused = coterie("federate", "serve", "--folder", str(place / "server"), cwd=tmp_path)
    assert refused.returncode == 2
    assert "inner_port: cannot listen on 127.0.0.1" in refused.stderr


def test_a_lock_is_released_at_death(tmp_path: Path) -> None:
    """Of a process that is killed; and one process may hold a folder twice."""
    code = (
        "import sys, pathlib, time\nfrom coterie._src.federation.folder_lock import locked\n"
        "with locked(pathlib.Path(sys.argv[1]), 'run'), locked(pathlib.Path(sys.argv[1]), 'run'):\n"
        "    print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "f")], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        found = holder(tmp_path / "f")
        assert found is not None
        assert found.pid == process.pid
        assert found.has_ended() is False
        process.kill()
    assert holder(tmp_path / "f") is None
