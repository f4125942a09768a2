"""The information limit: what a server can reach that knows everything but which clients are Byzantine."""

from __future__ import annotations

import numpy as np
import pytest

from coterie._src.studies.information_limit import as_markdown, informed_mean, measure


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
