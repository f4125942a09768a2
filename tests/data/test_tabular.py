"""Federations with features as in real tables follow their models."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from coterie._src.data import Federation, mixed_regression, tabular
from coterie._src.data.clients import Truth
from coterie._src.data.synthetic import draw_layout
from coterie._src.data.tabular import BLOCK, _as_binary, _as_counts, _as_heavy, _draw_columns

LARGE = {"clients": 4, "clusters": 2, "samples": 10_000, "byzantine": 0.0, "dtype": np.float64}
ROWS = 40_000
SIGMAS = 5
"""Deviations are held to this many standard errors."""


def features(seed: int = 0, **options: Any) -> NDArray[Any]:
    return np.asarray(tabular(seed, **{**LARGE, "dim": 6, **options}).clients.features)


def truth_of(federation: Federation) -> Truth:
    assert federation.truth is not None
    return federation.truth


def assert_near(found: Any, expected: Any, error: Any) -> None:
    """Within five standard errors."""
    assert np.all(np.abs(np.asarray(found) - expected) <= SIGMAS * np.asarray(error)), (found, expected)


def assert_moments(x: NDArray[Any], mean: Any, covariance: NDArray[Any]) -> None:
    """Mean and covariance of normal rows; a product of two normal deviations has variance s_ij² + s_ii·s_jj."""
    variances = np.diag(covariance)
    assert_near(x.mean(axis=0), mean, np.sqrt(variances / len(x)))
    error = np.sqrt((covariance**2 + np.outer(variances, variances)) / len(x))
    assert_near(np.cov(x.T), covariance, error)


# --- the families of features -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_by_default_it_is_the_paper_s_mixture_bit_for_bit(dtype: str) -> None:
    shape: dict[str, Any] = {"clients": 20, "clusters": 3, "samples": range(3, 9), "byzantine": 0.1, "dtype": dtype}
    ours, theirs = tabular(7, dim=11, **shape), mixed_regression(7, dim=11, **shape)
    assert ours.clients.features.dtype == np.dtype(dtype)
    assert np.array_equal(ours.clients.features, theirs.clients.features)
    assert np.array_equal(ours.clients.targets, theirs.clients.targets)
    assert np.array_equal(truth_of(ours).centres, truth_of(theirs).centres)
    assert np.array_equal(truth_of(ours).labels, truth_of(theirs).labels)


def test_defaults_are_independent_standard_normal() -> None:
    x = features()
    assert_moments(x, 0, np.eye(6))
    assert stats.kstest(x.ravel(), "norm").pvalue > 1e-3


@pytest.mark.parametrize("correlation", [0.5, -0.8])
def test_correlation_falls_with_the_distance_of_the_columns(correlation: float) -> None:
    place = np.arange(6)
    expected = correlation ** np.abs(place[:, None] - place)
    assert_moments(features(correlation=correlation), 0, expected)


def test_factors_add_a_covariance_of_their_rank() -> None:
    rng = np.random.default_rng(0)
    draw_layout(rng, LARGE["clients"], 2, LARGE["samples"], 6, 0.0, None)
    rng.standard_normal((ROWS, 6))
    rng.standard_normal(ROWS)
    loadings = _draw_columns(rng, 6, 2, 0.0, (0.0, 0.0, 0.0)).loadings
    place = np.arange(6)
    expected = 0.5 ** np.abs(place[:, None] - place) + loadings @ loadings.T
    assert_moments(features(factors=2, correlation=0.5), 0, expected)


def test_binary_columns_are_one_with_probability_a_tenth_and_stay_correlated() -> None:
    x = features(binary=1.0, correlation=0.9)
    assert set(np.unique(x)) == {0.0, 1.0}
    assert_near(x.mean(axis=0), 0.1, np.sqrt(0.1 * 0.9 / ROWS))
    cut = stats.norm.ppf(0.9)
    both = float(stats.multivariate_normal.cdf([-cut, -cut], cov=[[1, 0.9], [0.9, 1]]))
    assert both > 0.06  # far from 0.01, that of independent columns
    assert_near((x[:, 0] * x[:, 1]).mean(), both, np.sqrt(both * (1 - both) / ROWS))


def test_counts_are_poisson() -> None:
    x = features(counts=1.0)
    assert np.array_equal(x, np.round(x))
    for count in range(6):
        share = float(stats.poisson.pmf(count, 2))
        assert_near((x == count).mean(axis=0), share, np.sqrt(share * (1 - share) / ROWS))


def test_heavy_columns_are_student_t_with_variance_one() -> None:
    x = features(heavy=1.0, factors=1)  # factors give z a variance above 1, which must not change the distribution
    for column in x.T:
        assert stats.kstest(column * np.sqrt(3), "t", args=(3,)).pvalue > 1e-3
    assert np.abs(x).max() > 10


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=20))
def test_quantile_transforms_agree_with_scipy(values: list[float]) -> None:
    normal = np.array(values)
    share = stats.norm.cdf(normal)
    inside = np.abs(normal) < 5  # further out the distribution function of SciPy rounds to 1
    np.testing.assert_array_equal(_as_counts(normal)[inside], stats.poisson.ppf(share, 2)[inside])
    np.testing.assert_allclose(
        _as_heavy(normal)[inside], stats.t.ppf(share, 3)[inside] / np.sqrt(3), rtol=1e-7, atol=1e-7
    )
    np.testing.assert_array_equal(_as_binary(normal), share > 0.9)
    for transform in (_as_counts, _as_heavy, _as_binary):
        made = transform(np.sort(normal))
        assert np.isfinite(made).all()
        assert np.all(np.diff(made) >= 0)
    np.testing.assert_allclose(_as_heavy(-normal), -_as_heavy(normal))


@given(
    count=st.integers(1, 60),
    weights=st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any),
    seed=st.integers(0, 9),
)
def test_the_kinds_of_columns_are_disjoint(count: int, weights: list[int], seed: int) -> None:
    first, second, third = (weight / sum(weights) for weight in weights[:3])
    found = _draw_columns(np.random.default_rng(seed), count, 0, 0.0, (first, second, third))
    chosen = np.concatenate(found[:3])
    assert len(set(chosen.tolist())) == len(chosen) <= count
    assert set(chosen.tolist()) <= set(range(count))
    for columns, share in zip(found[:3], (first, second, third), strict=True):
        assert abs(len(columns) - share * count) <= 1


def test_columns_of_all_kinds_stand_side_by_side() -> None:
    x = features(dim=10, binary=0.3, counts=0.2, heavy=0.2)
    kinds = ["binary" if c.max() == 1 else "counts" if c.min() == 0 else "real" for c in x.T]
    assert [kinds.count(kind) for kind in ("binary", "counts", "real")] == [3, 2, 5]
    assert kinds != sorted(kinds)  # a random order
    assert sum(bool(stats.kurtosis(c) > 3) for c, kind in zip(x.T, kinds, strict=True) if kind == "real") == 2


def test_scales_multiply_the_columns() -> None:
    deviations = features(dim=200, samples=500, scales=2.0).std(axis=0)
    exponents = np.log(deviations)
    assert np.abs(exponents).max() <= 2 + SIGMAS / np.sqrt(2 * 2000)
    assert stats.kstest(exponents, "uniform", args=(-2, 4)).pvalue > 1e-3


def test_means_are_those_of_all_columns_that_are_not_binary() -> None:
    plain, shifted, scaled = (
        features(binary=0.5, mean=mean, scales=scales) for mean, scales in ((0.0, 0.0), (3.0, 0.0), (3.0, 1.0))
    )
    is_binary = plain.max(axis=0) == 1
    assert is_binary.sum() == 3
    np.testing.assert_allclose(shifted, plain + 3.0 * ~is_binary, rtol=1e-12, atol=1e-12)
    column_scales = scaled.max(axis=0) / shifted.max(axis=0)
    assert np.all(column_scales != 1)
    np.testing.assert_allclose(scaled, shifted * column_scales, atol=1e-12)


def test_clients_have_means_of_their_own() -> None:
    options: dict[str, Any] = {"clients": 400, "samples": 4, "clusters": 2, "byzantine": 0.0, "dtype": np.float64}
    plain, shifted = (tabular(1, dim=10, client_means=size, **options).clients.features for size in (0.0, 2.0))
    offsets = (shifted - plain).reshape(400, 4, 10)
    np.testing.assert_allclose(offsets, offsets[:, :1].repeat(4, axis=1), atol=1e-12)  # one offset per client
    assert stats.kstest(offsets[:, 0].ravel() / 2, "norm").pvalue > 1e-3
    kept, moved = (tabular(1, dim=10, binary=1.0, client_means=size, **options) for size in (0.0, 2.0))
    assert np.array_equal(kept.clients.features, moved.clients.features)  # binary columns stay binary


def test_clients_have_covariances_of_their_own() -> None:
    options: dict[str, Any] = {"clients": 30, "samples": 40, "clusters": 2, "byzantine": 0.0, "dtype": np.float64}
    plain, mixed = (tabular(1, dim=20, client_covariances=size, **options).clients for size in (0.0, 0.5))
    found = []
    for client in range(30):
        (before, _), (after, _) = plain.samples(client), mixed.samples(client)
        matrix = np.linalg.lstsq(before, after, rcond=None)[0]
        np.testing.assert_allclose(before @ matrix, after, atol=1e-9)
        found.append((matrix - np.eye(20)) * np.sqrt(20) / 0.5)
    assert stats.kstest(np.ravel(found), "norm").pvalue > 1e-3


def test_the_intercept_is_the_last_column_and_untouched() -> None:
    every = {"correlation": 0.5, "factors": 2, "scales": 1.0, "mean": 1.0, "binary": 0.2, "counts": 0.2, "heavy": 0.2}
    x = features(dim=6, samples=200, client_means=1.0, client_covariances=0.5, intercept=True, **every)
    assert np.array_equal(x[:, -1], np.ones(len(x)))
    assert np.all(x[:, :-1].std(axis=0) > 0.1)
    for seed in range(10):  # the constant is not one of the columns that may be binary
        x = features(seed, dim=5, samples=200, binary=0.5, intercept=True)
        assert (x.max(axis=0) == 1).tolist().count(True) == 3


# --- parameters and targets -------------------------------------------------------------------------------


def test_linear_targets_follow_the_model() -> None:
    drawn = tabular(3, **LARGE, dim=5, correlation=0.5, mean=2.0, scales=1.0, noise_variance=0.3)
    truth = truth_of(drawn)
    for client in range(4):
        x, y = drawn.clients.samples(client)
        residual = y - x @ truth.centres[truth.labels[client]]
        assert_near(residual.mean(), 0, np.sqrt(0.3 / 10_000))
        assert_near(residual.var(), 0.3, 0.3 * np.sqrt(2 / 10_000))


@pytest.mark.parametrize(("task", "classes"), [("logistic", 2), ("softmax", 3), ("softmax", 4)])
def test_classes_have_the_probabilities_of_the_model(task: Any, classes: int) -> None:
    """The score equations of the true parameter hold: Σ x(1{y = c} − p_c) is 0 up to its standard error."""
    drawn = tabular(4, **LARGE, dim=4, task=task, classes=classes, correlation=0.5, mean=0.5)
    truth = truth_of(drawn)
    assert set(np.unique(drawn.clients.targets)) == set(range(classes))
    for client in range(4):
        x, y = drawn.clients.samples(client)
        weights = truth.centres[truth.labels[client]].reshape(4, -1)
        scores = np.column_stack([np.zeros(len(x)), x @ weights]) if task == "logistic" else x @ weights
        shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        for c in range(classes):
            terms = x * ((y == c) - shares[:, c])[:, None]
            assert_near(terms.sum(axis=0), 0, np.sqrt((x**2 * (shares * (1 - shares))[:, [c]]).sum(axis=0)))


def test_softmax_centres_have_norm_two_and_no_common_shift() -> None:
    truth = truth_of(tabular(0, clients=20, clusters=4, samples=2, dim=6, task="softmax", classes=3))
    assert truth.centres.shape == (4, 18)
    np.testing.assert_allclose(np.linalg.norm(truth.centres, axis=1), 2, rtol=1e-6)
    np.testing.assert_allclose(truth.centres.reshape(4, 6, 3).sum(axis=2), 0, atol=1e-6)
    # with one column and two classes half of the draws are zero and must be redrawn
    small = truth_of(tabular(0, clients=50, clusters=40, samples=1, dim=1, task="softmax", classes=2))
    np.testing.assert_allclose(np.abs(small.centres), np.sqrt(2), rtol=1e-6)


@pytest.mark.parametrize("task", ["linear", "logistic", "softmax"])
@given(seed=st.integers(0, 50), clusters=st.integers(2, 6), separation=st.floats(0.01, 10))
def test_separation_is_the_smallest_distance(task: Any, seed: int, clusters: int, separation: float) -> None:
    options: dict[str, Any] = {"clients": 12, "clusters": clusters, "samples": 1, "dim": 40, "task": task}
    plain, rescaled = (
        truth_of(tabular(seed, separation=wanted, dtype=np.float64, **options)) for wanted in (None, separation)
    )
    assert rescaled.separation == pytest.approx(separation)
    np.testing.assert_allclose(rescaled.centres.mean(axis=0), plain.centres.mean(axis=0), atol=1e-9)
    factor = separation / plain.separation
    differences = [truth.centres[0] - truth.centres[1] for truth in (plain, rescaled)]
    np.testing.assert_allclose(differences[1], factor * differences[0], atol=1e-9)


def test_spread_moves_the_parameter_of_each_honest_client_only() -> None:
    options: dict[str, Any] = {
        "clients": 40, "clusters": 2, "samples": 60, "dim": 30, "byzantine": 0.25, "noise_variance": 0.0,
        "dtype": np.float64,
    }  # fmt: skip
    drawn = tabular(5, spread=0.4, **options)
    truth = truth_of(drawn)
    for client in range(40):
        x, y = drawn.clients.samples(client)
        fitted = np.linalg.lstsq(x, y, rcond=None)[0]
        if truth.is_byzantine[client]:
            assert np.linalg.norm(fitted) == pytest.approx(3)
        else:  # the norm is 0.4·√(χ²(30)/30), with standard deviation about 0.4/√60
            assert_near(np.linalg.norm(fitted - truth.centres[truth.labels[client]]), 0.4, 0.4 / np.sqrt(60))


def test_byzantine_clients_come_last() -> None:
    truth = truth_of(tabular(0, clients=10, clusters=2, samples=2, dim=3, byzantine=0.3, mean=1.0, task="logistic"))
    assert truth.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, -1, -1, -1]


def test_given_shares() -> None:
    truth = truth_of(tabular(0, clients=20, clusters=2, samples=1, dim=2, byzantine=0.0, shares=[0.3, 0.7]))
    assert np.bincount(truth.labels).tolist() == [6, 14]


# --- reproducibility, memory, errors ----------------------------------------------------------------------

EVERYTHING: dict[str, Any] = {
    "correlation": 0.5, "factors": 2, "scales": 1.0, "mean": 1.0, "binary": 0.2, "counts": 0.2, "heavy": 0.2,
    "client_means": 1.0, "client_covariances": 0.5, "spread": 0.1, "separation": 0.5, "intercept": True,
}  # fmt: skip


@pytest.mark.parametrize("task", ["linear", "logistic", "softmax"])
def test_same_seed_same_bits(task: Any) -> None:
    shape: dict[str, Any] = {"clients": 9, "clusters": 2, "samples": range(2, 6), "dim": 12, "task": task}
    first, second, third = (
        tabular(seed, **shape, **EVERYTHING) for seed in (5, np.random.default_rng(5), np.random.default_rng(6))
    )
    assert np.array_equal(first.clients.features, second.clients.features)
    assert np.array_equal(first.clients.targets, second.clients.targets)
    assert np.array_equal(truth_of(first).centres, truth_of(second).centres)
    assert first.clients.features.shape != third.clients.features.shape or not np.array_equal(
        first.clients.features, third.clients.features
    )


def test_no_temporary_array_is_much_larger_than_the_features() -> None:
    shape: dict[str, Any] = {"clients": 400, "clusters": 2, "samples": 250, "dim": 40}
    tracemalloc.start()
    try:
        drawn = tabular(0, **shape, **EVERYTHING)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert drawn.clients.features.size > 10 * BLOCK
    assert peak < 2 * drawn.clients.features.nbytes


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"clusters": 0}, "clusters must be at least 1, got 0"),
        ({"byzantine": 1.0}, r"byzantine must be in \[0, 1\), got 1.0"),
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"shares": [0.5, 0.6]}, "shares must be 2 positive numbers"),
        ({"dim": 0}, "dim must be at least 1, got 0"),
        ({"dim": 1, "intercept": True}, "dim must be at least 2 with an intercept, got 1"),
        ({"task": "mean"}, "task must be one of linear, logistic, softmax, got 'mean'"),
        ({"classes": 1}, "classes must be at least 2, got 1"),
        ({"noise_variance": -1.0}, "noise_variance must be at least 0 and finite, got -1.0"),
        ({"noise_variance": np.nan}, "noise_variance must be at least 0 and finite, got nan"),
        ({"separation": 0.0}, "separation must be positive and finite, got 0.0"),
        ({"separation": np.inf}, "separation must be positive and finite, got inf"),
        ({"separation": 1.0, "clusters": 1}, "separation must be left out where there is one cluster, got 1.0"),
        ({"separation": 1.0, "dim": 1}, r"separation must be left out where two .* equal \(dim = 1\), got 1.0"),
        ({"correlation": 1.0}, r"correlation must be in \(-1, 1\), got 1.0"),
        ({"correlation": -1.0}, r"correlation must be in \(-1, 1\), got -1.0"),
        ({"correlation": np.nan}, r"correlation must be in \(-1, 1\), got nan"),
        ({"factors": -1}, "factors must be at least 0, got -1"),
        ({"scales": -0.1}, r"scales must be in \[0, 20\], got -0.1"),
        ({"scales": 21.0}, r"scales must be in \[0, 20\], got 21.0"),
        ({"mean": np.inf}, "mean must be finite, got inf"),
        ({"binary": -0.1}, r"binary must be in \[0, 1\], got -0.1"),
        ({"counts": 1.1}, r"counts must be in \[0, 1\], got 1.1"),
        ({"heavy": np.nan}, r"heavy must be in \[0, 1\], got nan"),
        ({"binary": 0.5, "counts": 0.4, "heavy": 0.2}, r"binary \+ counts \+ heavy must be at most 1, got 1.1"),
        ({"client_means": -1.0}, "client_means must be at least 0 and finite, got -1.0"),
        ({"client_covariances": np.inf}, "client_covariances must be at least 0 and finite, got inf"),
        ({"spread": -0.1}, "spread must be at least 0 and finite, got -0.1"),
        ({"dtype": "int32"}, "dtype must be a floating-point type, got 'int32'"),
        ({"dtype": "number"}, "dtype must be a floating-point type, got 'number'"),
    ],
)
def test_impossible_tables_name_parameter_rule_and_value(wrong: dict[str, Any], message: str) -> None:
    options = {"clients": 10, "clusters": 2, "samples": 3, "dim": 2, **wrong}
    with pytest.raises(ValueError, match=message):
        tabular(0, **options)


def test_equal_centres_are_drawn_anew_where_a_separation_is_asked_for() -> None:
    """In two dimensions one draw of two centres in three has equal ones."""
    for seed in range(12):
        drawn = tabular(seed, clients=4, clusters=2, samples=2, dim=2, separation=0.7, byzantine=0.0)
        assert drawn.truth is not None
        assert drawn.truth.separation == pytest.approx(0.7, rel=1e-5)
