"""Squared distances between rows, in both forms."""

from __future__ import annotations

import numpy as np
import pytest

from coterie._src.kernels.pairwise import BLOCK, FEW, add_squared_distances


@pytest.fixture(params=["reference", "compiled"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie._src.kernels.dispatch.CHOICE", request.param)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("rows", "others", "columns"), [(1, 1, 1), (5, 3, 7), (4, 8, BLOCK + 3), (9, 9, 30)])
def test_distances_are_added_over_a_range_of_columns(rows: int, others: int, columns: int, dtype: type) -> None:
    rng = np.random.default_rng([rows, columns])
    x, y = rng.standard_normal((rows, columns)).astype(dtype), rng.standard_normal((others, columns)).astype(dtype)
    exact = (x[:, None].astype(np.float64) - y[None]) ** 2
    for start, stop in [(0, columns), (columns // 3, columns), (0, 0)]:
        found = np.full((rows, others), 3.0)
        add_squared_distances(x, y, (start, stop), False, found)
        rtol = 1e-5 if dtype is np.float32 else 1e-12
        np.testing.assert_allclose(found, 3.0 + exact[:, :, start:stop].sum(axis=2), rtol=rtol)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 9])
def test_below_the_diagonal_alone(rows: int) -> None:
    x, y = np.random.default_rng(rows).standard_normal((2, rows, 6))
    found = np.zeros((rows, rows))
    add_squared_distances(x, y, (0, 6), True, found)
    expected = ((x[:, None] - y[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(found, np.tril(expected, -1), rtol=1e-12)


@pytest.mark.usefixtures("form")
def test_two_near_rows_far_from_zero_lose_no_digits() -> None:
    far = np.full((2, 1000), 1e6, np.float32)
    far[1] += 1.0
    found = np.zeros((2, 2))
    add_squared_distances(far, far, (0, 1000), True, found)
    assert found.tolist() == [[0.0, 0.0], [1000.0, 0.0]]


def test_compiling_is_worth_it_from_many_differences_on() -> None:
    assert add_squared_distances.worth is not None
    side = int(FEW**0.5)
    few, many = np.zeros((side - 1, 1)), np.zeros((side, 1))
    assert not add_squared_distances.worth(few, few, (0, 1), True, None)
    assert add_squared_distances.worth(many, many, (0, 1), True, None)
    assert not add_squared_distances.worth(many, many, (0, 0), True, None)
