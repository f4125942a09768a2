"""Tables as people have them: columns of numbers or text with missing cells, from files and frames, per client.

No file is unpickled. `encoding` turns the tables into numbers.
"""

from __future__ import annotations

import csv
import datetime
import zipfile
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie._src.data.raw_table import (
    RawTable,
    as_text,
    is_missing,
    parsed,
    refuse_times,
    require,
    short,
)

SUFFIXES = (".csv", ".tsv", ".parquet", ".npz")
SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods")
FRAME = "frame (rows from 0)"
"""The source of a table that is no file, for messages."""


# --- sources ------------------------------------------------------------------------------------------


def client_tables(source: Any, client: str | None = None, wanted: Sequence[str] = ()) -> dict[str, RawTable]:
    """The table of every client by its name, in the order of the names.

    Parameters
    ----------
    source : path or frame
        A folder with one file per client; one file; or a pandas, Polars or Arrow frame.
    client : str, optional
        The column of a file or frame that says which client a row belongs to. Without it a file is one client.
    wanted : sequence of str
        The columns to read; empty: all.
    """
    if not isinstance(source, str | Path):
        if client is None:
            raise ValueError("client: must name the column of the frame that says whose row it is")
        return by_client(frame_table(source, [*wanted, client] if wanted else ()), client)
    path = Path(source)
    if client is not None:
        if path.is_dir():
            raise ValueError(f"client: names a column of one file, and {path} is a folder, where each file is a client")
        return by_client(read_table(_files(path)[0], [*wanted, client] if wanted else ()), client)
    files = _files(path)
    names = [file.stem for file in files]
    if len(set(names)) != len(names):
        twice = next(file for file in files if names.count(file.stem) > 1)
        raise ValueError(f"{twice}: another file of the folder has the name {twice.stem}, too; names must differ")
    return {file.stem: read_table(file, wanted) for file in files}


def by_client(table: RawTable, client: str) -> dict[str, RawTable]:
    """The rows of every client, without the column of the clients; numbers and names in their order.

    >>> table = RawTable({"site": np.array([10.0, 9.0, 10.0]), "x": np.array([1.0, 2.0, 3.0])}, np.arange(3), "f")
    >>> {name: part.columns["x"].tolist() for name, part in by_client(table, "site").items()}
    {'9': [2.0], '10': [1.0, 3.0]}
    """
    require(table, client)
    ids = table.columns[client]
    absent = is_missing(ids)
    if absent.any():
        raise ValueError(f"{table.cell(client, int(np.argmax(absent)))}: the client is missing")
    # arrays of text sort much faster than arrays of objects
    found, owner = np.unique(ids.astype(str) if ids.dtype == object else ids, return_inverse=True)
    order = np.argsort(owner, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(owner[order])) + 1)
    names = [short(value) for value in found.tolist()] if ids.dtype != object else [str(value) for value in found]
    rest = table.without(client)
    return {name: rest.take(part) for name, part in zip(names, parts, strict=True)}


def is_frame(data: Any) -> bool:
    """Whether the data are a pandas, Polars, Arrow or other frame with named columns."""
    if data is None or isinstance(data, np.ndarray | Mapping | Sequence | Path):
        return False
    from narwhals import dependencies

    return bool(dependencies.is_into_dataframe(data) or dependencies.is_polars_lazyframe(data))


def without_names(name: str, values: Any) -> Any:
    """The values, unless they are a frame, whose columns would be taken in an order that nobody has checked."""
    if is_frame(values):
        raise ValueError(f"{name} must be an array: the data that were fitted have no names for the columns of a frame")
    return values


def stamp(path: str | Path) -> tuple[tuple[str, int, int], ...]:
    """Path, size and time of the last change of every file of a folder, or of one file; they say if it was changed."""
    whole = Path(path).resolve()
    inside = sorted(whole.iterdir()) if whole.is_dir() else [whole]
    known = [(str(file), file.stat()) for file in inside if file.is_file()]
    return tuple((name, found.st_size, found.st_mtime_ns) for name, found in known)


