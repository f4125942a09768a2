"""Copies among very many rows: what is found is what all pairs say, and the work is bounded whatever is sent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist

from coterie._src.aggregators import SpectralFilter, neighbours, products
from coterie._src.aggregators.neighbours import GRIDS, WINDOW, components, nearest_distances
from coterie._src.aggregators.products import copies_among


def of_all_pairs(points: np.ndarray, distance: float) -> np.ndarray:
    near = cdist(points, points, "sqeuclidean") < distance**2
    return connected_components(csr_matrix(near), directed=False)[1]


def partition(labels: np.ndarray) -> list[int]:
    """Every group named by its first row."""
    first = np.unique(labels, return_index=True, return_inverse=True)
    return first[1][first[2]].tolist()


@settings(deadline=None)
@given(
    hnp.arrays(np.int8, st.tuples(st.integers(2, 40), st.integers(1, 4))),
    st.floats(0.01, 300),
    st.sampled_from([1.0, 1e-8, 1e90]),
)
def test_no_row_is_linked_that_is_not_near(values: np.ndarray, distance: float, scale: float) -> None:
    points = values * scale
    found, expected = components(points, distance * scale), of_all_pairs(points, distance * scale)
    for group in np.unique(found):
        assert len(set(expected[found == group].tolist())) == 1


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([8, 20, 60]), st.sampled_from([0.0, 1e-9, 0.02, 0.08]))
def test_clumps_among_rows_of_noise_are_found_as_by_all_pairs(seed: int, dim: int, radius: float) -> None:
    """Clumps of many sizes, around honest rows and elsewhere; `radius` as a share of the distance asked for."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((400, dim))
    distance = 0.1 * float(np.sqrt(np.median(nearest_distances(points))))
    forged = 300
    for size in (2, 3, 10, 60):
        middle = points[int(rng.integers(300))] if rng.random() < 0.5 else rng.standard_normal(dim)
        away = rng.standard_normal((size, dim))
        away *= radius * distance * rng.random((size, 1)) / np.linalg.norm(away, axis=1, keepdims=True)
        points[forged : forged + size] = middle + away
        forged += size
    assert partition(components(points, distance)) == partition(of_all_pairs(points, distance))


def near_grid(rng: np.random.Generator) -> np.ndarray:
    """Points whose coordinates differ in a few units of the last place."""
    return 1 + np.finfo(np.float64).eps * rng.integers(0, 3, (500, 20))


HOSTILE = {
    "all equal": lambda rng: np.ones((500, 20)),
    "on a line": lambda rng: np.linspace(0, 1, 500)[:, None] * np.ones(20),
    "a chain of pairs just near enough": lambda rng: 0.99 * np.arange(500.0)[:, None] * np.eye(20)[0],
    "one ball of the distance": lambda rng: 0.3 * rng.standard_normal((500, 20)),
    "on a grid": near_grid,
    "far apart": lambda rng: 1e100 * rng.standard_normal((500, 20)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_work_is_bounded_whatever_is_sent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    points, compared = HOSTILE[name](np.random.default_rng(0)), []
    squared = neighbours._squared

    def counting(points: np.ndarray, some: np.ndarray, others: np.ndarray) -> np.ndarray:
        compared.append(len(some))
        return squared(points, some, others)

    monkeypatch.setattr(neighbours, "_squared", counting)
    found = components(points, 1.0)
    assert sum(compared) <= GRIDS * WINDOW * len(points)
    expected = of_all_pairs(points, 1.0)
    if name not in ("one ball of the distance", "a chain of pairs just near enough"):  # of which some pairs are missed
        assert partition(found) == partition(expected)


def test_the_nearest_rows_are_those_of_all_pairs() -> None:
    points = 1e3 + np.random.default_rng(1).standard_normal((300, 5))
    points[7] = points[200]
    between = cdist(points, points, "sqeuclidean")
    np.fill_diagonal(between, np.inf)
    np.testing.assert_allclose(nearest_distances(points, 300), between.min(axis=1), rtol=1e-9)
    some = nearest_distances(points, 40)
    assert len(some) == 40
    assert np.isclose(some[:, None], between.min(axis=1)).any(axis=1).all()


def attacks(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """300 honest rows in 20 dimensions and 60 Byzantine ones: the copy attacks of the arena."""
    honest = rng.standard_normal((300, 20))
    shift = honest.mean(axis=0) + 0.8 * np.eye(20)[0]
    return {
        "none": rng.standard_normal((360, 20)),
        "identical": np.concatenate([honest, np.tile(shift, (60, 1))]),
        "nearly identical": np.concatenate([honest, shift + 1e-3 * rng.standard_normal((60, 20))]),
        "copies of an honest client": np.concatenate([honest, np.tile(honest[5], (60, 1))]),
        "copies of many honest clients": np.concatenate([honest, honest[:60]]),
        "too many copies": np.concatenate([honest[:200], np.tile(honest[5], (160, 1))]),
    }


@pytest.mark.parametrize("name", attacks(np.random.default_rng(0)))
def test_copies_get_the_same_verdict_as_among_all_pairs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(5):
        table = attacks(np.random.default_rng(seed))[name]
        expected, mean = copies_among(table, 61), SpectralFilter(60)(table)
        with monkeypatch.context() as few:
            few.setattr(products, "ALL_PAIRS", 50)
            assert copies_among(table, 61).tolist() == expected.tolist()
            np.testing.assert_array_equal(SpectralFilter(60)(table), mean)
