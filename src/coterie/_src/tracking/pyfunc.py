"""The models of a run as a model of MLflow: files of the run's folder, and nothing pickled."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from coterie import __version__
from coterie._src.experiments.config import Config
from coterie._src.experiments.continuation import read_run
from coterie._src.experiments.methods import METHODS, OWN
from coterie._src.experiments.models import Models, load
from coterie._src.experiments.problems import Networks
from coterie._src.experiments.run_folder import COLUMNS
from coterie._src.experiments.toml import read_config

LOADER = "coterie.callbacks"
"""The module whose `_load_pyfunc` loads the model; its name stands in every model."""
CENTRES, PERSONAL = "centres/0.safetensors", "personal/0.safetensors"
FILES = ("config.toml", CENTRES, PERSONAL, "audit.csv", "membership.json", COLUMNS)
"""The files of a run's folder that a model consists of."""


def _served_method(config: Config) -> str | None:
    """The method whose models predict: the first of the run that puts the clients into clusters."""
    return next((name for name in config.methods if METHODS[name].clusters_clients), None)


def has_model(folder: Path) -> bool:
    """Whether the run in a folder has models that predict."""
    if not (folder / CENTRES).is_file():
        return False
    config = read_config(folder / "config.toml")
    predicts = isinstance(config.problem, Networks) or config.problem.loss_of() is not None
    return predicts and _served_method(config) is not None


def save(folder: Path, path: Path, model: Any = None) -> None:
    """Write the models of the run in a folder as a model of MLflow; model: the `mlflow.models.Model` to add them to."""
    import mlflow.pyfunc

    extra = "[torch]" if isinstance(read_config(folder / "config.toml").problem, Networks) else ""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "run"
        for name in FILES:
            if (folder / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / name, copy / name)
        mlflow.pyfunc.save_model(
            path,
            loader_module=LOADER,
            data_path=str(copy),
            mlflow_model=model,
            pip_requirements=[f"coterie{extra}=={__version__}", "pandas"],
        )


def _load_pyfunc(path: str) -> ClientModels:
    """What `mlflow.pyfunc.load_model` calls with the place of the files."""
    folder = Path(path)
    method = _served_method(read_config(folder / "config.toml"))
    run = read_run(folder, method)
    personal = load_file(folder / PERSONAL) if (folder / PERSONAL).is_file() else {}
    labels = dict(zip(run.names, run.labels.tolist(), strict=True))
    return ClientModels(load(folder, method), labels, personal.get(f"{str(method).removesuffix(OWN)}{OWN}"))


@dataclass(frozen=True)
class ClientModels:
    """Predicts for the clients of a run. labels: their clusters; personal: (m, d), in the same order."""

    models: Models
    labels: dict[str, int]
    personal: NDArray[Any] | None

    def predict(self, frame: Any, params: dict[str, Any] | None = None) -> NDArray[Any]:
        """(n,): predictions for a pandas frame, by the personal model of each row's client or that of its cluster.

        The column that names the client is that of the run, by default `client`; the other columns are the features.
        """
        column = getattr(self.models.config.problem, "client", "") or "client"
        if column not in getattr(frame, "columns", ()):
            raise ValueError(f"predict: needs a frame with the column {column}, which names the client of each row")
        names = frame[column].astype(str).to_numpy()
        features = frame.drop(columns=[column])
        if self.models.encoding is None:
            features = features.to_numpy(dtype=np.float64)
        found: dict[int, Any] = {}
        for name in dict.fromkeys(names.tolist()):
            rows = np.flatnonzero(names == name)
            some = features[rows] if self.models.encoding is None else features.iloc[rows]
            found |= dict(zip(rows.tolist(), self._predicted(name, some), strict=True))
        return np.array([found[row] for row in range(len(names))])

    def _predicted(self, name: str, features: Any) -> NDArray[Any]:
        if name not in self.labels:
            raise ValueError(f"client: {name} was not in the run")
        if self.personal is not None:
            return self.models.predict_by(self.personal[list(self.labels).index(name)], features)
        if self.labels[name] < 0:
            raise ValueError(f"client: {name} is in no cluster")
        return self.models.predict(features, self.labels[name])
