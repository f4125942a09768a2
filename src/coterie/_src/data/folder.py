"""Clients from tables of one's own: a folder with one file per client, one file, or a frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from coterie._src.data.clients import Clients
from coterie._src.data.encoding import Encoding
from coterie._src.data.learn_encoding import learn_encoding
from coterie._src.data.raw_table import RawTable
from coterie._src.data.tables import client_tables


class OwnData(NamedTuple):
    """The clients of some tables, and what was done to the columns."""

    clients: Clients
    encoding: Encoding


def read_folder(
    path: str | Path,
    target: str | None = "y",
    *,
    client: str | None = None,
    columns: Sequence[str] = (),
    offset: Sequence[float] = (),
    scale: Sequence[float] = (),
    intercept: bool = False,
    dtype: DTypeLike = np.float32,
    max_byzantine: int = 0,
) -> Clients:
    """Clients from a folder of `.csv`, `.tsv`, `.parquet` or `.npz` files, one per client; or from one file.

    In an `.npz` file every array is a column (n,), or a group of columns (n, p) named `name[0]`, `name[1]`, …. Text
    columns become columns of 0 and 1, one per level but the most common one; missing values (empty, NA, NaN, null or ?)
    become the median over the clients of their medians, and a column `name=missing` marks them. Values that cannot be
    read raise a ValueError that names file, column and row.

    Parameters
    ----------
    path : str or Path
        The folder, or one file.
    target : str or None, default "y"
        The column to predict; None: all columns are samples (mean estimation).
    client : str, optional
        The column of one file that says which client a row belongs to. By default a file is one client, named after it.
    columns : sequence of str, optional
        The features, in this order; other columns are not read. By default all files have the same columns, and
        all but the target are features, in the order of the first file.
    offset, scale : sequence of float, optional
        A feature becomes (feature − offset)/scale; a number for each. By default unchanged.
    intercept : bool, default False
        Add a column of ones.
    dtype : data type, default float32
        Of features and targets.
    max_byzantine : int, default 0
        How many clients may be Byzantine: only levels and missing values of more clients make a column.

    Returns
    -------
    Clients
        In the order of their names.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = (Path(folder.name) / "oslo.csv").write_text("age,sex,y\\n40,f,1\\n50,m,2\\n")
    >>> clients = read_folder(folder.name)
    >>> clients.names, clients.features.tolist(), clients.targets.tolist()
    (('oslo',), [[40.0, 1.0, 0.0], [50.0, 0.0, 1.0]], [1.0, 2.0])
    >>> folder.cleanup()
    """
    return read_tables(
        path,
        target,
        client=client,
        columns=columns,
        offset=offset,
        scale=scale,
        intercept=intercept,
        dtype=dtype,
        max_byzantine=max_byzantine,
    ).clients


def read_tables(
    source: Any,
    target: str | None = "y",
    *,
    client: str | None = None,
    columns: Sequence[str] = (),
    offset: Sequence[float] = (),
    scale: Sequence[float] = (),
    intercept: bool = False,
    dtype: DTypeLike = np.float32,
    max_byzantine: float = 0,
) -> OwnData:
    """Like `read_folder`, also for a pandas, Polars or Arrow frame, and with the encoding of the columns.

    max_byzantine: a number of clients or, if it is a float, a fraction of them.
    """
    tables = client_tables(source, client, wanted_columns(target, client, columns))
    return encode_tables(
        tables,
        target,
        columns=columns,
        offset=offset,
        scale=scale,
        intercept=intercept,
        dtype=dtype,
        max_byzantine=max_byzantine,
    )


def encode_tables(
    tables: Mapping[str, RawTable],
    target: str | None,
    *,
    columns: Sequence[str],
    offset: Sequence[float],
    scale: Sequence[float],
    intercept: bool,
    dtype: DTypeLike,
    max_byzantine: float,
) -> OwnData:
    """The clients of some tables by the encoding that these tables give; the options are those of `read_tables`."""
    count = max_byzantine if isinstance(max_byzantine, int) else int(max_byzantine * len(tables))
    encoding = learn_encoding([*tables.values()], target, columns, count, intercept=intercept)
    return OwnData(encoded(tables, encoding, offset, scale, intercept, dtype), encoding)


def wanted_columns(target: str | None, client: str | None, columns: Sequence[str]) -> list[str]:
    """The columns to read beside that of the clients; empty: all."""
    if client is not None and client in (target, *columns):
        raise ValueError(f"client: {client} is the column of the clients, and so neither a feature nor the target")
    return [*columns, *([] if target is None else [target])] if columns else []


def encoded(
    tables: Mapping[str, RawTable],
    encoding: Encoding,
    offset: Sequence[float] = (),
    scale: Sequence[float] = (),
    intercept: bool = False,
    dtype: DTypeLike = np.float32,
) -> Clients:
    """The clients of some tables by an encoding."""
    largest = float(np.sqrt(np.finfo(dtype).max))  # so that its square is finite
    x = np.concatenate([encoding.features(table, largest=largest) for table in tables.values()])
    if x.shape[1] == 0 and not intercept:
        source = next(iter(tables.values())).source
        raise ValueError(f"{source}: no feature column beside the target {encoding.target!r}")
    x = rescaled(x, offset, scale)
    if intercept:
        x = np.column_stack([x, np.ones(len(x))])
    y = None
    if encoding.target is not None:
        y = np.concatenate([encoding.targets(table, largest=largest) for table in tables.values()]).astype(dtype)
    sizes = np.array([len(table) for table in tables.values()])
    return Clients(x.astype(dtype, order="C"), y, sizes, tuple(tables))


def rescaled(features: NDArray[Any], offset: Sequence[float], scale: Sequence[float]) -> NDArray[Any]:
    """(n, p) -> (n, p): (column − offset)/scale for every column; empty: unchanged.

    >>> rescaled(np.array([[50.0, 1.0]]), [35.0, 0.0], [15.0, 2.0]).tolist()
    [[1.0, 0.5]]
    """
    for name, numbers in (("offset", offset), ("scale", scale)):
        if numbers and len(numbers) != features.shape[1]:
            raise ValueError(
                f"problem.{name}: must hold a number for each of the {features.shape[1]} features, got {len(numbers)}"
            )
    if offset:
        features = features - np.asarray(offset, dtype=features.dtype)
    return features / np.asarray(scale, dtype=features.dtype) if scale else features


def feature_names(path: str | Path, target: str | None, columns: Sequence[str] = ()) -> list[str]:
    """The names of the features of `read_folder`, in their order, without the intercept."""
    return list(read_tables(path, target, columns=columns, dtype=np.float64).encoding.feature_names)
