"""Small cases of the rules by hand: options at the ends of their range, rows without digits, clusters of all sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie._src.aggregators import (
    Bucketing,
    CentredClipping,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    NearestNeighbourMixing,
    SpectralFilter,
    TrimmedMean,
    median,
    per_cluster,
    trimmed_share,
)
from coterie._src.aggregators.base import ceil_count, floor_count, shares_per_cluster, trim_count
from coterie._src.aggregators.distance import _squared_distances_on_gpu, clip_factors, squared_distances
from coterie._src.kernels.order_statistics import mean_between_ranks

COLUMN = np.array([[0.0], [1.0], [2.0], [90.0]])


def test_counts() -> None:
    assert [ceil_count(0.5, rows) for rows in (1, 2, 3, 4)] == [1, 1, 2, 2]
    assert [floor_count(0.5, rows) for rows in (1, 2, 3, 4)] == [0, 1, 1, 2]
    assert (ceil_count(0.29, 100), floor_count(0.29, 100), ceil_count(0.1, 30)) == (29, 29, 3)
    assert [trim_count(rows, 0.25) for rows in (1, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]
    assert [trim_count(rows, 0.4999999999) for rows in (1, 2, 3, 4)] == [0, 0, 1, 1]


@pytest.mark.parametrize("divisor", [1, 2, 4, 8])
def test_a_mean_is_the_sum_over_its_divisor(divisor: int) -> None:
    assert Mean(divisor)(COLUMN).tolist() == [93 / divisor]
    assert per_cluster(Mean(divisor), COLUMN, np.array([0, 0, 1, 0]), 2).updates.tolist() == [
        [91 / divisor],
        [2 / divisor],
    ]


def test_the_mean_of_a_spread_beyond_float64() -> None:
    rows = np.array([[-1.7e308], [-1.6e308], [1.7e308], [1.75e308]])
    np.testing.assert_allclose(mean_between_ranks(rows, 1, 3), [0.05e308], rtol=1e-12)
    np.testing.assert_allclose(mean_between_ranks(rows, 0, 4), [0.15e308 / 4], rtol=1e-12)
    np.testing.assert_allclose(TrimmedMean(0.25)(rows), [0.05e308], rtol=1e-12)


def test_every_column_is_judged_by_itself() -> None:
    """One of numbers, one beyond float64, one with an infinity, and one with a NaN that its ranks do not reach."""
    rows = np.array([[1.0, -1.7e308, 1.0, 1.0], [2.0, 1.7e308, 2.0, 2.0], [4.0, 1.7e308, np.inf, np.nan]])
    np.testing.assert_allclose(mean_between_ranks(rows, 0, 2), [1.5, 0.0, 1.5, np.nan])
    np.testing.assert_allclose(mean_between_ranks(rows, 0, 3), [7 / 3, 1.7e308 / 3, np.inf, np.nan])


@pytest.mark.parametrize("rows", [1, 2, 3, 6, 7])
def test_means_between_all_pairs_of_ranks(rows: int) -> None:
    values = np.random.default_rng(rows).permutation(rows).astype(float)[:, None] ** 2
    for low in range(rows):
        for high in range(low + 1, rows + 1):
            expected = np.mean(np.arange(low, high) ** 2.0)
            np.testing.assert_allclose(mean_between_ranks(values, low, high), [expected], rtol=1e-14)


def test_extreme_coordinates_of_clusters_of_different_sizes() -> None:
    """Of cluster 0 one row is trimmed at each end, of the two rows of cluster 2 none; nobody is in cluster 1."""
    updates = np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0], [4.0, 9.0], [-99.0, 0.0], [99.0, 1.0]])
    labels = np.array([0, 0, 0, 0, 2, 2])
    assert trimmed_share(updates, labels, 0.25).tolist() == [0.5, 0.0, 0.0, 1.0, 0.0, 0.0]
    order = np.array([4, 3, 0, 5, 2, 1])
    assert trimmed_share(updates[order], labels[order], 0.25).tolist() == [0.0, 1.0, 0.5, 0.0, 0.0, 0.0]
    assert not trimmed_share(updates, labels, 0.1).any()


def test_shares_of_the_clusters_that_have_rows() -> None:
    """Weights where nothing is filtered; None for a rule, or for rows, of which the aggregate is not a mean."""
    rng = np.random.default_rng(0)
    labels, weights = np.array([0] * 20 + [2] * 30), rng.uniform(0.5, 1.0, 50)
    rows = rng.standard_normal((50, 40))
    found = shares_per_cluster(SpectralFilter(0), rows, labels, 4, weights)
    assert found is not None
    for j in (0, 2):
        own = labels == j
        np.testing.assert_allclose(found[own], weights[own] / weights[own].sum(), rtol=1e-9)
    assert shares_per_cluster(Median(), rows, labels, 4, weights) is None
    equal = np.where(np.arange(50)[:, None] % 5 > 0, 0.0, rows)  # four of five rows: the aggregate is the median
    assert shares_per_cluster(SpectralFilter(1), equal, labels, 4, weights) is None


# --- distances ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [1.0, 1e6])
def test_distances_by_products_are_those_by_differences(far: float) -> None:
    """What runs on a GPU, on the CPU: rows far from the median are compared by differences."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((9, 40))
    table[0] *= far
    table[1] = table[0] + 1e-3
    found = _squared_distances_on_gpu(torch.from_numpy(table))
    np.testing.assert_allclose(found, squared_distances(table), rtol=1e-9, atol=1e-9)
    assert (np.diag(found) == 0).all()
    assert found[0, 1] == pytest.approx(40e-6, rel=1e-6)


