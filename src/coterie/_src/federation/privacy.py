"""Gaussian noise on what leaves a site, and the (ε, δ) that it gives.

An answer whose norm is clipped to C changes by at most 2C when the site's whole data are replaced by others of the same
number of rows. With noise of deviation σ on every number it is μ-Gaussian differentially private, μ = 2C/σ, and answers
with μ_1, μ_2, …, each of which may depend on those before it, together are sqrt(Σ μ_i²)-Gaussian differentially private
(Dong, Roth and Su, 2022, "Gaussian differential privacy", Corollary 3.3). This is exact, and below what Rényi or
zero-concentrated bounds give.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator
from scipy.special import log_ndtr

from coterie._src.arrays import Floats


def delta_of(epsilon: float, mu: float) -> float:
    """Return δ(ε) = Φ(μ/2 − ε/μ) − exp(ε)·Φ(−μ/2 − ε/μ), the smallest δ of a μ-Gaussian private mechanism at ε.

    References
    ----------
    Balle and Wang, 2018, "Improving the Gaussian mechanism for differential privacy", Theorem 5.

    Examples
    --------
    >>> round(delta_of(1.0, 1.0), 6)
    0.126937
    """
    upper = float(log_ndtr(mu / 2 - epsilon / mu))
    return -math.exp(upper) * math.expm1(min(0.0, epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)) - upper))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest ε, from above, with which a μ-Gaussian private mechanism is (ε, δ)-private.

    Bisection below the bound μ²/2 + μ·sqrt(2·log(1/δ)) (Bun and Steinke, 2016, "Concentrated differential privacy",
    Proposition 1.3).

    >>> round(epsilon_of(1.0, 1e-5), 3)
    4.377
    """
    if mu <= 0 or delta_of(0.0, mu) <= delta:
        return 0.0
    low, high = 0.0, mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, mu) > delta else (low, middle)
    return high


def released(values: Floats, clip: float | None, noise: float | None, rng: Generator) -> Floats:
    """Return values with a norm of at most `clip`, plus noise of deviation noise·clip; without a clip, as they are.

    With a clip, values that are not finite are replaced by zeros: what they become must have a bounded norm.

    >>> released(np.array([3.0, 4.0]), 1.0, None, np.random.default_rng(0))
    array([0.6, 0.8])
    """
    if clip is None:
        return values
    found = np.asarray(values, dtype=np.float64)
    largest = float(np.abs(found).max(initial=0.0))
    if not math.isfinite(largest):
        found, largest = np.zeros_like(found), 0.0
    norm = largest * float(np.linalg.norm(found / largest)) if largest else 0.0  # squares may overflow
    found = found * min(1.0, clip / norm) if norm else found
    return found if noise is None else found + rng.normal(0.0, noise * clip, found.shape)
