"""The folder that `coterie federate up` writes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from coterie._src.experiments import read_config
from coterie._src.federation.deployment import write_deployment
from coterie._src.federation.rehearsal import rehearse
from real_processes import coterie

ROOT = Path(__file__).parents[2]


def test_an_invalid_deployment_is_named(tmp_path: Path) -> None:
    config = read_config(None)
    for options, named in (
        ({"sites": []}, "sites: name at least one"),
        ({"sites": ["a", "a"]}, "each once"),
        ({"sites": ["../a"]}, "letters, digits"),
        ({"port": 0}, "port"),
    ):
        with pytest.raises(ValueError, match=named):
            write_deployment(tmp_path / "deployment", config, **{"sites": ["a"], "host": "h", **options})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a server cannot begin with 'warm'"):
        write_deployment(tmp_path / "deployment", read_config(None, ["algorithm.init=warm"]), ["a"], host="h")
    assert not (tmp_path / "deployment").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ValueError, match="not an empty folder"):
        write_deployment(tmp_path / "full", config, ["a"], host="h")


def test_a_rehearsal_needs_data_that_are_generated_or_known(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a rehearsal needs a synthetic problem or a known table"):
        rehearse(read_config(None, ["problem.kind=folder"]), "coterie", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_example_is_what_a_deployment_holds(tmp_path: Path) -> None:
    example = ROOT / "examples" / "flower"
    config = read_config(example / "federation_app" / "config.toml")
    write_deployment(tmp_path / "deployment", config, [f"s{i}" for i in range(20)], host="127.0.0.1", insecure=True)
    for file in ("pyproject.toml", "federation_app/__init__.py", "federation_app/apps.py"):
        assert (tmp_path / "deployment" / "app" / file).read_text() == (example / file).read_text()


def test_a_deployment_from_the_command_line(tmp_path: Path) -> None:
    words = ["--site", "oslo", "--site", "bern", "--set", "problem.kind=folder"]
    refused = coterie("federate", "up", "deployment", *words, cwd=tmp_path)
    assert refused.returncode == 2
    assert "problem.columns: name the sites' feature columns" in refused.stderr
    named = ["--set", 'problem.columns=["age", "dose in $(mg)"]']
    done = coterie("federate", "up", "named", *words, *named, "--insecure", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "`./start.sh FILE` (.csv, .parquet or .npz with the columns age, dose in $(mg), y)" in done.stdout
    usage = subprocess.run([tmp_path / "named" / "oslo" / "start.sh"], capture_output=True, text=True, check=False)
    assert usage.returncode == 2
    assert usage.stderr.endswith("FILE: .csv, .parquet or .npz with the columns age, dose in $(mg), y\n")
    done = coterie("federate", "up", "deployment", *words, "--features", "3", "--insecure", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "warning: no certificates and no keys" in done.stderr
    assert "For a trial only" in done.stdout
    usage = subprocess.run([tmp_path / "deployment" / "oslo" / "start.sh"], capture_output=True, text=True, check=False)
    assert usage.returncode == 2
    assert "usage" in usage.stderr
