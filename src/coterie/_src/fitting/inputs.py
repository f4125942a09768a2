"""What a user may hand to `ct.fit` as clients and task, checked and brought into one form."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import is_torch_array
from numpy.typing import NDArray

from coterie._src.arrays import as_numpy, like, namespace
from coterie._src.data import (
    Clients,
    Encoding,
    Federation,
    Number,
    OwnData,
    Truth,
    client_tables,
    encoded,
    frame_table,
    hold_out,
    is_frame,
    learn_encoding,
    wanted_columns,
)
from coterie._src.experiments.method_setting import max_byzantine_count
from coterie._src.simulation import stream
from coterie._src.tasks import TASKS, Task

Data = Clients | Federation | Mapping[str, Any] | str | Path | Any
"""Any: a pandas, Polars or Arrow frame."""


class Tables(NamedTuple):
    """How the tables of files and frames are to be read; see `ct.fit`."""

    target: str | None = None
    client: str | None = None
    columns: Sequence[str] = ()
    max_byzantine: Any = 0


class Given(NamedTuple):
    """The clients with their truth, whether a column of ones was added, and the encoding of tables."""

    federation: Federation
    added: bool
    encoding: Encoding | None = None


def as_federation(clients: Data, task: Any, tables: Tables, intercept: bool | None, dtype: str) -> Given:
    """What `ct.fit` was given, as one federation."""
    if dtype not in ("float32", "float64"):
        raise ValueError(f'dtype must be "float32" or "float64", got {dtype!r}')
    if intercept not in (None, True, False):
        raise ValueError(f"intercept must be True, False or None, got {intercept!r}")
    is_table = isinstance(clients, str | Path) or (
        not isinstance(clients, Clients | Federation | Mapping) and is_frame(clients)
    )
    for name, value in (("target", tables.target), ("client", tables.client), ("columns", tables.columns or None)):
        if value is not None and not is_table:
            raise ValueError(f"{name}: is for the columns of files and frames; other data have no names of columns")
    if isinstance(tables.columns, str):
        raise ValueError(f"columns must be a list of names, got {tables.columns!r}")
    by_name = isinstance(task, str)
    record = named(TASKS, task) if by_name else None
    needs_targets = record is None or record.needs_targets
    if intercept and not needs_targets:
        raise ValueError(f"intercept: the task {task} has none")
    added = bool(intercept)
    encoding = None
    if isinstance(clients, Clients | Federation):
        federation = clients if isinstance(clients, Federation) else Federation(clients)
        _check_clients(federation)
    else:
        added = needs_targets and by_name if intercept is None else intercept
        if is_table:
            read, encoding = _from_tables(clients, tables, needs_targets, added, dtype)
        elif isinstance(clients, Mapping):
            read, encoding = _from_mapping(clients, needs_targets, np.dtype(dtype))
        else:
            raise ValueError(
                f"clients must be Clients, a Federation, a mapping from names to (x, y), a folder, a file or a frame, "
                f"got {type(clients).__name__}"
            )
        federation = Federation(read)
    return Given(_with_intercept(federation) if added else federation, added, encoding)


def _from_tables(source: Any, options: Tables, needs_targets: bool, intercept: bool, dtype: str) -> OwnData:
    """The clients of files or of a frame, without the intercept, and the encoding of their columns."""
    target = (options.target or "y") if needs_targets else None
    tables = client_tables(source, options.client, wanted_columns(target, options.client, options.columns))
    bound = options.max_byzantine
    known = isinstance(bound, int | float | np.integer) and not isinstance(bound, bool) and bound >= 0
    count = max_byzantine_count(int(bound) if isinstance(bound, np.integer) else bound, len(tables)) if known else 0
    encoding = learn_encoding([*tables.values()], target, options.columns, count, intercept=intercept)
    if not encoding.feature_names and not intercept:
        raise ValueError("columns: no feature is left")
    ones = not encoding.feature_names  # `encoded` refuses clients without a feature
    read = encoded(tables, encoding, intercept=ones, dtype=np.dtype(dtype))
    if ones:
        read = Clients(read.features[:, :0], read.targets, read.sizes, read.names)
    return OwnData(read, encoding)


def with_holdout(federation: Federation, fraction: float, seed: int) -> Federation:
    """The federation with a fraction of each client's samples held out, unless it has held-out samples already."""
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction < 1:
        raise ValueError(f"holdout must be a number of at least 0 and less than 1, got {fraction!r}")
    if federation.held_out is not None or fraction == 0:
        return federation
    clients, held_out = hold_out(federation.clients, float(fraction), stream(seed, 0, "data"))
    return replace(federation, clients=clients, held_out=held_out)


