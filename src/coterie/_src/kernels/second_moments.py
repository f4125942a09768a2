"""Second moments of the samples of many clients, as the rows of their upper triangles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie._src.kernels.dispatch import Kernel

FEW = 64
"""Columns up to which the triangle that is not needed costs less than a call per client."""


def packed_moments_reference(features: NDArray[Any], factor: float, out: NDArray[np.float64]) -> None:
    """Write factor·XᵀX/n for clients with samples X (c, n, d) to out (c, d(d + 1)/2): the upper triangles, by rows.

    In float64, whatever the precision of the samples.
    """
    exact = features.astype(np.float64)
    products = exact.transpose(0, 2, 1) @ exact * (factor / features.shape[1])
    above = np.triu_indices(features.shape[2])
    out[:] = products[:, *above]


packed_moments = Kernel(
    packed_moments_reference,
    "second_moments_blas:packed_moments",
    lambda features, factor, out: features.shape[2] > FEW,
)
