"""`coterie audit` on the folder of a run."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from command import coterie

POISONED = ("site 04", "site 11")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two kinds of sites, two of them with poisoned targets, and one that is alone in a third cluster."""
    folder, rng = tmp_path_factory.mktemp("audit"), np.random.default_rng(3)
    with (folder / "all.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["site", "x", "y"])
        for i in range(24):
            name, slope = f"site {i:02}", 3.0 if i % 2 else -3.0
            for x in rng.standard_normal(25):
                y = slope * x + 0.5 * rng.standard_normal()
                y = 500 * x if i == 20 else y + 6.0 * rng.standard_normal() if name in POISONED else y
                writer.writerow([name, x, y])
    np.save(folder / "start.npy", [[-3.0, 0.0], [3.0, 0.0], [500.0, 0.0]])  # which brifca-median takes
    options = {
        "problem.kind": "folder", "problem.path": folder / "all.csv", "problem.client": "site", "problem.clusters": 3,
        "algorithm.max_byzantine": 0.05, "algorithm.init": folder / "start.npy",
    }  # fmt: skip
    changes = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
    methods = ["--method", "coterie", "--method", "brifca-median"]
    done = coterie("run", *changes, *methods, "--out", str(folder / "run"), cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def shown_by(run: Path, *options: str) -> list[str]:
    done = coterie("audit", str(run), *options, cwd=run)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_poisoned_clients_come_first_with_the_evidence(run: Path) -> None:
    lines = shown_by(run)
    assert lines[0].startswith("coterie, trial 0: ")
    named = [line[:8].strip() for line in lines if line.strip().startswith("site ")]
    assert set(named[:3]) == {*POISONED, "site 20"}
    assert sum("times the usual one of cluster" in line for line in lines) >= 3


def test_a_cluster_no_larger_than_the_bound_is_marked(run: Path) -> None:
    shown = shown_by(run, "--method", "brifca-median")
    (line,) = [line for line in shown if line.endswith(": site 20")]
    assert line.endswith("(no larger than the bound on Byzantine clients): site 20")
    others = [line for line in shown if line.startswith("cluster ") and not line.endswith(": site 20")]
    assert others
    assert not any("no larger" in line for line in others)


def test_all_clients_and_another_method(run: Path) -> None:
    lines = shown_by(run, "--all", "--method", "brifca-median")
    assert lines[0].startswith("brifca-median, trial 0: ")
    assert len({line[:8].strip() for line in lines if line.strip().startswith("site ")}) == 24


def test_names_do_not_command_the_terminal(run: Path, tmp_path: Path) -> None:
    for file in ("summary.json", "config.toml", "audit.csv"):
        (tmp_path / file).write_bytes((run / file).read_bytes().replace(b"site 04", b"\x1b[31m04"))
    lines = shown_by(tmp_path)
    assert not any("\x1b" in line for line in lines)
    assert sum("?[31m04" in line for line in lines) == 2


def test_the_page_lists_the_same_clients(run: Path) -> None:
    text = (run / "report.html").read_text(encoding="utf-8")
    look = text[text.index('id="look"') : text.index('id="clients"')]
    assert all(name in look for name in POISONED)
    assert "site 07" not in look


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "ifca"], "--method: must be one of coterie, brifca-median, got ifca"),
        (["--picture", "a.png"], "--picture: is for a federation"),
    ],
)
def test_a_mistake_is_one_line(run: Path, options: list[str], message: str) -> None:
    done = coterie("audit", str(run), *options, cwd=run)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert "is the folder of no run or federation" in coterie("audit", "centres", cwd=run).stderr


def test_the_folder_of_an_earlier_version_is_told(run: Path, tmp_path: Path) -> None:
    for file in ("summary.json", "config.toml"):
        (tmp_path / file).write_bytes((run / file).read_bytes())
    with (run / "audit.csv").open(newline="") as stream:
        rows = [{k: v for k, v in row.items() if k not in ("loss", "suspicion", "evidence")} for row in
                csv.DictReader(stream)]  # fmt: skip
    with (tmp_path / "audit.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    assert shown_by(tmp_path)[-1].startswith("audit.csv has no losses, since an earlier version wrote it")