def _check_clients(federation: Federation) -> None:
    clients, truth = federation.clients, federation.truth
    for values in (clients.features, clients.targets):
        if values is None:
            continue
        finite = as_numpy(namespace(values).isfinite(values))
        if not finite.all():
            row = int(np.flatnonzero(~finite.reshape(len(finite), -1).all(axis=1))[0])
            client = int(np.searchsorted(clients.offsets, row, side="right")) - 1
            raise ValueError(f"clients: {clients.names[client]}: holds a value that is not a finite number")
    if truth is not None:
        labels, true_clusters = as_numpy(truth.labels), len(truth.centres)
        if labels.shape != (clients.count,) or labels.max(initial=-1) >= true_clusters or (labels < -1).any():
            raise ValueError(
                f"clients: the truth must have {clients.count} labels from -1 to {true_clusters - 1}, one per client"
            )


def _with_intercept(federation: Federation) -> Federation:
    """With a column of ones. True centres have no weight for it, so that none are known."""
    truth = federation.truth
    if truth is not None:
        test = None if truth.test is None else _with_ones(truth.test)
        truth = Truth(truth.centres[:, :0], truth.labels, test)
    held_out = federation.held_out
    if held_out is not None:
        held_out = replace(held_out, clients=_with_ones(held_out.clients))
    return replace(federation, clients=_with_ones(federation.clients), truth=truth, held_out=held_out)


def _with_ones(clients: Clients) -> Clients:
    features = as_numpy(clients.features)
    wide = np.column_stack([features, np.ones(len(features), dtype=features.dtype)])
    return Clients(like(wide, clients.features), clients.targets, clients.sizes, clients.names)


def without_test(federation: Federation) -> Federation:
    """Only a network has a test accuracy."""
    truth = federation.truth
    return federation if truth is None else replace(federation, truth=replace(truth, test=None))


def _from_mapping(clients: Mapping[Any, Any], needs_targets: bool, dtype: Any) -> tuple[Clients, Encoding | None]:
    """The samples of all clients in one NumPy array, or in a tensor if those of the first are tensors.

    Features that are frames have columns with names; the encoding finds them by these, and takes them as they are.
    """
    if not clients:
        raise ValueError("clients must hold at least one client")
    names = tuple(str(name) for name in clients)
    if len(set(names)) < len(names):
        raise ValueError("clients: two names are the same text")
    first = next(iter(clients.values()))
    example = first[0] if needs_targets and isinstance(first, tuple | list) and first else first
    encoding = Encoding(tuple(map(Number, frame_table(example).columns))) if is_frame(example) else None
    each = [_samples(name, data, needs_targets, encoding) for name, data in zip(names, clients.values(), strict=True)]
    columns = each[0][0].shape[1]
    for name, (x, y) in zip(names, each, strict=True):
        if x.shape[1] != columns:
            raise ValueError(f"clients: {name}: x must have {columns} columns, got {x.shape[1]}")
        if max(np.abs(x).max(), np.abs(y).max()) > np.finfo(dtype).max:
            raise ValueError(f"clients: {name}: holds a value that is too large for {dtype}")
    sizes = np.array([len(x) for x, _ in each])
    features = np.concatenate([x for x, _ in each]).astype(dtype)
    targets = np.concatenate([y for _, y in each]) if needs_targets else None
    if not is_torch_array(example):
        return Clients(features, None if targets is None else targets.astype(dtype), sizes, names), encoding
    xp = namespace(example)
    wanted = None if targets is None or targets.dtype.kind == "i" else xp.asarray(features[:1]).dtype
    tensors = None if targets is None else xp.asarray(targets, dtype=wanted, device=example.device)
    return Clients(xp.asarray(features, device=example.device), tensors, sizes, names), None


