"""What to do with every column, from the tables of all clients, such that no minority of them decides.

Whatever is learnt from the clients' tables counts clients, not samples: with at most b Byzantine clients, a level of a
text column or an indicator of missing values exists only if more than b clients have it, and so at least one honest
client; and the value in the place of missing ones is a median over more than 2b clients, which lies among those of the
honest ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from coterie._src.data.encoding import MAX_LEVELS, OTHER, Column, Dropped, Encoding, Number, Text, check_names
from coterie._src.data.raw_table import (
    ABSENT,
    RawTable,
    first_text,
    is_missing,
    levels_of,
    number,
    numbers_of,
    refuse_times_and_commas,
    require,
)


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
    check_names(encoding)
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
        refuse_times_and_commas(table, name)
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
        hint = f" ({first_text(tables, name)} is no number)" if 2 * numeric > len(kept) else ""
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
