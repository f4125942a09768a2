"""Mean, median and trimmed mean: a float64 oracle, the honest range, and results by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from coterie._src.aggregators import Aggregator, Mean, Median, TrimmedMean, median, trim_count

TRIM = 0.2
RULES: dict[str, Aggregator] = {"mean": Mean(), "median": Median(), "trimmed-mean": TrimmedMean(TRIM)}
# the largest number of Byzantine rows among `rows` that leaves the result in the honest rows' range, per column
TOLERATED = {"median": lambda rows: (rows - 1) // 2, "trimmed-mean": lambda rows: trim_count(rows, TRIM)}


def float64_oracle(name: str, rows: np.ndarray) -> np.ndarray:
    exact = rows.astype(np.float64)
    if name == "mean":
        return exact.mean(axis=0)
    if name == "median":
        return np.median(exact, axis=0)
    return stats.trim_mean(exact, TRIM, axis=0)


def tables(limit: float) -> st.SearchStrategy[np.ndarray]:
    limit = float(np.float32(limit))
    shapes = st.tuples(st.integers(1, 30), st.integers(1, 6))
    return hnp.arrays(np.float32, shapes, elements=st.floats(-limit, limit, width=32))


@pytest.mark.parametrize("name", RULES)
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
    forged = data.draw(hnp.arrays(np.float32, (count, rows.shape[1]), elements=st.sampled_from([-size, 0.0, size])))
    found = RULES[name](np.concatenate([forged, honest]))
    assert np.all(found >= honest.min(axis=0) - 1e-6)
    assert np.all(found <= honest.max(axis=0) + 1e-6)


def test_an_even_number_of_rows_averages_the_middle_two() -> None:
    assert median(np.array([[4.0], [1.0], [100.0], [2.0]])).tolist() == [3.0]


def test_whole_numbers_give_float64() -> None:
    for rows in (np.array([[1], [2]]), torch.tensor([[1], [2]])):
        found = median(rows)
        assert found.dtype in (np.float64, torch.float64)
        assert found.tolist() == [1.5]


def test_trimming_removes_the_floor_at_each_end() -> None:
    rows = np.array([[float(i)] for i in (9, 1, 5, 2, 1000)])
    assert TrimmedMean(0.0)(rows).tolist() == [1017 / 5]
    assert TrimmedMean(0.39)(rows).tolist() == pytest.approx([(2 + 5 + 9) / 3])
    assert TrimmedMean(0.4)(rows).tolist() == [5.0]


@pytest.mark.parametrize("trim", [-0.01, 0.5, 0.7, float("nan")])
def test_trim_outside_its_range(trim: float) -> None:
    with pytest.raises(ValueError, match=r"trim must be in \[0, 0.5\)"):
        TrimmedMean(trim)


def test_the_published_divisor_shortens_the_step_of_a_cluster() -> None:
    rows = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    assert Mean(divisor=8)(rows).tolist() == [0.5, 0.75]
    assert Mean(divisor=8)(torch.from_numpy(rows)).tolist() == [0.5, 0.75]
    assert Mean(divisor=8)(rows).dtype == np.float32
    with pytest.raises(ValueError, match=r"weights: Mean\(divisor=8\) divides by a number of clients"):
        Mean(divisor=8)(rows, [1.0, 2.0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_mean_with_weights_is_the_weighted_mean(dtype: type, rng: np.random.Generator) -> None:
    rows, weights = rng.standard_normal((9, 4)).astype(dtype), rng.uniform(0.1, 5.0, 9)
    expected = np.average(rows.astype(np.float64), axis=0, weights=weights)
    for table in (rows, torch.from_numpy(rows)):
        found = Mean()(table, weights)
        assert found.dtype == table.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6 if dtype is np.float32 else 1e-14)
    np.testing.assert_allclose(Mean()(rows, 7 * weights), expected, rtol=1e-6)  # their scale does not matter
    np.testing.assert_allclose(Mean()(rows, np.full(9, 3.0)), Mean()(rows), rtol=1e-6)