def _samples(name: str, data: Any, needs_targets: bool, encoding: Encoding | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """The features and targets of one client of a mapping."""
    pair = isinstance(data, tuple | list) and len(data) == 2
    if needs_targets and not pair:
        raise ValueError(f"clients: {name} must hold (x, y)")
    if not needs_targets and isinstance(data, tuple):
        raise ValueError(f"clients: {name} must hold x alone: the task has no targets")
    x = _features(f"clients: {name}: x", data[0] if needs_targets else data, encoding)
    if x.ndim != 2 or not x.size:
        raise ValueError(f"clients: {name}: x must have shape (n, columns) with n >= 1, got {x.shape}")
    y = numbers(f"clients: {name}: y", data[1]) if needs_targets else np.zeros(len(x))
    if y.shape != (len(x),):
        raise ValueError(f"clients: {name}: y must have shape ({len(x)},), got {y.shape}")
    return x, y


def _features(name: str, x: Any, encoding: Encoding | None) -> NDArray[Any]:
    """The features of one client of a mapping; with an encoding they must be a frame with just its columns."""
    if is_frame(x) != (encoding is not None):
        raise ValueError(f"{name} must be a frame if that of the first client is one, and only then")
    if encoding is None:
        return numbers(name, x)
    table = frame_table(x, source=name)
    if set(table.columns) != set(encoding.feature_names):
        raise ValueError(
            f"{name} must have the columns {', '.join(encoding.feature_names)}, got {', '.join(table.columns)}"
        )
    return encoding.features(table)


def as_task(task: Any, clients: Clients, classes: int | None) -> tuple[Task, str | None, int]:
    """The task on the clients, its name if it has one, and the number of classes."""
    if classes is not None and task != "softmax":
        raise ValueError("classes: is for the softmax task alone")
    if not isinstance(task, str):
        if not (hasattr(task, "on") or callable(task)):
            raise ValueError(
                f"task must be a name, a Task or a function from clients to one, got {type(task).__name__}"
            )
        made = task.on(clients) if hasattr(task, "on") else task(clients)
        if not hasattr(made, "gradients"):
            raise ValueError(f"task: the function must return a Task, got {type(made).__name__}")
        return made, None, 0
    record = TASKS[task]
    if record.needs_targets and clients.targets is None:
        raise ValueError(f"task: {task} needs targets, which the clients do not have")
    if not record.needs_targets and clients.targets is not None:
        raise ValueError(f"task: {task} is for clients without targets")
    if classes is None:
        classes = max(2, int(as_numpy(clients.targets).max()) + 1) if record.classifies else 2
    return record.build(clients, whole_number("classes", classes, 2)), task, classes


def whole_number(name: str, value: Any, least: int) -> int:
    """The value as an integer of at least `least`, or the reason why it is none."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return number


def numbers(name: str, values: Any) -> NDArray[Any]:
    """Finite numbers as a NumPy array, or the reason why they are none."""
    try:
        array = as_numpy(values)
        if array.dtype.kind not in "fiub":
            array = array.astype(np.float64)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name} must be an array of numbers ({str(error).splitlines()[0]})") from None
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds a value that is not a finite number")
    return array


def named(registry: Any, name: str) -> Any:
    """The record of a name; an unknown one is an error that says what kind of name it is."""
    try:
        return registry[name]
    except ValueError as error:
        raise ValueError(f"{registry.kind}: {error}") from None
