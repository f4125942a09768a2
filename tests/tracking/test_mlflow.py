"""What a run leaves in a real database of MLflow, and the model that loads from there."""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie as ct
from command import COTERIE, ENVIRONMENT, Done, coterie
from coterie._src.experiments import read_config
from coterie._src.experiments.callbacks import flattened
from interrupted import wait_for
from tracking.conftest import SMALL, Columns

pytest.importorskip("mlflow", reason="needs coterie[mlflow]")


def runs(place: Path) -> tuple[Any, list[Any]]:
    """The client of a database, and all runs in it, the first one first."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{place / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("coterie")
    assert experiment is not None
    return client, client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"])


def test_a_run_has_its_options_tags_and_files(tracked: tuple[Path, Done]) -> None:
    place, done = tracked
    assert (done.returncode, done.stderr) == (0, "Everything is in run/\n")
    client, (parent, *children) = runs(place)
    config = read_config(place / "run" / "config.toml")
    assert parent.data.params == {name: str(value) for name, value in flattened(config).items()}
    assert parent.data.params["algorithm.rounds"] == "12"
    tags = parent.data.tags
    assert (tags["version"], tags["seed"]) == (ct.__version__, "3")
    assert tags["command"].startswith("coterie run --set problem.clusters=2")
    assert parent.info.run_name == "run"
    assert {run.info.status for run in (parent, *children)} == {"FINISHED"}
    sent = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert sent >= {"config.toml", "summary.json", "trials.csv", "convergence.png", "report.html", "centres"}
    page = client.download_artifacts(parent.info.run_id, "report.html")
    assert Path(page).read_bytes() == (place / "run" / "report.html").read_bytes()


def test_every_method_has_its_metrics_by_round_and_by_trial(tracked: tuple[Path, Done], columns: Columns) -> None:
    client, (parent, *children) = runs(tracked[0])
    by_method = {run.data.tags["method"]: run for run in children}
    assert set(by_method) == {"ifca", "coterie", "local"}
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}

    def history(method: str, name: str) -> list[tuple[int, float]]:
        found = client.get_metric_history(by_method[method].info.run_id, name)
        return sorted((point.step, point.value) for point in found)

    for name in ("dist", "movement", "refused"):
        for method, values in columns("rounds.csv", name).items():
            assert history(method, f"rounds/{name}") == list(enumerate(values, start=1))
    assert history("ifca", "rounds/accepted") == [(t, 24.0) for t in range(1, 13)]
    sizes = [[value for _, value in history("ifca", f"rounds/sizes/{j}")] for j in (0, 1)]
    assert np.sum(sizes, axis=0).tolist() == [24.0] * 12
    for method, values in columns("trials.csv", "loss").items():
        wanted = [(trial, value) for trial, value in enumerate(values) if np.isfinite(value)]
        assert history(method, "trials/loss") == wanted
    summary = json.loads((tracked[0] / "run" / "summary.json").read_text())["methods"]
    for method, run in by_method.items():
        for kind in ("mean", "se"):
            assert run.data.metrics[f"{kind}/dist"] == summary[method]["dist"][kind]
        assert "rounds/strangers" not in run.data.metrics


PAGE = (Path(__file__).parents[2] / "docs" / "trackers.md").read_text(encoding="utf-8")
CHECKED = """
import sys
for wrong in (new.assign(school="nobody"), new.drop(columns="school")):
    try:
        model.predict(wrong)
    except ValueError as error:
        print(error)
print(sorted({"typer", "coterie._src.cli", "coterie._src.federation"} & set(sys.modules)))
"""


@pytest.fixture(scope="module")
def school_run(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with the run of own data that the page shows, whose data are gone, and a database with its model."""
    place = tmp_path_factory.mktemp("schools")
    shutil.copyfile(empty_database, place / "mlflow.db")
    rng = np.random.default_rng(0)
    names = ["north", "east", *(f"school {j}" for j in range(2, 8))]
    with (place / "pupils.csv").open("w", newline="") as stream:
        write = csv.writer(stream).writerow
        write(["school", "hours", "sex", "score"])
        for j, _ in itertools.product(range(8), range(30)):
            hours, sex = rng.normal(), rng.choice(["f", "m"])
            slope = 3.0 if j % 2 else -3.0
            write([names[j], hours, sex, slope * hours + (sex == "f") + 0.1 * rng.normal()])
    (command,) = re.findall(r"^    coterie (run .* --track .*)$", PAGE, flags=re.MULTILINE)
    done = coterie(*shlex.split(command), cwd=place)
    assert done.returncode == 0, done.stderr
    assert "this tracker" not in done.stderr
    (place / "pupils.csv").unlink()
    return place


def test_the_model_predicts_for_the_clients_of_the_run_without_the_command(school_run: Path) -> None:
    """As the page shows, by the personal models, in a process that has not loaded the command."""
    (example,) = re.findall(r"```python\n(import mlflow\n.*?)```", PAGE, flags=re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example + CHECKED], cwd=school_run, env=ENVIRONMENT, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    predicted, unknown, nameless, loaded = done.stdout.splitlines()
    assert [float(one) for one in predicted.strip("[]").split()] == pytest.approx([-5.0, 6.0], abs=0.2)
    assert unknown == "client: nobody was not in the run"
    assert nameless.startswith("predict: needs a frame with the column school")
    assert loaded == "[]"


