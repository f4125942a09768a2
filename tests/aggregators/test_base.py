"""One contract for all aggregators, then what is particular to each."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from coterie._src.aggregators import (
    Aggregator,
    geometric_median,
    mean,
    mean_over,
    median,
    order_statistics,
    per_cluster,
    trim_count,
    trimmed_mean,
    trimmed_share,
)

TRIM = 0.2
RULES: dict[str, Aggregator] = {
    "mean": mean,
    "median": median,
    "trimmed-mean": partial(trimmed_mean, trim=TRIM),
    "geometric-median": geometric_median,
}
# the largest number of Byzantine rows among `rows` that leaves the result in the honest rows' range, per column
TOLERATED = {"median": lambda rows: (rows - 1) // 2, "trimmed-mean": lambda rows: trim_count(rows, TRIM)}
rules = pytest.mark.parametrize("name", RULES)


def float64_oracle(name: str, rows: np.ndarray) -> np.ndarray:
    exact = rows.astype(np.float64)
    if name == "mean":
        return exact.mean(axis=0)
    if name == "median":
        return np.median(exact, axis=0)
    return stats.trim_mean(exact, TRIM, axis=0)


def tables(limit: float = 100.0, rows: int = 30) -> st.SearchStrategy[np.ndarray]:
    limit = float(np.float32(limit))
    shapes = st.tuples(st.integers(1, rows), st.integers(1, 6))
    return hnp.arrays(np.float32, shapes, elements=st.floats(-limit, limit, width=32))


@rules
@given(rows=tables())
def test_shape_dtype_and_kind_are_kept_and_numpy_equals_torch(name: str, rows: np.ndarray) -> None:
    for dtype in (np.float32, np.float64):
        typed = rows.astype(dtype)
        found = RULES[name](typed)
        assert isinstance(found, np.ndarray)
        assert found.dtype == dtype
        assert found.shape == rows.shape[1:]
        tensor = RULES[name](torch.from_numpy(typed))
        assert isinstance(tensor, torch.Tensor)
        assert tensor.dtype == torch.from_numpy(typed).dtype
        assert np.array_equal(tensor.numpy(), found)


@rules
@given(rows=tables(), seed=st.integers(0, 99))
def test_the_order_of_the_rows_is_no_matter(name: str, rows: np.ndarray, seed: int) -> None:
    shuffled = np.random.default_rng(seed).permutation(rows)
    np.testing.assert_allclose(RULES[name](shuffled), RULES[name](rows), rtol=1e-5, atol=1e-4)


@rules
@given(rows=tables(), shift=st.floats(-50, 50, width=32), scale=st.floats(-4, 4, width=32))
def test_translation_and_scale_equivariance(name: str, rows: np.ndarray, shift: float, scale: float) -> None:
    rows = rows.astype(np.float64)
    assume(name != "geometric-median" or len(rows) > 2)  # two rows: every point between them is one
    # Weiszfeld's iteration stops within a tolerance of the point, so it is equivariant up to that
    slack = 1e-2 * (1 + np.abs(rows).max()) if name == "geometric-median" else 1e-6 * (1 + np.abs(rows).max())
    expected = scale * RULES[name](rows) + shift
    np.testing.assert_allclose(RULES[name](scale * rows + shift), expected, atol=(1 + abs(scale)) * slack)


@rules
@given(
    row=hnp.arrays(np.float32, st.integers(1, 6), elements=st.floats(-(2.0**120), 2.0**120, width=32)),
    count=st.integers(1, 9),
)
def test_equal_rows_give_that_row_exactly(name: str, row: np.ndarray, count: int) -> None:
    assert np.array_equal(RULES[name](np.tile(row, (count, 1))), row)


@rules
@given(rows=tables())
def test_the_input_is_never_changed(name: str, rows: np.ndarray) -> None:
    before = rows.copy()
    RULES[name](rows)
    RULES[name](torch.from_numpy(rows))
    assert np.array_equal(rows, before)


@pytest.mark.parametrize("name", ["mean", "median", "trimmed-mean"])
@given(rows=tables(limit=1e38))
def test_agrees_with_a_float64_oracle(name: str, rows: np.ndarray) -> None:
    scale = np.abs(rows.astype(np.float64)).max(axis=0)
    assert np.all(np.abs(RULES[name](rows) - float64_oracle(name, rows)) <= 1e-6 * scale + 1e-44)


@pytest.mark.parametrize("name", TOLERATED)
@given(
    rows=tables(limit=1.0),
    data=st.data(),
    size=st.sampled_from([1.0, 1e8, 1e38, float(np.finfo(np.float32).max)]),
)
def test_arbitrary_rows_cannot_leave_the_honest_range(
    name: str, rows: np.ndarray, data: st.DataObject, size: float
) -> None:
    count = TOLERATED[name](len(rows))
    honest = rows[count:]
    lies = data.draw(hnp.arrays(np.float32, (count, rows.shape[1]), elements=st.sampled_from([-size, 0.0, size])))
    found = RULES[name](np.concatenate([lies, honest]))
    assert np.all(found >= honest.min(axis=0) - 1e-6)
    assert np.all(found <= honest.max(axis=0) + 1e-6)


@rules
def test_what_is_not_a_table_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="two axes"):
        RULES[name](np.zeros(3))
    with pytest.raises(ValueError, match="at least one row"):
        RULES[name](np.zeros((0, 3)))


# --- by hand ------------------------------------------------------------------------------------------


def test_an_even_number_of_rows_averages_the_middle_two() -> None:
    assert median(np.array([[4.0], [1.0], [100.0], [2.0]])).tolist() == [3.0]


def test_whole_numbers_give_float64() -> None:
    for rows in (np.array([[1], [2]]), torch.tensor([[1], [2]])):
        found = median(rows)
        assert found.dtype in (np.float64, torch.float64)
        assert found.tolist() == [1.5]


def test_trimming_removes_the_floor_at_each_end() -> None:
    rows = np.array([[float(i)] for i in (9, 1, 5, 2, 1000)])
    assert trimmed_mean(rows, trim=0.0).tolist() == [1017 / 5]
    assert trimmed_mean(rows, trim=0.39).tolist() == pytest.approx([(2 + 5 + 9) / 3])
    assert trimmed_mean(rows, trim=0.4).tolist() == [5.0]


def test_the_published_divisor_shortens_the_step_of_a_cluster() -> None:
    rows = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    assert mean_over(rows, clients=8).tolist() == [0.5, 0.75]
    assert mean_over(torch.from_numpy(rows), clients=8).tolist() == [0.5, 0.75]
    assert mean_over(rows, clients=8).dtype == np.float32


def test_trim_count_is_exact_where_floats_are_not() -> None:
    assert 0.29 * 100 < 29
    assert trim_count(100, 0.29) == 29
    for rows in range(1, 300):
        for percent in range(50):
            assert trim_count(rows, percent / 100) == percent * rows // 100


@pytest.mark.parametrize("trim", [-0.01, 0.5, 0.7, float("nan")])
def test_trim_outside_its_range(trim: float) -> None:
    with pytest.raises(ValueError, match=r"trim must be in \[0, 0.5\)"):
        trimmed_mean(np.zeros((4, 1)), trim=trim)


def test_geometric_median_of_whole_numbers() -> None:
    rows = np.array([[0, 0], [1, 2], [9, 2]])
    expected = geometric_median(rows.astype(float))
    np.testing.assert_allclose(geometric_median(rows), expected)
    np.testing.assert_allclose(geometric_median(torch.from_numpy(rows)), expected)


def test_geometric_median_of_no_columns() -> None:
    assert geometric_median(np.zeros((5, 0))).shape == (0,)


def test_geometric_median_of_many_rows_of_few_columns(rng: np.random.Generator) -> None:
    """It then runs on the rows; with columns of zeros, on their products."""
    for rows in (rng.standard_normal((40, 3)), np.concatenate([rng.standard_normal((30, 3)), np.full((10, 3), 1e200)])):
        expected = geometric_median(np.pad(rows, ((0, 0), (0, 30))))
        assert (expected[3:] == 0).all()
        np.testing.assert_allclose(geometric_median(rows), expected[:3], rtol=1e-7, atol=1e-9)


def test_geometric_median_is_where_the_sum_of_distances_is_least(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((15, 3))
    point = geometric_median(rows)
    pulls = (rows - point) / np.linalg.norm(rows - point, axis=1, keepdims=True)
    assert np.linalg.norm(pulls.sum(axis=0)) < 1e-5  # the gradient of the sum of distances


# --- per cluster ---------------------------------------------------------------------------------------


@rules
@given(rows=tables(rows=20), seed=st.integers(0, 99), clusters=st.integers(1, 5))
def test_per_cluster_is_a_loop_over_clusters(name: str, rows: np.ndarray, seed: int, clusters: int) -> None:
    labels = np.random.default_rng(seed).integers(clusters, size=len(rows))
    found, counts = per_cluster(RULES[name], rows, labels, clusters)
    tensors, _ = per_cluster(RULES[name], torch.from_numpy(rows), labels, clusters)
    assert found.dtype == rows.dtype
    assert np.array_equal(tensors.numpy(), found)
    for j in range(clusters):
        members = rows[labels == j]
        assert counts[j] == len(members)
        expected = RULES[name](members) if len(members) else np.zeros(rows.shape[1], rows.dtype)
        assert np.array_equal(found[j], expected)


@pytest.mark.parametrize(("rows", "columns"), [(9, 0), (3 * order_statistics.NETWORK_ROWS, 3), (60, 5000), (399, 33)])
def test_per_cluster_of_many_rows_or_columns_or_none(rng: np.random.Generator, rows: int, columns: int) -> None:
    """Two clusters, of a third of the rows and of the others, and an empty one."""
    table, labels = rng.standard_normal((rows, columns)).astype(np.float32), np.minimum(np.arange(rows) % 3, 1)
    for rule in (mean, median, partial(trimmed_mean, trim=0.1)):
        found, counts = per_cluster(rule, table, labels, 3)
        assert counts.tolist() == [rows // 3, rows - rows // 3, 0]
        for j in range(2):
            assert np.array_equal(found[j], rule(table[labels == j]))
        assert not found[2].any()
    assert per_cluster(mean, table[:0], labels[:0], 0)[0].shape == (0, columns)


def test_labels_that_do_not_fit_the_rows() -> None:
    rows = np.ones((2, 2))
    for labels in ([0, 5], [-1, 0], [0], [[0, 1]], [0.5, 0.5], ["0", "1"]):
        with pytest.raises(ValueError, match="labels must be 2 whole numbers"):
            per_cluster(mean, rows, np.array(labels), 2)
    with pytest.raises(ValueError, match="two axes"):
        per_cluster(mean, np.ones(2), np.array([0, 0]), 1)
    with pytest.raises(ValueError, match="real numbers"):
        median(rows.astype(complex))


def test_half_precision_goes_through_every_rule(rng: np.random.Generator) -> None:
    rows = torch.from_numpy(rng.standard_normal((9, 4))).to(torch.bfloat16)
    for rule in RULES.values():
        assert rule(rows).dtype == torch.bfloat16
    assert trimmed_share(rows, np.zeros(9, np.int64), 0.2).shape == (9,)


def test_trimmed_share_names_who_stands_outside() -> None:
    updates = np.array([[0.0, 0.0], [1.0, 9.0], [2.0, 2.0], [99.0, 1.0], [3.0, 3.0], [7.0, 7.0]])
    labels = np.array([0, 0, 0, 0, 0, 1])
    assert trimmed_share(updates, labels, trim=0.2).tolist() == [1.0, 0.5, 0.0, 0.5, 0.0, 0.0]
    assert trimmed_share(updates, labels, trim=0.1).tolist() == [0.0] * 6
