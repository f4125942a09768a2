"""`ct.fit`: find the clusters of some clients and learn one model for each."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError
from threadpoolctl import threadpool_limits

from coterie._src.aggregators import Aggregator
from coterie._src.algorithms import Algorithm
from coterie._src.arrays import as_numpy, like
from coterie._src.attacks import Attack
from coterie._src.data import Clients, Federation, Truth, read_folder
from coterie._src.experiments.config import ATTACK_TARGETS, ATTACKS, AlgorithmSection, ThreeStageSection
from coterie._src.experiments.methods import METHODS, Method, custom_method
from coterie._src.experiments.outcome import MethodResult, Row
from coterie._src.experiments.setup import TrialSetup
from coterie._src.experiments.starts import asks
from coterie._src.experiments.toml import explain
from coterie._src.experiments.trial import compare, run_method
from coterie._src.metrics import Metrics
from coterie._src.simulation import stream
from coterie._src.tasks import TASKS, LinearModel, Task, assign
from coterie._src.tasks.linear import least_squares

Data = Clients | Federation | Mapping[str, Any] | str | Path


def attack(
    kind: str,
    *,
    target: str = "own",
    scale: float | Literal["auto", "worst"] = "auto",
    sleep: int = 0,
) -> Attack:
    """An attack by the names of its payload and its target.

    Parameters
    ----------
    kind : str
        What Byzantine clients send, such as "alie" or "sign-flip"; `ct.registered("attacks")` lists the names.
    target : str, default "own"
        Which cluster they claim; `ct.registered("targets")` lists the names.
    scale : float, "auto" or "worst", default "auto"
        The strength: a number, the published one, or the one that moves the server's rule farthest in every round.
    sleep : int, default 0
        Rounds in which the Byzantine clients first answer by their own data.

    Returns
    -------
    Attack
        For the parameter `attack` of `ct.fit`.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.attack("alie", target="smallest", scale="worst")
    Attack(payload=<payload alie>, target=<target smallest>, scale='worst', sleep=0)
    """
    if isinstance(scale, str) and scale not in ("auto", "worst"):
        raise ValueError(f'scale must be a number, "auto" or "worst", got "{scale}"')
    if sleep < 0:
        raise ValueError(f"sleep must be at least 0, got {sleep}")
    payload, claimed = (_named(registry, name) for registry, name in ((ATTACKS, kind), (ATTACK_TARGETS, target)))
    return Attack(payload, claimed, None if scale == "auto" else scale, sleep)


def _named(registry: Any, name: str) -> Any:
    try:
        return registry[name]
    except ValueError as error:
        raise ValueError(f"{registry.kind}: {error}") from None


@dataclass(frozen=True)
class Result:
    """What `ct.fit` found.

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
        One row per client: its cluster, and how often its replies were trimmed, refused or missing.
    metrics : dict
        What the tables show: loss, rounds, seconds, clusters and, with a truth, matched_dist, oracle_ratio,
        worst_ratio and ari.
    names : tuple of str
        The names of the clients.
    """

    method: str
    centres: NDArray[Any]
    labels: NDArray[np.int64]
    rounds: list[Row] = field(repr=False)
    audit: list[Row] = field(repr=False)
    metrics: Metrics
    names: tuple[str, ...] = field(repr=False)
    _task: Task = field(repr=False)
    _task_name: str | None = field(repr=False)
    _classes: int = field(repr=False)
    _intercept: bool = field(repr=False)

    def cluster_of(self, client: int | str) -> int:
        """The cluster of a client of the fit, by its number or its name."""
        if isinstance(client, str):
            if client not in self.names:
                near = difflib.get_close_matches(client, self.names, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ValueError(f"client: {client} was not in the fit{hint}")
            client = self.names.index(client)
        if not 0 <= client < len(self.labels):
            raise ValueError(f"client: must be from 0 to {len(self.labels) - 1}, got {client}")
        cluster = int(self.labels[client])
        if cluster < 0:
            raise ValueError(f"client: {self.names[client]} is in no cluster")
        return cluster

    def predict(self, x: ArrayLike, *, client: int | str | None = None, cluster: int | None = None) -> NDArray[Any]:
        """The targets that the model of a client's cluster predicts.

        Parameters
        ----------
        x : array of shape (n, columns)
            Features, in the columns of the data that were fitted.
        client : int or str
            A client of the fit, by its number or its name.
        cluster : int
            A cluster, in the place of a client.

        Returns
        -------
        ndarray of shape (n,)
            Numbers, or classes.
        """
        if (client is None) == (cluster is None):
            raise ValueError("predict: name a client or a cluster, and not both")
        chosen = self.cluster_of(client) if client is not None else cluster
        assert chosen is not None
        if not 0 <= chosen < len(self.centres):
            raise ValueError(f"cluster: must be from 0 to {len(self.centres) - 1}, got {chosen}")
        task = self._task_on(x, None)
        if not hasattr(task, "predict"):
            raise ValueError("predict: a mean predicts nothing; see centres")
        features = task.clients.features
        return as_numpy(task.predict(like(self.centres[chosen], features), features))

    def assign(self, x: ArrayLike, y: ArrayLike | None = None) -> int:
        """The cluster whose model has the lowest loss on the samples of a new client.

        Parameters
        ----------
        x : array of shape (n, columns)
        y : array of shape (n,)
            Targets; None for the mean task.
        """
        task = self._task_on(x, y)
        return int(assign(task.losses(like(self.centres, task.clients.features)))[0])

    def _task_on(self, x: ArrayLike, y: ArrayLike | None) -> Any:
        """The task on one client; without targets it can only predict."""
        example = self._task.clients
        values = np.atleast_2d(as_numpy(x))
        if self._intercept:
            values = np.column_stack([values, np.ones(len(values))])
        if values.shape[1] != example.dim:
            raise ValueError(
                f"x must have {example.dim - self._intercept} columns, got {values.shape[1] - self._intercept}"
            )
        targets = None
        if example.targets is not None:
            given = np.zeros(len(values)) if y is None else as_numpy(y)
            targets = like(given.astype(as_numpy(example.targets[:1]).dtype), example.targets)
        client = Clients(like(values, example.features), targets, np.array([len(values)]))
        record = None if self._task_name is None else TASKS[self._task_name]
        if record is not None and record.loss is not None:
            return LinearModel(client, record.loss(self._classes), least_squares)
        return self._task.on(client)


def fit(
    clients: Data,
    task: str | Task | Callable[[Clients], Task] = "linear",
    clusters: int | Literal["auto"] = "auto",
    max_byzantine: float = 0.05,
    method: str | Aggregator | Algorithm = "coterie",
    seed: int = 0,
    *,
    attack: Attack | None = None,
    intercept: bool | None = None,
    target: str = "y",
    classes: int | None = None,
    dtype: Literal["float32", "float64"] = "float32",
    three_stage: Mapping[str, Any] | None = None,
    on_round: Callable[[], None] = lambda: None,
    **options: Any,
) -> Result:
    """Find the clusters of some clients and learn one model for each, although some of the clients are Byzantine.

    Parameters
    ----------
    clients : Clients, Federation, mapping or path
        The clients' data: a `ct.Clients`; a `ct.Federation`, whose truth says which clients are Byzantine; a mapping from
        names to `(x, y)`, or to `x` for the mean task; or a folder with one .csv, .parquet or .npz file per client.
    task : str, Task or function, default "linear"
        "linear", "logistic", "softmax" or "mean"; a `Task`; or a function from clients to one, such as `ct.module` makes.
    clusters : int or "auto", default "auto"
        k, or "auto" to find it (with the method "coterie", or with a start that asks the clients).
    max_byzantine : float, default 0.05
        Bound on the fraction of Byzantine clients; below the share of the smallest cluster.
    method : str, Aggregator or Algorithm, default "coterie"
        A registered name (`ct.registered("methods")` lists them), an aggregator, which makes Algorithm 1 with it, or an
        algorithm.
    seed : int, default 0
        Everything random follows from it.
    attack : Attack, optional
        What the Byzantine clients of a federation's truth do; None: they answer by their own data.
    intercept : bool, optional
        Add a column of ones. By default for a mapping or a folder, and not for `Clients` and `Federation`, whose
        columns are taken as they are.
    target : str, default "y"
        The target column of the files of a folder.
    classes : int, optional
        Number of classes of the softmax task; by default one more than the largest target.
    dtype : "float32" or "float64", default "float32"
        Precision of data that come from a mapping or a folder.
    three_stage : mapping, optional
        Options of the method "three-stage".
    on_round : function, optional
        Called after every round.
    **options
        Every other option of a method, by the names of the table `[algorithm]` of `coterie config`: `rounds`, `init`,
        `step`, `trim`, …

    Returns
    -------
    Result
        Centres, labels, rounds, audit and metrics; the same numbers that `coterie run` stores.

    Examples
    --------
    >>> import coterie as ct
    >>> federation = ct.mixed_regression(0, clients=40, clusters=2, samples=50, dim=10, byzantine=0.1)
    >>> result = ct.fit(federation, clusters=2, max_byzantine=0.1, attack=ct.attack("sign-flip"))
    >>> result.centres.shape, round(result.metrics["ari"], 2)
    ((2, 10), 1.0)
    """
    federation, added = _federation(clients, task, target, intercept, dtype)
    found, task_name, classes = _task(task, federation.clients, classes)
    section = _section(
        AlgorithmSection,
        {"clusters": "auto" if clusters == "auto" else "known", "max_byzantine": max_byzantine, **options},
    )
    stages = _section(ThreeStageSection, dict(three_stage or {}))
    chosen = _method(method)
    _check(chosen, section, clusters, federation, attack)
    count = 1 if clusters == "auto" else clusters
    example = like(np.zeros((count, found.dim)), federation.clients.features)
    setup = TrialSetup(
        seed=seed,
        trial=0,
        options=section,
        three_stage=stages,
        clusters=count,
        task=found,
        truth=federation.truth,
        is_byzantine=federation.is_byzantine,
        attack=attack,
        start=example,
    )
    with threadpool_limits(limits=1), np.errstate(all="ignore"):
        if not (chosen.finds_start and not asks(section.init)):
            setup = setup.started(str(as_numpy(example).dtype), stream(seed, 0, "start"))
        result = run_method(chosen, setup, on_round=on_round)
        _judge(result, setup)
    return Result(
        chosen.name,
        result.centres,
        result.labels,
        result.rounds,
        result.audit,
        result.metrics,
        federation.clients.names,
        found,
        task_name,
        classes,
        added,
    )


def _federation(clients: Data, task: Any, target: str, intercept: bool | None, dtype: str) -> tuple[Federation, bool]:
    """The clients with their truth, and whether a column of ones was added."""
    if isinstance(clients, Clients | Federation):
        federation = clients if isinstance(clients, Federation) else Federation(clients)
        if intercept:
            federation = Federation(_with_ones(federation.clients), _without_centres(federation.truth))
        return federation, bool(intercept)
    added = intercept is None or intercept
    needs_targets = not (isinstance(task, str) and task in TASKS and not TASKS[task].needs_targets)
    if isinstance(clients, str | Path):
        read = read_folder(clients, target if needs_targets else None, dtype=np.dtype(dtype))
    elif isinstance(clients, Mapping):
        read = _from_mapping(clients, needs_targets, np.dtype(dtype))
    else:
        raise ValueError(
            f"clients must be Clients, a Federation, a mapping from names to (x, y), or a folder, "
            f"got {type(clients).__name__}"
        )
    if not needs_targets:
        return Federation(read), False
    return Federation(_with_ones(read) if added else read), added


def _with_ones(clients: Clients) -> Clients:
    features = as_numpy(clients.features)
    wide = np.column_stack([features, np.ones(len(features), dtype=features.dtype)])
    return Clients(like(wide, clients.features), clients.targets, clients.sizes, clients.names)


def _without_centres(truth: Truth | None) -> Truth | None:
    """True centres have no weight for an intercept."""
    return None if truth is None else Truth(truth.centres[:, :0], truth.labels, truth.test)


def _from_mapping(clients: Mapping[str, Any], needs_targets: bool, dtype: Any) -> Clients:
    if not clients:
        raise ValueError("clients must hold at least one client")
    features: list[NDArray[Any]] = []
    targets: list[NDArray[Any]] = []
    for name, data in clients.items():
        pair = data if isinstance(data, tuple) else (data, None)
        if len(pair) != 2 or (pair[1] is None) == needs_targets:
            raise ValueError(f"clients: {name} must hold {'(x, y)' if needs_targets else 'x'}")
        x = np.asarray(pair[0], dtype=np.float64)
        if x.ndim != 2 or not len(x):
            raise ValueError(f"clients: {name}: x must have shape (n, columns) with n >= 1, got {x.shape}")
        y = np.zeros(len(x)) if pair[1] is None else np.asarray(pair[1], dtype=np.float64)
        if y.shape != (len(x),):
            raise ValueError(f"clients: {name}: y must have shape ({len(x)},), got {y.shape}")
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise ValueError(f"clients: {name}: holds a value that is not a finite number")
        if features and x.shape[1] != features[0].shape[1]:
            raise ValueError(f"clients: {name}: x must have {features[0].shape[1]} columns, got {x.shape[1]}")
        features.append(x)
        targets.append(y)
    return Clients(
        np.concatenate(features).astype(dtype),
        np.concatenate(targets).astype(dtype) if needs_targets else None,
        np.array([len(x) for x in features]),
        tuple(str(name) for name in clients),
    )


def _task(task: Any, clients: Clients, classes: int | None) -> tuple[Task, str | None, int]:
    """The task on the clients, its name if it has one, and the number of classes."""
    if not isinstance(task, str):
        return (task.on(clients) if hasattr(task, "on") else task(clients)), None, 0
    record = _named(TASKS, task)
    if record.needs_targets and clients.targets is None:
        raise ValueError(f"task: {task} needs targets, which the clients do not have")
    if classes is None:
        classes = max(2, int(as_numpy(clients.targets).max()) + 1) if record.classifies else 2
    return record.build(clients, classes), task, classes


def _method(method: Any) -> Method:
    if isinstance(method, str):
        found: Method = _named(METHODS, method)
        return found
    if hasattr(method, "initial_state"):
        return Method(type(method).__name__, "an algorithm of one's own", build=lambda setting, rule: method)
    return custom_method(str(method), method)


def _section(section: Any, values: dict[str, Any]) -> Any:
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise ValueError(explain(error, section)) from None


def _check(
    method: Method, options: AlgorithmSection, clusters: Any, federation: Federation, attack: Attack | None
) -> None:
    count = federation.clients.count
    if clusters == "auto":
        if not (method.finds_start or asks(options.init)):
            raise ValueError(
                'clusters: "auto" needs the method "coterie" or a start that asks, such as init="spectral"'
            )
        if federation.clients.sizes.min() < 2:
            raise ValueError('clusters: "auto" needs at least 2 samples per client, the smallest has 1')
    elif isinstance(clusters, bool) or not isinstance(clusters, int | np.integer) or not 1 <= clusters <= count:
        raise ValueError(
            f'clusters must be "auto" or a whole number from 1 to the number of clients ({count}), got {clusters}'
        )
    if attack is not None and federation.truth is None:
        raise ValueError("attack: needs a Federation whose truth says which clients are Byzantine")
    if method.needs_truth and federation.truth is None:
        raise ValueError(f"method: {method.name} needs a Federation with a truth")


def _judge(result: MethodResult, setup: TrialSetup) -> None:
    """With true centres, the distances relative to the oracle's."""
    if setup.truth is not None and setup.truth.centres.shape[1]:
        compare(result, run_method(METHODS["oracle"], setup, False), setup.truth)


def registered(kind: Literal["methods", "attacks", "targets", "tasks"]) -> dict[str, str]:
    """The registered names of a kind, each with a line that says what it is.

    Examples
    --------
    >>> import coterie as ct
    >>> sorted(ct.registered("tasks"))
    ['linear', 'logistic', 'mean', 'softmax']
    """
    registries: dict[str, Any] = {"methods": METHODS, "attacks": ATTACKS, "targets": ATTACK_TARGETS, "tasks": TASKS}
    if kind not in registries:
        raise ValueError(f'kind must be one of {", ".join(registries)}, got "{kind}"')
    return {record.name: record.summary for record in registries[kind]}
