"""What is on disk about trials while they run: true, harmless, and no part of their results."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie._src.experiments import progress as progress_module
from coterie._src.experiments import run_trial
from coterie._src.experiments.outcome import TrialResult
from coterie._src.experiments.process import Process
from coterie._src.experiments.progress import PROGRESS, TRIALS, Progress, ProgressFile, TrialNotes, TrialProgress
from coterie._src.experiments.recorder import Recorder
from coterie._src.experiments.setup import draw_trial
from coterie._src.intake import Verdict
from hostile import NAMES
from small_trials import small, without_clock

METHODS = 'run.methods=["coterie", "brifca-median", "ifca", "three-stage", "local", "global", "oracle"]'


class EveryRound(TrialNotes):
    """Notes of every round, and what the file held after each."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seen: list[tuple[TrialProgress, Recorder]] = []

    def __call__(self, trial: int, method: str, rounds: int, recorder: Recorder) -> None:
        self.due = 0.0
        super().__call__(trial, method, rounds, recorder)
        (file,) = (self.folder / TRIALS).iterdir()
        self.seen.append((TrialProgress.model_validate_json(file.read_bytes()), recorder))


def test_notes_of_every_round_change_no_bit_of_the_results(tmp_path: Path) -> None:
    config = small(METHODS, "attack.kind=garbage", "run.trials=1")
    notes = EveryRound(tmp_path)
    watched, alone = run_trial(config, 0, observe=notes), run_trial(config, 0)
    assert {note.method for note, _ in notes.seen} >= set(config.methods)
    assert without_clock(watched) == without_clock(alone)
    for name, found in watched.methods.items():
        assert found.centres.tobytes() == alone.methods[name].centres.tobytes(), name


def test_a_note_says_what_the_round_was_like(tmp_path: Path) -> None:
    """Sizes, the clients' losses by themselves, refused replies with reasons, and the Byzantine clients on top."""
    config = small('run.methods=["ifca"]', "attack.kind=garbage", "problem.byzantine=0.2", "run.trials=1")
    setup, checked = draw_trial(config, 0), 0
    byzantine = {setup.task.clients.names[i] for i in np.flatnonzero(setup.is_byzantine)}
    assert len(byzantine) == 5

    class Checked(EveryRound):
        def __call__(self, trial: int, method: str, rounds: int, recorder: Recorder) -> None:
            nonlocal checked
            super().__call__(trial, method, rounds, recorder)
            assert recorder.last is not None
            (state, info), note = recorder.last, self.seen[-1][0]
            assert (note.round, note.rounds) == (state.round, config.algorithm.rounds)
            if info is None:
                assert note.sizes == ()
                return
            checked += 1
            assert (note.accepted, note.refused, note.silent) == (19, 5, 0)
            assert sum(note.sizes) == 19
            clients = setup.task.clients
            for j, loss in enumerate(note.losses):
                own = [
                    np.mean((clients.targets[rows] - clients.features[rows] @ state.centres[j]) ** 2)
                    for i, rows in enumerate(np.split(np.arange(len(clients.targets)), np.cumsum(clients.sizes)[:-1]))
                    if info.labels[i] == j
                ]
                assert loss == pytest.approx(np.median(own), rel=1e-4)
            assert {one.client for one in note.refusals} == byzantine
            assert all(one.reason == Verdict(info.verdicts[int(one.client)]).name.lower() for one in note.refusals)
            assert {one.client for one in note.audit[:5]} == byzantine
            assert all(one.refused == (one.client in byzantine) for one in note.audit)

    notes = Checked(tmp_path)
    run_trial(config, 0, observe=notes)
    assert checked == config.algorithm.rounds


def test_names_that_no_file_can_hold_do_not_stop_a_trial(tmp_path: Path) -> None:
    config = small('run.methods=["ifca"]', "run.trials=1", "attack.kind=garbage")
    setup = draw_trial(config, 0)
    names = tuple([*NAMES, "lone \ud800 surrogate", "x" * 10_000, *map(str, range(10))][:24])
    task = setup.task.on(replace(setup.task.clients, names=names))
    notes, seen = EveryRound(tmp_path), []

    def observe(trial: int, method: str, rounds: int, recorder: Recorder) -> None:
        recorder.task = task
        notes(trial, method, rounds, recorder)
        seen.append(notes.seen[-1][0])

    run_trial(config, 0, observe=observe)
    listed = {one.client for one in seen[-1].audit}
    assert len(listed) == progress_module.MAX_LINES
    assert max(map(len, listed)) <= progress_module.MAX_NAME
    assert listed & set(NAMES)


def test_a_file_is_written_when_it_is_due_and_then_waits(tmp_path: Path) -> None:
    notes = TrialNotes(tmp_path)
    notes.due = np.inf
    config = small('run.methods=["ifca"]', "run.trials=1")
    run_trial(config, 0, observe=notes)
    assert not (tmp_path / TRIALS).exists()
    notes.due = 0.0
    run_trial(config, 0, observe=notes)
    (file,) = (tmp_path / TRIALS).iterdir()
    assert TrialProgress.model_validate_json(file.read_bytes()).round < config.algorithm.rounds  # the first was due
    assert notes.due > 0.0


def test_a_folder_that_was_removed_stays_away(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with ProgressFile(folder, 2) as progress:
        assert (folder / PROGRESS).is_file()
        shutil.rmtree(folder)
        progress.close("complete")
        run_trial(small('run.methods=["ifca"]', "run.trials=1"), 0, observe=TrialNotes(folder))
    assert not folder.exists()


def read(folder: Path) -> Progress:
    return Progress.model_validate_json((folder / PROGRESS).read_bytes())


def test_the_end_is_noted_and_the_notes_of_trials_go(tmp_path: Path) -> None:
    (tmp_path / TRIALS).mkdir()
    (tmp_path / TRIALS / "1.json").write_text("of an earlier process")
    with ProgressFile(tmp_path, 5, 2, max_rounds=60) as progress:
        assert not (tmp_path / TRIALS).exists()
        assert (read(tmp_path).status, read(tmp_path).finished, read(tmp_path).left) == ("running", 2, None)
        progress.due = 0.0
        progress.on_progress(15)
        found = read(tmp_path)
        assert found.at_most
        assert found.left == pytest.approx(found.seconds * 3)
        progress.due = 0.0
        progress.on_trial(TrialResult(2, {}))
        found = read(tmp_path)
        assert not found.at_most
        assert found.left == pytest.approx(found.seconds * 2)
        assert found.process == Process.current()
        (tmp_path / TRIALS).mkdir()
        progress.close("interrupted")
    assert read(tmp_path).status == "interrupted"
    assert not (tmp_path / TRIALS).exists()
    with pytest.raises(KeyError), ProgressFile(tmp_path, 5):
        raise KeyError
    assert read(tmp_path).status == "failed"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="a process says when it began on Linux alone")
def test_a_process_that_was_killed_is_known_to_be_gone() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = Process.of(child.pid)
        assert process.has_ended() is False
        assert process.model_copy(update={"began": "1"}).has_ended() is True  # another process has its number
        assert process.model_copy(update={"host": "elsewhere"}).has_ended() is None
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its parent has not asked yet
        assert process.has_ended() is True
    assert process.has_ended() is True
    assert Process.current().has_ended() is False
