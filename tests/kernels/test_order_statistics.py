"""Means between ranks against np.sort in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie._src.kernels.order_statistics import NETWORK_ROWS, mean_between_ranks, means_between_ranks

values = st.one_of(
    st.floats(-(2.0**126), 2.0**126, width=32),
    st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 1e38, -1e38, 1.0]),  # ties, signed zeros, denormals, huge
)


@st.composite
def tables_and_ranks(draw: st.DrawFn) -> tuple[np.ndarray, int, int]:
    rows = draw(st.integers(1, 40))
    table = draw(hnp.arrays(np.float32, (rows, draw(st.integers(1, 5))), elements=values))
    low = draw(st.integers(0, rows - 1))
    return table, low, draw(st.integers(low + 1, rows))


def oracle(rows: np.ndarray, low: int, high: int) -> np.ndarray:
    return np.sort(rows.astype(np.float64), axis=0)[low:high].mean(axis=0)


@given(tables_and_ranks())
def test_agrees_with_sorting_in_float64(drawn: tuple[np.ndarray, int, int]) -> None:
    rows, low, high = drawn
    expected = oracle(rows, low, high)
    scale = np.abs(np.sort(rows.astype(np.float64), axis=0)[low:high]).max(axis=0)
    assert np.all(np.abs(mean_between_ranks(rows, low, high) - expected) <= 2e-7 * scale + 1e-44)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 64, 100, 257, 1001, NETWORK_ROWS + 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("columns", [1, 128, 131])
def test_every_row_count(rows: int, dtype: type, columns: int, rng: np.random.Generator) -> None:
    table = rng.standard_normal((rows, columns)).astype(dtype)
    tolerance = 1e-6 if dtype is np.float32 else 1e-14
    for low, high in [(0, rows), ((rows - 1) // 2, rows // 2 + 1), (rows // 10, rows - rows // 10)]:
        np.testing.assert_allclose(
            mean_between_ranks(table, low, high), oracle(table, low, high), rtol=tolerance, atol=tolerance
        )


def test_layouts_views_and_half_precision(rng: np.random.Generator) -> None:
    table = rng.standard_normal((11, 200)).astype(np.float32)
    expected = oracle(table, 4, 7)
    wide = rng.standard_normal((22, 400)).astype(np.float32)
    wide[::2, ::2] = table
    for view in (np.asfortranarray(table), wide[::2, ::2], table[::-1], table.astype(">f4")):
        found = mean_between_ranks(view, 4, 7)
        assert found.dtype == view.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    for dtype in (torch.float16, torch.bfloat16):
        half = torch.from_numpy(table).to(dtype)
        found = mean_between_ranks(half, 4, 7)
        assert found.dtype == dtype
        np.testing.assert_allclose(found.float(), oracle(half.float().numpy(), 4, 7), rtol=1e-2, atol=1e-2)


def test_many_columns_are_the_same_on_one_thread_and_on_several(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = rng.standard_normal((20, 10_001)).astype(np.float32)
    alone = mean_between_ranks(table, 9, 11)
    monkeypatch.setattr("coterie._src.kernels.order_statistics.numba.THREAD_ELEMENTS", table.size // 3)
    monkeypatch.setattr("coterie._src.kernels.order_statistics.numba.available_cores", lambda: 4)
    assert np.array_equal(mean_between_ranks(table, 9, 11), alone)


def test_a_nan_or_infinity_stays_in_its_column() -> None:
    table = np.arange(15, dtype=np.float32).reshape(5, 3)
    table[2, 0] = np.nan
    table[4, 1] = np.inf
    found = mean_between_ranks(table, 0, 5)
    assert np.isnan(found[0])
    assert found[1] == np.inf
    assert found[2] == 8.0
    assert mean_between_ranks(table, 1, 4)[1] == 7.0


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (2, 2), (0, 4), (3, 2)])
def test_impossible_ranks(low: int, high: int) -> None:
    with pytest.raises(ValueError, match="ranks must satisfy"):
        mean_between_ranks(np.zeros((3, 1)), low, high)


def test_members_outside_are_refused() -> None:
    rows = np.arange(42.0).reshape(42, 1)
    for members in (np.arange(21) - 21, np.arange(30, 51)):
        with pytest.raises(ValueError, match="members must be rows from 0 to 41"):
            mean_between_ranks(rows, 10, 11, members)


def test_views_and_members(rng: np.random.Generator) -> None:
    wide = rng.standard_normal((60, 900)).astype(np.float32)
    for view in (wide[::2], wide[::-3, 7:801], wide[:, 3:]):
        members = rng.permutation(len(view))[: len(view) - 1]
        low, high = (len(members) - 1) // 2, len(members) // 2 + 1
        found = mean_between_ranks(view, low, high, members)
        np.testing.assert_allclose(found, np.median(view[members], axis=0), rtol=1e-6)
        tensor = mean_between_ranks(torch.from_numpy(view.copy()), low, high, members)
        assert np.array_equal(tensor.numpy(), found)


@pytest.mark.parametrize("columns", [0, 1, 300])
def test_groups_of_rows(columns: int, rng: np.random.Generator) -> None:
    """Each its own ranks; an empty one gets zeros, and no group at all an empty table."""
    rows = rng.standard_normal((20, columns)).astype(np.float32)
    members = rng.permutation(20)[:17]
    found = means_between_ranks(rows, members, [5, 0, 1, 11], [(1, 4), (0, 1), (0, 1), (5, 6)])
    assert found.dtype == np.float32
    expected = [oracle(rows[members[:5]], 1, 4), np.zeros(columns), rows[members[5]], oracle(rows[members[6:]], 5, 6)]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    assert means_between_ranks(rows, members[:0], [], []).shape == (0, columns)
