"""The kernel against np.sort in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from coterie._src.kernels.order_statistics.fused import LANES, moves_of, play
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie._src.aggregators import order_statistics
from coterie._src.kernels.order_statistics import mean_between_ranks, network, sorting_network

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


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 64, 100, 257, 1001, order_statistics.NETWORK_ROWS + 1])
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
    table = rng.standard_normal((20, 100_001)).astype(np.float32)
    several = mean_between_ranks(table, 9, 11)
    monkeypatch.setattr(order_statistics, "THREAD_ELEMENTS", table.size + 1)
    assert np.array_equal(mean_between_ranks(table, 9, 11), several)


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


def test_pruning_drops_comparators() -> None:
    whole = len(sorting_network(100))
    assert 0 < len(network(100, 49, 51)) < 0.9 * whole
    assert 0 < len(network(100, 10, 90)) < 0.9 * whole  # who is in matters, not in which order
    assert len(network(100, 0, 99)) < len(network(100, 10, 90))  # the largest alone
    assert len(network(100, 0, 100)) == 0
    assert len(network(40, 1, 39)) == 58  # 3n/2 - 2 for the least and the greatest, which is the least possible
    assert len(network(40, 2, 38)) < 0.4 * len(sorting_network(40))  # few are cut off


@pytest.mark.parametrize("rows", range(2, 13))
def test_a_network_finds_its_ranks(rows: int) -> None:
    """For all rows of zeros and ones, and so, by the 0-1 principle, for all rows."""
    inputs = (np.arange(2**rows) >> np.arange(rows)[:, None]) & 1
    for low in range(rows):
        for high in range(low + 1, rows + 1):
            values = inputs.copy()
            for a, b in network(rows, low, high).tolist():
                values[a], values[b] = values[a] & values[b], values[a] | values[b]
            assert np.array_equal(values[low:high].sum(axis=0), np.sort(inputs, axis=0)[low:high].sum(axis=0))


@given(st.integers(2, 60), st.integers(0, 2**31), st.data())
def test_moves_do_what_their_comparators_do(rows: int, seed: int, data: st.DataObject) -> None:
    """Any comparators in any order, whether they sort or not: every row of the network gets the same value."""
    entry = st.tuples(st.integers(0, rows - 1), st.integers(0, rows - 1)).filter(lambda pair: pair[0] != pair[1])
    drawn = data.draw(st.lists(entry, max_size=80))
    pairs = np.array(drawn, dtype=np.int32).reshape(-1, 2)
    block = np.random.default_rng(seed).integers(9, size=(rows, LANES)).astype(np.float32)
    expected = block.copy()
    for a, b in pairs:
        expected[[a, b]] = np.sort(expected[[a, b]], axis=0)
    moves, places = moves_of(pairs, rows)
    play(block, moves)
    assert np.array_equal(block[places], expected)
    assert sorted(places) == list(range(rows))


def test_moves_write_far_fewer_rows_than_comparators() -> None:
    for rows in (100, 400):
        pairs = network(rows, rows // 10, rows - rows // 10)
        moves, _ = moves_of(pairs, rows)
        written = np.array([2, 3, 3, 4, 4])[moves[:, 0]].sum()
        assert written < 0.7 * 2 * len(pairs)
