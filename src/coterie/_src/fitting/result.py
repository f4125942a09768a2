"""What `ct.fit` returns."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie._src.arrays import as_numpy, like
from coterie._src.data import Clients, Encoding, without_names
from coterie._src.diagnostics import Diagnostics
from coterie._src.experiments.changes import Changes
from coterie._src.experiments.outcome import Row
from coterie._src.experiments.personal import PersonalModel, personal_model
from coterie._src.fitting.inputs import numbers
from coterie._src.membership import Membership, cluster_of
from coterie._src.metrics import Metrics
from coterie._src.tasks import TASKS, Task


@dataclass(frozen=True)
class Result:
    """What `ct.fit` found; made by `ct.fit` alone.

    Attributes
    ----------
    method : str
        The name of the method.
    centres : ndarray of shape (k, d)
        One model per cluster, in the coordinates of the data; with an intercept its weight comes last.
    labels : ndarray of shape (m,)
        The cluster of every client.
    rounds : list of dict
        One row per round, as `rounds.csv` of `coterie run` has them.
    audit : list of dict
        One row per client: its cluster, and how often its replies were trimmed, refused or missing; of methods that
        cluster the clients also its loss there, its suspicion, −log₁₀ of the probability that a member has such a loss
        or a larger one, and the evidence in words, "" for a client that does not stand out.
    metrics : dict
        What the tables show: loss, rounds, seconds, clusters and, with a truth, matched_dist, oracle_ratio,
        worst_ratio and ari.
    diagnostics : Diagnostics or None
        Whether the clusters are apart, which clients could belong to another one, whether the start was unique, and
        whether the bound on Byzantine clients was reached; `diagnostics.lines(names)` says it in words.
    personal : ndarray of shape (m, d) or None
        The model of every client, shrunk towards that of its cluster; None without `personalise="shrink"`.
    clients : list of dict
        One row per client, where samples were held out: its cluster, and the held-out scores of its cluster's model, of
        its personal one, of one model for all, and of what it could have alone, and which of them is best.
    comparison : str
        For how many clients the fitted models are better than what they could have alone, in words.
    names : tuple of str
        The names of the clients.
    encoding : Encoding or None
        What was done to the columns of files or of frames, which `predict` and `assign` repeat; `encoding.lines()`
        says it in words. None for other data.
    membership : Membership or None
        The usual losses of the members of each cluster, by which `assign` judges a new client.
    changes : Changes or None
        What is different from the earlier run, where the fit continued one; `changes.lines()` says it in words.

    Examples
    --------
    >>> import coterie as ct
    >>> result = ct.fit({"a": ([[0.0], [1.0]], [1.0, 3.0]), "b": ([[1.0], [2.0]], [3.0, 5.0])}, clusters=1)
    >>> result.cluster_of("b"), result.predict([[3.0]], client="b").round().tolist()
    (0, [7.0])
    """

    method: str
    centres: NDArray[Any]
    labels: NDArray[np.int64]
    rounds: list[Row] = field(repr=False)
    audit: list[Row] = field(repr=False)
    metrics: Metrics
    diagnostics: Diagnostics | None = field(repr=False)
    personal: NDArray[Any] | None = field(repr=False)
    clients: list[Row] = field(repr=False)
    comparison: str
    names: tuple[str, ...] = field(repr=False)
    _task: Task = field(repr=False)
    _task_name: str | None = field(repr=False)
    _classes: int = field(repr=False)
    _intercept: bool = field(repr=False)
    encoding: Encoding | None = field(default=None, repr=False)
    membership: Membership | None = field(repr=False, default=None)
    changes: Changes | None = field(repr=False, default=None)

    def cluster_of(self, client: int | str) -> int:
        """The cluster of a client of the fit.

        Parameters
        ----------
        client : int or str
            Its number, in the order of `names`, or its name.
        """
        number = self._number_of(client)
        cluster = int(self.labels[number])
        if cluster < 0:
            raise ValueError(f"client: {self.names[number]} is in no cluster")
        return cluster

    def _number_of(self, client: int | str) -> int:
        """The number of a client, by its number or its name."""
        if isinstance(client, str):
            if client not in self.names:
                near = difflib.get_close_matches(client, self.names, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ValueError(f"client: {client} was not in the fit{hint}")
            client = self.names.index(client)
        if not 0 <= client < len(self.labels):
            hint = f"; the client of this name is {str(client)!r}" if str(client) in self.names else ""
            raise ValueError(f"client: must be from 0 to {len(self.labels) - 1}, got {client}{hint}")
        return client

    def predict(
        self, x: ArrayLike | Any, *, client: int | str | None = None, cluster: int | None = None
    ) -> NDArray[Any]:
        """The targets that the model of a client predicts: its personal one or, without one, that of its cluster.

        Parameters
        ----------
        x : array of shape (n, columns), or frame
            Features, in the columns of the data that were fitted. After a fit of files or of frames: a frame, whose
            columns are found by their names, others ignored; or an array of all feature columns if these are numbers.
            After a fit of arrays a frame is refused.
        client : int or str
            A client of the fit, by its number or its name.
        cluster : int
            A cluster, in the place of a client: the model of the cluster predicts.

        Returns
        -------
        ndarray of shape (n,)
            Numbers, or classes.
        """
        if (client is None) == (cluster is None):
            raise ValueError("predict: name a client or a cluster, and not both")
        return self._predicted(self._model_of(client, cluster), x)

    def _predicted(self, model: NDArray[Any], x: Any) -> NDArray[Any]:
        values = self._features(x)
        task = self._task_on(values, np.zeros(len(values)))
        if not hasattr(task, "predict"):
            raise ValueError("predict: this task predicts nothing; see centres")
        features = task.clients.features
        return as_numpy(task.predict(like(model, features), features))

    def _model_of(self, client: int | str | None, cluster: int | None) -> NDArray[Any]:
        """(d,): the model of a client or of a cluster."""
        if client is not None and self.personal is not None:
            found: NDArray[Any] = self.personal[self._number_of(client)]
            return found
        chosen = self.cluster_of(client) if client is not None else cluster
        assert chosen is not None
        if not 0 <= chosen < len(self.centres):
            raise ValueError(f"cluster: must be from 0 to {len(self.centres) - 1}, got {chosen}")
        found = self.centres[chosen]
        return found

    def assign(self, x: ArrayLike | Any, y: ArrayLike | None = None, *, nearest: bool = False) -> int:
        """The cluster whose model has the lowest loss on the samples of a new client, -1 if it fits none of them.

        It fits none if a member of that cluster would have such a loss with a probability of less than 1 %.

        Parameters
        ----------
        x : array of shape (n, columns), or frame
            Features, as for `predict`.
        y : array of shape (n,)
            Targets; None for the mean task.
        nearest : bool, default False
            Return the cluster of lowest loss in any case.

        Returns
        -------
        int
            The cluster, or -1.
        """
        task = self._new_client(x, y)
        return cluster_of(task, like(self.centres, task.clients.features), None if nearest else self.membership)

    def personalise(self, x: ArrayLike | Any, y: ArrayLike | None = None, *, nearest: bool = False) -> PersonalModel:
        """The model of a new client: fitted to its samples and shrunk towards the model of its cluster.

        A client that fits no cluster, as `assign` judges it, has a model of its own.

        Parameters
        ----------
        x : array of shape (n, columns), or frame
            Features, as for `predict`.
        y : array of shape (n,)
            Targets; None for the mean task.
        nearest : bool, default False
            The client is in the cluster of lowest loss in any case.

        Returns
        -------
        PersonalModel
            With `predict(x)`, `model`, `cluster`, `shrinkage` and `anchor`.
        """
        membership = None if nearest else self.membership
        return personal_model(self._new_client(x, y), self.centres, membership, self._predicted)

    def _new_client(self, x: Any, y: Any) -> Task:
        """The task on the samples of a new client."""
        values, needed = self._features(x), self._task.clients.targets is not None
        if (y is not None) != needed:
            raise ValueError("y must be given: the task has targets" if needed else "y: the task has no targets")
        targets = np.zeros(len(values)) if y is None else numbers("y", y)
        if targets.shape != (len(values),):
            raise ValueError(f"y must have shape ({len(values)},), got {targets.shape}")
        task: Task = self._task_on(values, targets)
        return task

    def _features(self, x: Any) -> NDArray[Any]:
        values = numbers("x", without_names("x", x)) if self.encoding is None else self.encoding.features(x)
        columns = self._task.clients.dim - self._intercept
        if values.ndim != 2 or values.shape[1] != columns or not len(values):
            raise ValueError(f"x must have shape (n, {columns}) with n >= 1, got {values.shape}")
        return np.column_stack([values, np.ones(len(values))]) if self._intercept else values

    def _task_on(self, values: NDArray[Any], targets: NDArray[Any]) -> Any:
        """The task on the samples of one client."""
        example = self._task.clients
        given = None
        if example.targets is not None:
            given = like(targets.astype(as_numpy(example.targets[:1]).dtype), example.targets)
        client = Clients(like(values, example.features), given, np.array([len(values)]))
        record = None if self._task_name is None else TASKS[self._task_name]
        if record is not None and record.loss is not None:
            return record.model(client, self._classes)
        return self._task.on(client)
