"""From the flat rows of a database to tables: select, group, average, export."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from typing import Any

from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.summary import METRICS, statistic
from coterie._src.experiments.toml import parse_value

Row = dict[str, Any]


def full_name(name: str, rows: Sequence[Row], metric: bool = False) -> str:
    """A key by its whole name or by its last part: `dim` is `problem.dim`.

    metric: a metric is wanted; else one is meant only where no key has that name (`clusters` is `problem.clusters`).
    """
    names = list(dict.fromkeys(key for row in rows for key in row))
    measured = [candidate for candidate in names if candidate in METRICS.names]
    keys = [candidate for candidate in names if candidate not in METRICS.names]
    if name in (measured if metric else keys):
        return name
    candidates = [candidate for candidate in keys if candidate.split(".")[-1] == name]
    if not candidates and name in names:
        return name
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise ValueError(f"{name}: could be {' or '.join(candidates)}")
    raise ValueError(f"{name}: no such key; there are {', '.join(names)}")


def select(rows: Sequence[Row], where: Sequence[str]) -> list[Row]:
    """The rows in which every `key=value` holds."""
    chosen = list(rows)
    for condition in where:
        name, equals, text = condition.partition("=")
        if not equals:
            raise ValueError(f"--where {condition}: must read key=value")
        if chosen:
            wanted, column = parse_value(text), full_name(name.strip(), chosen)
            chosen = [row for row in chosen if row.get(column) == wanted]
    return chosen


def varied(rows: Sequence[Row]) -> list[str]:
    """The configuration keys that do not have one value throughout, and the seed, if there are several."""
    if not rows:
        return []
    names = list(dict.fromkeys(name for row in rows for name in row if "." in name or name == "seed"))
    return [name for name in names if _differ([row.get(name) for row in rows])]


def _differ(values: Sequence[Any]) -> bool:
    """Whether some value, written as JSON, differs from the first; values of one plain type are compared directly."""
    first = values[0]
    plain, text = isinstance(first, str | int | float), json.dumps(first)
    return any(
        value is not first
        and not (plain and type(value) is type(first) and value == first)
        and json.dumps(value) != text
        for value in values
    )


def aggregate(rows: Sequence[Row], by: Sequence[str] | None = None) -> list[Row]:
    """One row per combination of the keys `by` (those that vary) and method: trials, and METRIC and METRIC_se.

    Sorted by the values of the keys, then by method. Trials with the same number and seed use the same random streams,
    whatever else differs; so results that are averaged over other keys are first averaged within a trial, which counts
    once.
    """
    keys = [*(varied(rows) if by is None else by)]
    keys = keys if "method" in keys else [*keys, "method"]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(json.dumps([row.get(name) for name in keys]), []).append(row)
    table = []
    for members in groups.values():
        trials: dict[tuple[int, int], list[Row]] = {}
        for row in members:
            trials.setdefault((row["seed"], row["trial"]), []).append(row)
        line: Row = {name: members[0].get(name) for name in keys} | {"trials": len(trials)}
        ordered = [trials[number] for number in sorted(trials)]
        for metric in METRICS.names:
            found = statistic([math.fsum(row.get(metric, math.nan) for row in own) / len(own) for own in ordered])
            line[metric], line[f"{metric}_se"] = found["mean"], found["se"]
        table.append(line)
    return sorted(table, key=lambda line: [_rank(line[name]) for name in keys])


def _rank(value: Any) -> tuple[int, float, str]:
    """An order over values of any kind: methods in their own order, numbers by size, the rest by name."""
    if value in METHODS.names:
        return 0, float(METHODS.names.index(value)), ""
    if isinstance(value, int | float):
        return 0, float(value), ""
    return 1, 0.0, json.dumps(value)


def as_csv(rows: Sequence[Row], header: bool = True) -> str:
    """Rows as CSV; floats keep every digit, a value that is not there is empty."""
    text = io.StringIO()
    if rows:
        names, writer = list(dict.fromkeys(name for row in rows for name in row)), csv.writer(text, lineterminator="\n")
        if header:
            writer.writerow(names)
        writer.writerows([row.get(name, "") for name in names] for row in rows)
    return text.getvalue()


def as_json(rows: Sequence[Row]) -> str:
    """Rows as JSON; what is not a number is null."""
    clean = [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in rows]
    return json.dumps(clean, indent=1) + "\n"


def as_parquet(rows: Sequence[Row]) -> bytes:
    """Rows as a Parquet file (`coterie[parquet]`)."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError("--format: parquet needs pyarrow (pip install 'coterie[parquet]')") from None
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(n for row in rows for n in row)}
    for name, values in columns.items():
        kinds = {type(value) for value in values if value is not None}
        if not (kinds <= {int, float} or kinds <= {str} or kinds <= {bool}):  # such as a step of 0.1 and of "auto"
            columns[name] = [json.dumps(value) for value in values]
    stream = io.BytesIO()
    parquet.write_table(arrow.table(columns), stream)
    return stream.getvalue()


def without_clock(rows: Sequence[Row]) -> list[Row]:
    """The rows without what is never the same twice."""
    return [{k: v for k, v in row.items() if _repeatable(k.removesuffix("_se"))} for row in rows]


def _repeatable(name: str) -> bool:
    return name not in METRICS.names or METRICS[name].repeatable
