"""The metrics, read by a strict parser."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coterie._src.experiments.process import Process
from coterie._src.watch.federated import FederationSource
from coterie._src.watch.metrics import metrics
from coterie._src.watch.snapshot import STATES, Rounds, Snapshot, Suspect
from coterie._src.watch.sources import RunSource
from hostile import NAMES
from watch.exposition import Samples, parsed
from watch.folders import ESCAPE, as_if_killed, federation_under_way, run_under_way

CONTROLS = (*range(10), *range(11, 32), *range(127, 160), 0xD800)


def of(found: Samples, name: str, **labels: str) -> float:
    return found[f"coterie_{name}"][frozenset(labels.items())]


def test_a_run_as_metrics(tmp_path: Path, gone: Process) -> None:
    run_under_way(tmp_path / "run")
    source = RunSource(tmp_path / "run")
    found = parsed(metrics(source.read()))
    place = {"trial": "0", "method": "ifca", "process": str(os.getpid())}
    assert of(found, "trials") == 3
    assert of(found, "finished_trials") == 0
    assert of(found, "finished_rounds", **place) == 7
    assert of(found, "max_rounds", **place) == 12
    assert of(found, "cluster_clients", **place, cluster="0") == 12
    assert of(found, "cluster_loss", **place, cluster="0") == 0.25
    assert len(found["coterie_cluster_loss"]) == 1  # the other is not known
    assert of(found, "replies", **place, verdict="refused") == 2
    assert of(found, "client_refused_ratio", client="oslo") == 0.5
    assert of(found, "remaining_seconds") >= 0
    for state in STATES:
        assert of(found, "state", state=state) == (state == "running")
    as_if_killed(tmp_path / "run", gone)
    found = parsed(metrics(source.read()))
    assert of(found, "state", state="gone") == 1
    assert "coterie_remaining_seconds" not in found


def test_a_federation_as_metrics_without_labels_that_say_nothing(tmp_path: Path) -> None:
    federation_under_way(tmp_path)
    found = parsed(metrics(FederationSource(tmp_path).read()))
    assert of(found, "finished_rounds") == 5
    assert of(found, "replies", verdict="accepted") == 7
    assert of(found, "cluster_clients", cluster="1") == 3
    assert of(found, "client_refused_ratio", client="client 3") == 1.0


@pytest.mark.parametrize("name", [*NAMES, ESCAPE, 'a"b\\c\nd\re', "\\", '"', "\ud800", ""])
def test_any_name_stays_a_label(name: str) -> None:
    suspects = [Suspect(name, 0, 1.0, float("nan"), float("inf")), Suspect("other", 0, 0.0, 0.0, 0.0)]
    found = parsed(metrics(Snapshot("run", "t", "running", rounds=[Rounds(name, 1, 2, 3)], suspects=suspects)))
    samples = found["coterie_client_refused_ratio"]
    assert len(samples) == 2
    shown = next(dict(labels)["client"] for labels, value in samples.items() if value == 1.0)
    assert shown == name.translate(dict.fromkeys(CONTROLS, "�"))


def test_clients_of_the_same_name_are_one_sample() -> None:
    twins = [Suspect("twin\x07", 0, 1.0, 0.0, 0.0), Suspect("twin\x08", 1, 0.5, 0.0, 0.0)]
    found = parsed(metrics(Snapshot("run", "t", "running", suspects=twins)))
    assert of(found, "client_refused_ratio", client="twin\ufffd") == 1.0


def test_one_trial_of_two_configurations_is_two_samples() -> None:
    rounds = [Rounds("ifca", 0, 2, 3, process=process) for process in (11, 12)]
    found = parsed(metrics(Snapshot("sweep", "t", "running", rounds=rounds)))
    assert len(found["coterie_finished_rounds"]) == 2
