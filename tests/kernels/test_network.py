"""Sorting networks: they find their ranks, pruning drops comparators, and groups do what their comparators do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie._src.kernels.order_statistics.network import fuse, fused_network, network, sorting_network
from coterie._src.kernels.order_statistics.numba import _compare


def applied(block: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The rows after groups of comparators, by the definition of their kinds."""
    comparators = {
        0: [(0, 1)],
        1: [(0, 1), (1, 2)],
        2: [(0, 1), (0, 2)],
        3: [(0, 1), (2, 3), (1, 2)],
        4: [(0, 1), (2, 3), (0, 2), (1, 3)],
    }
    block = block.copy()
    for kind, *rows in groups.tolist():
        for low, high in comparators[kind]:
            a, b = rows[low], rows[high]
            block[[a, b]] = np.sort(block[[a, b]], axis=0)
    return block


def test_pruning_drops_comparators() -> None:
    whole = len(sorting_network(100))
    assert 0 < len(network(100, 49, 51)) < 0.9 * whole
    assert 0 < len(network(100, 10, 90)) < 0.9 * whole  # which rows are inside matters, not their order
    assert len(network(100, 0, 99)) < len(network(100, 10, 90))  # the largest alone
    assert len(network(100, 0, 100)) == 0
    assert len(network(40, 1, 39)) == 58  # 3n/2 - 2 for the smallest and the largest, which is the least possible
    assert len(network(40, 2, 38)) < 0.4 * len(sorting_network(40))  # few are cut off


@pytest.mark.parametrize("rows", range(1, 13))
def test_a_network_finds_its_ranks(rows: int) -> None:
    """For all rows of zeros and ones, and so, by the 0-1 principle, for all rows; in groups of comparators, too."""
    inputs = (np.arange(2**rows) >> np.arange(rows)[:, None]) & 1
    ranked = np.sort(inputs, axis=0)
    for low in range(rows):
        for high in range(low + 1, rows + 1):
            values = inputs.copy()
            for a, b in network(rows, low, high).tolist():
                values[a], values[b] = values[a] & values[b], values[a] | values[b]
            assert np.array_equal(values[low:high].sum(axis=0), ranked[low:high].sum(axis=0))
    middle = (rows - 1) // 2, rows // 2 + 1
    groups, places = fused_network(rows, *middle)
    assert np.array_equal(applied(inputs, groups)[places].sum(axis=0), ranked[slice(*middle)].sum(axis=0))


@given(st.integers(2, 60), st.integers(0, 2**31), st.data())
def test_groups_do_what_their_comparators_do(rows: int, seed: int, data: st.DataObject) -> None:
    """Any comparators in any order, whether they sort or not: every row of the network gets the same value."""
    entry = st.tuples(st.integers(0, rows - 1), st.integers(0, rows - 1)).filter(lambda pair: pair[0] != pair[1])
    drawn = data.draw(st.lists(entry, max_size=80))
    pairs = np.array(drawn, dtype=np.int32).reshape(-1, 2)
    block = np.random.default_rng(seed).integers(9, size=(rows, 20)).astype(np.float32)
    expected = block.copy()
    for a, b in pairs:
        expected[[a, b]] = np.sort(expected[[a, b]], axis=0)
    groups, places = fuse(pairs, rows)
    assert np.array_equal(applied(block, groups)[places], expected)
    _compare(block, groups)  # the compiled form
    assert np.array_equal(block[places], expected)
    assert sorted(places) == list(range(rows))


def test_groups_write_far_fewer_rows_than_comparators() -> None:
    for rows in (100, 400):
        pairs = network(rows, rows // 10, rows - rows // 10)
        groups, _ = fuse(pairs, rows)
        written = np.array([2, 3, 3, 4, 4])[groups[:, 0]].sum()
        assert written < 0.7 * 2 * len(pairs)
