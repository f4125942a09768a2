"""Real sites with TLS and keys on this machine: how long a question to all takes, and how much of it is computing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from coterie._src.experiments import read_config
from coterie._src.federation.deployment import free_port, write_deployment

SITES, DIM, REPEATS, LIMIT = 6, 1_000, 6, 900.0
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def measure(place: Path) -> dict[str, Any]:
    """Seconds and CPU seconds by loop; everything that is started is ended."""
    config = read_config(None, [f"problem.clients={SITES}", "problem.clusters=2", f"problem.dim={DIM}"])
    sites = [f"site{i}" for i in range(SITES)]
    write_deployment(place, config, sites, host="127.0.0.1", port=free_port())
    shutil.copy(Path(__file__).with_name("timed_app.py"), place / "app" / "federation_app" / "timed.py")
    project = place / "app" / "pyproject.toml"
    project.write_text(project.read_text().replace("federation_app.apps:server", "federation_app.timed:server"))
    processes: list[subprocess.Popen[bytes]] = []

    def start(script: str, *words: str) -> None:
        with (place / "log").open("ab") as log:
            command = [str(place / script), *words]
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT, start_new_session=True))

    try:
        start("server/start.sh")
        _wait_for(place / "server" / "ready")
        for site in sites:
            start(f"{site}/start.sh")
        start("server/run.sh", f"max_clients={SITES} features={DIM} min_clients={REPEATS}")
        found: dict[str, Any] = json.loads(_wait_for(place / "server" / "seconds.json").read_text())
        return found
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)  # the scripts end what they started
            process.wait()


def _wait_for(file: Path) -> Path:
    limit = time.monotonic() + LIMIT
    while not (file.is_file() and (file.name == "ready" or file.stat().st_size)):
        if time.monotonic() > limit:
            raise TimeoutError(f"{file.name} did not come; see {file.parent.parent / 'log'}")
        time.sleep(0.2)
    return file


def run() -> tuple[str, list[dict[str, Any]]]:
    """Return median, minimum and maximum over the repeats, both loops in turn."""
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder) / "deployment")
    rows = [
        {
            "loop": name,
            "median s": float(np.median(seconds)),
            "min s": min(seconds),
            "max s": max(seconds),
            "questions": len(seconds),
            **{f"CPU s of {role}": used / len(seconds) for role, used in found["cpu"][name].items()},
        }
        for name, seconds in found["seconds"].items()
    ]
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg())
    return f"{SITES} sites with TLS and keys, d = {DIM}, all on {os.cpu_count()} cores, load averages {load}", rows
