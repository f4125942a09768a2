"""`coterie sweep` when it is killed, interrupted, resumed, run twice, or has no room."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from command import COTERIE, coterie, coterie_process
from coterie._src.experiments.database import Database
from interrupted import kept, until_kept, wait_for
from small_sweep import GRID


def test_kill_9_loses_only_what_was_in_flight(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID.replace("trials = 3", "trials = 20"))
    process = subprocess.Popen(
        [*COTERIE, "sweep", "grid.toml", "--workers", "2", "--out", "killed"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        until_kept(20, tmp_path / "killed", process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    survived = kept(tmp_path / "killed")
    assert survived >= 20
    assert survived % 2 == 0

    refused = coterie("sweep", "grid.toml", "--out", "killed", cwd=tmp_path)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--resume" in refused.stderr
    resumed = coterie("sweep", "--resume", "--workers", "1", "--out", "killed", cwd=tmp_path)  # the folder has its grid
    assert resumed.returncode == 0, resumed.stderr
    whole = coterie("sweep", "grid.toml", "--workers", "1", "--out", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert (tmp_path / "killed" / "summary.csv").read_bytes() == (tmp_path / "whole" / "summary.csv").read_bytes()
    assert resumed.stdout == whole.stdout


def test_two_sweeps_may_write_to_one_file(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID)
    (tmp_path / "more.toml").write_text(GRID.replace("trials = 3", "trials = 9"))
    first = coterie("sweep", "grid.toml", "--set", "run.trials=1", "--workers", "1", "--out", "both", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    commands = [[*COTERIE, "sweep", name, "--resume", "--workers", "1", "--out", "both"] for name in
                ("grid.toml", "more.toml")]  # fmt: skip
    running = [subprocess.Popen(c, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for c in commands]
    for process in running:
        _, stderr = process.communicate(timeout=240)
        assert process.returncode == 0, stderr
    assert len(Database(tmp_path / "both").rows()) == 4 * 9 * 2


def test_resume_needs_something_to_resume(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID)
    for arguments in (["grid.toml", "--resume"], ["grid.toml", "--resume", "--out", "mistyped"], ["--resume"], []):
        done = coterie("sweep", *arguments, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert [file.name for file in tmp_path.iterdir()] == ["grid.toml"]


def test_ctrl_c_in_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID.replace("trials = 3", "trials = 500"))
    process = subprocess.Popen(
        [*COTERIE, "sweep", "grid.toml", "--out", "run"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        wait_for((tmp_path / "run" / "grid.toml").exists, process)
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert "--resume" in stderr
    assert "Traceback" not in stderr
    Database(tmp_path / "run").close()


def test_a_full_disk_a_broken_file_and_no_place(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID.replace("trials = 3", "trials = 400"))
    sweep = ("sweep", "grid.toml", "--workers", "1", "--out", "full")
    full = coterie_process(*sweep, cwd=tmp_path, before="ulimit -f 60;")
    assert full.returncode == 1
    assert full.stderr.count("\n") == 1
    assert "results.sqlite" in full.stderr
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "results.sqlite").write_bytes(b"not a database at all" * 100)
    for command in (["sweep", "grid.toml", "--resume", "--out", "broken"], ["results", "broken"], ["plot", "broken"]):
        done = coterie(*command, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "is not a file of results" in done.stderr
    (tmp_path / "foreign").mkdir()
    with closing(sqlite3.connect(tmp_path / "foreign" / "results.sqlite")) as connection:
        connection.execute("CREATE TABLE results (name TEXT)")
    for command in (["sweep", "grid.toml", "--resume", "--out", "foreign"], ["results", "foreign"]):
        done = coterie(*command, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "is not a file of results" in done.stderr
    assert [file.name for file in (tmp_path / "foreign").iterdir()] == ["results.sqlite"]
    (tmp_path / "file").write_text("")
    nowhere = coterie("sweep", "grid.toml", "--out", "file/below", cwd=tmp_path)
    assert (nowhere.returncode, nowhere.stderr.count("\n")) == (1, 1)
    missing = coterie("results", "nothing-here", cwd=tmp_path)
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
