"""Real federations: a SuperLink and SuperNodes as processes on loopback, and Flower's simulation."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from coterie import load
from coterie._src.aggregators import median
from coterie._src.experiments import read_config, run_trial
from coterie._src.experiments.starts import first_centres
from coterie._src.federation.checkpoint import Checkpoint
from coterie._src.federation.deployment import free_port, write_deployment
from coterie._src.federation.progress import read_progress
from coterie._src.intake import admit
from coterie._src.server import Server, take_step
from coterie._src.simulation import SimulatedNetwork, stream
from coterie._src.watch.federated import FederationSource
from coterie._src.watch.snapshot import Bar
from faulty_app import PLAN
from real_processes import ENVIRONMENT, coterie, end, is_reachable, last_round, started, wait_until

REHEARSED = [
    "problem.clusters=2", "problem.clients=8", "problem.dim=6", "problem.samples=40", "problem.byzantine=0.125",
    "algorithm.rounds=4",
]  # fmt: skip


@pytest.mark.usefixtures("rehearsal")  # it runs at the same time
def test_a_secure_federation_of_processes_survives_its_server_and_a_site(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """TLS and keys, as `coterie federate up` writes them: a SuperLink and two SuperNodes on loopback.

    After the first round the server and one site are killed, and the server is started again. While it waits for the
    dead site, a site with a key that is not registered asks for admission.
    """
    place, port = tmp_path / "deployment", free_port()
    config = read_config(None, [
        "problem.clusters=2", "problem.clients=20", "problem.dim=5", "problem.samples=40", "algorithm.rounds=2",
        "algorithm.step=0.1", "algorithm.max_byzantine=0",
    ])  # fmt: skip
    names = ["oslo", "rome"]
    write_deployment(place, config, [*names, "unknown"], host="127.0.0.1", port=port, method="brifca-median")
    (place / "server" / "nodes" / "unknown.pub").unlink()  # a key that nobody has registered
    begin = partial(started, processes, tmp_path, place)
    server, out = place / "server", place / "server" / "federation"
    link = begin("server/start.sh")
    wait_until(lambda: is_reachable(port), 90)
    begin("server/run.sh", "min_clients=2 max_clients=3")  # it waits for the sites
    sites = {}
    for name in names:  # a site is admitted when its key is registered
        wait_until((server / "nodes" / f"{name}.json").exists, 90)
        sites[name] = begin(f"{name}/start.sh", RUNTIME_PORT=str(free_port()))
    wait_until(lambda: last_round(out) >= 1, 240)
    end(link)
    end(sites["rome"])
    before = last_round(out)
    begin("server/start.sh")
    wait_until(lambda: is_reachable(port), 90)
    slowest = max(row["seconds"] for row in Checkpoint(out).rows())
    deadline = slowest + 3.0  # a SuperNode looks for messages every 3 s
    # the port may answer before the server does: then the command ends with an error, and is given again
    for _ in range(5):
        run = begin("server/run.sh", f"min_clients=1 min_replies=1 max_clients=3 deadline={deadline}")
        wait_until(lambda run=run: waiting_for(out) == (1, 2) or run.poll() not in (None, 0), 240)
        if run.poll() in (None, 0):
            break
    wait_until(lambda: waiting_for(out) == (1, 2), 240)
    begin("unknown/start.sh", RUNTIME_PORT=str(free_port()))
    wait_until(lambda: "refused" in (tmp_path / "unknown-start.sh.log").read_text(), 60)
    wait_until((out / "centres.safetensors").exists, 240)
    rows = Checkpoint(out).rows()
    assert max(row["round"] for row in rows) == 2
    assert len({row["node"] for row in rows}) == 2  # the site without a registered key was never asked
    for row in rows:
        assert row["verdict"] == ("accepted" if row["round"] <= before or row["client"] not in gone(rows) else "silent")
    assert len(gone(rows)) == 1
    shown = coterie("audit", str(out), "--all", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert set(re.findall(r"oslo|rome|unknown", shown.stdout)) == set(names)
    for secret in ("oslo/node.key", "server/server.key", "offline/ca.key"):
        assert (place / secret).stat().st_mode & 0o077 == 0
    assert not list((place / "oslo").glob("**/server.key"))


def waiting_for(folder: Path) -> tuple[int, int] | None:
    """Return the replies to the open question of a round and the clients asked; None while waiting for sites."""
    found = read_progress(folder)
    return None if found is None or found[0].waiting else (found[0].replies, found[0].asked)


@pytest.mark.slow
def test_sites_that_send_garbage_hang_or_die_are_as_if_they_were_missing(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """Six real sites, of which four do what `faulty_app.PLAN` says; one of them is killed in the middle of a round.

    The audit has what each did, the run ends, and the models are those of a server that asked only the others.
    """
    place, deadline, rounds, count = tmp_path / "deployment", 40.0, 14, 6
    config = read_config(None, [
        "problem.clusters=2", f"problem.clients={count}", "problem.dim=5", "problem.byzantine=0",
        "problem.samples=[40, 41, 42, 43, 44, 45]",  # which tell in the audit who is who
        f"algorithm.rounds={rounds}", "algorithm.step=0.1", "algorithm.init=gaussian", "algorithm.max_byzantine=0",
    ])  # fmt: skip
    names = [f"site{i}" for i in range(count)]
    write_deployment(
        place, config, names, host="127.0.0.1", port=free_port(), method="brifca-median", deadline=deadline
    )
    shutil.copy(Path(__file__).with_name("faulty_app.py"), place / "app" / "federation_app" / "faulty.py")
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

    drawn = config.problem.draw(stream(0, 0, "data"))
    assert drawn.truth is not None
    network = SimulatedNetwork(
        config.problem.build_task(drawn.clients), drawn.truth.is_byzantine, None, np.random.default_rng(0)
    )
    centres = first_centres(config.algorithm.init, 2, 5, None, 0.25, "float32", stream(0, 0, "start"))
    for round in range(rounds):
        accepting = np.array([i for i in range(count) if verdicts[i, round] == "accepted"])
        replies = network.gradients(centres, round, None, None, accepting)
        accepted = admit(replies, clients=count, clusters=2, round=round, like=centres)
        centres = take_step(Server(median), centres, accepted, np.full(2, 0.1)).centres
    found = load_file(out / "centres.safetensors")["brifca-median"]
    np.testing.assert_allclose(found, centres, atol=1e-5)


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_the_proxy_lets_sites_through_and_nobody_to_the_control_api(
    tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """Somebody with the authority's certificate can neither register a key nor start a run from outside."""
    outside, place = "127.0.0.2", tmp_path / "deployment"
    port = free_port()
    write_deployment(place, read_config(None), ["oslo", "unknown"], host=outside, port=port)
    server = place / "server"
    (server / "nodes" / "unknown.pub").rename(tmp_path / "unknown.pub")
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
    home = tmp_path / "unknown-home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink.there]\naddress = "{outside}:{port}"\nroot-certificates = "{place / "oslo" / "ca.pem"}"\n'
    )
    for words in (
        ("supernode", "register", str(tmp_path / "unknown.pub"), "there"),
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


TRACKED = ["--track", "jsonl:its events.jsonl"]


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """`coterie federate simulate` as a process, and the folder it works in."""
    folder = tmp_path_factory.mktemp("rehearsal")
    words = [word for change in REHEARSED for word in ("--set", change)]
    command = [sys.executable, "-m", "coterie", "federate", "simulate", *words, "--method", "brifca-median"]
    with subprocess.Popen(
        [*command, "--out", "out", *TRACKED], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        yield process, folder
        process.send_signal(signal.SIGINT)  # where it still runs, it ends what it has started
        process.communicate(timeout=60)


def test_a_rehearsal_in_flower_s_simulation_gives_the_centres_of_the_simulation(
    rehearsal: tuple[subprocess.Popen[str], Path],
) -> None:
    """`coterie federate simulate` and the in-process simulation: same data, same attack, same centres to 1e-5."""
    process, folder = rehearsal
    printed, _ = process.communicate(timeout=240)
    assert process.returncode == 0, printed
    found = load_file(folder / "out" / "results" / "centres.safetensors")["brifca-median"]
    config = read_config(None, [*REHEARSED, 'run.methods=["brifca-median"]'])
    here = run_trial(config, 0, record=False).methods["brifca-median"].centres
    np.testing.assert_allclose(found, here, atol=1e-5)
    models = load(folder / "out" / "results")
    x = np.random.default_rng(0).standard_normal((40, 6))
    assert models.assign(x, x @ found[1]) == 1
    np.testing.assert_allclose(models.predict(x, 1), x @ found[1], rtol=1e-4, atol=1e-5)
    events = [json.loads(line) for line in (folder / "its events.jsonl").read_text().splitlines()]
    assert [(one["event"], one.get("round")) for one in events] == [
        *(("start", None), *(("round", number) for number in range(1, 5))),
        *(("trial", None), ("end", None)),
    ]
    assert events[-1]["status"] == "complete"
    shown = coterie("audit", "out/results", "--all", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    assert "distance" in shown.stdout
    assert (folder / "out" / "results" / "audit.png").read_bytes().startswith(b"\x89PNG")
    assert "Sites worth a look" in (folder / "out" / "results" / "report.html").read_text(encoding="utf-8")
    watched = coterie("federate", "watch", "out/results", cwd=folder)
    assert watched.returncode == 0, watched.stderr
    assert watched.stdout.startswith("round 4/4: 8 accepted, 0 refused, 0 silent")
    page = FederationSource(folder / "out" / "results").read()
    assert (page.state, page.bars, page.title) == ("complete", [Bar("rounds", 4, 4)], "Federation of 8 sites")
    nowhere = coterie("federate", "watch", ".", cwd=folder)
    assert nowhere.returncode == 2
    assert "no federation writes here yet" in nowhere.stderr
    nothing = coterie("audit", ".", cwd=folder)
    assert nothing.returncode == 2
    assert "is the folder of no run or federation" in nothing.stderr