def test_the_model_is_files_of_the_run_and_nothing_pickled(school_run: Path) -> None:
    (artifacts,) = (school_run / "mlruns" / "models").glob("*/artifacts")
    files = {str(file.relative_to(artifacts)): file for file in artifacts.rglob("*") if file.is_file()}
    data = {name.removeprefix("data/run/"): file for name, file in files.items() if name.startswith("data/run/")}
    assert set(data) == {
        "config.toml", "audit.csv", "columns.json", "membership.json", "centres/0.safetensors", "personal/0.safetensors"
    }  # fmt: skip
    assert all(file.read_bytes() == (school_run / "pupils" / name).read_bytes() for name, file in data.items())
    assert set(files) - {f"data/run/{name}" for name in data} == {
        "MLmodel", "conda.yaml", "python_env.yaml", "requirements.txt",
    }  # fmt: skip
    described = files["MLmodel"].read_text()
    assert "loader_module: coterie.callbacks" in described
    assert "python_model" not in described
    assert f"coterie=={ct.__version__}" in files["requirements.txt"].read_text()


def test_the_model_of_numbered_features_is_that_of_the_clusters(tracked: tuple[Path, Done]) -> None:
    import pandas as pd

    from coterie.callbacks import _load_pyfunc

    place, _ = tracked
    (data,) = (place / "mlruns" / "models").glob("*/artifacts/data/run")
    model, models = _load_pyfunc(str(data)), ct.load(place / "run", "ifca")
    x = np.random.default_rng(0).standard_normal((4, 6))
    frame = pd.DataFrame(x, columns=list("abcdef")).assign(client=[0, 5, 0, 7])
    found = model.predict(frame)
    wanted = [
        models.predict(row[None], model.labels[str(client)])[0] for row, client in zip(x, (0, 5, 0, 7), strict=True)
    ]
    assert found == pytest.approx(wanted)
    assert len(set(model.labels.values())) == 2


def test_ctrl_c_ends_the_runs_of_all_trackers(empty_database: Path, tmp_path: Path) -> None:
    shutil.copyfile(empty_database, tmp_path / "mlflow.db")
    command = [
        *COTERIE, "run", *SMALL, "--trials", "5000", "--out", "run", "--track", "mlflow:sqlite:///mlflow.db",
        "--track", "jsonl:events.jsonl",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    events = tmp_path / "events.jsonl"
    try:
        wait_for(lambda: events.exists() and '"event": "trial"' in events.read_text(), process)
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    assert (lines[-1]["event"], lines[-1]["status"]) == ("end", "interrupted")
    kept = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [line["trial"] for line in lines if line["event"] == "trial"][::3] == kept["trials_finished"]
    client, (parent, *children) = runs(tmp_path)
    assert {run.info.status for run in (parent, *children)} == {"KILLED"}
    assert "summary.json" in {file.path for file in client.list_artifacts(parent.info.run_id)}


def test_a_server_that_is_away_is_one_line_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    away = "mlflow:http://ada:secret@127.0.0.1:9"
    done = coterie("run", *SMALL, "--out", "run", "--track", away, "--track", "jsonl:events.jsonl", cwd=tmp_path)
    assert done.returncode == 0
    message, end = done.stderr.splitlines()
    assert message.startswith("note: mlflow:http://***@127.0.0.1:9: ")
    assert message.endswith("; the run goes on without this tracker")
    assert "secret" not in done.stdout + done.stderr + (tmp_path / "events.jsonl").read_text()
    assert end == "Everything is in run/"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "complete"
    assert '"event": "end"' in (tmp_path / "events.jsonl").read_text()


@pytest.mark.parametrize(
    ("uri", "line"),
    [
        ("sqlite:///", "must be sqlite:///FILE"),
        ("sqlite:///file/below.db", "file is no folder"),
        ("http://", "names no host"),
        ("nothing://known", "unsupported URI 'nothing://known'"),
    ],
)
def test_a_wrong_address_is_one_line_before_the_run(uri: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = coterie("run", *SMALL, "--out", "run", "--track", f"mlflow:{uri}", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"coterie: track: mlflow:{uri}: ")
    assert line in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_whose_task_predicts_nothing_has_no_model(tracked: tuple[Path, Done], tmp_path: Path) -> None:
    from coterie._src.tracking.pyfunc import has_model

    shutil.copytree(tracked[0] / "run", tmp_path / "run")
    assert has_model(tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    text = config.read_text()
    config.write_text(re.sub(r"methods = .*", 'methods = ["local"]', text))
    assert not has_model(tmp_path / "run")
    config.write_text(text)
    (tmp_path / "run" / "centres" / "0.safetensors").unlink()
    assert not has_model(tmp_path / "run")
    options = ["--set", "problem.kind=gaussian-means", "--set", "algorithm.rounds=1", "--set", "run.workers=1"]
    means = coterie("run", *options, "--trials", "1", "--method", "ifca", "--out", "means", cwd=tmp_path)
    assert means.returncode == 0
    assert not has_model(tmp_path / "means")
