"""`coterie run` and `coterie config`: what a run prints and leaves, also when it is interrupted."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from command import coterie
from coterie import __version__
from coterie._src.experiments.config import compared_methods

SMALL = [
    "--set", "problem.clusters=2", "--set", "problem.clients=24", "--set", "problem.samples=15",
    "--set", "problem.dim=6", "--set", "algorithm.rounds=12", "--trials", "2", "--set", "run.workers=1",
]  # fmt: skip
METRICS = {"dist", "matched_dist", "ari", "misclustered", "oracle_ratio", "rounds", "seconds"}
PROGRAM = str(Path(sys.executable).with_name("coterie"))


def numbers(stdout: str) -> dict[str, dict[str, dict[str, float]]]:
    """The methods of a --json answer without the one metric that is a clock."""
    methods: dict[str, dict[str, dict[str, float]]] = json.loads(stdout)["methods"]
    return {name: {m: v for m, v in found.items() if m != "seconds"} for name, found in methods.items()}


def test_a_run_leaves_a_complete_folder_that_runs_again(tmp_path: Path) -> None:
    done = coterie("run", *SMALL, "--seed", "7", "--out", "first", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("brifca-median", "brifca-trimmed", "ifca", "three-stage", "local", "global", "oracle", "±", "ARI"):
        assert name in done.stdout
    first = tmp_path / "first"
    names = {"config.toml", "summary.json", "trials.csv", "rounds.csv", "audit.csv", "centres", "membership.json"}
    names |= {"convergence.png", "report.html", "assignments.csv", "directions.csv", "progress.json"}
    assert {file.name for file in first.iterdir()} == names
    assert (first / "convergence.png").read_bytes().startswith(b"\x89PNG")
    kept = json.loads((first / "summary.json").read_text())
    assert (kept["version"], kept["seed"], kept["status"]) == (__version__, 7, "complete")

    again = coterie("run", "first/config.toml", "--out", "second", "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stderr.endswith(f"Everything is in {Path('second')}/\n")
    assert numbers(again.stdout) == numbers(json.dumps(kept))
    rows = list(csv.DictReader((first / "rounds.csv").read_text().splitlines()))
    assert all(row["strangers"] == row["unknown_senders"] for row in rows)  # names of 0.1.0
    assert all(row["stuck"] == row["rejected_steps"] == "0" for row in rows)
    for file in ("rounds.csv", "audit.csv"):
        assert (tmp_path / "second" / file).read_bytes() == (first / file).read_bytes()
    for trial in (0, 1):
        ours, theirs = (load_file(tmp_path / f / "centres" / f"{trial}.safetensors") for f in ("first", "second"))
        assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)


def test_json_is_one_object_and_nothing_else(tmp_path: Path) -> None:
    done = coterie("run", *SMALL, "--method", "ifca", "--method", "oracle", "--json", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""  # neither of them trims, so there is nothing to warn of
    assert list(tmp_path.iterdir()) == []
    methods = json.loads(done.stdout)["methods"]
    assert list(methods) == ["ifca", "oracle"]
    for found in methods.values():
        assert set(found) >= METRICS
        assert all(set(statistic) == {"mean", "se", "trials"} for statistic in found.values())
        assert all(statistic["trials"] == 2 for statistic in found.values())


def test_config_prints_what_run_reads(tmp_path: Path) -> None:
    done = coterie("config", "--set", "problem.dim=6", cwd=tmp_path)
    assert done.returncode == 0
    assert "dim = 6" in done.stdout
    (tmp_path / "mine.toml").write_text(done.stdout)
    assert coterie("config", "mine.toml", cwd=tmp_path).stdout == done.stdout


def test_an_output_folder_in_use_or_out_of_reach(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious.txt").write_text("precious")
    done = coterie("run", *SMALL, "--out", "mine", cwd=tmp_path)
    assert done.returncode == 2
    assert "not an empty folder" in done.stderr
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["precious.txt"]
    (tmp_path / "file").write_text("")
    done = coterie("run", *SMALL, "--out", "file/below", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def interrupted(workers: int, folder: Path, ready: Callable[[], bool]) -> tuple[int, str, str]:
    """Press Ctrl-C (which reaches the whole process group) in a long run once it is `ready`."""
    command = [PROGRAM, "run", *SMALL, "--trials", "5000", "--set", f"run.workers={workers}", "--out", "run"]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        while process.poll() is None and not ready():
            pass
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, stdout, stderr


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_before_the_first_trial(workers: int, tmp_path: Path) -> None:
    summary = tmp_path / "run" / "summary.json"
    code, stdout, stderr = interrupted(workers, tmp_path, summary.exists)
    assert code == 130, stderr
    assert "Traceback" not in stderr
    assert json.loads(summary.read_text())["status"] == "interrupted"
    assert stdout == "" or "brifca-median" in stdout


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_keeps_what_is_finished(workers: int, tmp_path: Path) -> None:
    summary = tmp_path / "run" / "summary.json"
    code, stdout, stderr = interrupted(
        workers, tmp_path, lambda: summary.exists() and bool(json.loads(summary.read_text())["trials_finished"])
    )
    assert code == 130, stderr
    assert "Traceback" not in stderr
    kept = json.loads(summary.read_text())
    assert kept["status"] == "interrupted"
    finished = kept["trials_finished"]
    assert 0 < len(finished) < 5000
    assert "brifca-median" in stdout
    assert {int(file.stem) for file in (tmp_path / "run" / "centres").iterdir()} == set(finished)
    assert (tmp_path / "run" / "convergence.png").exists()
    rows = (tmp_path / "run" / "trials.csv").read_text().splitlines()
    assert len(rows) == 1 + len(compared_methods()) * len(finished)


def test_no_worker_outlives_a_killed_parent(tmp_path: Path) -> None:
    command = [PROGRAM, "run", *SMALL, "--trials", "5000", "--set", "run.workers=2", "--out", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)

    def group() -> list[str]:
        listed = subprocess.run(
            ["ps", "-o", "pid=", "-g", str(process.pid)], capture_output=True, text=True, check=False
        )
        return listed.stdout.split()

    try:
        while process.poll() is None and not (tmp_path / "run" / "trials.csv").exists():
            pass
        assert len(group()) > 2
        process.kill()
        process.wait()
        limit = time.monotonic() + 60
        while group() and time.monotonic() < limit:
            pass
        assert group() == []
    finally:
        process.kill()


def test_who_was_not_asked_is_silent_and_not_refused(tmp_path: Path) -> None:
    small = [f"problem.{key}" for key in ("clients=10", "clusters=2", "dim=3", "samples=8", "byzantine=0")]
    options = [word for key in [*small, "algorithm.participation=0.5", "algorithm.rounds=4"] for word in ("--set", key)]
    done = coterie("run", *options, "--method", "ifca", "--trials", "1", "--out", "o", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rounds = list(csv.DictReader((tmp_path / "o" / "rounds.csv").read_text().splitlines()))
    assert [(row["refused"], row["silent"]) for row in rounds] == [("0", "5")] * 4
    audit = list(csv.DictReader((tmp_path / "o" / "audit.csv").read_text().splitlines()))
    assert sum(float(row["silent"]) for row in audit) == pytest.approx(5)
    assert {(row["refused"], row["reasons"]) for row in audit} == {("0.0", "")}
