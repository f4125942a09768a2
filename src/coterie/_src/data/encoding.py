"""From tables with text and missing cells to numbers: what is done to every column, as it was learnt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie._src.arrays import as_numpy
from coterie._src.data.raw_table import ABSENT, RawTable, levels_of, numbers_of, require
from coterie._src.data.tables import frame_table, is_frame

MAX_LEVELS = 50
"""Levels of one text column at most."""
OTHER = "other"
"""The level of rarer and unknown cells."""
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
    >>> encoding = Encoding((Number("x"),), "y")
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
        check_names(found)
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


def check_names(encoding: Encoding) -> None:
    """Raise an error if two features would have the same name."""
    names = encoding.feature_names
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"columns: two features would be called {twice!r}; rename a column")