def _files(folder: Path) -> list[Path]:
    """The files of the clients, in the order of their names."""
    if not folder.is_dir() and not folder.is_file():
        raise ValueError(f"{folder}: no such folder or file")
    inside = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    for file in inside:
        if file.suffix.lower() in SPREADSHEETS and not file.name.startswith("~$"):
            raise ValueError(f"{file}: a spreadsheet cannot be read; save its sheet as CSV (UTF-8), or move it away")
    files = [file for file in inside if file.suffix.lower() in SUFFIXES and file.is_file()]
    if not files:
        raise ValueError(f"{folder}: holds no client file ({', '.join(SUFFIXES)})")
    return files


# --- readers ------------------------------------------------------------------------------------------


def read_table(file: Path, wanted: Sequence[str] = ()) -> RawTable:
    """The table of one file; wanted: the columns to read; empty: all."""
    readers = {".csv": _read_csv, ".tsv": _read_csv, ".parquet": _read_parquet, ".npz": _read_npz}
    table = readers[file.suffix.lower()](file, wanted)
    for name in wanted:
        require(table, name)
    if not len(table):
        raise ValueError(f"{file}: holds no sample")
    return table


def _refuse_repeated(source: str, names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{source}: column {repeated!r} appears twice")


def _read_csv(file: Path, wanted: Sequence[str]) -> RawTable:
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            delimiter = "\t" if file.suffix.lower() == ".tsv" else _delimiter(stream.readline())
            stream.seek(0)
            reader = csv.reader(stream, delimiter=delimiter)
            names = [name.strip() for name in next(reader, [])]
            begin = reader.line_num + 1
            for row in reader:
                if any(cell.strip() for cell in row) or (row and len(names) == 1):  # else a blank line
                    rows.append(row)
                    lines.append(begin)
                begin = reader.line_num + 1
    except UnicodeDecodeError:
        raise ValueError(f"{file}: cannot be read as CSV (it is not UTF-8: save it as CSV UTF-8)") from None
    except (OSError, csv.Error) as error:
        raise ValueError(f"{file}: cannot be read as CSV ({error})") from None
    if not names:
        raise ValueError(f"{file}: is empty; the first line must name the columns")
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(names):
            raise ValueError(f"{file}: row {line} has {len(row)} cells, the header names {len(names)} columns")
    chosen = [index for index, name in enumerate(names) if not wanted or name in wanted]
    _refuse_repeated(str(file), [names[index] for index in chosen])
    columns = {names[index]: _untyped([row[index] for row in rows]) for index in chosen}
    return RawTable(columns, np.array(lines, dtype=np.int64), str(file))


def _delimiter(header: str) -> str:
    """The delimiter that gives most columns.

    >>> _delimiter('"dose, mg";age;y'), _delimiter("x"), _delimiter("x,y")
    (';', ',', ',')
    """
    return max(",;\t", key=lambda delimiter: len(next(csv.reader([header], delimiter=delimiter), [])))


def _untyped(cells: list[str]) -> NDArray[Any]:
    """The cells of a text file as numbers if all but the missing ones are numbers, else as text."""
    if not any("_" in cell for cell in cells):  # which is allowed in a number by NumPy
        try:
            return np.array(cells, dtype=np.float64)
        except ValueError:
            pass
    text = as_text(cells)
    numbers = parsed(text)
    return text if numbers is None else numbers


def _read_parquet(file: Path, wanted: Sequence[str]) -> RawTable:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(f"{file}: reading Parquet needs pyarrow (pip install 'coterie[parquet]')") from None
    try:
        schema = parquet.read_schema(file)
        chosen = [name for name in schema.names if not wanted or name in wanted]
        table = parquet.read_table(file, columns=chosen)
    except (OSError, arrow.ArrowException) as error:
        raise ValueError(f"{file}: cannot be read as Parquet ({str(error).splitlines()[0]})") from None
    return frame_table(table, chosen, str(file), 1)


def _read_npz(file: Path, wanted: Sequence[str]) -> RawTable:
    columns: dict[str, NDArray[Any]] = {}
    groups = {name.partition("[")[0] for name in wanted} | set(wanted)
    try:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is not a zip archive of arrays")
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            for name in arrays.files:
                if wanted and name not in groups:
                    continue
                values = arrays[name]
                known = isinstance(values, np.ndarray) and values.dtype.kind in "fiubU" and values.ndim in (1, 2)
                if not known or (values.ndim == 2 and values.dtype.kind == "U"):
                    raise ValueError(f"array {name!r} must hold numbers, shape (n,) or (n, p), or text, shape (n,)")
                if values.ndim == 1:
                    found = {name: as_text(values.tolist()) if values.dtype.kind == "U" else values.astype(np.float64)}
                else:
                    found = {f"{name}[{i}]": column.astype(np.float64) for i, column in enumerate(values.T)}
                _refuse_repeated(str(file), [*columns, *found])
                columns |= {name: column for name, column in found.items() if not wanted or name in wanted}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{file}: cannot be read as .npz ({error})") from None
    sizes = {len(column) for column in columns.values()}
    if len(sizes) > 1:
        raise ValueError(f"{file}: its arrays differ in their number of rows")
    return RawTable(columns, np.arange(1, max(sizes, default=0) + 1), str(file))


def frame_table(frame: Any, wanted: Sequence[str] = (), source: str = FRAME, first_row: int = 0) -> RawTable:
    """The table of a pandas, Polars or Arrow frame; wanted: the columns to read; empty: all."""
    import narwhals.stable.v2 as narwhals

    if narwhals.dependencies.is_polars_lazyframe(frame):
        raise ValueError(f"{source}: is lazy; hand over frame.collect()")
    try:
        known = narwhals.from_native(frame, eager_only=True)
        names = list(known.columns)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source}: cannot be read as a frame ({str(error).strip().splitlines()[0]})") from None
    chosen = [name for name in names if not wanted or str(name) in wanted]
    _refuse_repeated(source, [str(name) for name in chosen])
    columns = {str(name): _typed(source, str(name), known.get_column(name)) for name in chosen}
    table = RawTable(columns, np.arange(first_row, first_row + len(known)), source)
    for name in wanted:
        require(table, name)
    if not len(table):
        raise ValueError(f"{source}: holds no sample")
    return table


