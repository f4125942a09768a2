"""Real federations: a SuperLink and SuperNodes as processes on loopback, and the kit that starts them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from coterie import load
from coterie._src.aggregators import median
from coterie._src.experiments import problems, read_config, run_trial, tables
from coterie._src.federation.checkpoint import Checkpoint
from coterie._src.federation.deployment import free_port, prepare
from coterie._src.intake import admit
from coterie._src.server import Server, take_step
from coterie._src.simulation import SimulatedNetwork, stream
from faulty_app import PLAN
from test_cli import coterie

ROOT = Path(__file__).parent.parent


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """What a test starts, ended with all that it started, whatever happens."""
    begun: list[subprocess.Popen[bytes]] = []
    yield begun
    for process in reversed(begun):
        end(process)


def end(process: subprocess.Popen[bytes], spare_leader: bool = False) -> None:
    """Kill all that belongs to a process that leads a session; spare_leader: but not that one itself."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended by itself
            session = int(stat.read_text().rpartition(")")[2].split()[3])
            pid = int(stat.parent.name)
            if session == process.pid and not (spare_leader and pid == process.pid):
                os.kill(pid, signal.SIGKILL)
    if not spare_leader:
        process.wait(timeout=30)


ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
}


def started(
    processes: list[subprocess.Popen[bytes]], logs: Path, place: Path, script: str, *words: str, **more: str
) -> subprocess.Popen[bytes]:
    """A script of the kit at `place`, in a session of its own."""
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
    found = Checkpoint(folder).load() if (folder / "state.safetensors").exists() else None
    return 0 if found is None else found.state.round


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "the condition did not come about"
        time.sleep(0.2)


