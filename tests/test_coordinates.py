"""Coordinates of the parameters: their maps are inverse and dual to each other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coterie._src.coordinates import Coordinates

SEEDS = st.integers(0, 2**32 - 1)


def drawn(seed: int, dim: int, rank: int, spread: float) -> tuple[Coordinates, np.random.Generator]:
    """Coordinates of some rank, with axes whose lengths range from 1 to 10^spread, and a generator."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((dim, dim)))[0][:, :rank] * 10 ** np.linspace(0, spread, rank)
    basis = basis @ np.linalg.qr(rng.standard_normal((rank, rank)))[0]
    return Coordinates(basis, np.linalg.pinv(basis)), rng


@given(seed=SEEDS, dim=st.integers(1, 12), missing=st.integers(0, 11), spread=st.floats(-3, 3))
def test_the_maps_are_inverse_to_each_other(seed: int, dim: int, missing: int, spread: float) -> None:
    coordinates, rng = drawn(seed, dim, max(1, dim - missing), spread)
    points = rng.standard_normal((3, coordinates.dim))
    np.testing.assert_allclose(coordinates.points(coordinates.parameters(points)), points, atol=1e-9)
    np.testing.assert_allclose(coordinates.updates(coordinates.gradients(points)), points, atol=1e-9)


@given(seed=SEEDS, dim=st.integers(1, 12), missing=st.integers(0, 11), spread=st.floats(-3, 3))
def test_gradients_change_as_the_dual_of_parameters(seed: int, dim: int, missing: int, spread: float) -> None:
    """⟨g, Bφ⟩ = ⟨updates(g), φ⟩: the change of a loss along a step is the same number in both coordinates."""
    coordinates, rng = drawn(seed, dim, max(1, dim - missing), spread)
    gradients, points = rng.standard_normal((4, dim)), rng.standard_normal((5, coordinates.dim))
    in_parameters = gradients @ coordinates.parameters(points).T
    in_coordinates = coordinates.updates(gradients) @ points.T
    np.testing.assert_allclose(in_coordinates, in_parameters, rtol=1e-9, atol=1e-9 * np.abs(in_parameters).max())


@given(seed=SEEDS, dim=st.integers(1, 12), spread=st.floats(-3, 3))
def test_with_as_many_coordinates_as_parameters_nothing_is_lost(seed: int, dim: int, spread: float) -> None:
    coordinates, rng = drawn(seed, dim, dim, spread)
    rows = rng.standard_normal((3, dim))
    np.testing.assert_allclose(coordinates.parameters(coordinates.points(rows)), rows, atol=1e-9)
    np.testing.assert_allclose(coordinates.gradients(coordinates.updates(rows)), rows, atol=1e-9)


def test_the_maps_of_float32_rows_are_computed_in_float64(rng: np.random.Generator) -> None:
    coordinates, _ = drawn(0, 4, 3, 2.0)
    rows = rng.standard_normal((2, 4)).astype(np.float32)
    for found in (coordinates.updates(rows), coordinates.points(rows), coordinates.gradients(rows[:, :3])):
        assert found.dtype == np.float64
    np.testing.assert_array_equal(coordinates.updates(rows), rows.astype(np.float64) @ coordinates.basis)
