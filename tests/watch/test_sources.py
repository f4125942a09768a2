"""Folders of runs, sweeps and federations, read while others write there."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from coterie._src.algorithms import State
from coterie._src.experiments.database import FILE, connect_read_only
from coterie._src.experiments.process import Process
from coterie._src.experiments.progress import PROGRESS, ProgressFile
from coterie._src.federation.checkpoint import AUDIT, Checkpoint, Saved, audit_of
from coterie._src.federation.progress import ProgressFile as FederationProgress
from coterie._src.federation.progress import read_progress
from coterie._src.report.kinds import kind_of
from coterie._src.watch.federated import FederationSource
from coterie._src.watch.snapshot import Bar, Cluster, Refused, Remembered
from coterie._src.watch.sources import RunSource, SweepSource
from watch.folders import as_if_killed, federation_under_way, run_under_way, write_trial


def test_a_run_under_way_then_killed_then_run_anew(tmp_path: Path, gone: Process) -> None:
    folder = tmp_path / "run"
    progress = run_under_way(folder)
    assert kind_of(folder) == "run"
    source = RunSource(folder)
    found = source.read()
    assert (found.kind, found.state, found.trouble) == ("run", "running", "")
    assert found.bars == [Bar("trials", 0, 3), Bar("rounds, at most", 30, 300)]
    assert found.left is not None
    assert found.at_most
    (rounds,) = found.rounds
    assert (rounds.title, rounds.round, rounds.rounds) == ("ifca, trial 0", 7, 12)
    assert rounds.clusters == (Cluster(12, 0.25), Cluster(10, None))
    assert rounds.replies == {"accepted": 22, "refused": 2, "silent": 1}
    assert rounds.refused == (Refused("oslo", "not finite"), Refused("bern", "not finite"))
    assert [(one.client, one.refused, one.silent, one.trimmed) for one in found.suspects] == [
        ("oslo", 0.5, 0.25, 0.125), ("bern", 0.5, 0.25, 0.125),
    ]  # fmt: skip

    as_if_killed(folder, gone)
    found = source.read()
    assert (found.state, found.left) == ("gone", None)
    assert found.rounds == [rounds]  # what it last did is still shown

    progress = ProgressFile(folder, 3).__enter__()
    assert source.read().state == "running"
    assert source.read().rounds == []
    progress.close("complete")
    assert source.read().state == "complete"


def test_no_news_for_long_is_stale_and_another_machine_s_process_is_not_called_gone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_under_way(folder)
    as_if_killed(folder, Process(pid=1, host="elsewhere"))
    assert RunSource(folder).read().state == "running"
    before = time.time() - 1000.0
    for file in (folder / PROGRESS, folder / "progress" / "77.json"):
        os.utime(file, (before, before))
    found = RunSource(folder).read()
    assert found.state == "stale"
    assert found.updated == pytest.approx(before)
    write_trial(folder, ())  # a worker has news
    assert RunSource(folder).read().state == "running"


def test_a_run_of_an_earlier_version_has_a_state_by_its_summary(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_under_way(folder).close("complete")
    (folder / PROGRESS).unlink()
    assert RunSource(folder).read().state == "unknown"
    summary = folder / "summary.json"
    summary.write_text(summary.read_text().replace('"running"', '"interrupted"'))
    assert RunSource(folder).read().state == "interrupted"


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"status": "running"}', '{"status": "dancing", "trials": 1}', "[" * 100_000, "\x00"]
)
def test_a_file_of_progress_that_is_none_is_named(content: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_under_way(folder)
    (folder / PROGRESS).write_text(content)
    with pytest.raises(ValueError, match=PROGRESS):
        RunSource(folder).read()


def test_a_sweep_shows_its_results_and_how_to_go_on(finished: Path, tmp_path: Path, gone: Process) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    shutil.copy(finished / FILE, folder / FILE)
    assert kind_of(folder) == "sweep"
    source = SweepSource(folder)
    found = source.read()
    assert (found.state, found.bars) == ("unknown", [Bar("results", 24, 24)])
    assert found.results is not None
    assert "brifca-median" in found.results
    progress = ProgressFile(folder, 12, 4).__enter__()
    found = source.read()
    assert (found.state, found.bars) == ("running", [Bar("trials", 4, 12)])
    as_if_killed(folder, gone)
    assert source.read().state == "gone"
    assert "coterie sweep --resume" in source.read().advice
    progress.close("complete")
    assert (source.read().state, source.read().advice) == ("complete", "")


def test_a_federation_under_way_then_killed_then_done(tmp_path: Path, gone: Process) -> None:
    FederationProgress(tmp_path, 20).count_replies(3, 5, waiting=True)
    assert kind_of(tmp_path) == "federation"
    federation_under_way(tmp_path)
    source = FederationSource(tmp_path)
    found = source.read()
    assert (found.kind, found.state, found.title, found.left) == (
        "federation",
        "running",
        "Federation of 8 sites",
        90.0,
    )
    assert found.bars == [Bar("rounds", 5, 20), Bar("replies", 6, 8)]
    (rounds,) = found.rounds
    assert [cluster.size for cluster in rounds.clusters] == [4, 3]
    assert rounds.refused == (Refused("client 3 (node n3)", "not finite"),)
    assert [one.client for one in found.suspects[:2]] == ["client 3", "client 2"]
    assert found.suspects[1].distance == 9.0
    as_if_killed(tmp_path, gone)
    found = source.read()
    assert (found.state, found.left) == ("gone", None)
    assert "goes on" in found.advice
    file = FederationProgress(tmp_path, 20)  # the server is started again
    assert source.read().state == "running"
    file.update(file.progress._replace(waiting=True, replies=3, asked=5))
    assert (source.read().state, source.read().bars[1]) == ("waiting", Bar("sites present", 3, 5))
    file.update(file.progress._replace(done=True))
    assert source.read().state == "complete"


def test_the_progress_of_a_federation_is_checked(tmp_path: Path) -> None:
    for content in ('{"rounds": "many"}', '{"rounds": 3, "sizes": "abc"}', "[1]", '{"rounds": 3, "process": 4}'):
        (tmp_path / "progress.json").write_text(content)
        with pytest.raises(ValueError, match="is not the progress of a federation"):
            read_progress(tmp_path)


@pytest.mark.parametrize("damage", ["UPDATE replies SET distance = 'far'", "DROP TABLE replies", None])
def test_an_audit_that_is_none_is_named(damage: str | None, tmp_path: Path) -> None:
    federation_under_way(tmp_path)
    if damage is None:
        (tmp_path / AUDIT).write_bytes(b"no database" * 1000)
    else:
        with closing(sqlite3.connect(tmp_path / AUDIT)) as audit, audit:
            audit.execute(damage)
    if damage is not None and damage.startswith("DROP"):  # as before the first round is saved
        assert FederationSource(tmp_path).read().suspects == []
    else:
        with pytest.raises(ValueError, match="cannot be read as the audit"):
            FederationSource(tmp_path).read()


def test_a_reader_does_not_keep_a_writer_waiting_and_cannot_write(tmp_path: Path) -> None:
    """With a reader in the middle of a transaction a writer that waits for nobody writes."""
    checkpoint = federation_under_way(tmp_path)
    with closing(connect_read_only(tmp_path / AUDIT)) as reader:
        reader.execute("BEGIN")
        before = reader.execute("SELECT count(*) FROM replies").fetchone()[0]
        with closing(sqlite3.connect(tmp_path / AUDIT, timeout=0)) as writer, writer:
            writer.execute("INSERT INTO replies (round, client) VALUES (99, 1)")
        assert reader.execute("SELECT count(*) FROM replies").fetchone()[0] == before
        reader.execute("COMMIT")
        assert reader.execute("SELECT count(*) FROM replies").fetchone()[0] == before + 1
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.execute("DELETE FROM replies")
    assert len(checkpoint.rows()) == before + 1


def test_rounds_are_saved_and_read_at_the_same_time(tmp_path: Path) -> None:
    """What is read is always a whole number of rounds, and never fewer than before."""
    checkpoint, ended = Checkpoint(tmp_path), threading.Event()
    troubles: list[BaseException] = []
    seen: list[int] = []

    def watch() -> None:
        try:
            while not ended.is_set():
                seen.append(len(audit_of(tmp_path)))
        except BaseException as error:
            troubles.append(error)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        for round in range(1, 81):
            rows = [{"round": round, "client": c, "node": "n", "verdict": "accepted"} for c in range(10)]
            checkpoint.save(Saved(State(round, np.zeros((1, 1))), np.random.default_rng(0), [None]), rows)
    finally:
        ended.set()
        watching.join(30)
    assert troubles == []
    assert len(seen) > 5
    assert seen == sorted(seen)
    assert all(count % 10 == 0 for count in seen)
    assert len(checkpoint.rows()) == 800


def test_a_value_is_computed_again_when_its_files_have_changed(tmp_path: Path) -> None:
    file, calls = tmp_path / "a", []
    known = Remembered(lambda: calls.append(1) or len(calls), file)
    assert (known(), known()) == (1, 1)
    file.write_text("new")
    known.due = 0.0
    assert (known(), known()) == (2, 2)
    file.write_text("newer")
    known.due = float("inf")  # it took long, and rests
    assert known() == 2
