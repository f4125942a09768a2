"""The folder of a run: complete after every trial, and never one that is in use."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from coterie._src.experiments import RunFolder, run_trials, summarise
from coterie._src.experiments.callbacks import RunInfo
from coterie._src.experiments.config import compared_methods
from small_trials import small


def test_the_folder_is_complete_after_every_trial(tmp_path: Path) -> None:
    config = small("run.workers=1")
    folder = RunFolder(tmp_path / "run", config)
    folder.on_start(RunInfo("coterie run", 0))
    kept = []
    for result in run_trials(config):
        folder.on_trial(result)
        kept.append(result)
        summary = json.loads((folder.path / "summary.json").read_text())
        assert summary["status"] == "running"
        assert summary["trials_finished"] == [trial.trial for trial in kept]
        assert summary["methods"] == summarise(kept)
    folder.on_end("complete")
    with (folder.path / "trials.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 3 * len(compared_methods())
    assert {float(r["dist"]) for r in rows if r["method"] == "ifca"} == {
        t.methods["ifca"].metrics["dist"] for t in kept
    }
    centres = load_file(folder.path / "centres" / "2.safetensors")
    assert np.array_equal(centres["brifca-median"], kept[2].methods["brifca-median"].centres)
    assert not list(folder.path.rglob("*.partial"))


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(ValueError, match="not an empty folder"):
        RunFolder(tmp_path, small())
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]