def test_a_secure_federation_of_processes_survives_its_server_and_a_site(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """TLS and keys, as `coterie federate up` writes them: a SuperLink and three SuperNodes on loopback.

    After the first round the server is killed and started again; one site is killed, and a stranger knocks.
    """
    port, place = free_port(), tmp_path / "kit"
    config = read_config(None, [
        "problem.clusters=2", "problem.clients=20", "problem.dim=5", "problem.samples=40", "algorithm.rounds=3",
    ])  # fmt: skip
    names = ["oslo", "bern", "rome"]
    prepare(place, config, [*names, "stranger"], host="127.0.0.1", port=port, method="brifca-median", deadline=15.0)
    (place / "server" / "nodes" / "stranger.pub").unlink()  # a key that nobody has registered
    begin = partial(started, processes, tmp_path, place)
    out = place / "server" / "federation"
    server = begin("server/start.sh")
    ready = place / "server" / "ready"
    wait_until(ready.exists, 90)
    sites = {name: begin(f"{name}/start.sh", RUNTIME_PORT=str(free_port())) for name in [*names, "stranger"]}
    begin("server/run.sh", "least=3 places=4")
    wait_until(lambda: last_round(out) >= 1, 240)
    end(server)
    end(sites["rome"])
    before = last_round(out)
    ready.unlink()
    begin("server/start.sh")
    wait_until(ready.exists, 90)
    begin("server/run.sh", "least=2 places=4")
    wait_until((out / "centres.safetensors").exists, 240)
    rows = Checkpoint(out).rows()
    assert max(row["round"] for row in rows) == 3
    assert len({row["node"] for row in rows}) == 3  # nobody heard of the stranger
    for row in rows:
        assert row["verdict"] == ("accepted" if row["round"] <= before or row["client"] not in gone(rows) else "silent")
    assert len(gone(rows)) == 1
    told = coterie("audit", str(out), "--all", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert set(re.findall(r"oslo|bern|rome|stranger", told.stdout)) == set(names)
    for secret in ("oslo/node.key", "server/server.key", "offline/ca.key"):
        assert (place / secret).stat().st_mode & 0o077 == 0
    assert not list((place / "oslo").glob("**/server.key"))


@pytest.mark.slow
def test_sites_that_send_garbage_hang_or_die_are_as_if_they_were_missing(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """Six real sites, of which four do what `faulty_app.PLAN` says; one of them is killed in the middle of a round.

    What each did stands in the audit, the run ends, and the models are those of a server that heard only the rest.
    """
    place, deadline, rounds, count = tmp_path / "kit", 40.0, 14, 6
    config = read_config(None, [
        "problem.clusters=2", f"problem.clients={count}", "problem.dim=5", "problem.byzantine=0",
        "problem.samples=[40, 41, 42, 43, 44, 45]",  # which tell in the audit who is who
        f"algorithm.rounds={rounds}", "algorithm.step=0.1", "algorithm.init=gaussian",
    ])  # fmt: skip
    names = [f"site{i}" for i in range(count)]
    prepare(place, config, names, host="127.0.0.1", port=free_port(), method="brifca-median", deadline=deadline)
    shutil.copy(ROOT / "tests" / "faulty_app.py", place / "app" / "federation_app" / "faulty.py")
    project = place / "app" / "pyproject.toml"
    project.write_text(project.read_text().replace("federation_app.apps:client", "federation_app.faulty:client"))
    begin = partial(started, processes, tmp_path, place)
    out, hanging = place / "server" / "federation", tmp_path / "hanging"
    begin("server/start.sh")
    wait_until((place / "server" / "ready").exists, 90)
    sites = [begin(f"{name}/start.sh", RUNTIME_PORT=str(free_port()), HANGING=str(hanging)) for name in names]
    run = begin("server/run.sh")
    wait_until(lambda: run.poll() is not None or hanging.exists(), 300)
    assert run.poll() is None, (tmp_path / "server-run.sh.log").read_text()
    end(sites[5], spare_leader=True)  # in the middle of its round
    wait_until(lambda: last_round(out) >= 3, 2 * deadline)
    end(sites[4], spare_leader=True)  # it is wedged: its administrator restarts it
    wait_until((out / "centres.safetensors").exists, 400)

    rows = Checkpoint(out).rows()
    site_of = {row["node"]: row["samples"] - 40 for row in rows if row["samples"]}
    verdicts = {(site_of[row["node"]], row["round"] - 1): row["verdict"] for row in rows}
    planned = {(i, round): verdict for i, own in PLAN.items() for round, (_, verdict) in own.items()}
    assert verdicts == {
        (i, round): planned.get((i, round), verdicts[i, round] if i in (4, 5) and round > 2 else "accepted")
        for i in range(count)
        for round in range(rounds)
    }
    for returned in (4, 5):  # silent, and from some round on back
        after = [verdicts[returned, round] for round in range(3, rounds)]
        assert set(after) <= {"silent", "accepted"}
        assert after[-1] == "accepted"

    drawn = problems.federation(config.problem, stream(0, 0, "data"))
    assert drawn.truth is not None
    network = SimulatedNetwork(
        problems.task(config.problem, drawn.clients), drawn.truth.byzantine, None, np.random.default_rng(0)
    )
    centres = tables.start(config, 5, None, stream(0, 0, "start"))
    for round in range(rounds):
        heard = np.array([i for i in range(count) if verdicts[i, round] == "accepted"])
        replies = network.gradients(centres, round, None, None, heard)
        accepted = admit(replies, clients=count, clusters=2, round=round, like=centres)
        centres = take_step(Server(median), centres, accepted, np.full(2, 0.1)).centres
    found = load_file(out / "centres.safetensors")["brifca-median"]
    np.testing.assert_allclose(found, centres, atol=1e-5)


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_the_proxy_lets_sites_through_and_nobody_to_the_control_api(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """A stranger who has the authority's certificate can neither enrol a key nor start a run from outside."""
    outside, place = "127.0.0.2", tmp_path / "kit"
    port = free_port()
    prepare(place, read_config(None), ["oslo", "stranger"], host=outside, port=port)
    server = place / "server"
    (server / "nodes" / "stranger.pub").rename(tmp_path / "stranger.pub")
    proxy = server / "nginx.conf"
    proxy.write_text(proxy.read_text().replace(f"listen {port} ", f"listen {outside}:{port} "))  # on loopback alone
    started(processes, tmp_path, place, "server/start.sh")
    wait_until((server / "ready").exists, 90)
    nginx = ["nginx", "-p", str(server), "-c", "nginx.conf", "-g", "daemon off;"]
    with (tmp_path / "nginx.log").open("wb") as log:
        processes.append(subprocess.Popen(nginx, stdout=log, stderr=log, start_new_session=True))
    started(processes, tmp_path, place, "oslo/start.sh", RUNTIME_PORT=str(free_port()))

    def flwr(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**ENVIRONMENT, "FLWR_HOME": str(home)}
        return subprocess.run(
            ["flwr", *words], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )

    def online() -> bool:
        return "online" in flwr(server / "flwr", "supernode", "list", "here", "--format", "json").stdout

    wait_until(online, 60)
    home = tmp_path / "stranger-home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink.there]\naddress = "{outside}:{port}"\nroot-certificates = "{place / "oslo" / "ca.pem"}"\n'
    )
    for words in (
        ("supernode", "register", str(tmp_path / "stranger.pub"), "there"),
        ("supernode", "list", "there"),
        ("run", str(place / "app"), "there"),
    ):
        done = flwr(home, *words)
        assert done.returncode != 0, done.stdout
    known = json.loads(flwr(server / "flwr", "supernode", "list", "here", "--format", "json").stdout)
    assert len(known["nodes"]) == 1
    assert "start-run" not in (tmp_path / "server-start.sh.log").read_text()


def gone(rows: list[dict[str, Any]]) -> set[int]:
    return {row["client"] for row in rows if row["verdict"] == "silent"}


def test_what_a_kit_cannot_be_is_named(tmp_path: Path) -> None:
    config = read_config(None)
    for options, named in (
        ({"sites": []}, "sites: name at least one"),
        ({"sites": ["a", "a"]}, "each once"),
        ({"sites": ["../a"]}, "letters, digits"),
        ({"port": 0}, "port"),
    ):
        with pytest.raises(ValueError, match=named):
            prepare(tmp_path / "kit", config, **{"sites": ["a"], "host": "h", **options})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a server cannot begin with 'warm'"):
        prepare(tmp_path / "kit", read_config(None, ["algorithm.init=warm"]), ["a"], host="h")
    assert not (tmp_path / "kit").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ValueError, match="not an empty folder"):
        prepare(tmp_path / "full", config, ["a"], host="h")


def test_the_example_is_what_the_kit_writes(tmp_path: Path) -> None:
    example = ROOT / "examples" / "flower"
    config = read_config(example / "federation_app" / "config.toml")
    prepare(tmp_path / "kit", config, [f"s{i}" for i in range(20)], host="127.0.0.1", insecure=True)
    for file in ("pyproject.toml", "federation_app/__init__.py", "federation_app/apps.py"):
        assert (tmp_path / "kit" / "app" / file).read_text() == (example / file).read_text()


def test_a_rehearsal_in_flower_s_simulation_gives_the_centres_of_the_simulation(tmp_path: Path) -> None:
    """`coterie federate simulate` and the in-process simulation: same data, same attack, same centres to 1e-5."""
    changes = ["problem.clusters=2", "problem.clients=8", "problem.dim=6", "problem.samples=40", "algorithm.rounds=4"]
    changes += ["problem.byzantine=0.125"]
    words = [word for change in changes for word in ("--set", change)]
    done = coterie("federate", "simulate", *words, "--method", "brifca-median", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = load_file(tmp_path / "out" / "results" / "centres.safetensors")["brifca-median"]
    config = read_config(None, [*changes, 'run.methods=["brifca-median"]'])
    here = run_trial(config, 0, record=False).methods["brifca-median"].centres
    np.testing.assert_allclose(found, here, atol=1e-5)
    models = load(tmp_path / "out" / "results")
    x = np.random.default_rng(0).standard_normal((40, 6))
    assert models.assign(x, x @ found[1]) == 1
    np.testing.assert_allclose(models.predict(x), x @ found[1], rtol=1e-4, atol=1e-5)
    shown = coterie("audit", "out/results", "--all", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "distance" in shown.stdout
    assert (tmp_path / "out" / "results" / "audit.png").read_bytes().startswith(b"\x89PNG")
    watched = coterie("federate", "watch", "out/results", cwd=tmp_path)
    assert watched.returncode == 0, watched.stderr
    assert watched.stdout.startswith("round 4/4: 8 accepted, 0 refused, 0 silent")
    nowhere = coterie("federate", "watch", ".", cwd=tmp_path)
    assert nowhere.returncode == 2
    assert "no federation writes here yet" in nowhere.stderr
    nothing = coterie("audit", ".", cwd=tmp_path)
    assert nothing.returncode == 2
    assert "audit.sqlite: no such file" in nothing.stderr


def test_a_kit_from_the_command_line(tmp_path: Path) -> None:
    words = ["--site", "oslo", "--site", "bern", "--set", "problem.kind=folder"]
    refused = coterie("federate", "up", "kit", *words, cwd=tmp_path)
    assert refused.returncode == 2
    assert "problem.columns: name the sites' feature columns" in refused.stderr
    named = ["--set", 'problem.columns=["age", "dose in $(mg)"]']
    done = coterie("federate", "up", "named", *words, *named, "--insecure", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "`./start.sh FILE` (.csv, .parquet or .npz with the columns age, dose in $(mg), y)" in done.stdout
    usage = subprocess.run([tmp_path / "named" / "oslo" / "start.sh"], capture_output=True, text=True, check=False)
    assert usage.returncode == 2
    assert usage.stderr.endswith("FILE: .csv, .parquet or .npz with the columns age, dose in $(mg), y\n")
    done = coterie("federate", "up", "kit", *words, "--features", "3", "--insecure", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "warning: no certificates and no keys" in done.stderr
    assert "For a trial only" in done.stdout
    usage = subprocess.run([tmp_path / "kit" / "oslo" / "start.sh"], capture_output=True, text=True, check=False)
    assert usage.returncode == 2
    assert "usage" in usage.stderr
