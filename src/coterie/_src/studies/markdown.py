"""Tables and numbers in Markdown, as all reports of studies print them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from coterie._src.experiments.results import Row


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """The lines of a Markdown table.

    >>> table(["k", "d"], [[2, 20]])
    ['| k | d |', '|---|---|', '| 2 | 20 |']
    """
    return [_line(header), "|" + "---|" * len(header), *map(_line, rows)]


def _line(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def plus_minus(mean: float | None, error: float | None, form: str = ".3f", error_form: str | None = None) -> str:
    """A mean and its standard error; the mean alone where there is no standard error, a dash where there is no mean.

    form, error_form: how the two are written (the second defaults to the first).

    >>> plus_minus(1.5, 0.25, ".2f"), plus_minus(1.5, None), plus_minus(None, None)
    ('1.50 ± 0.25', '1.500', '-')
    """
    if mean is None:
        return "-"
    return f"{mean:{form}}" + ("" if error is None else f" ± {error:{error_form or form}}")


def mean_of(line: Row, metric: str, form: str = ".3f", error_form: str | None = None) -> str:
    """Mean and standard error of a metric in a line of `aggregate`."""
    return plus_minus(line[metric], line[f"{metric}_se"], form, error_form)


def or_infinite(mean: float | None) -> float:
    """A mean of `aggregate`; infinite where there is none, since a trial diverged."""
    return math.inf if mean is None else mean
