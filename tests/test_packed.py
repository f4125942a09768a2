"""Symmetric matrices in packed form, against the same sums over whole matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie._src import packed as module
from coterie._src.packed import PackedMatrices, packed, triangle, unpacked

SEEDS = st.integers(0, 2**32 - 1)


def symmetric(rng: np.random.Generator, count: int, dim: int) -> np.ndarray:
    matrices = rng.standard_normal((count, dim, dim))
    return np.asarray(matrices + matrices.transpose(0, 2, 1))


@given(seed=SEEDS, count=st.integers(1, 4), dim=st.integers(1, 7))
def test_unpacked_is_the_inverse_of_packed(seed: int, count: int, dim: int) -> None:
    matrices = symmetric(np.random.default_rng(seed), count, dim)
    rows = packed(matrices)
    assert rows.shape == (count, triangle(dim))
    assert np.array_equal(unpacked(rows, dim), matrices)
    assert np.array_equal(rows, np.stack([one[np.triu_indices(dim)] for one in matrices]))


@pytest.mark.parametrize("block", [1, 40, 1 << 20])
@pytest.mark.parametrize(("count", "dim", "rank"), [(0, 3, 2), (1, 1, 1), (7, 5, 5), (7, 6, 2), (3, 4, 0)])
def test_sums_over_packed_matrices(
    count: int, dim: int, rank: int, block: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the sizes of the blocks, the last of which is smaller."""
    monkeypatch.setattr(module, "BLOCK", block)
    monkeypatch.setattr(module, "COLUMNS", block)
    matrices, axes, weights = symmetric(rng, count, dim), rng.standard_normal((dim, rank)), rng.random(count)
    held = PackedMatrices(packed(matrices), dim)
    np.testing.assert_array_equal(held.diagonals, np.einsum("cdd->cd", matrices))
    np.testing.assert_allclose(held.traces(axes @ axes.T), np.einsum("cde,dr,er->c", matrices, axes, axes), atol=1e-12)
    np.testing.assert_allclose(held.along(axes), np.einsum("cde,dr,er->cr", matrices, axes, axes), atol=1e-12)
    inner = np.full((count, rank, rank), np.nan)
    for rows, part in held.transformed(axes):
        inner[rows] = part
    np.testing.assert_allclose(inner, axes.T @ matrices @ axes, atol=1e-12)
    if count:
        np.testing.assert_allclose(held.mean(), matrices.mean(axis=0), atol=1e-14)
        np.testing.assert_allclose(held.mean(weights), np.average(matrices, axis=0, weights=weights), atol=1e-12)
        some = np.arange(0, count, 2)
        np.testing.assert_array_equal(held.take(some).rows, packed(matrices[some]))
