"""Pieces of the spectral filter by hand: which rows are far, outermost or no noise."""

from __future__ import annotations

import numpy as np
import pytest

from coterie._src.aggregators import Mean, SpectralFilter
from coterie._src.aggregators.products import around, in_numpy
from coterie._src.aggregators.spectral import (
    FAR,
    _capped,
    _noise_edge,
    _outermost,
    _within_distance,
    displaced,
    outlier_direction,
)


def products(rows: np.ndarray) -> object:
    return in_numpy(around(rows, rows.mean(axis=0)))


# --- far rows -----------------------------------------------------------------------------------------


def test_far_rows_are_left_out_up_to_the_bound() -> None:
    far = (1.1 * FAR) ** 2
    squares = np.array([1.0, 4 * far, 1.0, far, 1.0, 9 * far, 1.0, 1.0, 1.0, 1.0])
    assert [_within_distance(squares, np.ones(10), bound, 0).tolist() for bound in (0, 1, 2, 3, 9)] == [
        list(range(10)), [0, 1, 2, 3, 4, 6, 7, 8, 9], [0, 2, 3, 4, 6, 7, 8, 9], [0, 2, 4, 6, 7, 8, 9],
        [0, 2, 4, 6, 7, 8, 9],
    ]  # fmt: skip
    assert len(_within_distance(squares, np.ones(10), 3, 2)) == 9  # two were left out before
    assert len(_within_distance(squares, np.ones(10), 1, 2)) == 10
    light = np.where(squares > 1, 1e-3, 1.0)  # a light row is expected to be far
    assert len(_within_distance(squares, light, 9, 0)) == 10


@pytest.mark.parametrize(("equal", "bound", "left"), [(6, 4, 0), (6, 5, 10), (5, 3, 10), (5, 4, 10), (7, 5, 0)])
def test_more_equal_rows_than_byzantine_clients_could_make_are_the_aggregate(equal: int, bound: int, left: int) -> None:
    """At least half of the rows, and more than the bound and the row that they copy."""
    squares = np.where(np.arange(10) < equal, 0.0, 1.0)
    found = len(_within_distance(squares, np.ones(10), bound, 10))
    assert found == left


def test_a_bound_of_0_keeps_every_row() -> None:
    rows = np.random.default_rng(0).standard_normal((30, 20))
    rows[0] += 3.0
    for form in ("removal", "no-regret"):
        np.testing.assert_allclose(SpectralFilter(0, form)(rows), Mean()(rows), atol=1e-12)
        assert np.abs(SpectralFilter(3, form)(rows) - Mean()(rows)).max() > 0.02


# --- outermost rows -----------------------------------------------------------------------------------


def test_the_lighter_side_goes() -> None:
    along = np.array([0.1, -5.0, 0.2, 0.0, -6.0, -0.1, 0.3])
    assert _outermost(along, np.ones(7), 1, 3).tolist() == [4]
    assert _outermost(along, np.ones(7), 2, 3).tolist() == [4, 1]
    assert _outermost(along, np.ones(7), 5, 9).tolist() == [4, 1]  # no more than the side has
    assert _outermost(-along, np.ones(7), 1, 3).tolist() == [4]
    assert _outermost(-along, np.ones(7), 2, 3).tolist() == [1, 4]
    assert _outermost(-along, np.ones(7), 5, 9).tolist() == [1, 4]
    heavy = np.where(along < -1, 9.0, 1.0)  # two heavy rows are not the lighter side
    assert set(_outermost(along, heavy, 9, 9).tolist()) == {0, 2, 3, 5, 6}
    assert _outermost(along, heavy, 1, 9).tolist() == [6]


def test_of_sides_of_the_same_weight_one_row_each_goes_or_none() -> None:
    along = np.array([3.0, -3.0, 2.9, -2.9])
    assert _outermost(along, np.ones(4), 1, 2).tolist() == [1, 0]
    assert _outermost(along, np.ones(4), 4, 9).tolist() == [1, 0]
    assert _outermost(along, np.ones(4), 1, 1).tolist() == []


