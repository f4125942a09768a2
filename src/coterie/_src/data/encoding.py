"""From tables with text and missing cells to numbers, such that no minority of clients decides how.

Whatever is learnt from the clients' tables counts clients, not samples: with at most b Byzantine clients, a level of a
text column or an indicator of missing values exists only if more than b clients have it, and so at least one honest
client; and the value in the place of missing ones is a median over more than 2b clients, which lies among those of the
honest ones.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie._src.arrays import as_numpy
from coterie._src.data.tables import (
    RawTable,
    frame_table,
    is_frame,
    is_missing,
    number,
    parsed,
    refuse_times,
    require,
    short,
)

MAX_LEVELS = 50
"""Levels of one text column at most."""
OTHER, ABSENT = "other", "missing"
"""The levels of rarer and unknown cells, and of missing ones."""
FORMAT = 1
"""The version of `Encoding.as_dict`."""


@dataclass(frozen=True)
class Number:
    """A column of numbers. fill: in the place of missing values; None: there are none. indicator: a column marks them.

    >>> Number("age", 40.0, True).feature_names, Number("age", 40.0, True).line()
    (('age', 'age=missing'), 'age: missing values become 40, and age=missing marks them')
    """

    name: str
    fill: float | None = None
    indicator: bool = False

    @property
    def feature_names(self) -> tuple[str, ...]:
        return (self.name, f"{self.name}={ABSENT}") if self.indicator else (self.name,)

    def features(self, table: RawTable, largest: float) -> list[NDArray[np.float64]]:
        values = numbers_of(table, self.name, largest)
        absent = np.isnan(values)
        if self.fill is None:
            if absent.any():
                raise ValueError(
                    f"{table.cell(self.name, int(np.argmax(absent)))}: is missing, and no value was missing in this "
                    "column of the clients' tables; fill it, or leave the row out"
                )
            return [values]
        filled = np.where(absent, self.fill, values)
        return [filled, absent.astype(np.float64)] if self.indicator else [filled]

    def line(self) -> str:
        if self.fill is None:
            return f"{self.name}: as it is"
        marked = f", and {self.name}={ABSENT} marks them" if self.indicator else ""
        return f"{self.name}: missing values become {self.fill:.6g}{marked}"


@dataclass(frozen=True)
class Text:
    """A column of text. levels: those with a column of 0 and 1. reference: the level without one; None: all have one.

    A missing cell is the level "missing". Every level that is not known is the level "other", which is 0 in all
    columns if it has none.

    >>> Text("sex", ("f", "other"), "m").feature_names
    ('sex=f', 'sex=other')
    """

    name: str
    levels: tuple[str, ...]
    reference: str | None = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={level}" for level in self.levels)

    def features(self, table: RawTable, largest: float) -> list[NDArray[np.float64]]:
        place = {level: index for index, level in enumerate(self.levels)}
        nowhere = len(place)
        unknown = place.get(OTHER, nowhere)
        column = levels_of(table.columns[self.name])
        code = {level: nowhere if level == self.reference else place.get(level, unknown) for level in set(column)}
        return list(np.eye(nowhere + 1)[[code[level] for level in column], :nowhere].T)

    def line(self) -> str:
        zero = [] if self.reference is None else [f"{self.reference} (the most common level)"]
        zero += [] if OTHER in (*self.levels, self.reference) else ["every unknown level"]
        rest = f"; 0 in all of them: {' and '.join(zero)}" if zero else ""
        return f"{self.name}: a column of 0 and 1 for each of {', '.join(self.levels)}{rest}"


@dataclass(frozen=True)
class Dropped:
    """A column that is not used. why: the reason, in words."""

    name: str
    why: str

    @property
    def feature_names(self) -> tuple[str, ...]:
        return ()

    def features(self, table: RawTable, largest: float) -> list[NDArray[np.float64]]:
        return []

    def line(self) -> str:
        return f"{self.name}: left out, since {self.why}"


Column = Number | Text | Dropped
KINDS: dict[str, Callable[..., Column]] = {"number": Number, "text": Text, "dropped": Dropped}


@dataclass(frozen=True)
class Encoding:
    """What is done to every column of a table.

    Attributes
    ----------
    columns : tuple
        A record for each column that may be a feature, in their order.
    target : str or None
        The column to predict.

    Examples
    --------
    >>> table = RawTable({"y": np.array([1.0, 2.0]), "x": np.array([3.0, 4.0])}, np.arange(2), "here")
    >>> encoding = learn_encoding([table], "y")
    >>> encoding.feature_names, encoding.features(table).tolist()
    (('x',), [[3.0], [4.0]])
    """

    columns: tuple[Column, ...]
    target: str | None = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features, in their order."""
        return tuple(name for column in self.columns for name in column.feature_names)

    @property
    def is_plain(self) -> bool:
        """Whether every column is a number that is taken as it is."""
        return all(column == Number(column.name) for column in self.columns)

    def features(self, table: Any, *, largest: float = math.inf) -> NDArray[np.float64]:
        """(n, p): the features of a raw table, of a frame, or of an array with all columns in their order.

        The columns of tables and frames are found by their names; other columns are ignored. A value beyond `largest`
        is refused.
        """
        needed = [column.name for column in self.columns if column.feature_names]
        if not isinstance(table, RawTable):
            table = frame_table(table, needed) if is_frame(table) else self._array(table)
        for name in needed:
            require(table, name)
        found = [part for column in self.columns for part in column.features(table, largest)]
        return np.column_stack(found) if found else np.empty((len(table), 0))

    def targets(self, table: RawTable, *, largest: float = math.inf) -> NDArray[np.float64]:
        """(n,): the column to predict, in which no value may be missing."""
        assert self.target is not None
        values = numbers_of(table, self.target, largest)
        absent = np.isnan(values)
        if absent.any():
            place = table.cell(self.target, int(np.argmax(absent)))
            raise ValueError(f"{place}: is missing, and every sample needs a target")
        return values

    def _array(self, x: Any) -> RawTable:
        names = [column.name for column in self.columns]
        text = [column.name for column in self.columns if isinstance(column, Text)]
        if text:
            raise ValueError(f"x must be a frame with named columns: {text[0]} holds text")
        try:
            values = as_numpy(x).astype(np.float64)
        except (ValueError, TypeError) as error:
            raise ValueError(f"x must be an array of numbers ({str(error).splitlines()[0]})") from None
        if values.ndim != 2 or values.shape[1] != len(names) or not len(values):
            raise ValueError(f"x must have shape (n, {len(names)}) with n >= 1, got {values.shape}")
        return RawTable(dict(zip(names, values.T, strict=True)), np.arange(len(values)), "x (rows from 0)")

    def lines(self) -> list[str]:
        """What is done, one line for every column."""
        return [column.line() for column in self.columns]

    def as_dict(self) -> dict[str, Any]:
        """The encoding as JSON can hold it."""
        kinds = {made: kind for kind, made in KINDS.items()}
        columns = [{"kind": kinds[type(column)], **asdict(column)} for column in self.columns]
        for column in columns:
            if "levels" in column:
                column["levels"] = list(column["levels"])
        return {"format": FORMAT, "target": self.target, "columns": columns}

    @classmethod
    def from_dict(cls, values: Any) -> Encoding:
        """The encoding that `as_dict` wrote; everything is checked."""
        if not isinstance(values, Mapping) or set(values) != {"format", "target", "columns"}:
            raise ValueError("encoding: must have the keys format, target and columns")
        if values["format"] != FORMAT:
            raise ValueError(f"encoding: format must be {FORMAT}, got {values['format']!r}")
        target, columns = values["target"], values["columns"]
        if not isinstance(target, str | None) or not isinstance(columns, list):
            raise ValueError("encoding: target must be a name or null, and columns a list")
        found = cls(tuple(_column(column) for column in columns), target)
        _check_names(found)
        return found


