"""What a run leaves for TensorBoard, read by TensorBoard's own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie as ct
from command import Done
from tracking.conftest import Columns

pytest.importorskip("tensorboard", reason="needs coterie[tensorboard]")


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    return found.Reload()


def test_every_method_has_its_curves(tracked: tuple[Path, Done], columns: Columns) -> None:
    run = tracked[0] / "curves" / "run"
    assert {folder.name for folder in run.iterdir() if folder.is_dir()} == {"ifca", "coterie", "local"}
    for name in ("dist", "movement", "silent"):
        for method, values in columns("rounds.csv", name).items():
            points = read(run / method).Scalars(f"rounds/{name}")
            assert [point.step for point in points] == list(range(1, len(values) + 1))
            assert [point.value for point in points] == np.array(values, dtype=np.float32).tolist()
    points = read(run / "ifca").Scalars("trials/matched_dist")
    wanted = columns("trials.csv", "matched_dist")["ifca"]
    assert [(point.step, point.value) for point in points] == list(enumerate(np.float32(wanted).tolist()))
    assert "rounds/sizes/1" in read(run / "ifca").Tags()["scalars"]


def test_options_and_results_are_texts(tracked: tuple[Path, Done]) -> None:
    texts = read(tracked[0] / "curves" / "run")
    options, results = (texts.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in ("options", "results"))
    assert "| algorithm.rounds | 12 |" in options.splitlines()
    assert "| seed | 3 |" in options.splitlines()
    assert "| status | complete |" in results.splitlines()
    assert "ifca: matched_dist" in results


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
