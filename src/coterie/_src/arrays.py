"""The few array helpers that every station needs.

The mathematics is written once against the array-API standard and runs on NumPy arrays and on
PyTorch tensors (CPU or CUDA). This module is the only place that asks which of them it has.
"""

from __future__ import annotations

import os
from typing import Any

import array_api_compat.numpy
import numpy as np
import scipy.special
from array_api_compat import array_namespace, is_torch_array
from numpy.typing import NDArray

Array = Any
"""An array of the array-API standard: NumPy by default, a PyTorch tensor on request."""

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FLOATS = frozenset({np.dtype(np.float32), np.dtype(np.float64)})
"""The data types for which kernels are compiled."""


def namespace(*arrays: Array) -> Any:
    """The array-API namespace of the given arrays (NumPy or PyTorch)."""
    for array in arrays:
        if type(array) is not np.ndarray:
            return array_namespace(*arrays)
    return array_api_compat.numpy


def as_numpy(array: Array) -> NDArray[Any]:
    """`array` as a NumPy array; a tensor is detached and brought to the CPU, without a copy if possible."""
    if type(array) is np.ndarray:
        return array
    if is_torch_array(array):
        array = array.detach().cpu()
        if array.element_size() < 4 and array.is_floating_point():
            array = array.float()  # NumPy has no bfloat16
    return np.asarray(array)


def like(values: NDArray[Any], example: Array) -> Array:
    """`values` as the same kind of array as `example`, with its dtype and on its device."""
    if type(example) is np.ndarray:
        return values.astype(example.dtype, copy=False)
    if is_torch_array(example):
        xp = namespace(example)
        return xp.asarray(np.ascontiguousarray(values), dtype=example.dtype, device=example.device)
    return values.astype(np.asarray(example).dtype, copy=False)


def cast(array: Array, example: Array) -> Array:
    """`array` with the dtype of `example`, unchanged where it has it already."""
    return array if array.dtype == example.dtype else namespace(array).astype(array, example.dtype)


def detached(array: Array) -> Array:
    """A tensor without the history that a gradient would be computed from; anything else as it is."""
    return array.detach() if is_torch_array(array) else array


def on_gpu(array: Array) -> bool:
    """Whether it is a tensor that no CPU holds."""
    return bool(is_torch_array(array) and array.device.type != "cpu")


def available_cores() -> int:
    """The cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def expit(array: Array) -> Array:
    """1/(1 + e^(−x)), which the standard of array libraries does not have.

    >>> expit(np.zeros(1))
    array([0.5])
    """
    return array_namespace(array).special.expit(array) if is_torch_array(array) else scipy.special.expit(array)


def is_plain(array: Array) -> bool:
    """Whether it is a NumPy array of float32 or float64, such as compiled functions take."""
    return type(array) is np.ndarray and array.dtype in FLOATS


def row_distances(rows: Array, others: Array) -> Floats:
    """(k, d), (k, d) -> (k,): the Euclidean distance of each row to the other one, as NumPy's float64.

    >>> row_distances(np.array([[4.0, 4.0]]), np.array([[1.0, 0.0]]))
    array([5.])
    """
    apart = np.subtract(as_numpy(rows), as_numpy(others), dtype=np.float64)
    distances: Floats = np.sqrt(np.einsum("ij,ij->i", apart, apart))
    return distances
