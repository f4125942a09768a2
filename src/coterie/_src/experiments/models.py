"""The models of a finished run, for use with new clients."""

from __future__ import annotations

import csv
import difflib
import json
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from coterie._src.arrays import as_numpy, like
from coterie._src.data import Clients, Encoding, rescaled, without_names
from coterie._src.experiments.config import Config
from coterie._src.experiments.methods import OWN
from coterie._src.experiments.personal import PersonalModel, personal_model
from coterie._src.experiments.problems import ClientTables, Images, Networks, OwnNetwork
from coterie._src.experiments.problems.networks import on_device
from coterie._src.experiments.run_folder import COLUMNS
from coterie._src.experiments.toml import read_config
from coterie._src.membership import Membership, cluster_of
from coterie._src.tasks import TASKS

LOCAL_STEP = 0.1
"""The step size of a network's own fit where `algorithm.step` is "auto"."""


def load(folder: str | Path, method: str | None = None, trial: int = 0) -> Models:
    """The cluster models in the folder of `coterie run --out FOLDER`, or of a federation.

    Parameters
    ----------
    folder : str or Path
        Where the results are.
    method : str, optional
        The method; by default the first of the run.
    trial : int, default 0
        The trial; a federation has only trial 0.

    Returns
    -------
    Models
        With `predict(x, client=…)` and `cluster_of(client)` for the clients of the run, `assign(x, y)`,
        `predict(x, cluster)` and `personalise(x, y)` for others, `centres` and, for networks, `module(cluster)`.

    Examples
    --------
    >>> import coterie as ct
    >>> models = ct.load("runs/digits")  # doctest: +SKIP
    >>> models.predict(x, client="oslo")  # a client of the run  # doctest: +SKIP
    >>> cluster = models.assign(x, y)  # which cluster is this client's? -1: none of them  # doctest: +SKIP
    >>> models.predict(new_x, cluster)  # by the model of that cluster  # doctest: +SKIP
    >>> models.personalise(x, y).predict(new_x)  # by a model of the client's own, shrunk towards it  # doctest: +SKIP
    """
    path = Path(folder)
    config = read_config(path / "config.toml")
    file = path / "centres" / f"{trial}.safetensors"
    if not file.is_file() and trial == 0:
        file = path / "centres.safetensors"
    if not file.is_file():
        raise ValueError(f"{file}: no such file; the run has no trial {trial}")
    tensors = _read_tensors(file)
    chosen = config.methods[0] if method is None else method
    if chosen not in tensors:
        raise ValueError(f"{file}: has no method {chosen}; it has {', '.join(sorted(tensors))}")
    encoding = _read_encoding(path / COLUMNS)
    membership = _read_membership(path / "membership.json", chosen, trial)
    source = (path, chosen) if trial == 0 else None
    return Models(config, tensors[chosen], encoding=encoding, membership=membership, source=source)


