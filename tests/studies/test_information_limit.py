"""The information limit: what a server can reach that knows everything but which clients are Byzantine."""

from __future__ import annotations

import numpy as np
import pytest

from coterie._src.studies import information_limit
from coterie._src.studies.information_limit import (
    as_markdown,
    informed_mean,
    measure,
    measure_searched,
    searched_as_markdown,
)


def test_the_error_of_an_informed_server() -> None:
    """A large shift is detected and a small one does no harm; in between the two groups cannot be told apart."""
    (few, many) = measure(12, cells=[(2, 20), (15, 20)])
    assert few.informed[0] < many.informed[0] < many.filtered[0] <= many.chosen[0]
    assert few.informed[0] == pytest.approx(1.0, abs=4 * few.informed[1] + 0.1)
    text = as_markdown([few, many], 12)
    assert text.splitlines()[4].startswith("| 2 | 20 | 4 of 42 | ")
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((20, 40, 6))
    np.testing.assert_allclose(informed_mean(rows, 10, 1e-6, rng), rows.mean(axis=1), atol=1e-6)


def test_an_adversary_that_searches_does_more_to_an_informed_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may choose the direction of the honest error; a random one of the same sizes adds less."""
    monkeypatch.setattr(information_limit, "STEPS", 100)
    (searched,) = measure_searched(6, cells=[(20, 8, 8)])
    assert searched.informed[0] >= searched.along_error[0] > 1.3
    assert searched.filtered[0] > 1.3
    text = searched_as_markdown([searched], 6)
    assert text.splitlines()[4].startswith("| 8 of 28 | 8 | ")
