"""The server of a federation as a process: Flower's server behind it, and the keys of the sites."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from coterie._src.experiments.run_folder import write_atomically
from coterie._src.federation.certificates import check_server_certificates, read_public_key
from coterie._src.federation.control import Control, key_bytes
from coterie._src.federation.deployment import fill
from coterie._src.federation.folder_lock import holder, locked
from coterie._src.federation.server_folder import (
    NODES,
    REVOKED,
    SETTINGS,
    STATE_FOLDER,
    ServerSettings,
    key_files,
    node_of,
    read_settings_of,
    write_flower_configuration,
)

READY = "ready"
POLL_SECONDS = 0.5
STOP_SECONDS = 20.0
"""How long a run that is stopped may take until it is ended."""
LOG_HOURS, LOG_FILES = 24, 14
"""The log of Flower's server begins anew so often, and so many old ones are kept."""
Say = Callable[[str], None]


def serve(server: Path, say: Say, listen: str = "127.0.0.1") -> int:
    """Run Flower's server for a folder until it ends or is told to, and return its exit code.

    Keys that are added to the folder, or withdrawn, become known to it while it runs.

    Parameters
    ----------
    server
        The folder, as `coterie federate up` writes it. Where it lies does not matter.
    say
        Called with a line for whoever has started it.
    listen
        The address that it listens on.
    """
    os.umask(0o077)  # what Flower's server writes, as the database of nodes and runs, is for its owner alone
    settings = read_settings_of(server)
    if settings.secure:
        for line in check_server_certificates(server, settings.host):
            say(f"warning: {line}")
    with locked(server, "server"), _terminable() as stopping:
        _check_port(listen, settings.inner_port)
        (server / READY).unlink(missing_ok=True)
        process = subprocess.Popen(_command(server, settings, listen), cwd=server, env=_environment(server, settings))
        try:
            with closing(control_of(server, settings)) as control:
                keys = Keys(server, control) if settings.secure else None
                return _watch_over(process, server, control, stopping, keys, say)
        finally:
            (server / READY).unlink(missing_ok=True)
            _end(process)


def _watch_over(
    process: subprocess.Popen[bytes],
    server: Path,
    control: Control,
    stopping: threading.Event,
    keys: Keys | None,
    say: Say,
) -> int:
    """Wait for Flower's server to answer, and keep its keys as the folder has them until it ends or is to stop."""
    while not control.answers():
        if process.poll() is not None:
            raise ValueError(f"server: Flower's server ended at its start (exit code {process.returncode})")
        if stopping.wait(POLL_SECONDS):
            return 0
    if keys is not None:
        keys.update(say)
    write_atomically(server / READY, b"")
    say("Ready for the sites.")
    while process.poll() is None:
        if stopping.wait(POLL_SECONDS):
            return 0
        if keys is not None:
            with suppress(ValueError, OSError):  # it is tried again; a server that has ended is noticed above
                keys.update(say)
    say(f"Flower's server has ended by itself (exit code {process.returncode}).")
    return process.returncode or 1


def _check_port(host: str, port: int) -> None:
    """Raise a ValueError where another process listens: Flower's server would end with a code alone."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ValueError(
                f"inner_port: cannot listen on {host}:{port} ({error.strerror}); each federation of a machine has "
                f"ports of its own, see {SETTINGS}"
            ) from None


class Keys:
    """The keys in a server's folder, and those that Flower's server knows."""

    def __init__(self, server: Path, control: Control) -> None:
        self.server, self.control = server, control
        self._seen: object = None

    def update(self, say: Say) -> None:
        """Make new keys known, withdraw revoked ones, and note whose node is whose."""
        withdrawn = sorted((self.server / NODES / REVOKED).glob("*.pub"))
        files = [
            (path, path.stat().st_mtime_ns) for path in [*withdrawn, *(one.path for one in key_files(self.server))]
        ]
        if files == self._seen:
            return
        known = {one.key: one.number for one in self.control.nodes()}
        for path in withdrawn:
            key = _readable_key(path, say)
            if key is not None and (number := known.pop(key_bytes(key), None)) is not None:
                self.control.unregister(number)
                say(f"The key {path.name} is withdrawn.")
        for one in key_files(self.server):
            if (key := _readable_key(one.path, say)) is None:
                continue
            node = known.get(key_bytes(key)) or self.control.register(key)
            if node is None:
                say(f"{one.path}: Flower's server refuses this key; a key that was withdrawn does not come back.")
            elif node_of(one.note) != node:
                write_atomically(one.note, f'{{"node-id": {node}}}\n'.encode())
        self._seen = files


def _readable_key(path: Path, say: Say) -> EllipticCurvePublicKey | None:
    """The key in a file; one that cannot be read is said, and keeps no other site out."""
    try:
        return read_public_key(path)
    except ValueError as error:
        say(str(error))
        return None


def control_of(server: Path, settings: ServerSettings) -> Control:
    """The control API of a folder's server."""
    return Control(settings.inner_port, server / "ca.pem" if settings.secure else None)


