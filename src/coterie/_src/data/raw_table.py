"""A table as it was given, and what its cells stand for: missing values, numbers, levels, dates."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from coterie._src.arrays import Ints

MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "?"})
"""Text cells that count as missing, in lower case."""
ABSENT = "missing"
"""The level of missing cells of a column of text."""


@dataclass(frozen=True, eq=False)
class RawTable:
    """Samples as they were given.

    Parameters
    ----------
    columns : mapping from str to array of shape (n,)
        float64, where NaN is a missing value; or objects, each a str or None, where None is a missing value.
    rows : array of shape (n,)
        The row of every sample as its source counts them, for messages.
    source : str
        Where the samples come from, for messages.

    Examples
    --------
    >>> table = RawTable({"age": np.array([40.0, np.nan])}, np.array([2, 3]), "oslo.csv")
    >>> len(table), table.cell("age", 1)
    (2, "oslo.csv: column 'age', row 3")
    """

    columns: Mapping[str, NDArray[Any]]
    rows: Ints
    source: str

    def __len__(self) -> int:
        return len(self.rows)

    def cell(self, name: str, index: int) -> str:
        """The place of a cell, in words."""
        return f"{self.source}: column {name!r}, row {self.rows[index]}"

    def take(self, index: Ints) -> RawTable:
        """The given samples."""
        return RawTable({name: column[index] for name, column in self.columns.items()}, self.rows[index], self.source)

    def without(self, name: str) -> RawTable:
        """The table without one of its columns."""
        kept = {other: column for other, column in self.columns.items() if other != name}
        return RawTable(kept, self.rows, self.source)


def require(table: RawTable, name: str) -> None:
    """Raise an error if the table has no such column."""
    if name not in table.columns:
        raise ValueError(f"{table.source}: no column {name!r}; it has {', '.join(table.columns)}")


def as_text(cells: Iterable[str | None]) -> NDArray[Any]:
    """Text cells without spaces around them; None where they are missing.

    >>> as_text([" a", "NA", None]).tolist()
    ['a', None, None]
    """
    stripped = [None if cell is None else cell.strip() for cell in cells]
    text = np.empty(len(stripped), dtype=object)
    text[:] = [None if cell is None or cell.lower() in MISSING else cell for cell in stripped]
    return text


def is_missing(column: NDArray[Any]) -> NDArray[np.bool_]:
    """(n,): where a column has no value."""
    if column.dtype == object:
        return np.array([cell is None for cell in column], dtype=np.bool_)
    return np.asarray(np.isnan(column))


def number(cell: str) -> float | None:
    """The number that a cell of text stands for; true and false are 1 and 0; None where it is none.

    >>> number("1e3"), number("True"), number("1_000"), number("x")
    (1000.0, 1.0, None, None)
    """
    if cell.lower() in ("true", "false"):
        return float(cell.lower() == "true")
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def parsed(text: NDArray[Any]) -> NDArray[np.float64] | None:
    """A column of text as numbers, NaN where it is missing; None if a cell is no number."""
    known: dict[str | None, float | None] = {cell: number(cell) for cell in set(text) if cell is not None}
    if any(value is None for value in known.values()):
        return None
    known[None] = np.nan
    return np.array([known[cell] for cell in text], dtype=np.float64)


def short(value: float) -> str:
    """The shortest text of a number.

    >>> short(3.0), short(0.1)
    ('3', '0.1')
    """
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def levels_of(column: NDArray[Any]) -> list[str]:
    """The level of every cell; numbers in their shortest form, whether they were read as numbers or as text.

    >>> levels_of(np.array(["a", None, "01"], dtype=object)), levels_of(np.array([1.0, np.nan]))
    (['a', 'missing', '1'], ['1', 'missing'])
    """
    if column.dtype != object:
        return [
            ABSENT if math.isnan(value) else short(value) if math.isfinite(value) else str(value) for value in column
        ]
    level: dict[str | None, str] = {None: ABSENT}
    for cell in set(column) - {None}:
        value = number(cell)
        level[cell] = short(value) if value is not None and math.isfinite(value) else cell
    return [level[cell] for cell in column]


def numbers_of(table: RawTable, name: str, largest: float = math.inf) -> NDArray[np.float64]:
    """A column as numbers, NaN where it is missing; every other cell must be a finite number of at most `largest`."""
    column = table.columns[name]
    if column.dtype == object:
        values = parsed(column)
        if values is None:
            refuse_times_and_commas(table, name)
            index = next(i for i, cell in enumerate(column) if cell is not None and number(cell) is None)
            raise ValueError(f"{table.cell(name, index)}: {column[index]!r} is not a number")
        column = values
    for wrong, why in (
        (np.isinf(column), "is not a finite number"),
        (np.abs(column) > largest, "is too large: rescale it"),
    ):
        if wrong.any():
            index = int(np.argmax(wrong))
            raise ValueError(f"{table.cell(name, index)}: {column[index]} {why}")
    return column


def first_text(tables: Sequence[RawTable], name: str) -> str:
    for table in tables:
        column = table.columns[name]
        for index, cell in enumerate(column if column.dtype == object else ()):
            if cell is not None and number(cell) is None:
                return f"{table.cell(name, index)}: {cell!r}"
    return "a cell"


def refuse_times(source: str, name: str) -> NoReturn:
    """A date has no unit that would be right for everyone."""
    raise ValueError(
        f"{source}: column {name!r} holds dates or times; turn it into a number, such as days since a date, "
        "or name the columns to use in `columns`, without it"
    )


def refuse_times_and_commas(table: RawTable, name: str) -> None:
    """Raise an error if all cells of a column of text are dates or times, or numbers with a decimal comma."""
    column = table.columns[name]
    if column.dtype != object:
        return
    cells = set(column) - {None}
    if not cells:
        return
    if all(_is_time(cell) for cell in cells):
        refuse_times(table.source, name)
    with_comma = {cell for cell in cells if re.fullmatch(r"[+-]?\d+(,\d+)+([eE][+-]?\d+)?", cell)}
    if with_comma and all(cell in with_comma or number(cell) is not None for cell in cells):
        index = next(i for i, cell in enumerate(column) if cell in with_comma)
        raise ValueError(
            f"{table.cell(name, index)}: {column[index]!r} has a comma; write numbers with a decimal point, such as "
            "3.5, and without separators of thousands"
        )


def _is_time(cell: str) -> bool:
    for parse in (datetime.datetime.fromisoformat, datetime.time.fromisoformat):
        try:
            parse(cell)
        except ValueError:
            continue
        return number(cell) is None
    return False
