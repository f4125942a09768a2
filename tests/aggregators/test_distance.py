"""Krum, mixing, bucketing and clipping against naive float64, and against arbitrary rows."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie._src.aggregators import (
    Aggregator,
    bucketed,
    centred_clipping,
    filtered_mean,
    krum,
    mean,
    median,
    mixed,
    products,
    squared_distances,
)
from coterie._src.aggregators.products import copies, copies_among

RULES: dict[str, Aggregator] = {
    "krum": partial(krum, byzantine=0.2),
    "multi-krum": partial(krum, byzantine=0.2, selected=0.5),
    "mixed": partial(mixed, rule=median, byzantine=0.2),
    "clipping": centred_clipping,
    "clipping-fixed": partial(centred_clipping, radius=0.7, iterations=5),
}
rules = pytest.mark.parametrize("name", RULES)


def naive(name: str, rows: np.ndarray) -> np.ndarray:
    x = rows.astype(np.float64)
    n, lies = len(x), int(0.2 * len(x))
    between = ((x[:, None] - x[None, :]) ** 2).sum(axis=2)
    if name.endswith("krum"):
        scores = [np.sort(np.delete(line, i))[: n - lies - 2].sum() for i, line in enumerate(between)]
        best = np.argsort(scores)[: 1 if name == "krum" else -(-n // 2)]
        return x[best].mean(axis=0)
    if name == "mixed":
        return np.median([x[np.argsort(line)[: n - lies]].mean(axis=0) for line in between], axis=0)
    point = np.median(x, axis=0)
    radius = 0.7 if name == "clipping-fixed" else np.median(np.linalg.norm(x - point, axis=1))
    for _ in range(5 if name == "clipping-fixed" else 10):
        away = x - point
        lengths = np.maximum(np.linalg.norm(away, axis=1), 1e-300)
        point = point + (np.minimum(1, radius / lengths)[:, None] * away).mean(axis=0)
    return point


@rules
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


@rules
@given(data=st.data(), size=st.sampled_from([1.0, 1e6, 1e19, 1e38, float(np.finfo(np.float32).max)]))
def test_arbitrary_rows_are_harmless(name: str, data: st.DataObject, size: float) -> None:
    """Two lies among eleven rows: finite, and no farther from the honest mean than the honest rows are wide."""
    honest = np.random.default_rng(data.draw(st.integers(0, 99))).standard_normal((9, 4)).astype(np.float32)
    lies = data.draw(hnp.arrays(np.float32, (2, 4), elements=st.sampled_from([-size, 0.0, size])))
    found = RULES[name](np.concatenate([lies, honest]))
    assert np.isfinite(found).all()
    centre = honest.mean(axis=0)
    assert np.linalg.norm(found - centre) <= 2 * np.linalg.norm(honest - centre, axis=1).max()


@rules
def test_one_two_and_equal_rows(name: str) -> None:
    row = np.array([[3.0, -4.0]], np.float32)
    assert np.array_equal(RULES[name](row), row[0])
    np.testing.assert_allclose(RULES[name](np.tile(row, (6, 1))), row[0], rtol=1e-6)
    np.testing.assert_allclose(RULES[name](np.array([[0.0], [2.0]])), [1.0])  # neither is better than the other
    whole = RULES[name](np.array([[0, 9], [1, 9], [2, 9], [3, 9], [4, 9]]))
    np.testing.assert_allclose(whole, [2.0, 9.0], atol=1.0)
    with pytest.raises(ValueError, match="two axes"):
        RULES[name](np.zeros(3))


def test_distances_of_far_rows_that_lie_close_do_not_cancel() -> None:
    far = np.full((2, 1000), 1e6, np.float32)
    far[1] += 1.0
    assert squared_distances(far)[0, 1] == 1000.0


def test_a_row_that_is_not_finite_is_nobody_s_neighbour() -> None:
    for rows in ([[0.0], [1.0], [2.0], [np.inf]], [[np.inf], [0.0], [1.0], [2.0]]):
        table = np.array(rows)
        assert np.isinf(squared_distances(table)).sum() == 6
        with np.errstate(invalid="ignore"):
            assert mixed(table, median, 0.25).tolist() == [1.0]
            assert krum(table, 0.25).tolist() == [1.0]


def test_mixing_rows_far_from_zero_keeps_their_digits() -> None:
    rows = np.random.default_rng(0).standard_normal((7, 3))
    far = mixed((rows + 1e6).astype(np.float32), median, 0.2).astype(np.float64)
    np.testing.assert_allclose(far - 1e6, mixed(rows, median, 0.2), atol=0.1)  # float32 has a spacing of 0.06 there


def test_distances_do_not_depend_on_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    table = np.random.default_rng(0).standard_normal((9, 100_000)).astype(np.float32)
    found = squared_distances(table)
    with ThreadPoolExecutor(1) as alone:
        monkeypatch.setattr("coterie._src.aggregators.distance.threads", lambda: alone)
        assert np.array_equal(squared_distances(table), found)


def test_buckets_hold_every_row_once() -> None:
    table = np.arange(7.0)[:, None]
    seen: list[np.ndarray] = []

    def keep(rows: np.ndarray) -> np.ndarray:
        seen.append(np.asarray(rows))
        return mean(rows)

    bucketed(table, keep, 3, np.random.default_rng(1))
    (means,) = seen
    assert means.shape == (3, 1)
    assert (means.ravel() * [3, 3, 1]).sum() == pytest.approx(21.0)
    assert np.array_equal(bucketed(table, median, 1, np.random.default_rng(0)), [3.0])


def test_settings_out_of_range_are_named() -> None:
    rows = np.zeros((5, 2))
    for call, named in [
        (partial(krum, rows, byzantine=0.5), "byzantine"),
        (partial(krum, rows, byzantine=0.1, selected=2.0), "selected"),
        (partial(mixed, rows, median, byzantine=-0.1), "byzantine"),
        (partial(bucketed, rows, median, 0, np.random.default_rng(0)), "size"),
        (partial(centred_clipping, rows, radius=0.0), "radius"),
        (partial(centred_clipping, rows, radius=np.inf), "radius"),
        (partial(centred_clipping, rows.astype(complex)), "real"),
    ]:
        with pytest.raises(ValueError, match=named):
            call()


@given(
    hnp.arrays(np.int8, st.tuples(st.integers(2, 12), st.integers(1, 3))), st.integers(1, 6), st.sampled_from([1, 30])
)
def test_copies_are_the_same_some_points_at_a_time(values: np.ndarray, most: int, pairs: int) -> None:
    points = values / np.float64(16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "PAIRS", pairs)
        assert np.array_equal(copies_among(points, most), copies(squared_distances(points), most))


def test_copies_are_found_where_they_are_half_of_all_rows() -> None:
    """Fourteen who copy one of fifteen: most rows have a twin, so the usual distance to the nearest one is 0."""
    rng = np.random.default_rng(0)
    honest = rng.standard_normal((15, 20))
    groups = copies(squared_distances(np.concatenate([honest, np.tile(honest[:1], (14, 1))])), most=15)
    assert groups.tolist() == [*range(15), *[0] * 14]
    everybody = copies(squared_distances(np.tile(honest[:1], (9, 1))), most=4)
    assert len(set(everybody.tolist())) == 9
    # the median is their point, and yet the others are heard: what is left is the mean of the fifteen
    found = filtered_mean(np.concatenate([honest, np.tile(honest[:1], (14, 1))]), liars=14)
    assert np.linalg.norm(found - honest.mean(axis=0)) < 0.5 * np.linalg.norm(found - honest[0])