# --- noise --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "dim"), [(60, 30), (40, 200), (300, 10)])
def test_noise_has_no_direction_and_a_common_shift_has_one(rows: int, dim: int) -> None:
    rng = np.random.default_rng(0)
    assert sum(outlier_direction(products(rng.standard_normal((rows, dim))), 4) is not None for _ in range(20)) <= 1
    shifted = rng.standard_normal((rows, dim))
    shifted[: rows // 10] += 12 / np.sqrt(dim)
    along = outlier_direction(products(shifted), 4)
    assert along is not None
    along = along * np.sign(along.sum())
    outer = set(np.argsort(-np.abs(along))[: rows // 20].tolist())
    assert len(outer & set(range(rows // 10))) >= 0.9 * len(outer)
    assert outlier_direction(products(shifted), 0) is None
    assert outlier_direction(products(np.ones((rows, dim))), 4) is None


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_the_edge_of_noise_is_near_its_largest_eigenvalue(size: float) -> None:
    """For n rows of d coordinates of variance s² it is about s²(√n + √d)², and somewhat more."""
    rng = np.random.default_rng(1)
    for rows, dim in ((80, 40), (50, 300)):
        edge = _noise_edge(products(size * rng.standard_normal((rows, dim))), 0.0)  # type: ignore[arg-type]
        assert 0.95 < edge / (size**2 * (np.sqrt(rows) + np.sqrt(dim)) ** 2) < 1.35


def test_where_there_is_no_noise_no_eigenvalue_exceeds_its_edge() -> None:
    rows = np.random.default_rng(0).standard_normal((20, 8))
    total = float((rows - rows.mean(axis=0)).ravel() @ (rows - rows.mean(axis=0)).ravel())
    assert _noise_edge(products(rows), 1.01 * total) == np.inf  # type: ignore[arg-type]
    assert _noise_edge(products(rows), 0.99 * total) < np.inf  # type: ignore[arg-type]
    one = np.zeros((20, 8))
    one[0] = 1.0  # all but one are copies
    assert _noise_edge(in_numpy(around(one, np.zeros(8))), 0.0) == np.inf
    orthogonal = np.eye(12)  # all products are 0
    assert _noise_edge(in_numpy(around(orthogonal, np.zeros(12))), 0.0) == np.inf


# --- weights and minorities ---------------------------------------------------------------------------


def test_weights_at_the_cap_by_hand() -> None:
    """8, 1, 1, 2 of mean 3 become multiples of mean 1 of which none is above 1.6: 1.6, and 0.6 for each unit."""
    np.testing.assert_allclose(_capped(np.array([8.0, 1.0, 1.0, 2.0]), 1.6, np.ones(4)), [1.6, 0.6, 0.6, 1.2])
    np.testing.assert_allclose(_capped(np.array([1.0, 3.0]), 1.6, np.ones(2)), [0.5, 1.5])
    counted = _capped(np.array([8.0, 1.0, 1.0]), 1.5, np.array([0.5, 1.0, 1.0]))
    np.testing.assert_allclose(counted, [1.5, 0.875, 0.875])
    assert counted @ np.array([0.5, 1.0, 1.0]) == pytest.approx(2.5)


@pytest.mark.parametrize("rows", [30, 200, 1000])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_minority_of_a_tenth(rows: int, side: int) -> None:
    rng = np.random.default_rng(rows)
    line = rng.standard_normal(rows)
    shifted = line + side * np.where(np.arange(rows) < rows // 10, 8.0, 0.0)
    gain, share, found = displaced(np.stack([line, shifted], axis=1), rows // 4)
    assert gain[0] < 15 < gain[1]
    assert share[1] == pytest.approx(0.1, abs=0.03)
    assert found[1] == side
