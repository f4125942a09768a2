"""Runs for MLflow."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from coterie._src.experiments.callbacks import RunInfo, Status
from coterie._src.experiments.outcome import TrialResult
from coterie._src.experiments.summary import summarise
from coterie._src.tracking import pyfunc
from coterie._src.tracking.base import (
    Entry,
    Point,
    Tracker,
    check_package,
    check_place,
    first_line,
    points,
    tags,
    without_passwords,
)

ARTIFACTS = (
    *("config.toml", "summary.json", "trials.csv", "convergence.png", "report.html", "grid.toml", "summary.csv"),
    *("centres.safetensors", "evaluation.json", "progress.json"),
)
"""The files of the folder of a run, a sweep or a federation that are sent, beside `centres/`."""
MODEL = "model"
DATABASES = ("mysql", "postgresql", "mssql")
"""Schemes of servers to which MLflow connects when its client is made."""
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""Settings of MLflow where the environment has none: it is silent, and gives up a server within a minute."""
MAX_PARAMS, MAX_METRICS, MAX_CHARACTERS = 100, 1000, 6000
"""What MLflow takes at once, and of one option."""
STATUS: dict[Status, str] = {"complete": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MLflow(Tracker):
    """Writes a run with its options, metrics, files and model to MLflow; needs `coterie[mlflow]`.

    A run of MLflow has the options as parameters, version, seed and command as tags and, where the run has a folder,
    its tables, pages and centres as artifacts and a model, which `mlflow.pyfunc.load_model("runs:/RUN/model")` loads.
    Every method is a child run with its metrics: `rounds/NAME` by round, of trial 0; `trials/NAME` by trial;
    `mean/NAME` and `se/NAME` over the trials.

    Parameters
    ----------
    uri : str
        Where MLflow keeps its runs, such as "sqlite:///mlflow.db" or "http://localhost:5000".
    experiment : str, optional
        The experiment of MLflow; by default that of the environment variable MLFLOW_EXPERIMENT_NAME, or "coterie".

    Examples
    --------
    >>> import coterie as ct
    >>> from coterie.callbacks import MLflow
    >>> federation = ct.mixed_regression(0, clients=20, clusters=2, samples=50, dim=3)
    >>> tracker = MLflow("sqlite:///mlflow.db")  # doctest: +SKIP
    >>> result = ct.fit(federation, clusters=2, callbacks=[tracker])  # doctest: +SKIP
    """

    name = "mlflow"

    def __init__(self, uri: str, experiment: str | None = None) -> None:
        check_package(self.name, "mlflow")
        for variable, value in ENVIRONMENT.items():
            os.environ.setdefault(variable, value)
        import_module("mlflow")  # a second, and not while rounds go on
        self.target = uri
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", "coterie")
        self._uri, self._artifacts = uri, None
        parts = urlsplit(uri)
        if parts.scheme == "sqlite":
            file = Path(parts.path[1:])
            if not file.name:
                raise ValueError(f"track: mlflow:{uri}: must be sqlite:///FILE")
            check_place(f"mlflow:{uri}", file, is_folder=False)
            self._uri = f"sqlite:///{file.absolute()}"
            self._artifacts = (file.absolute().parent / "mlruns").as_uri()
        elif parts.scheme.partition("+")[0] not in DATABASES:
            _check_uri(uri)

    def begin(self, run: RunInfo) -> None:
        """Make the run with its options and tags."""
        from mlflow import MlflowClient

        self._folder = run.folder
        self._children: dict[str, str] = {}
        self._client: Any = MlflowClient(tracking_uri=self._uri)
        known = self._client.get_experiment_by_name(self._experiment)
        self._experiment_id = (
            self._client.create_experiment(self._experiment, self._artifacts) if known is None else known.experiment_id
        )
        name = None if run.folder is None else run.folder.resolve().name
        self._run = self._client.create_run(self._experiment_id, tags=tags(run), run_name=name).info.run_id
        self._log_params(self._run, run.params)

    def write(self, entries: Sequence[Entry]) -> None:
        """Write the metrics of each method to its run."""
        by_method: dict[str, list[Point]] = {}
        for point in points(entries):
            by_method.setdefault(point.method, []).append(point)
        for method, own in by_method.items():
            self._log(method, own)

    def finish(self, status: Status, results: Sequence[TrialResult]) -> None:
        """Write means, files and the model, and end the runs."""
        try:
            for method, statistics in summarise(results).items():
                means = [
                    Point(0.0, method, f"{kind}/{metric}", 0, float(value))
                    for metric, found in statistics.items()
                    for kind in ("mean", "se")
                    if (value := found[kind]) is not None
                ]
                self._log(method, means)
            if self._folder is not None:
                self._send_files(self._folder)
                self._send_model(self._folder)
        finally:
            for run in (*self._children.values(), self._run):
                self._client.set_terminated(run, STATUS[status])

    def _log_params(self, run: str, options: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(key, str(value)[:MAX_CHARACTERS]) for key, value in options.items()]
        for first in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(run, params=params[first : first + MAX_PARAMS])

    def _log(self, method: str, own: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        if method not in self._children:
            name, options = self.curves.get(method, (method, {}))
            parent = {"mlflow.parentRunId": self._run, "method": name}
            child = self._client.create_run(self._experiment_id, tags=parent, run_name=method).info.run_id
            self._children[method] = child
            self._log_params(child, options)
        metrics = [Metric(_metric_name(p.name), p.value, round(1000 * p.seconds), p.step) for p in own]
        for first in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self._children[method], metrics=metrics[first : first + MAX_METRICS])

    def _send_files(self, folder: Path) -> None:
        for name in ARTIFACTS:
            if (folder / name).is_file():
                self._client.log_artifact(self._run, str(folder / name))
        if (folder / "centres").is_dir():
            self._client.log_artifacts(self._run, str(folder / "centres"), "centres")

    def _send_model(self, folder: Path) -> None:
        """Send the model of trial 0, if there is one that predicts."""
        from mlflow.entities import LoggedModelOutput
        from mlflow.models import Model

        if not pyfunc.has_model(folder):
            return
        made = self._client.create_logged_model(self._experiment_id, name=MODEL, source_run_id=self._run)
        with tempfile.TemporaryDirectory() as place:
            pyfunc.save(folder, Path(place) / MODEL, Model(run_id=self._run, model_id=made.model_id))
            self._client.log_model_artifacts(made.model_id, str(Path(place) / MODEL))
        self._client.finalize_logged_model(made.model_id, "READY")
        self._client.log_outputs(self._run, [LoggedModelOutput(made.model_id, 0)])


def _metric_name(name: str) -> str:
    return re.sub(r"[^\w.\-:/ ]", "_", name, flags=re.ASCII)


def _check_uri(uri: str) -> None:
    """Raise a ValueError for an address that MLflow does not understand; nothing is sent to it."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    parts = urlsplit(uri)
    problem = "" if parts.scheme not in ("http", "https") or parts.hostname else "names no host"
    try:
        MlflowClient(tracking_uri=uri)
    except MlflowException as error:
        problem = f"{first_line(error).partition('. ')[0]}; a file of your own is sqlite:///mlflow.db"
    if problem:
        raise ValueError(f"track: mlflow:{without_passwords(uri)}: {problem}")
