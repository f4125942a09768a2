"""Processes on loopback that a test starts and ends."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from coterie._src.cli import entry
from coterie._src.federation.checkpoint import Checkpoint

ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
}


def end(process: subprocess.Popen[Any], spare_leader: bool = False) -> None:
    """Kill the whole session that a process leads, and wait for its end; spare_leader: but not the leader itself."""
    if not spare_leader:  # first of all, as it may start others
        process.kill()
        process.wait(timeout=30)
    killed = session_of(process) - {process.pid}
    for pid in killed:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: killed.isdisjoint(session_of(process)), 30)


def session_of(leader: subprocess.Popen[Any]) -> set[int]:
    """Return the processes that run in the session of a process."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader.pid and state != "Z":
                found.add(int(stat.parent.name))
    return found


def started(
    processes: list[subprocess.Popen[bytes]], logs: Path, place: Path, script: str, *words: str, **more: str
) -> subprocess.Popen[bytes]:
    """Start a script of the deployment at `place`, in a session of its own."""
    with (logs / f"{script.replace('/', '-')}.log").open("ab") as log:
        process = subprocess.Popen(
            [str(place / script), *words],
            stdout=log,
            stderr=log,
            cwd=logs,
            env={**ENVIRONMENT, **more},
            start_new_session=True,
        )
    processes.append(process)
    return process


def last_round(folder: Path) -> int:
    """Return the last finished round of a federation; -1 before the start is saved."""
    found = Checkpoint(folder).load() if (folder / "state.safetensors").exists() else None
    return -1 if found is None else found.state.round


def is_reachable(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "the condition did not come about"
        time.sleep(0.2)


def coterie(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process, which is much faster than to start another."""
    output, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        patch.object(sys, "argv", ["coterie", *arguments]),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
        pytest.raises(SystemExit) as ended,
    ):
        entry()
    return subprocess.CompletedProcess(arguments, int(ended.value.code or 0), output.getvalue(), errors.getvalue())
