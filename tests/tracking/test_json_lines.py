"""The file of JSON lines, and what all trackers do where something fails."""

from __future__ import annotations

import csv
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from command import coterie
from coterie._src.experiments import TrialResult
from coterie._src.experiments.callbacks import RunInfo, Status
from coterie._src.experiments.recorder import RENAMED_COLUMNS
from coterie._src.tracking import base, tracker
from coterie.callbacks import JSONLines
from tracking.conftest import SMALL


def strict(line: str) -> dict[str, Any]:
    """A line as JSON, in which NaN and Infinity are no numbers."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    found: dict[str, Any] = json.loads(line, parse_constant=refuse)
    return found


def test_every_event_is_a_line_of_json(tmp_path: Path) -> None:
    done = coterie("run", *SMALL, "--out", "run", "--track", "jsonl:a/events.jsonl", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "Everything is in run/\n")
    start, *events, end = [strict(line) for line in (tmp_path / "a" / "events.jsonl").read_text().splitlines()]
    assert (start["event"], start["version"], start["seed"]) == ("start", ct.__version__, 3)
    assert start["params"]["problem.clients"] == 24
    assert start["params"]["run.methods"] == ["ifca", "coterie", "local"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (end["status"], end["methods"]) == ("complete", summary["methods"])
    for kind, table in (("round", "rounds.csv"), ("trial", "trials.csv")):
        with (tmp_path / "run" / table).open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        lines = sorted((event for event in events if event["event"] == kind), key=lambda event: event["trial"])
        assert len(lines) == len(rows) > 5
        for row, line in zip(rows, lines, strict=True):
            written = {name: value for name, value in row.items() if name not in RENAMED_COLUMNS}
            assert set(line) == {"event", "time", *written}
            for name, value in written.items():
                assert str(line[name]) == value or (line[name] is None and value == "nan")


def test_runs_follow_each_other_in_one_file(tmp_path: Path) -> None:
    drawn = ct.mixed_regression(0, clients=24, clusters=2, samples=30, dim=4)
    one = JSONLines(tmp_path / "fits.jsonl")
    for seed in (0, 1):
        ct.fit(drawn, clusters=2, method="ifca", rounds=2, seed=seed, callbacks=[one])
    lines = [strict(line) for line in (tmp_path / "fits.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["start", "round", "round", "trial", "end"] * 2
    assert [line["seed"] for line in lines if line["event"] == "start"] == [0, 1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk without space")
def test_a_full_disk_is_one_line_and_the_run_goes_on(tmp_path: Path) -> None:
    done = coterie("run", *SMALL, "--json", "--track", "jsonl:/dev/full", cwd=tmp_path)
    assert done.returncode == 0
    (message,) = done.stderr.splitlines()
    assert message.startswith("note: jsonl:/dev/full: ")
    assert "No space left on device" in message
    assert json.loads(done.stdout)["status"] == "complete"


class Stuck(JSONLines):
    """Never takes anything."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.released = threading.Event()

    def begin(self, run: RunInfo) -> None:
        self.released.wait()


def test_a_run_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "START_SECONDS", 0.05)
    monkeypatch.setattr(base, "END_SECONDS", 0.05)
    drawn = ct.mixed_regression(0, clients=24, clusters=2, samples=30, dim=4)
    stuck = Stuck(tmp_path / "fit.jsonl")
    with pytest.warns(RuntimeWarning, match="has taken nothing for 0 s; the run goes on without this tracker"):
        result = ct.fit(drawn, clusters=2, method="ifca", rounds=2, callbacks=[stuck])
    assert len(result.rounds) == 2
    stuck.released.set()


class Failing(JSONLines):
    """Fails with its last words."""

    def finish(self, status: Status, results: Sequence[TrialResult]) -> None:
        raise KeyError(f"{status}: https://ada:secret@example.org/x\nmore")


def test_a_warning_is_one_line_without_passwords(tmp_path: Path) -> None:
    drawn = ct.mixed_regression(0, clients=24, clusters=2, samples=30, dim=4)
    with pytest.warns(RuntimeWarning) as caught:
        ct.fit(drawn, clusters=2, method="ifca", rounds=2, callbacks=[Failing(tmp_path / "fit.jsonl")])
    (warning,) = caught
    assert "complete: https://***@example.org/x" in str(warning.message)
    assert "secret" not in str(warning.message)
    assert "\n" not in str(warning.message)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("mlflow", "must be mlflow:URI, tensorboard:DIR or jsonl:FILE, got mlflow"),
        ("jsonl:", "must be mlflow:URI"),
        ("wandb:x", "got wandb:x"),
        ("jsonl:folder", "jsonl:folder: must be a file"),
        ("jsonl:file/below", "jsonl:file/below: file is no folder"),
        ("tensorboard:file", "tensorboard:file: must be a folder"),
    ],
)
def test_a_wrong_target_is_one_line_before_the_run(text: str, line: str, tmp_path: Path) -> None:
    if text.startswith("tensorboard"):
        pytest.importorskip("tensorboard", reason="needs coterie[tensorboard]")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    done = coterie("run", *SMALL, "--out", "run", "--track", text, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("coterie: track: ")
    assert line in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="cannot be written to"):
        tracker(f"jsonl:{tmp_path}/x.jsonl")


@pytest.mark.parametrize("name", ["mlflow", "tensorboard"])
def test_a_missing_package_is_told_with_what_brings_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "find_spec", lambda package: None)
    with pytest.raises(ValueError, match=rf"{name} needs a package that is not here \(pip install 'coterie\[{name}\]'"):
        tracker(f"{name}:somewhere")
