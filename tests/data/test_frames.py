"""Columns of frames that are a mistake are named, instead of left out or changed in silence."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie as ct

RNG = np.random.default_rng(0)
SITES = np.repeat(["a", "b", "c", "d", "e", "f"], 12)
FRAME = pd.DataFrame({"site": SITES, "x": RNG.normal(size=72), "z": RNG.normal(size=72), "y": RNG.normal(size=72)})


def fitted(frame: pd.DataFrame) -> Any:
    return ct.fit(frame, client="site", target="y", clusters=1, method="local")


def test_one_word_in_a_column_of_numbers_is_named() -> None:
    stray = FRAME.astype({"x": object})
    stray.loc[5, "x"] = "n.k."
    with pytest.raises(ValueError, match=re.escape("column 'x', row 5: 'n.k.' is no number")):
        fitted(stray)


def test_names_of_rows_are_left_out_as_before() -> None:
    """Text that no two clients share, be it words or the digits of an identifier."""
    named = FRAME.assign(name=[f"row {i}" for i in range(72)], number=[f"{i:05}" for i in range(72)])
    assert [column.name for column in fitted(named).encoding.columns if "level" in getattr(column, "why", "")] == [
        "name",
        "number",
    ]


def test_complex_numbers_and_repeated_names_are_refused() -> None:
    with pytest.raises(ValueError, match="column 'x' holds complex numbers"):
        fitted(FRAME.assign(x=FRAME.x + 1j))
    repeated = FRAME.rename(columns={"z": "x"})
    with pytest.raises(ValueError, match="'x' 2 times"):
        fitted(repeated)
