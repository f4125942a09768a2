"""A rehearsal: the clients of a synthetic problem as nodes of Flower's simulation on this machine."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from coterie._src.experiments.config import Config, anchored
from coterie._src.experiments.problems import KnownTables, Synthetic
from coterie._src.federation.deployment import free_port, write_deployment
from coterie._src.federation.server_folder import write_flower_configuration
from coterie._src.simulation import stream
from coterie._src.tracking import tracker

POLL_SECONDS = 0.1


def rehearse(
    config: Config,
    method: str,
    folder: Path,
    watch: Callable[[Path, Callable[[], bool]], None] | None = None,
    track: Sequence[str] = (),
) -> Path:
    """Write a deployment to a folder, run it in Flower's simulation, and return the folder with the results.

    watch: called while the run is going, with the folder of the results and a function that says whether the run has
    ended; the output of the run then goes to `server/run.log` instead of the terminal. track: of the server,
    as `tracker` has them.
    """
    for text in track:
        tracker(text)  # one line for a mistake, before anything is started
    if any(mark in text for text in track for mark in '"\\'):
        raise ValueError(f"track: must have no quotation mark and no backslash, got {', '.join(track)}")
    if not isinstance(config.problem, Synthetic | KnownTables):
        raise ValueError(
            "problem.kind: a rehearsal needs a synthetic problem or a known table; sites have their own data"
        )
    config, port = anchored(config), free_port()
    clients = config.problem.draw(stream(config.run.seed, 0, "data")).clients.count
    names = [f"site{i}" for i in range(clients)]
    write_deployment(folder, config, names, host="127.0.0.1", port=port, method=method, insecure=True)
    place = folder.resolve()
    write_flower_configuration(place / "server", port, secure=False)
    results = place / "results"
    serve = ["flower-superlink", "--insecure", "--simulation", "--port", str(port)]
    serve += ["--disable-runtime-dependency-installation"]
    settings = f"folder='{results}' track=\"{shlex.join(track)}\""
    run = ["flwr", "run", str(place / "app"), "here", "--stream", "--run-config", settings]
    run += ["--federation-config", f"num-supernodes={clients}"]
    environment = _environment(place)
    started: list[subprocess.Popen[bytes]] = []
    with (place / "server" / "superlink.log").open("wb") as log, (place / "server" / "run.log").open("wb") as lines:
        try:
            started.append(subprocess.Popen(serve, stdout=log, stderr=log, env=environment))
            while started[0].poll() is None and not _is_reachable(port):
                time.sleep(POLL_SECONDS)
            output = None if watch is None else lines
            started.append(subprocess.Popen(run, env=environment, stdout=output, stderr=output))
            if watch is not None:
                watch(results, lambda: started[1].poll() is not None)
            code = started[1].wait()
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait()
    if code or not (results / "centres.safetensors").is_file():
        raise ValueError(f"federate simulate: the run failed; the logs are in {place / 'server'}")
    return results


def _environment(place: Path) -> dict[str, str]:
    """For Flower's commands beside this Python; telemetry is off unless the user has switched it on."""
    return {
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        **os.environ,
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(place / "server" / "flwr"),
    }


def _is_reachable(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
