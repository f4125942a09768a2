"""The helpers that every module needs: NumPy beside torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie._src.arrays import as_numpy, cast, detached, is_plain, like, namespace, row_distances


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_distances_of_rows_to_rows(dtype: type, rng: np.random.Generator) -> None:
    rows, others = rng.standard_normal((2, 5, 7)).astype(dtype)
    expected = np.linalg.norm(rows.astype(np.float64) - others, axis=1)
    tolerance = 1e-2 if dtype is np.float16 else 1e-6
    np.testing.assert_allclose(row_distances(rows, others), expected, rtol=tolerance)
    tensors = row_distances(torch.from_numpy(rows), torch.from_numpy(others))
    np.testing.assert_allclose(tensors, expected, rtol=tolerance)
    np.testing.assert_allclose(row_distances(rows, others[:1])[0], expected[0], rtol=tolerance)  # or whatever fits


def test_a_tensor_becomes_an_array_and_comes_back() -> None:
    values = torch.tensor([1.5, -2.0], requires_grad=True)
    array = as_numpy(values)
    assert array.tolist() == [1.5, -2.0]
    back = like(array, values)
    assert isinstance(back, torch.Tensor)
    assert back.dtype == torch.float32
    half = as_numpy(values.to(torch.bfloat16))  # which NumPy does not have
    assert half.dtype == np.float32
    assert like(half, values.to(torch.bfloat16)).dtype == torch.bfloat16
    assert not detached(values).requires_grad
    assert like(np.array([1.0]), np.zeros(1, np.float32)).dtype == np.float32


def test_a_dtype_is_changed_only_where_it_differs() -> None:
    single, double = np.zeros(2, np.float32), np.zeros(2)
    assert cast(double, double) is double
    assert cast(double, single).dtype == np.float32
    assert cast(torch.zeros(2), torch.zeros(2, dtype=torch.float64)).dtype == torch.float64
    assert detached(double) is double


def test_which_arrays_compiled_functions_take() -> None:
    assert is_plain(np.zeros(2))
    assert is_plain(np.zeros(2, np.float32))
    for other in (np.zeros(2, int), np.zeros(2, np.float16), torch.zeros(2), [0.0], np.ma.zeros(2)):
        assert not is_plain(other)
    assert namespace(np.zeros(1)) is namespace(np.zeros(1), np.zeros(2))
    with pytest.raises(TypeError):
        namespace(np.zeros(1), torch.zeros(1))
