"""The products of rows around a centre: pairs, and rows that are copies of each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie._src.aggregators import SpectralFilter, median, products, squared_distances
from coterie._src.aggregators.products import Tall, around, copies, copies_among


def test_of_too_many_pairs_every_row_has_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    primes = np.array([2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31], dtype=np.float64)
    rows = np.arange(len(primes))
    assert len(Tall(primes[:, None]).squared_pairs(rows)) == 55
    monkeypatch.setattr(products, "SAMPLE", 33)
    found = np.sqrt(Tall(primes[:, None]).squared_pairs(rows))
    assert len(set(found.tolist())) == len(found) == 33
    assert all((found % prime == 0).sum() == 6 for prime in primes)


@pytest.mark.parametrize(("rows", "columns"), [(60, 10), (200, 20), (40, 100)])
def test_pairs_of_equal_rows_are_found_where_most_rows_have_one(rows: int, columns: int) -> None:
    """Byzantine rows that each copy another honest row: products say that these lie 1e-16 apart, not 0."""
    honest = np.random.default_rng(14).standard_normal((rows, columns)) + 5.0
    table = np.concatenate([honest, honest[: 2 * rows // 3]])
    groups = around(table, median(table)).copies(2 * rows // 3 + 1)
    assert groups.tolist() == [*range(rows), *range(2 * rows // 3)]


@given(
    hnp.arrays(np.int8, st.tuples(st.integers(2, 12), st.integers(1, 3))), st.integers(1, 6), st.sampled_from([1, 30])
)
def test_copies_are_the_same_some_points_at_a_time(values: np.ndarray, most: int, pairs: int) -> None:
    points = values / np.float64(16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "PAIRS", pairs)
        assert np.array_equal(copies_among(points, most), copies(squared_distances(points), most))


def test_copies_are_found_where_they_are_half_of_all_rows() -> None:
    """Fourteen copies of one of fifteen: most rows have an equal one, so the median distance to the nearest is 0."""
    rng = np.random.default_rng(0)
    honest = rng.standard_normal((15, 20))
    groups = copies(squared_distances(np.concatenate([honest, np.tile(honest[:1], (14, 1))])), 15)
    assert groups.tolist() == [*range(15), *[0] * 14]
    all_equal = copies(squared_distances(np.tile(honest[:1], (9, 1))), 4)
    assert len(set(all_equal.tolist())) == 9
    # the median is their point, and yet the others count: the result is near the mean of the fifteen
    found = SpectralFilter(14)(np.concatenate([honest, np.tile(honest[:1], (14, 1))]))
    assert np.linalg.norm(found - honest.mean(axis=0)) < 0.5 * np.linalg.norm(found - honest[0])


@pytest.mark.parametrize(("equal", "groups"), [(3, [0, 1, 2, 3, 4, 1, 1]), (4, [0, 1, 2, 3, 4, 5, 6, 7])])
def test_more_equal_rows_than_can_be_copies_are_honest(equal: int, groups: list[int]) -> None:
    """Five rows of which the second stands there `equal` times, with at most three of a kind."""
    points = np.array([0.0, 1.0, 2.0, 3.0, 4.0, *[1.0] * (equal - 1)])[:, None]
    assert copies(squared_distances(points), 3).tolist() == groups
    assert copies_among(points, 3).tolist() == groups
