"""Krum, clipping, mixing and the geometric median against naive float64; squared distances."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from coterie._src.aggregators import (
    Aggregator,
    CentredClipping,
    GeometricMedian,
    Krum,
    NearestNeighbourMixing,
    median,
    squared_distances,
)

RULES: dict[str, Aggregator] = {
    "krum": Krum(0.2),
    "multi-krum": Krum(0.2, selected=0.5),
    "mixed": NearestNeighbourMixing(median, 0.2),
    "clipping": CentredClipping(),
    "clipping-fixed": CentredClipping(radius=0.7, iterations=5),
}


def naive(name: str, rows: np.ndarray) -> np.ndarray:
    x = rows.astype(np.float64)
    n, byzantine = len(x), int(0.2 * len(x))
    between = ((x[:, None] - x[None, :]) ** 2).sum(axis=2)
    if name.endswith("krum"):
        scores = [np.sort(np.delete(line, i))[: n - byzantine - 2].sum() for i, line in enumerate(between)]
        best = np.argsort(scores)[: 1 if name == "krum" else -(-n // 2)]
        return x[best].mean(axis=0)
    if name == "mixed":
        return np.median([x[np.argsort(line)[: n - byzantine]].mean(axis=0) for line in between], axis=0)
    point = np.median(x, axis=0)
    radius = 0.7 if name == "clipping-fixed" else np.median(np.linalg.norm(x - point, axis=1))
    for _ in range(5 if name == "clipping-fixed" else 10):
        away = x - point
        lengths = np.maximum(np.linalg.norm(away, axis=1), 1e-300)
        point = point + (np.minimum(1, radius / lengths)[:, None] * away).mean(axis=0)
    return point


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("rows", "columns"), [(7, 3), (20, 5000), (41, 1), (100, 130)])
def test_agrees_with_naive_float64(name: str, rows: int, columns: int) -> None:
    table = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    expected = naive(name, table)
    np.testing.assert_allclose(RULES[name](table), expected, atol=1e-5)
    np.testing.assert_allclose(RULES[name](torch.from_numpy(table)).numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(RULES[name](np.asfortranarray(table)), expected, atol=1e-5)
    np.testing.assert_allclose(RULES[name](np.repeat(table, 2, axis=1)[:, ::2]), expected, atol=1e-5)
    np.testing.assert_allclose(RULES[name](table.astype(np.float64)), expected, atol=1e-12)
    order = np.random.default_rng(0).permutation(rows)
    np.testing.assert_allclose(RULES[name](table[order]), expected, atol=1e-5)


def test_distances_of_far_rows_that_lie_close_do_not_cancel() -> None:
    far = np.full((2, 1000), 1e6, np.float32)
    far[1] += 1.0
    assert squared_distances(far)[0, 1] == 1000.0


def test_a_row_that_is_not_finite_is_no_neighbour() -> None:
    for rows in ([[0.0], [1.0], [2.0], [np.inf]], [[np.inf], [0.0], [1.0], [2.0]]):
        table = np.array(rows)
        with np.errstate(invalid="ignore"):
            assert np.isinf(squared_distances(table)).sum() == 6
            assert Krum(0.25)(table).tolist() == [1.0]


def test_distances_do_not_depend_on_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.random.default_rng(0).standard_normal((9, 100_000)).astype(np.float32)
    found = squared_distances(table)
    with ThreadPoolExecutor(1) as alone:
        monkeypatch.setattr("coterie._src.aggregators.distance.threads", lambda: alone)
        assert np.array_equal(squared_distances(table), found)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: Krum(0.5), "byzantine_fraction must be"),
        (lambda: Krum(0.1, selected=2.0), "selected must be"),
        (lambda: CentredClipping(radius=0.0), "radius must be"),
        (lambda: CentredClipping(radius=np.inf), "radius must be"),
        (lambda: CentredClipping(iterations=-1), "iterations must be"),
    ],
)
def test_options_out_of_range_are_named(build: Callable[[], Aggregator], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        build()


@pytest.mark.parametrize("rule", [CentredClipping(), GeometricMedian(), NearestNeighbourMixing(median, 0.2)])
def test_complex_numbers_are_refused(rule: Aggregator) -> None:
    with pytest.raises(ValueError, match="real numbers"):
        rule(np.zeros((5, 2), complex))


def test_clipping_begins_at_the_last_aggregate_where_it_has_a_history() -> None:
    """One step of radius 1 from a memory of 10 moves towards rows at 0, 0, 0 by 1; without a history, from 0, by 0."""
    rows, memory = np.zeros((3, 2)), np.array([10.0, 0.0])
    rule = CentredClipping(radius=1.0, iterations=1, history=True)
    found, after = rule.update(memory, rows)
    assert found.tolist() == [9.0, 0.0]
    assert after is not None
    assert after.tolist() == [9.0, 0.0]
    first, after = rule.update(None, rows)
    assert first.tolist() == [0.0, 0.0]
    assert after is not None
    assert after.tolist() == [0.0, 0.0]
    without = CentredClipping(radius=1.0, iterations=1)
    found, after = without.update(memory, rows)
    assert found.tolist() == [0.0, 0.0]
    assert after is None
    assert rule(rows).tolist() == [0.0, 0.0]  # a call has no memory


def test_geometric_median_of_whole_numbers() -> None:
    rows = np.array([[0, 0], [1, 2], [9, 2]])
    expected = GeometricMedian()(rows.astype(float))
    np.testing.assert_allclose(GeometricMedian()(rows), expected)
    np.testing.assert_allclose(GeometricMedian()(torch.from_numpy(rows)), expected)


def test_geometric_median_of_no_columns() -> None:
    assert GeometricMedian()(np.zeros((5, 0))).shape == (0,)


def test_geometric_median_of_many_rows_of_few_columns(rng: np.random.Generator) -> None:
    """It then runs on the rows; with columns of zeros, on their products."""
    for rows in (rng.standard_normal((40, 3)), np.concatenate([rng.standard_normal((30, 3)), np.full((10, 3), 1e200)])):
        expected = GeometricMedian()(np.pad(rows, ((0, 0), (0, 30))))
        assert (expected[3:] == 0).all()
        np.testing.assert_allclose(GeometricMedian()(rows), expected[:3], rtol=1e-7, atol=1e-9)


def test_geometric_median_minimises_the_sum_of_distances(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((15, 3))
    point = GeometricMedian()(rows)
    pulls = (rows - point) / np.linalg.norm(rows - point, axis=1, keepdims=True)
    assert np.linalg.norm(pulls.sum(axis=0)) < 1e-5  # the gradient of the sum of distances