def _typed(source: str, name: str, series: Any) -> NDArray[Any]:
    """A column of a frame as numbers, or as text."""
    import narwhals.stable.v2 as narwhals

    dtype = series.dtype
    if dtype.is_temporal():
        refuse_times(source, name)
    if dtype.is_numeric() or dtype == narwhals.Boolean:
        values = np.asarray(series.to_numpy())  # a null becomes NaN, or stays an object
        if values.dtype.kind in "fiub":
            return values.astype(np.float64)
        return np.array([np.nan if _is_absent(cell) else float(cell) for cell in series.to_list()], dtype=np.float64)
    if dtype in (narwhals.Categorical, narwhals.Enum):
        return as_text([None if _is_absent(cell) else str(cell) for cell in series.to_list()])
    if dtype.is_nested() or dtype == narwhals.Binary:
        raise ValueError(f"{source}: column {name!r}: holds {dtype}, not numbers or text")
    return _untyped_objects(source, name, series.to_list())


def _untyped_objects(source: str, name: str, cells: list[Any]) -> NDArray[Any]:
    """Python objects as numbers if all but the missing ones are numbers, else as text."""
    given = [None if _is_absent(cell) else cell for cell in cells]
    if any(isinstance(cell, datetime.date | datetime.time | datetime.timedelta) for cell in given):
        refuse_times(source, name)
    if any(cell is not None for cell in given) and all(
        cell is None or isinstance(cell, Real | Decimal | np.bool_) for cell in given
    ):
        return np.array([np.nan if cell is None else float(cell) for cell in given])
    text = as_text([cell if cell is None or isinstance(cell, str) else str(cell) for cell in given])
    # numbers that were read as text because of a cell such as ?; numbers that are text without such a cell stay text
    marked = any(cell is not None and found is None for cell, found in zip(given, text, strict=True))
    numbers_read = parsed(text) if marked else None
    return text if numbers_read is None else numbers_read


def _is_absent(cell: Any) -> bool:
    """Whether a cell is None, or one of the objects by which pandas marks a missing value: NaN, NaT and NA."""
    return cell is None or type(cell).__name__ in ("NAType", "NaTType") or (isinstance(cell, float) and np.isnan(cell))