def _read_tensors(file: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a file by their names, those of the methods."""
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file}: cannot be read as centres ({error})") from None


def read_labels(file: Path, method: str, clusters: int) -> dict[str, int]:
    """The cluster of every client in trial 0 of a method, by its name, from audit.csv."""
    with file.open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row.get("trial") == "0" and row.get("method") == method]
    try:
        found = {row["client"]: int(row["cluster"]) for row in rows}
    except (KeyError, ValueError, TypeError):
        raise ValueError(f"{file}: must have the columns client and cluster, a whole number") from None
    if not found or min(found.values()) < -1 or max(found.values()) >= clusters:
        raise ValueError(f"{file}: the clusters of {method} must be from -1 to {clusters - 1}")
    return found


def _read_encoding(file: Path) -> Encoding | None:
    """The encoding of the columns; None where there is none, as in federations and in runs of earlier versions."""
    if not file.is_file():
        return None
    try:
        return Encoding.from_dict(json.loads(file.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file}: cannot be read as an encoding of columns ({error})") from None


def _read_membership(file: Path, method: str, trial: int) -> Membership | None:
    """What is known about the losses of the members; None for another trial than 0, a federation or an older run."""
    if trial or not file.is_file():
        return None
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        found = values.get(method) if isinstance(values, dict) else values
        return None if found is None else Membership.from_dict(found)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


@dataclass
class Models:
    """One model per cluster. centres: (k, dim). membership: the usual losses in each cluster, where they are known.

    Samples are a pandas, Polars or Arrow frame with the columns of a client's file; an array (n, columns) of these, if
    all are numbers; or images with pixels from 0 to 1, flat or not. encoding: what is done to the columns.
    """

    config: Config
    centres: NDArray[Any]
    cluster: int | None = None  # the one of the last `assign`, which `predict` uses by default until version 0.2
    encoding: Encoding | None = None
    membership: Membership | None = None
    source: tuple[Path, str] | None = None  # the folder and the method that they come from, for trial 0

    def assign(self, x: Any, y: Any, *, nearest: bool = False) -> int:
        """The cluster whose model has the lowest loss on a client's samples; -1 if the client fits none of them.

        It fits none if a member of that cluster would have such a loss with a probability of less than 1 %. nearest:
        return the cluster of lowest loss in any case.
        """
        task = self._task(x, y)
        centres = like(self.centres, task.clients.features)
        found = cluster_of(task, centres, None if nearest else self.membership)
        self.cluster = None if found < 0 else found
        return found

    @cached_property
    def labels(self) -> dict[str, int]:
        """The cluster of every client of the run by its name, -1 for none; empty where the folder does not say."""
        file = None if self.source is None else self.source[0] / "audit.csv"
        if self.source is None or file is None or not file.is_file():
            return {}
        return read_labels(file, self.source[1], len(self.centres))

    def cluster_of(self, client: str) -> int:
        """The cluster of a client of the run; a ValueError for a client that is in none."""
        self._check_known(client)
        if self.labels[client] < 0:
            raise ValueError(f"client: {client} is in no cluster")
        return self.labels[client]

    def _check_known(self, client: str) -> None:
        if not self.labels:
            raise ValueError("client: the clusters of the clients are known for trial 0 of a run; name a cluster")
        if client not in self.labels:
            near = difflib.get_close_matches(str(client), self.labels, n=1)
            raise ValueError(f"client: {client} was not in the run{f'; did you mean {near[0]}?' if near else ''}")

    def _model_of(self, client: str) -> NDArray[Any]:
        """(d,): the personal model of a client or, without one, that of its cluster."""
        self._check_known(client)
        if self.source is not None:
            path, method = self.source
            file = path / "personal" / "0.safetensors"
            rows = _read_tensors(file).get(method.removesuffix(OWN) + OWN) if file.is_file() else None
            if rows is not None:
                if rows.shape != (len(self.labels), self.centres.shape[1]):
                    raise ValueError(f"{file}: must have a model for each of the {len(self.labels)} clients")
                own: NDArray[Any] = rows[list(self.labels).index(client)]
                return own
        found: NDArray[Any] = self.centres[self.cluster_of(client)]
        return found

    def predict(self, x: Any, cluster: int | None = None, *, client: str | None = None) -> NDArray[Any]:
        """(n,): the predictions of a model, classes or numbers.

        cluster: the model of this cluster. client: that of this client of the run: its personal one or, where the run
        has none, that of its cluster.
        """
        if client is not None:
            if cluster is not None:
                raise ValueError("predict: name a client or a cluster, and not both")
            return self.predict_by(self._model_of(client), x)
        chosen = self.cluster if cluster is None else cluster
        if chosen is None:
            raise ValueError("cluster: must be named; assign(x, y) finds that of a client by its samples")
        if cluster is None:
            hint = f"predict(x, cluster={chosen})"
            warnings.warn(f"predict(x) after assign(x, y): name the cluster, {hint}", DeprecationWarning, stacklevel=2)
        if not 0 <= chosen < len(self.centres):
            raise ValueError(f"cluster: must be from 0 to {len(self.centres) - 1}, got {chosen}")
        return self.predict_by(self.centres[chosen], x)

    def personalise(self, x: Any, y: Any, *, nearest: bool = False) -> PersonalModel:
        """The model of a new client: fitted to its samples and shrunk towards the model of its cluster.

        With `predict(x)`, `model`, `cluster`, `shrinkage` and `anchor`. The cluster is that of `assign`; a client that
        fits none has a model of its own. nearest: it is in the cluster of lowest loss in any case. Nothing is stored.
        """
        task = self._task(x, y)
        if hasattr(task, "fitting"):  # a network's own fit begins with fresh parameters and has as many steps as a run
            options, origin = self.config.algorithm, np.random.default_rng(self.config.run.seed)
            step = LOCAL_STEP if options.step == "auto" else options.step
            task = replace(task.fitting(options.rounds, step), origin=task.fresh(origin))
        return personal_model(task, self.centres, None if nearest else self.membership, self.predict_by)

    def predict_by(self, model: NDArray[Any], x: Any) -> NDArray[Any]:
        """(n,): the predictions of a model (d,), such as that of one client."""
        task = self._task(x, None)
        features = task.clients.features
        return as_numpy(task.predict(like(model, features), features))

    def module(self, cluster: int) -> Any:
        """The `torch.nn.Module` of a cluster."""
        if not isinstance(self.config.problem, Networks):
            raise ValueError(f"module: {self.config.problem.kind} has no network; see centres")
        task = self._task(np.zeros((1, self._columns)), None)
        task.model.load_state_dict(task.state(like(self.centres[cluster], task.clients.features)))
        return task.model

    @property
    def _columns(self) -> int:
        """The number of features of a sample, computed from the dimension of a centre."""
        problem, dim = self.config.problem, int(self.centres.shape[1])
        if isinstance(problem, OwnNetwork):
            return problem.width
        if isinstance(problem, Images):
            if not problem.hidden:
                return dim // problem.classes - 1
            return (dim - problem.classes * (problem.hidden + 1)) // problem.hidden - 1
        return dim // (int(getattr(problem, "classes", 1)) if problem.loss_of() == "softmax" else 1)

    def _task(self, x: Any, y: Any | None) -> Any:
        """The run's task for one client; without targets only for predictions."""
        problem = self.config.problem
        for given, values in (("x", without_names("x", x) if self.encoding is None else None), ("y", y)):
            if values is not None and not np.isfinite(as_numpy(values)).all():
                raise ValueError(f"{given} holds a value that is not a finite number")
        features = as_numpy(x).reshape(len(x), -1) if self.encoding is None else self.encoding.features(x)
        if isinstance(problem, ClientTables):
            # in float64, as the files are read: far from 0 a float32 loses digits when the offset is subtracted
            features = rescaled(features.astype(np.float64), problem.offset, problem.scale)
            if problem.adds_intercept:
                features = np.concatenate([features, np.ones((len(features), 1))], axis=1)
        features = features.astype(problem.dtype)
        if features.shape[1] != self._columns:
            raise ValueError(f"x: must have {self._columns} features for each sample, got {features.shape[1]}")
        network = isinstance(problem, Networks)
        kind = np.int64 if isinstance(problem, Networks) and problem.has_classes else np.dtype(problem.dtype)
        targets = np.zeros(len(features)) if y is None else as_numpy(y)
        clients = Clients(features, targets.astype(kind), np.array([len(features)]))
        if network:
            return problem.build_task(on_device(clients, "cpu"))
        if (name := problem.loss_of()) is not None:
            return TASKS[name].model(clients, getattr(problem, "classes", 2))
        raise ValueError("predict: the mean task has no predictions; see centres")
