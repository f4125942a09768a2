"""A mistake on the command line is one line on stderr and exit code 2, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from command import coterie
from coterie import __version__

SMALL = [
    "--set", "problem.clusters=2", "--set", "problem.clients=24", "--set", "problem.samples=15",
    "--set", "problem.dim=6", "--set", "algorithm.rounds=12", "--trials", "2", "--set", "run.workers=1",
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--set", "problem.clusters=99"], "problem.clusters"),
        (["--set", "problem.clusters=auto"], "algorithm.clusters=auto"),
        (["--set", "algorithm.trim=0.5"], "algorithm.trim"),
        (["--set", "problem.byzantine=0.99"], "problem.byzantine"),
        (["--set", "problem.samples=-3"], "problem.samples"),
        (["--set", "algorithm.rouns=3"], "algorithm.rounds"),
        (["--set", "algorithm.init=nowhere.npy"], "algorithm.init"),
        (["--set", "problem.kind=folder", "--set", "problem.path=nowhere"], "unknown key"),
        (["--method", "fedavg"], "run.methods"),
        (["--trials", "0"], "run.trials"),
        (["--set", "run.device=cuda"], "run.device"),
        (["nowhere.toml"], "nowhere.toml"),
    ],
)
def test_a_mistake_is_one_line_exit_2_and_nothing_written(arguments: list[str], named: str, tmp_path: Path) -> None:
    done = coterie("run", *SMALL, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert named in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_one_line_and_nothing_written(tmp_path: Path) -> None:
    done = coterie("reproduce", "figure1", "--quick", "--device", "cuda", cwd=tmp_path)
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run", "--trials", "abc"], "'--trials': 'abc' is not a valid integer (see `coterie run --help`)"),
        (["run", "--trails", "3"], "'--trials'"),
        (["rnu"], "No such command 'rnu'"),
        (["results"], "Missing argument 'FOLDER'"),
    ],
)
def test_a_command_line_that_is_not_understood_gets_one_line(arguments: list[str], named: str, tmp_path: Path) -> None:
    done = coterie(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("coterie: ")
    assert named in done.stderr
    assert done.stderr.count("Did you mean") <= 1


def test_without_a_command_there_is_help(tmp_path: Path) -> None:
    done = coterie(cwd=tmp_path)
    assert done.returncode == 2
    assert "reproduce" in done.stdout + done.stderr


def test_help_and_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert coterie("--version", cwd=tmp_path).stdout == f"coterie {__version__}\n"
    for columns in (60, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        overview = coterie("--help", cwd=tmp_path).stdout
        assert "run" in overview
        assert "config" in overview
        manual = coterie("run", "--help", cwd=tmp_path).stdout
        for option in ("--set", "--method", "--trials", "--seed", "--out", "--json"):
            assert option in manual