def _column(values: Any) -> Column:
    """A column from a dictionary, checked."""
    wanted: dict[str, dict[str, Callable[[Any], bool]]] = {
        "number": {"fill": lambda v: v is None or _is_finite(v), "indicator": lambda v: isinstance(v, bool)},
        "text": {"levels": _are_levels, "reference": lambda v: isinstance(v, str | None)},
        "dropped": {"why": lambda v: isinstance(v, str)},
    }
    kind = values.get("kind") if isinstance(values, Mapping) else None
    if not isinstance(kind, str) or kind not in wanted:
        raise ValueError(f"encoding: kind of a column must be one of {', '.join(wanted)}, got {kind!r}")
    checks = {"name": lambda v: isinstance(v, str), **wanted[kind]}
    if set(values) != {"kind", *checks}:
        raise ValueError(f"encoding: a column of kind {kind} must have the keys {', '.join(checks)}")
    for key, right in checks.items():
        if not right(values[key]):
            raise ValueError(f"encoding: {key} of a column of kind {kind} must not be {values[key]!r}")
    given: dict[str, Any] = {key: tuple(values[key]) if key == "levels" else values[key] for key in checks}
    if kind == "number" and given["fill"] is not None:
        given["fill"] = float(given["fill"])
    if kind == "number" and given["indicator"] and given["fill"] is None:
        raise ValueError(f"encoding: column {given['name']!r} has an indicator of missing values, and nothing for them")
    return KINDS[kind](**given)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_levels(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 1 <= len(value) <= MAX_LEVELS + 1
        and all(isinstance(level, str) for level in value)
        and len(set(value)) == len(value)
    )


