"""What a run leaves for TensorBoard, read by TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie._src.experiments import TrialResult, run_trials
from coterie._src.experiments.callbacks import RunInfo, flattened, start_and_end
from small_trials import small

pytest.importorskip("tensorboard", reason="needs coterie[tensorboard]")


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    return found.Reload()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[TrialResult]]:
    """The folder of a run of two trials, and their results."""
    from coterie.callbacks import TensorBoard

    folder = tmp_path_factory.mktemp("tensorboard")
    config = small('run.methods=["ifca", "coterie", "local"]', "run.trials=2")
    tracker = TensorBoard(folder / "curves")
    with start_and_end(tracker, RunInfo("coterie run", 3, flattened(config), folder / "run")):
        results = list(run_trials(config, tracker))
    return folder / "curves" / "run", results


def test_every_method_has_its_curves(written: tuple[Path, list[TrialResult]]) -> None:
    run, results = written
    assert {folder.name for folder in run.iterdir() if folder.is_dir()} == {"ifca", "coterie", "local"}
    for name in ("dist", "movement", "silent"):
        for method in ("ifca", "coterie"):
            wanted = np.float32([row[name] for row in results[0].methods[method].rounds])
            points = read(run / method).Scalars(f"rounds/{name}")
            assert [(point.step, point.value) for point in points] == list(enumerate(wanted.tolist(), start=1))
    for method in ("ifca", "local"):
        wanted = np.float32([result.methods[method].metrics["matched_dist"] for result in results])
        points = read(run / method).Scalars("trials/matched_dist")
        assert [(point.step, point.value) for point in points] == list(enumerate(wanted.tolist()))
    assert "trials/test_r2" not in read(run / "local").Tags()["scalars"]
    sizes = [[point.value for point in read(run / "ifca").Scalars(f"rounds/sizes/{j}")] for j in (0, 1)]
    assert np.sum(sizes, axis=0).tolist() == [24.0] * 12


def test_options_and_results_are_texts(written: tuple[Path, list[TrialResult]]) -> None:
    texts = read(written[0])
    options, results = (texts.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in ("options", "results"))
    assert "| algorithm.rounds | 12 |" in options.splitlines()
    assert "| seed | 3 |" in options.splitlines()
    assert "| status | complete |" in results.splitlines()
    assert "| ifca: matched_dist |" in results


def test_two_runs_of_one_name_do_not_mix(tmp_path: Path) -> None:
    from coterie.callbacks import RunInfo, TensorBoard

    for folder in (tmp_path / "a" / "run", tmp_path / "b" / "run"):
        tracker = TensorBoard(tmp_path / "curves")
        tracker.on_start(RunInfo("coterie run", 0, {"a|b": "<c>"}, folder))
        tracker.on_end("complete")
    assert {folder.name for folder in (tmp_path / "curves").iterdir()} == {"run", "run-2"}
    text = read(tmp_path / "curves" / "run-2").Tensors("options")[0].tensor_proto.string_val[0].decode()
    assert "| a|b | \\<c> |" in text.splitlines()


def test_a_fit_with_a_rule_has_a_folder_below_that_of_the_run(tmp_path: Path) -> None:
    from coterie.callbacks import TensorBoard

    def away(updates: Any) -> Any:
        return updates.mean(axis=0)

    away.__name__ = "../../outside"
    drawn = ct.mixed_regression(0, clients=24, clusters=2, samples=30, dim=4)
    ct.fit(drawn, clusters=2, method=away, rounds=2, callbacks=[TensorBoard(tmp_path / "curves")])
    (run,) = (tmp_path / "curves").iterdir()
    (method,) = (folder for folder in run.iterdir() if folder.is_dir())
    assert len(read(method).Scalars("rounds/dist")) == 2
    assert {one.name for one in tmp_path.iterdir()} == {"curves"}
