"""What a sweep leaves with every tracker: curves for each method and configuration, named by what differs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie as ct
from command import Done, coterie
from coterie._src.experiments.database import Database
from coterie._src.experiments.outcome import TrialResult
from coterie._src.tracking.base import MAX_NAME
from coterie.callbacks import Callback, JSONLines, RunInfo
from small_sweep import GRID

CURVES = {
    (f"{method}, problem.dim={dim}, algorithm.step={step}"): {"problem.dim": dim, "algorithm.step": step}
    for method in ("brifca-median", "ifca")
    for dim in (3, 5)
    for step in (0.05, "auto")
}


@pytest.fixture(scope="module")
def swept(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """The place and the output of a sweep with three trackers."""
    pytest.importorskip("tensorboard", reason="needs coterie[tensorboard]")
    place = tmp_path_factory.mktemp("swept")
    shutil.copyfile(empty_database, place / "mlflow.db")
    (place / "grid.toml").write_text(GRID)
    targets = ("jsonl:events.jsonl", "mlflow:sqlite:///mlflow.db", "tensorboard:curves")
    options = [word for target in targets for word in ("--track", target)]
    return place, coterie("sweep", "grid.toml", "--workers", "1", "--out", "sweep", *options, cwd=place)


def lines(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place / "events.jsonl").read_text().splitlines()]


def stored(place: Path, name: str) -> dict[str, list[float]]:
    """By curve, a column of the database of results, by trial."""
    found: dict[str, list[float]] = {}
    for row in sorted(Database(place / "sweep").rows(), key=lambda row: row["trial"]):
        curve = f"{row['method']}, problem.dim={row['problem.dim']}, algorithm.step={row['algorithm.step']}"
        found.setdefault(curve, []).append(row[name])
    return found


def test_the_lines_say_which_configuration_a_trial_is_of(swept: tuple[Path, Done]) -> None:
    place, done = swept
    assert (done.returncode, done.stderr) == (0, "Everything is in sweep/\n")
    start, *trials, end = lines(place)
    assert start["command"].startswith("coterie sweep grid.toml")
    assert start["params"]["problem.dim"] == [3, 5]
    assert start["params"]["algorithm.step"] == [0.05, "auto"]
    assert start["params"]["problem.clients"] == 16
    assert {line["event"] for line in trials} == {"trial"}
    found: dict[str, dict[int, float]] = {}
    for line in trials:
        name = ", ".join([line["method"], *(f"{key}={value}" for key, value in line["options"].items())])
        found.setdefault(name, {})[line["trial"]] = line["dist"]
    assert set(found) == set(CURVES)
    assert {name: [own[trial] for trial in range(3)] for name, own in found.items()} == stored(place, "dist")
    assert end["status"] == "complete"
    assert {name: found["dist"]["mean"] for name, found in end["methods"].items()} == pytest.approx(
        {name: np.mean(values) for name, values in stored(place, "dist").items()}
    )


def test_mlflow_has_a_run_for_each_method_of_each_configuration(swept: tuple[Path, Done]) -> None:
    from mlflow import MlflowClient

    place, _ = swept
    client = MlflowClient(tracking_uri=f"sqlite:///{place / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("coterie")
    assert experiment is not None
    parent, *children = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"])
    assert parent.data.params["problem.dim"] == "[3, 5]"
    assert {run.info.status for run in (parent, *children)} == {"FINISHED"}
    assert {run.info.run_name: run.data.params for run in children} == {
        name: {key: str(value) for key, value in options.items()} for name, options in CURVES.items()
    }
    values = stored(place, "dist")
    for run in children:
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.info.run_name.startswith(f"{run.data.tags['method']}, ")
        history = client.get_metric_history(run.info.run_id, "trials/dist")
        assert [point.value for point in sorted(history, key=lambda point: point.step)] == values[run.info.run_name]
        assert run.data.metrics["mean/dist"] == pytest.approx(np.mean(values[run.info.run_name]))
    assert {"grid.toml", "summary.csv"} <= {file.path for file in client.list_artifacts(parent.info.run_id)}


def test_tensorboard_has_a_folder_for_each_method_of_each_configuration(swept: tuple[Path, Done]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    place, _ = swept
    values = stored(place, "dist")
    folders = {folder.name: folder for folder in (place / "curves" / "sweep").iterdir() if folder.is_dir()}
    assert set(folders) == set(CURVES)
    for name, folder in folders.items():
        points = EventAccumulator(str(folder)).Reload().Scalars("trials/dist")
        found = [point.value for point in sorted(points, key=lambda point: point.step)]
        assert found == np.float32(values[name]).tolist()


def test_a_sweep_that_goes_on_tracks_what_was_missing(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID)
    sweep = ("sweep", "grid.toml", "--workers", "1", "--out", "sweep", "--track", "jsonl:events.jsonl")
    small = ("--set", 'run.methods=["ifca"]', "--set", "run.trials=1")
    assert coterie(*sweep, *small, cwd=tmp_path).returncode == 0
    assert coterie(*sweep, "--resume", cwd=tmp_path).returncode == 0
    events = lines(tmp_path)
    (second,) = [i for i, line in enumerate(events) if line["event"] == "start" and i]
    assert (events[second - 1]["event"], events[-1]["event"]) == ("end", "end")
    found = [(line["method"], line["trial"]) for line in events if line["event"] == "trial"]
    assert found[:4] == [("ifca", 0)] * 4
    assert len(found) == len(set(found)) * 4 == 24
    # ifca was left out of trial 0 the second time, and has the mean of the two others
    assert {own["dist"]["trials"] for name, own in events[-1]["methods"].items() if name.startswith("ifca")} == {2}


def test_a_wrong_target_is_one_line_before_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID)
    done = coterie("sweep", "grid.toml", "--out", "sweep", "--track", "wandb:x", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2, "coterie: track: must be mlflow:URI, tensorboard:DIR or jsonl:FILE, got wandb:x\n",
    )  # fmt: skip
    assert not (tmp_path / "sweep").exists()


def test_long_options_have_short_names_of_their_own(tmp_path: Path) -> None:
    """Two configurations whose paths differ at the end, told in turn."""
    drawn = ct.mixed_regression(0, clients=24, clusters=2, samples=30, dim=4)
    kept: list[TrialResult] = []

    class Keeping(Callback):
        def on_trial(self, result: TrialResult) -> None:
            kept.append(result)

    ct.fit(drawn, clusters=2, method="ifca", rounds=2, callbacks=[Keeping()])
    tracker = JSONLines(tmp_path / "many.jsonl")
    tracker.on_start(RunInfo("", 0))
    for number in (0, 1, 0):
        path = {"problem.path": f"{'x' * MAX_NAME}{number}"}
        tracker.on_trial(TrialResult(0, kept[0].methods, options=path))
    tracker.on_end("complete")
    events = [json.loads(line) for line in (tmp_path / "many.jsonl").read_text().splitlines()]
    assert [line["options"]["problem.path"][-1] for line in events if line["event"] == "trial"] == ["0", "1", "0"]
    names = list(events[-1]["methods"])
    assert len(names) == 2
    assert max(map(len, names)) < MAX_NAME + 10