# --- learning -----------------------------------------------------------------------------------------


def learn_encoding(
    tables: Sequence[RawTable],
    target: str | None,
    columns: Sequence[str] = (),
    max_byzantine: int = 0,
    *,
    intercept: bool = False,
) -> Encoding:
    """What to do with every column, from the tables of all clients, of which `max_byzantine` may be Byzantine.

    A column is text if more clients than may be Byzantine have text in it. A number is taken as it is; missing ones
    become the median over the clients of each client's median, with an indicator `name=missing` if they are missing at
    more clients than may be Byzantine. A text column becomes one column of 0 and 1 for every level that more clients
    than may be Byzantine have; missing cells are the level "missing", and all rarer ones together the level "other".
    The level with the largest mean share over the clients is the reference and has no column, since the columns of all
    levels add up to the intercept. Without an intercept the text column that comes first by name has no reference.

    Left out are text columns with one level, since they add nothing to an intercept, and columns with missing values in
    which at most 2·max_byzantine clients have any value. A column of equal numbers stays.

    Parameters
    ----------
    tables : sequence of RawTable
        One per client.
    target : str or None
        The column to predict, which is no feature.
    columns : sequence of str, optional
        The features, in this order; by default all columns but the target, and all tables have the same.
    max_byzantine : int, default 0
        How many of the clients may be Byzantine; fewer than half of them.
    intercept : bool, default False
        Whether a column of ones will be added to the features.
    """
    if not tables:
        raise ValueError("tables must hold at least one client")
    if not 0 <= 2 * max_byzantine < len(tables):
        raise ValueError(
            f"max_byzantine must be at least 0 and below half of the {len(tables)} clients, got {max_byzantine}"
        )
    names = list(columns) or [name for name in tables[0].columns if name != target]
    if len({*names, target}) != len(names) + 1:
        raise ValueError("columns: each feature once, and the target is none of them")
    if target is not None:
        require(tables[0], target)
    for table in tables:
        _match_columns(table, [*names, *([] if target is None else [target])], tables[0], bool(columns))
    found = [
        _learn_text(tables, name, max_byzantine)
        if _count_text(tables, name) > max_byzantine
        else _learn_number(tables, name, max_byzantine)
        for name in names
    ]
    whole = min((column.name for column in found if isinstance(column, Text) and not intercept), default=None)
    encoding = Encoding(
        tuple(_without_reference(column) if column.name == whole else column for column in found), target
    )
    _check_names(encoding)
    return encoding


