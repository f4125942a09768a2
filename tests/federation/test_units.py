"""What runs a federation for good: systemd's units and containers, as far as they can be checked without these."""

from __future__ import annotations

import configparser
import http.client
import re
import shlex
import shutil
import ssl
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie._src.experiments import read_config
from coterie._src.federation.deployment import LINK_MB, free_port, write_deployment
from coterie._src.federation.server_folder import read_settings_of
from real_processes import ENVIRONMENT, is_reachable, wait_until

DEMANDED = {
    "NoNewPrivileges": "yes", "ProtectSystem": "strict", "PrivateTmp": "yes", "UMask": "0077", "Restart": "on-failure",
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Path:
    config = read_config(None, ["problem.kind=folder", 'problem.columns=["a", "b"]', "algorithm.max_byzantine=0"])
    write_deployment(tmp_path / "d", config, ["oslo", "Bern"], host="fed.example.org", port=free_port())
    return tmp_path / "d"


def units(place: Path, folder: Path) -> dict[str, Path]:
    """Write all units of a deployment for where it is, and return them by their last word."""
    folder.mkdir()
    (place / "samples.csv").touch()
    for words in (["server/units.sh", folder], ["oslo/units.sh", place / "samples.csv", folder]):
        command = [str(place / str(words[0])), *map(str, words[1:])]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, cwd=place.parent)
        assert done.returncode == 0, done.stderr
    return {path.stem.rpartition("-")[2]: path for path in folder.glob("*.service")}


def section(unit: Path, name: str = "Service") -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=True)  # no key twice
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(unit)
    return dict(parser[name])


def test_every_unit_is_confined_and_comes_back(place: Path, tmp_path: Path) -> None:
    found = units(place, tmp_path / "units")
    assert set(found) == {"server", "proxy", "run", "site"}
    for name, unit in found.items():
        service = section(unit)
        assert DEMANDED.items() <= service.items(), name
        assert re.fullmatch(r"[0-9]+[MG]", service["MemoryMax"])
        assert "__" not in unit.read_text()
        assert "@{" not in unit.read_text()
        assert service["ReadWritePaths"] == str(place / ("oslo" if name == "site" else "server"))
        assert Path(shlex.split(service["ExecStart"])[0]).is_absolute()
    memory = read_settings_of(place / "server").memory_mb + LINK_MB
    assert section(found["server"])["MemoryMax"] == f"{memory}M"
    assert section(found["site"])["RestartPreventExitStatus"] == "2"  # a file that is wrong is not mended by a restart
    port = read_settings_of(place / "server").port
    assert all(f"coterie-{port}-" in unit.name for unit in found.values())  # several federations on one machine


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_every_line_of_the_units(place: Path, tmp_path: Path) -> None:
    found = units(place, tmp_path / "units")
    if shutil.which("nginx") is None:
        del found["proxy"]  # its command would not be found
    command = ["systemd-analyze", "verify", "--man=no", *map(str, found.values())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if "coterie-" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


def test_units_say_what_they_cannot_do(place: Path, tmp_path: Path) -> None:
    moved = shutil.move(place, tmp_path / "with space")
    command = [str(Path(moved) / "server" / "units.sh"), str(tmp_path)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "move this folder to a path of letters" in done.stderr
    assert not list(tmp_path.glob("*.service"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_the_commands_of_the_units_are_a_server_behind_its_proxy(
    place: Path, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    found, settings = units(place, tmp_path / "units"), read_settings_of(place / "server")
    for name in ("server", "proxy"):
        service = section(found[name])
        variables = dict(word.split("=", 1) for word in service["Environment"].split())
        with (tmp_path / f"{name}.log").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    shlex.split(service["ExecStart"]), cwd=service["WorkingDirectory"], stdout=log, stderr=log,
                    env={**ENVIRONMENT, **variables}, start_new_session=True,
                )
            )  # fmt: skip
    wait_until((place / "server" / "ready").exists, 90)
    wait_until(lambda: is_reachable(settings.port), 30)
    context = ssl.create_default_context(cafile=str(place / "oslo" / "ca.pem"))
    context.check_hostname = False  # the certificate is for fed.example.org
    with closing(http.client.HTTPSConnection("127.0.0.1", settings.port, context=context, timeout=20)) as connection:
        connection.request("POST", "/v1/control/list-nodes")
        assert connection.getresponse().status == 403
    for process in reversed(processes):
        process.terminate()
    assert processes[0].wait(60) == 0  # which systemd does not take for a failure


KEYS = {
    "build", "cap_drop", "command", "depends_on", "healthcheck", "image", "init", "logging", "mem_limit",
    "network_mode", "pid", "pids_limit", "ports", "profiles", "read_only", "restart", "security_opt",
    "stop_grace_period", "tmpfs", "user", "volumes", "working_dir",
}  # fmt: skip
"""Keys of a service that are used here, of those in https://github.com/compose-spec/compose-spec."""


@pytest.mark.parametrize("name", ["server", "Bern"])
def test_containers_are_confined_and_watched(place: Path, name: str) -> None:
    file = yaml.safe_load((place / name / "compose.yaml").read_text())
    assert re.fullmatch(r"[a-z0-9][a-z0-9_-]*", file["name"])
    assert {key for key in file if not key.startswith("x-")} == {"name", "services"}
    for service_name, service in file["services"].items():
        assert set(service) <= KEYS, service_name
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["read_only"] is True
        assert re.fullmatch(r"[0-9]+[mg]", service["mem_limit"])
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}
        if service.get("restart") != "no":
            assert set(service["healthcheck"]) >= {"test", "interval", "timeout", "retries"}
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert source.startswith("${") or (place / name / source).exists()
        if "build" in service:
            assert (place / name / service["build"]["dockerfile"]).read_text().count("\nFROM ") == 1
    open_ports = [port for service in file["services"].values() for port in service.get("ports", [])]
    port = read_settings_of(place / "server").port
    assert open_ports == ([f"{port}:{port}"] if name == "server" else [])


@pytest.mark.parametrize("name", ["server", "oslo"])
def test_docker_compose_takes_the_file(place: Path, name: str) -> None:
    docker: list[Any] = ["docker", "compose"]
    if (
        shutil.which("docker") is None
        or subprocess.run([*docker, "version"], capture_output=True, check=False).returncode
    ):
        pytest.skip("docker compose is not installed")
    done = subprocess.run(
        [*docker, "-f", str(place / name / "compose.yaml"), "config", "--quiet"], capture_output=True, text=True,
        check=False, env={**ENVIRONMENT, "DATA_FOLDER": "/srv", "DATA_FILE": "a.csv"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
