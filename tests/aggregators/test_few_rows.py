"""Few rows, or few columns: groups that deviate by more than the noise of all clusters explains are left out."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import comb
from scipy.stats import chi2, ortho_group

from coterie._src.aggregators import SpectralFilter, per_cluster, shares_per_cluster
from coterie._src.aggregators.distance import around_median
from coterie._src.aggregators.few_rows import (
    FARTHEST,
    LEVEL,
    Noise,
    _reductions,
    coordinates_of,
    gain_bounds,
    not_deviating,
    pooled_noise,
)

ONE = np.ones


def test_the_gain_of_one_row_by_hand() -> None:
    """Rows 0, 0, 0, 4: μ = 1, S = 3, gain 4/(1·3)·9 = 12; left out where chance explains less."""
    rows = np.array([[0.0], [0.0], [0.0], [4.0]])
    explained = chi2.isf(LEVEL / 4, 1)  # of a row with variance 1
    for trace, kept in [(12 / explained * 1.001, 4), (12 / explained * 0.999, 3)]:
        assert not_deviating(rows, ONE(4), Noise(trace, 1.0), 1).tolist() == [0, 1, 2, 3][:kept]
    # a weight of 2 for the last row: μ = 8/5, S = 2·2.4, W/(w(W − w)) = 5/6, gain 5/6·4.8² = 19.2
    weights = np.array([1.0, 1.0, 1.0, 2.0])
    for trace, kept in [(19.2 / explained * 1.001, 4), (19.2 / explained * 0.999, 3)]:
        assert not_deviating(rows, weights, Noise(trace, 1.0), 1).tolist() == [0, 1, 2, 3][:kept]


def test_what_chance_explains_by_hand() -> None:
    found = gain_bounds(7, 3, Noise(trace=12.0, dim=6.0))
    expected = [2.0 * chi2.isf(LEVEL / (3 * comb(7, size)), 6.0) for size in (1, 2, 3)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert np.isfinite(gain_bounds(4000, 1999, Noise(1.0, 1.0))).all()


@given(st.integers(0, 2**31), st.integers(3, 7), st.integers(1, 2), st.floats(0.0, 12.0))
@settings(max_examples=60, deadline=None)
def test_a_group_is_left_out_only_if_the_search_of_all_groups_finds_one(
    seed: int, count: int, most: int, shift: float
) -> None:
    """The independent oracle: all groups, each compared with the others by the difference of their means."""
    rng = np.random.default_rng(seed)
    rows, noise = rng.standard_normal((count, 5)), Noise(5.0, 5.0)
    rows[: min(most, (count - 1) // 2)] += shift
    removable = min(most, (count - 1) // 2)
    kept = not_deviating(rows, ONE(count), noise, most)

    def ratio(group: tuple[int, ...]) -> float:
        inside = np.isin(np.arange(count), group)
        size = len(group)
        gap = rows[inside].mean(axis=0) - rows[~inside].mean(axis=0)
        explained = chi2.isf(LEVEL / (removable * comb(count, size)), 5.0)
        return float(size * (count - size) / count * (gap @ gap) / explained)

    groups = [one for size in range(1, removable + 1) for one in combinations(range(count), size)]
    largest = max(groups, key=ratio)
    left_out = np.setdiff1d(np.arange(count), kept)
    assert len(left_out) <= removable
    assert (len(left_out) == 0) or ratio(largest) > 1
    if ratio(largest) > 1.5:  # the directions of the rows find a clear group
        assert len(left_out) > 0


@given(st.integers(0, 2**31), st.integers(3, 30), st.sampled_from([1, 3, 5, 20]), st.integers(0, 4))
@settings(max_examples=40, deadline=None)
def test_units_origin_rotation_and_order_do_not_matter(seed: int, count: int, dim: int, byzantine: int) -> None:
    rng = np.random.default_rng(seed)
    rows, weights = rng.standard_normal((count, dim)), rng.uniform(0.2, 1.0, count)
    rows[:byzantine] += 9.0
    labels = rng.integers(0, 2, count)
    rule = SpectralFilter(byzantine)
    before = shares_per_cluster(rule, rows, labels, 2, weights)
    assert before is not None
    turn = ortho_group.rvs(dim, random_state=rng) if dim > 1 else -np.eye(1)
    after = shares_per_cluster(rule, 1e-3 * rows @ turn + 7.0, labels, 2, weights)
    assert after is not None
    np.testing.assert_allclose(after, before, atol=1e-6)
    order = rng.permutation(count)
    other = shares_per_cluster(rule, rows[order], labels[order], 2, weights[order])
    assert other is not None
    np.testing.assert_allclose(other, before[order], atol=1e-9)


@pytest.mark.parametrize(("clients", "clusters", "byzantine"), [(6, 2, 1), (12, 3, 1), (20, 3, 2)])
@pytest.mark.parametrize("dim", [5, 20])
def test_the_noise_of_all_clusters(clients: int, clusters: int, byzantine: int, dim: int) -> None:
    """Unbiased within a fifth, although the largest squares are left out; a far row does not enter it."""
    rng = np.random.default_rng(0)
    labels, traces, dims, far = np.arange(clients) % clusters, [], [], []
    for _ in range(200):
        rows = rng.standard_normal((clients, dim)) + 100.0 * labels[:, None]
        found = pooled_noise(rows, labels, ONE(clients), dim, byzantine)
        rows[0] += 1e6
        other = pooled_noise(rows, labels, ONE(clients), dim, byzantine)
        assert found is not None
        assert other is not None
        traces.append(found.trace / dim)
        dims.append(found.dim / dim)
        far.append(other.trace / dim)
    error = np.std(traces) / np.sqrt(200)
    assert abs(np.mean(traces) - 1) < 0.2 + 3 * error
    assert 0.85 < np.mean(dims) <= 1
    assert np.mean(far) < 1.6


def test_noise_of_few_directions_has_few_dimensions() -> None:
    rng = np.random.default_rng(1)
    scales = np.sqrt(1 / np.arange(1, 21))
    found = pooled_noise(rng.standard_normal((3000, 20)) * scales, np.zeros(3000, int), ONE(3000), 20, 0)
    assert found is not None
    expected = (scales**2).sum() ** 2 / (scales**4).sum()
    assert found.dim == pytest.approx(expected, rel=0.05)
    assert found.trace == pytest.approx(float((scales**2).sum()), rel=0.05)


def test_single_rows_and_equal_rows_have_no_noise() -> None:
    assert pooled_noise(np.eye(3), np.arange(3), ONE(3), 3, 1) is None
    assert pooled_noise(np.ones((6, 2)), np.zeros(6, int), ONE(6), 2, 1) is None
    assert SpectralFilter(1)(np.array([[3.0, 4.0]])).tolist() == [3.0, 4.0]
    assert SpectralFilter(1)(np.ones((4, 3))).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("clients", "clusters"), [(9, 3), (12, 3), (20, 3)])
@pytest.mark.parametrize("dim", [5, 20])
def test_without_byzantine_rows_hardly_any_is_lost(clients: int, clusters: int, dim: int) -> None:
    rng = np.random.default_rng(2)
    labels, lost = np.arange(clients) % clusters, []
    for _ in range(150):
        rows = rng.standard_normal((clients, dim))
        shares = shares_per_cluster(SpectralFilter(1), rows, labels, clusters, ONE(clients))
        assert shares is not None
        lost.append(int((shares == 0).sum()))
    expected = LEVEL * clusters  # at most, if the noise were known
    assert np.mean(lost) < 2 * expected + 3 * np.std(lost) / np.sqrt(len(lost))


@pytest.mark.parametrize("dim", [5, 20])
def test_one_byzantine_row_of_four_does_little(dim: int) -> None:
    """The others' clusters tell the noise: the worst shift in a random direction costs less than a median's rows do."""
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(3), 4)
    for shift in (1.0, 1.5, 2.0, 3.0, 10.0, 1e9):
        errors = []
        for _ in range(80):
            rows = rng.standard_normal((12, dim))
            honest = [rows[labels == 0][1:].mean(axis=0), *(rows[labels == j].mean(axis=0) for j in (1, 2))]
            direction = rng.standard_normal(dim)
            rows[0] = shift * np.sqrt(dim) * direction / np.linalg.norm(direction)
            found = per_cluster(SpectralFilter(1), rows, labels, 3).updates
            errors.append(np.linalg.norm(found, axis=1).mean() / np.linalg.norm(honest, axis=1).mean())
        assert np.mean(errors) < 1.2


def test_a_group_of_two_that_agree_is_left_out_together() -> None:
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((30, 5))
    labels = np.repeat(np.arange(5), 6)
    rows[:2] += 5.0
    shares = shares_per_cluster(SpectralFilter(2), rows, labels, 5, ONE(30))
    assert shares is not None
    assert np.flatnonzero(shares == 0).tolist() == [0, 1]


def test_many_rows_of_few_columns() -> None:
    """More rows than directions of rows that are tried: a minority is found along a principal axis."""
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((4 * FARTHEST, 3))
    rows[:40, 0] += 6.0
    shares = SpectralFilter(60).shares(rows, ONE(len(rows)))
    assert shares is not None
    left_out = np.flatnonzero(shares == 0)
    assert (left_out < 40).sum() >= 38
    assert (left_out >= 40).sum() <= 5


def test_rows_with_more_columns_than_rows_have_coordinates_of_the_same_distances() -> None:
    rng = np.random.default_rng(6)
    rows = rng.standard_normal((5, 300)).astype(np.float32)
    known, found, factors = coordinates_of(around_median(rows).total)
    assert known.tolist() == [0, 1, 2, 3, 4]
    assert found.shape == (5, 5)
    assert factors.tolist() == [1.0] * 5
    for i, j in combinations(range(5), 2):
        assert np.linalg.norm(found[i] - found[j]) == pytest.approx(float(np.linalg.norm(rows[i] - rows[j])), rel=1e-5)


def test_the_noise_is_pooled_only_where_it_is_used() -> None:
    rng, rule = np.random.default_rng(7), SpectralFilter(1)
    rows = rng.standard_normal((30, 20))
    assert rule.pooled(rows, np.repeat([0, 2], 15)) is rule
    assert rule.pooled(rows, np.array([0] * 26 + [1] * 4)).noise is not None
    assert rule.pooled(rows[:, :5], np.repeat([0, 2], 15)).noise is not None
    assert rule.pooled(rows[:0], np.zeros(0, dtype=np.int64)) is rule
    known = SpectralFilter(1, noise=Noise(1.0, 1.0))
    assert known.pooled(rows[:5], np.zeros(5, dtype=np.int64)) is known


def test_rows_that_are_not_finite_or_huge_count_as_byzantine() -> None:
    rows = np.array([[0.1, 0.0], [0.0, 0.1], [0.05, 0.05], [1e300, -1e300]])
    np.testing.assert_allclose(SpectralFilter(1)(rows), rows[:3].mean(axis=0))
    rows[3] = np.inf
    np.testing.assert_allclose(SpectralFilter(1)(rows), rows[:3].mean(axis=0))


def test_by_how_much_the_squares_fall_without_a_row_by_hand() -> None:
    """Rows 0, 0, 3: 6 with all, 0 without the last, 4.5 without one of the others; with weights 1, 1, 2 as well."""
    rows = np.array([[0.0], [0.0], [3.0]])
    np.testing.assert_allclose(_reductions(rows, ONE(3)), [1.5, 1.5, 6.0])
    # weights 1, 1, 2: μ = 1.5, 9 with all, 0 without the last; without a first one μ = 2, 4 + 2 = 6
    np.testing.assert_allclose(_reductions(rows, np.array([1.0, 1.0, 2.0])), [3.0, 3.0, 9.0])
    assert _reductions(rows[:1], ONE(1)).tolist() == [-1.0]


def test_rows_that_deviate_in_different_directions_are_left_out_one_after_the_other() -> None:
    rng = np.random.default_rng(8)
    rows = rng.standard_normal((7, 5))
    rows[0, 0] += 30.0
    rows[1, 1] -= 20.0
    assert not_deviating(rows, ONE(7), Noise(5.0, 5.0), 2).tolist() == [2, 3, 4, 5, 6]
    assert not_deviating(rows, ONE(7), Noise(5.0, 5.0), 1).tolist() == [1, 2, 3, 4, 5, 6]


def test_of_clusters_of_noise_one_in_fifty_loses_a_row() -> None:
    rng, trials = np.random.default_rng(23), 2000
    lost = np.mean(
        [len(not_deviating(rng.standard_normal((5, 6)), np.ones(5), Noise(6.0, 6.0), 1)) < 5 for _ in range(trials)]
    )
    assert 0.01 < lost < 0.02 + 4 * np.sqrt(0.02 * 0.98 / trials)
