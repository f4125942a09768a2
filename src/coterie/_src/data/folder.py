"""Clients from a folder with one file per client. No file is unpickled."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from coterie._src.data.clients import Clients

SUFFIXES = (".csv", ".parquet", ".npz")

Table = tuple[list[str], NDArray[np.float64]]
"""Column names and the (n, columns) values of one file."""


def read_folder(
    path: str | Path,
    target: str | None = "y",
    *,
    columns: Sequence[str] = (),
    offset: Sequence[float] = (),
    scale: Sequence[float] = (),
    intercept: bool = False,
    dtype: DTypeLike = np.float32,
) -> Clients:
    """Clients from a folder of `.csv`, `.parquet` or `.npz` files, one per client and named after it; or from one file.

    In an `.npz` file every array is a column (n,), or a group of columns (n, p) named `name[0]`, `name[1]`, …. Values
    that cannot be read raise a ValueError that names file, column and row.

    Parameters
    ----------
    path : str or Path
        The folder, or the file of one client.
    target : str or None, default "y"
        The column to predict; None: all columns are samples (mean estimation).
    columns : sequence of str, optional
        The features, in this order; other columns are not read. By default all files have the same columns, and
        all but the target are features, in the order of the first file.
    offset, scale : sequence of float, optional
        A feature becomes (feature − offset)/scale; a number for each. By default unchanged.
    intercept : bool, default False
        Add a column of ones.
    dtype : data type, default float32
        Of features and targets.

    Returns
    -------
    Clients
        In the order of their names.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = (Path(folder.name) / "oslo.csv").write_text("age,y\\n40,1\\n50,2\\n")
    >>> clients = read_folder(folder.name)
    >>> clients.names, clients.features.tolist(), clients.targets.tolist()
    (('oslo',), [[40.0], [50.0]], [1.0, 2.0])
    >>> folder.cleanup()
    """
    files = _files(Path(path))
    names = [file.stem for file in files]
    if len(set(names)) != len(names):
        twice = next(file for file in files if names.count(file.stem) > 1)
        raise ValueError(f"{twice}: another file of the folder has the name {twice.stem}, too; names must differ")
    wanted = [*columns, *([] if target is None else [target])] if columns else []
    if len(set(wanted)) != len(wanted):
        raise ValueError("problem.columns: each feature once, and the target is none of them")
    order = wanted
    features, targets, sizes = [], [], []
    for file in files:
        names, values = _read(file, dtype, wanted)
        order = order or names
        values = values[:, _matching_columns(file, names, order, files[0].name)]
        if target is None:
            features.append(values)
        elif target not in order:
            raise ValueError(f"{file}: no column {target!r}; it has {', '.join(order)}")
        else:
            index = order.index(target)
            features.append(np.delete(values, index, axis=1))
            targets.append(values[:, index])
        sizes.append(len(values))
    x = np.concatenate(features)
    if x.shape[1] == 0 and not intercept:
        raise ValueError(f"{files[0]}: no feature column beside the target {target!r}")
    x = rescaled(x, offset, scale)
    if intercept:
        x = np.column_stack([x, np.ones(len(x))])
    y = np.concatenate(targets).astype(dtype) if targets else None
    return Clients(x.astype(dtype, order="C"), y, np.array(sizes), tuple(file.stem for file in files))


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
    if columns:
        return list(columns)
    return [name for name in _read(_files(Path(path))[0], np.float64, ())[0] if name != target]


def _files(folder: Path) -> list[Path]:
    """The files of the clients, in the order of their names."""
    if not folder.is_dir() and not folder.is_file():
        raise ValueError(f"{folder}: no such folder or file")
    inside = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    files = [file for file in inside if file.suffix.lower() in SUFFIXES and file.is_file()]
    if not files:
        raise ValueError(f"{folder}: holds no client file ({', '.join(SUFFIXES)})")
    return files


def _matching_columns(file: Path, names: list[str], columns: list[str], first: str) -> list[int]:
    for name in columns:
        if name not in names:
            raise ValueError(f"{file}: no column {name!r}, which {first} has")
    for name in names:
        if name not in columns:
            raise ValueError(f"{file}: column {name!r} is not in {first}")
    return [names.index(name) for name in columns]


def _read(file: Path, dtype: DTypeLike, wanted: Sequence[str]) -> Table:
    """The columns of one file, checked; wanted: the columns to read; empty: all."""
    readers = {".csv": _read_csv, ".parquet": _read_parquet, ".npz": _read_npz}
    names, values = readers[file.suffix.lower()](file, wanted)
    for name in wanted:
        if name not in names:
            raise ValueError(f"{file}: no column {name!r}")
    if len(set(names)) != len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{file}: column {repeated!r} appears twice")
    if len(values) == 0:
        raise ValueError(f"{file}: holds no sample")
    _refuse_first(file, names, values, ~np.isfinite(values), "is not a finite number")
    largest = float(np.sqrt(np.finfo(dtype).max))  # so that its square is finite
    _refuse_first(file, names, values, np.abs(values) > largest, f"is too large for {np.dtype(dtype)}: rescale it")
    return names, values


def _refuse_first(file: Path, names: list[str], values: NDArray[Any], wrong: NDArray[np.bool_], why: str) -> None:
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(f"{file}: column {names[column]!r}, row {row + 1}: {values[row, column]} {why}")


def _read_csv(file: Path, wanted: Sequence[str]) -> Table:
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            names = [name.strip() for name in next(reader, [])]
            rows = [row for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file}: cannot be read as CSV ({error})") from None
    if not names:
        raise ValueError(f"{file}: is empty; the first line must name the columns")
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise ValueError(f"{file}: row {number} has {len(row)} cells, the header names {len(names)} columns")
    if wanted:
        chosen = [i for i, name in enumerate(names) if name in wanted]
        names, rows = [names[i] for i in chosen], [[row[i] for i in chosen] for row in rows]
    try:
        return names, np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
    except ValueError:  # find the first cell that is not a number
        for number, row in enumerate(rows, 1):
            for name, cell in zip(names, row, strict=True):
                if not _is_number(cell):
                    hint = "" if wanted else " (problem.columns names those to read)"
                    raise ValueError(f"{file}: column {name!r}, row {number}: {cell!r} is not a number{hint}") from None
        raise


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_parquet(file: Path, wanted: Sequence[str]) -> Table:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(f"{file}: reading Parquet needs pyarrow (pip install 'coterie[parquet]')") from None
    try:
        table = parquet.read_table(file)
    except (OSError, arrow.ArrowException) as error:
        raise ValueError(f"{file}: cannot be read as Parquet ({str(error).splitlines()[0]})") from None
    names = [name for name in table.column_names if not wanted or name in wanted]
    columns = []
    for name in names:
        column = table[name]
        if not (arrow.types.is_integer(column.type) or arrow.types.is_floating(column.type)):
            raise ValueError(f"{file}: column {name!r}, row 1: holds {column.type}, not numbers")
        columns.append(column.to_numpy(zero_copy_only=False).astype(np.float64))  # a null becomes NaN
    return names, _stack(columns)


def _read_npz(file: Path, wanted: Sequence[str]) -> Table:
    names: list[str] = []
    groups = {name.partition("[")[0] for name in wanted}
    columns: list[NDArray[Any]] = []
    try:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is not a zip archive of arrays")
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            for name in arrays.files:
                if wanted and name not in groups:
                    continue
                values = arrays[name]
                if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiub" or values.ndim not in (1, 2):
                    raise ValueError(f"array {name!r} must hold numbers, shape (n,) or (n, p)")
                wide = values.ndim == 2
                names += [f"{name}[{i}]" for i in range(values.shape[1])] if wide else [name]
                columns += list(values.T) if wide else [values]
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{file}: cannot be read as .npz ({error})") from None
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"{file}: its arrays differ in their number of rows")
    chosen = [i for i, name in enumerate(names) if not wanted or name in wanted]
    return [names[i] for i in chosen], _stack([columns[i] for i in chosen])


def _stack(columns: list[NDArray[Any]]) -> NDArray[np.float64]:
    if not columns:
        return np.empty((0, 0))
    return np.column_stack([column.astype(np.float64) for column in columns])