def _match_columns(table: RawTable, names: Sequence[str], first: RawTable, named: bool) -> None:
    if named:
        for name in names:
            require(table, name)
        return
    for name in names:
        if name not in table.columns:
            raise ValueError(f"{table.source}: no column {name!r}, which {_last(first.source)} has")
    for name in table.columns:
        if name not in names:
            raise ValueError(f"{table.source}: column {name!r} is not in {_last(first.source)}")


def _last(source: str) -> str:
    return re.split(r"[/\\]", source)[-1]


def _check_names(encoding: Encoding) -> None:
    names = encoding.feature_names
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"columns: two features would be called {twice!r}; rename a column")


def _count_text(tables: Sequence[RawTable], name: str) -> int:
    """How many clients have text in a column."""
    columns = [table.columns[name] for table in tables]
    return sum(column.dtype == object and not is_missing(column).all() for column in columns)


def _learn_number(tables: Sequence[RawTable], name: str, max_byzantine: int) -> Column:
    columns = [numbers_of(table, name) for table in tables]
    absent = [np.isnan(column) for column in columns]
    lacking = sum(bool(where.any()) for where in absent)
    if not lacking:
        return Number(name)
    medians = [
        float(np.median(column[~where])) for column, where in zip(columns, absent, strict=True) if not where.all()
    ]
    if not medians:
        return Dropped(name, "it has no value")
    if len(medians) <= 2 * max_byzantine:
        return Dropped(name, f"only {len(medians)} clients have values, and {max_byzantine} may be Byzantine")
    return Number(name, float(np.median(medians)), lacking > max_byzantine)


def _learn_text(tables: Sequence[RawTable], name: str, max_byzantine: int) -> Column:
    counts = []
    for table in tables:
        _refuse_times_and_commas(table, name)
        levels, sizes = np.unique(np.array(levels_of(table.columns[name]), dtype=np.str_), return_counts=True)
        counts.append(dict(zip(levels.tolist(), (sizes / sizes.sum()).tolist(), strict=True)))
    clients: dict[str, int] = {}
    for shares in counts:
        for level in shares:
            clients[level] = clients.get(level, 0) + 1
    kept = {level for level, owners in clients.items() if owners > max_byzantine}
    if sum(any(level not in kept or level == OTHER for level in shares) for shares in counts) > max_byzantine:
        kept.add(OTHER)
    if len(kept - {OTHER, ABSENT}) > MAX_LEVELS:
        numeric = sum(number(level) is not None for level in kept)
        hint = f" ({_first_text(tables, name)} is no number)" if 2 * numeric > len(kept) else ""
        raise ValueError(
            f"{tables[0].source}: column {name!r} is text with {len(kept)} levels, more than {MAX_LEVELS}{hint}; "
            "group them, make it a number, or name the columns to use in `columns`, without it"
        )
    if len(kept) < 2:
        return Dropped(name, f"its only common level is {next(iter(kept))!r}" if kept else "no level is common enough")
    share = {level: math.fsum(shares.get(level, 0.0) for shares in counts) for level in kept - {OTHER}}
    reference = min(share, key=lambda level: (-share[level], level)) if share else OTHER
    return Text(name, tuple(sorted(kept - {reference})), reference)


def _without_reference(column: Column) -> Column:
    assert isinstance(column, Text)
    assert column.reference is not None
    return Text(column.name, tuple(sorted([*column.levels, column.reference])))


# --- cells --------------------------------------------------------------------------------------------


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
            _refuse_times_and_commas(table, name)
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


def _first_text(tables: Sequence[RawTable], name: str) -> str:
    for table in tables:
        column = table.columns[name]
        for index, cell in enumerate(column if column.dtype == object else ()):
            if cell is not None and number(cell) is None:
                return f"{table.cell(name, index)}: {cell!r}"
    return "a cell"


def _refuse_times_and_commas(table: RawTable, name: str) -> None:
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