def test_rows_are_clipped_at_typical_distances() -> None:
    """Distances 1, 1, 1, 2, 40 and one that overflows, of which the median is 1.5."""
    rows = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -2.0], [40.0, 0.0], [1e200, 1e200]])
    known, factors = clip_factors(rows, np.zeros(2), farthest=4.0)
    assert known.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(factors, [1, 1, 1, 1, 4 * 1.5 / 40, 0], rtol=1e-12)
    assert clip_factors(rows[:5], np.zeros(2))[1].tolist() == [1.0] * 5  # 10⁴ typical distances by default


def test_krum_by_hand() -> None:
    """f = 1 of 5 rows: the two nearest others count. Scores 1 + 9, 1 + 4, 4 + 9, and two large ones."""
    rows = np.array([[0.0], [1.0], [3.0], [10.0], [100.0]])
    assert Krum(0.2)(rows).tolist() == [1.0]
    assert Krum(0.2, selected=0.4)(rows).tolist() == [0.5]
    assert Krum(0.2, selected=0.6)(rows).tolist() == [pytest.approx(4 / 3)]
    assert Krum(0.2, selected=1.0)(rows).tolist() == [pytest.approx(114 / 5)]


def test_clipping_without_a_step_or_without_a_radius_stays_at_the_median() -> None:
    assert CentredClipping(iterations=0)(COLUMN).tolist() == [1.5]
    rows = np.array([[2.0, 3.0]] * 4 + [[1e9, 0.0]])
    assert CentredClipping()(rows).tolist() == [2.0, 3.0]  # the median distance is 0
    assert GeometricMedian()(rows).tolist() == [2.0, 3.0]


def test_clipping_leaves_out_what_is_infinitely_far() -> None:
    """Of five rows one has an infinite norm: it takes part in the mean of the steps, with a step of 0."""
    rows = np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.5, 0.0], [1e200, 1e200]])
    found = CentredClipping(radius=1.0, iterations=1)(rows)
    np.testing.assert_allclose(found, [0.1, 0.0], atol=1e-12)


def test_clipping_by_hand() -> None:
    """From the median 0 with radius 1: rows 1, 1, 1, 1, 0, …: a step of the mean of the clipped rows, then another."""
    rows = np.array([[0.0], [0.0], [0.0], [0.5], [9.0]])
    assert CentredClipping(radius=1.0, iterations=1)(rows).tolist() == [pytest.approx(0.3)]
    second = 0.3 + (3 * -0.3 + 0.2 + 1.0) / 5
    assert CentredClipping(radius=1.0, iterations=2)(rows).tolist() == [pytest.approx(second)]


# --- before a rule ------------------------------------------------------------------------------------


def test_functions_may_be_applied_to_mixed_and_bucketed_rows() -> None:
    for rule in (NearestNeighbourMixing(lambda rows: rows.max(axis=0), 0.25),
                 Bucketing(lambda rows: rows.max(axis=0), 1, np.random.default_rng(0))):  # fmt: skip
        assert not rule.has_memory
        assert rule(COLUMN).shape == (1,)
    assert Bucketing(lambda rows: rows.max(axis=0), 1, np.random.default_rng(0))(COLUMN).tolist() == [90.0]


def test_rows_without_a_number_count_as_the_median_also_where_that_is_0() -> None:
    rows = np.array([[-1.0], [0.0], [0.0], [1.0], [np.inf]])
    with np.errstate(invalid="ignore"):
        assert NearestNeighbourMixing(lambda mixed: mixed[1], 0.0)(rows).tolist() == [0.0]
        assert NearestNeighbourMixing(median, 0.2)(rows).tolist() == [0.0]


def test_a_row_is_its_own_nearest_neighbour() -> None:
    """All distances are below 1: the two nearest of three, the row itself among them."""
    rows = np.array([[0.0], [0.1], [0.3]])
    mixed = NearestNeighbourMixing(lambda found: found[:, 0], 0.4)
    np.testing.assert_allclose(mixed(rows), [0.05, 0.05, 0.2], atol=1e-15)


def test_more_columns_than_a_block() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((4, (1 << 13) + 5))
    expected = np.median(rows, axis=0)
    np.testing.assert_allclose(NearestNeighbourMixing(median, 0.0)(rows), rows.mean(axis=0), atol=1e-12)
    assert not np.allclose(expected, rows.mean(axis=0))


def test_buckets_of_two_of_five_rows() -> None:
    seen = Bucketing(lambda rows: rows[:, 0], 2, np.random.default_rng(3))(np.arange(5.0)[:, None])
    order = np.random.default_rng(3).permutation(5)
    assert seen.tolist() == [(order[0] + order[1]) / 2, (order[2] + order[3]) / 2, order[4]]
