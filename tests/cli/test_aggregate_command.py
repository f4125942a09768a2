"""`coterie aggregate` on files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from command import coterie


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "replies").mkdir()
    for i in range(10):
        np.save(tmp_path / "replies" / f"{i}.npy", np.full(20, i if i < 8 else 1e6, dtype=np.float32))
    return tmp_path


def test_aggregate(folder: Path) -> None:
    np.save(folder / "replies" / "9.npy", np.full(20, np.nan, dtype=np.float32))
    done = coterie("aggregate", "replies", "--rule", "median", "--out", "found", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "cluster 0: 9 updates, found/cluster-0.npy\n"
    assert done.stderr == "refused: 9.npy holds a number that is not finite\n"
    assert np.load(folder / "found" / "cluster-0.npy").tolist() == [4.0] * 20


def test_labels(folder: Path) -> None:
    lines = ["file,cluster", *(f"{i}.npy,{i % 2}" for i in range(8)), "8.npy,two"]
    (folder / "labels.csv").write_text("\n".join(lines))
    options = ("--rule", "mean", "--out", "found", "--labels", "labels.csv", "--clusters", "3")
    done = coterie("aggregate", "replies", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[1] for line in done.stdout.splitlines()] == [
        " 4 updates, found/cluster-0.npy",
        " 4 updates, found/cluster-1.npy",
        " 0 updates, no file",
    ]
    assert done.stderr.count("refused:") == 2
    assert [np.load(folder / "found" / f"cluster-{j}.npy")[0] for j in range(2)] == [3.0, 4.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("replies", "--rule", "medain"), "coterie: --rule: must be one of filter, median"),
        (("replies", "--max-byzantine", "0.5"), "coterie: max_byzantine must be in [0, 0.5), got 0.5"),
        (("nowhere",), "coterie: updates: nowhere is not a folder"),
        (("replies", "--labels", "none.csv"), "coterie: none.csv: No such file or directory"),
        (("replies", "--labels", "odd.csv"), "coterie: --labels: odd.csv has no columns file and cluster"),
        (("replies", "--labels", "empty.csv"), "coterie: replies: no update is left"),
    ],
)
def test_a_mistake_is_one_line(options: tuple[str, ...], message: str, folder: Path) -> None:
    (folder / "odd.csv").write_text("name,label\n")
    (folder / "empty.csv").write_text("file,cluster\n")
    done = coterie("aggregate", *options, "--out", "found", cwd=folder)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith(message)
    assert not (folder / "found").exists()
