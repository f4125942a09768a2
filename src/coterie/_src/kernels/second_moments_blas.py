"""Second moments by BLAS: one triangle of each product, one client at a time, so that it stays in the cache."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk


def packed_moments(features: NDArray[Any], factor: float, out: NDArray[np.float64]) -> None:
    _, samples, dim = features.shape
    product = np.zeros((dim, dim))
    above = np.flatnonzero(np.triu(np.ones((dim, dim), dtype=np.bool_)))
    for i, own in enumerate(features):
        # BLAS counts by columns: its lower triangle is the upper one by rows
        dsyrk(factor / samples, own.astype(np.float64).T, c=product.T, lower=True, overwrite_c=True)
        np.take(product, above, out=out[i], mode="clip")
