"""Tables for the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from coterie._src.experiments import METRICS
from coterie._src.report import as_table

NONE = {"mean": None, "se": None, "trials": 2}
KNOWN = ("dist", "matched_dist", "ari", "oracle_ratio", "rounds", "seconds")


def printed(width: int, error: float | None) -> str:
    one = {"mean": 1.234, "se": error, "trials": 2}
    summary = {
        name: {metric: one if metric in KNOWN else NONE for metric in METRICS.names} for name in ("ifca", "local")
    }
    file = io.StringIO()
    Console(file=file, width=width).print(as_table(summary, "a title", width))
    return file.getvalue()


@pytest.mark.parametrize(("width", "error"), [(80, None), (100, 0.1)])
def test_a_table_that_fits_has_all_columns(width: int, error: float | None) -> None:
    text = printed(width, error)
    assert "rounds   seconds" in text
    assert "summary.json" not in text


def test_a_narrow_terminal_says_what_it_does_not_show() -> None:
    text = printed(80, 0.1)
    assert "rounds   seconds" not in text
    assert "rounds and seconds need a wider terminal; they are in summary.json" in text
    assert max(map(len, text.splitlines())) <= 80