def run(server: Path, settings: list[str], say: Say) -> None:
    """Run a federation to its end; raise a ValueError where it fails, and stop it where this process is told to end.

    Parameters
    ----------
    server
        The folder of the server, which has been started.
    settings
        Such as "deadline=20.0 min_clients=5".
    say
        Called with the lines of the log.
    """
    os.umask(0o077)
    known, folder = read_settings_of(server), server.resolve() / STATE_FOLDER
    if known.secure:
        check_server_certificates(server, known.host)  # else the server would seem not to answer
    with closing(control_of(server, known)) as control, _raising():
        is_stopping = control.answers() and not control.unfinished()
        with locked(folder, "run", STOP_SECONDS if is_stopping else 0.0):  # one that was stopped may be at its end
            pass
        number = control.start(server.resolve().parent / "app", settings, folder)
        try:
            for line in control.logs(number):
                say(line)
            state = control.state(number)
            while not state.finished:
                time.sleep(POLL_SECONDS)
                state = control.state(number)
        except KeyboardInterrupt:
            control.stop(number)
            _free(folder)
            raise
    if state.stopped:
        raise ValueError("run: was stopped; start it again to go on after the last finished round")
    if not state.succeeded:
        reason = state.details.removeprefix("ServerApp failed with exception: ")
        raise ValueError(f"run: failed ({reason or 'its process has ended'}); started again, it goes on after the last "
                         "finished round")  # fmt: skip


def stop(server: Path, say: Say, run_only: bool = False) -> None:
    """Stop the runs of a server, and the server itself; run_only: the runs alone."""
    settings, folder = read_settings_of(server), server.resolve() / STATE_FOLDER
    with closing(control_of(server, settings)) as control:
        for number in control.unfinished() if control.answers() else []:
            control.stop(number)
            say(f"Run {number} is stopped.")
    _free(folder)
    if run_only:
        return
    if holder(server) is None:
        say("No server is running.")
        return
    _free(server, at_once=True)
    say("The server is stopped.")


def _free(folder: Path, at_once: bool = False) -> None:
    """Wait until no process holds a folder; one that goes on doing so, or at_once, is told to end."""
    for number in (None, signal.SIGTERM, signal.SIGKILL)[at_once:]:
        found = holder(folder)
        if number is not None and found is not None and found.has_ended() is False:
            with suppress(ProcessLookupError):
                os.kill(found.pid, number)
        limit = time.monotonic() + STOP_SECONDS
        while time.monotonic() < limit:
            if holder(folder) is None:
                return
            time.sleep(POLL_SECONDS / 5)
    raise ValueError(f"{folder}: a process that works here does not end")


def _command(server: Path, settings: ServerSettings, listen: str) -> list[str]:
    (server / "logs").mkdir(mode=0o700, exist_ok=True)
    command = [
        "flower-superlink", "--host", listen, "--port", str(settings.inner_port), "--database", "superlink.sqlite",
        "--disable-runtime-dependency-installation", "--log-file", "logs/superlink.log",
        "--log-rotation-interval-hours", str(LOG_HOURS), "--log-rotation-backup-count", str(LOG_FILES),
    ]  # fmt: skip
    if not settings.secure:
        return [*command, "--insecure"]
    return [
        *command, "--enable-supernode-auth",
        "--ssl-ca-certfile", str(server.resolve() / "ca.pem"), "--ssl-certfile", "server.pem",
        "--ssl-keyfile", "server.key",
    ]  # fmt: skip


def _environment(server: Path, settings: ServerSettings) -> dict[str, str]:
    """For Flower's commands beside this Python; `flwr-serverapp` is the one that limits its memory."""
    home = server.resolve() / "flwr"
    launcher = home / "bin" / "flwr-serverapp"
    write_atomically(launcher, fill("server/flwr-serverapp", {"python": sys.executable}, ()).encode())
    launcher.chmod(0o700)
    write_flower_configuration(server, settings.inner_port, settings.secure)  # for `flwr` by hand, with this FLWR_HOME
    beside = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_HOME": str(home),
        "COTERIE_SERVERAPP_MB": str(settings.memory_mb),
        "PATH": os.pathsep.join([str(launcher.parent), beside, os.environ.get("PATH", os.defpath)]),
    }


@contextmanager
def _terminable() -> Iterator[threading.Event]:
    """An event that is set when this process is told to end."""
    event = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        event.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _raising() -> Iterator[None]:
    """Let SIGTERM raise what Ctrl-C raises, and SIGINT also where a shell has this process ignore it."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End Flower's server: politely, without waiting for connections that stay open, then for certain."""
    for number, seconds in ((signal.SIGTERM, 3.0), (signal.SIGINT, 10.0), (signal.SIGKILL, 10.0)):
        if process.poll() is not None:
            return
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
