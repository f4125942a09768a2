"""What a federation leaves with trackers: in-process sites, a real database of MLflow and a file of JSON lines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs coterie[flower]")

from coterie._src.experiments.toml import read_config
from coterie._src.federation.apps import RunSettings, apps, run_server
from in_process import InProcessGrid
from tracking.conftest import empty_database  # noqa: F401  a fixture

SITES = 60


def served(place: Path, track: str, patience: float = 20.0, sites: int = SITES) -> None:
    """A federation of schools, with as many of its sites as that."""
    file = place / "config.toml"
    file.write_text(
        '[problem]\nkind = "schools-like"\nclusters = 2\n[algorithm]\nrounds = 3\nmax_byzantine = 0.05\n',
        encoding="utf-8",
    )
    settings = RunSettings("brifca-median", SITES, SITES, patience, 20.0, folder=str(place / "out"), track=track)
    run_server(read_config(file), settings, InProcessGrid(apps(file)[1], range(sites)))


def events(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_a_federation_is_tracked_by_round_and_with_the_scores_of_its_sites(
    empty_database: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    from mlflow import MlflowClient

    shutil.copyfile(empty_database, tmp_path / "mlflow.db")
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    served(tmp_path, f"mlflow:{address} 'jsonl:{tmp_path / 'its events.jsonl'}'")
    start, *rounds, plain, own, end = events(tmp_path / "its events.jsonl")
    assert (start["event"], start["params"]["federation.method"]) == ("start", "brifca-median")
    assert [(row["event"], row["round"], row["refused"]) for row in rounds] == [("round", t, 0) for t in (1, 2, 3)]
    assert all(sum(map(int, row["sizes"].split())) == SITES for row in rounds)
    assert end["status"] == "complete"
    evaluation = json.loads((tmp_path / "out" / "evaluation.json").read_text(encoding="utf-8"))["models"]
    for found, method, model in ((plain, "brifca-median", "cluster"), (own, "brifca-median+own", "personal")):
        assert (found["event"], found["method"], found["rounds"]) == ("trial", method, 3)
        assert found["test_loss"] == pytest.approx(evaluation[model]["test_loss"], rel=1e-5)
        assert found["test_r2"] == pytest.approx(evaluation[model]["test_score"], rel=1e-5)

    client = MlflowClient(tracking_uri=address)
    experiment = client.get_experiment_by_name("coterie")
    assert experiment is not None
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    history = client.get_metric_history(runs["brifca-median"].info.run_id, "rounds/movement")
    assert [point.value for point in history] == pytest.approx([row["movement"] for row in rounds])
    assert runs["brifca-median+own"].data.metrics["trials/test_r2"] == pytest.approx(own["test_r2"])
    sent = {file.path for file in client.list_artifacts(runs["out"].info.run_id)}
    assert sent >= {"config.toml", "centres.safetensors", "evaluation.json", "report.html"}


def test_a_federation_that_fails_has_failed_with_its_trackers_too(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^min_clients: only 5 of 60 nodes"):
        served(tmp_path, f"jsonl:{tmp_path / 'events.jsonl'}", patience=0.1, sites=5)
    assert [(one["event"], one.get("status")) for one in events(tmp_path / "events.jsonl")] == [
        ("start", None),
        ("end", "failed"),
    ]


def test_a_tracker_that_cannot_be_meant_stops_a_federation_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^track: must be mlflow:URI, tensorboard:DIR or jsonl:FILE, got nowhere$"):
        served(tmp_path, "nowhere")
    assert not (tmp_path / "out").exists()
