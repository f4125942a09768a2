"""The formulas of a shrunk fit against refits, least squares and the anchor."""

from __future__ import annotations

import numpy as np
import pytest

from coterie._src.arrays import Floats
from coterie._src.tasks import logistic_loss
from coterie._src.tasks import shrinkage as s


def penalised(x: Floats, r: Floats, scale: Floats, intercept: float, slope: float) -> tuple[float, Floats]:
    """argmin Σ(r − a − x·b)² + intercept·a² + slope·‖scale·b‖², by its normal equations."""
    wide = np.column_stack([np.ones(len(x)), x])
    found = np.linalg.solve(wide.T @ wide + np.diag([intercept, *(slope * scale**2)]), wide.T @ r)
    return float(found[0]), found[1:]


def test_left_out_residuals_are_those_of_refits(rng: np.random.Generator) -> None:
    n = 12
    x, r = rng.standard_normal((n, 3)) * [1, 10, 0.1] + 5, rng.standard_normal(n) + 2
    d = s.decomposed(x, centred=True)
    found = s.candidates(r, d.left, s.INTERCEPT_FACTORS, s.slope_factors(d.values, n))
    centred, scale = x - x.mean(axis=0), x.std(axis=0)
    for g, factor in enumerate(s.INTERCEPT_FACTORS[1:], 1):
        for index, penalty in enumerate(s.PENALTIES[1:], 1):
            for row in range(n):
                rest = np.arange(n) != row
                a, b = penalised(centred[rest], r[rest], scale, n * (1 - factor) / factor, n * penalty)
                assert found.left_out[row, g, index] == pytest.approx(r[row] - a - centred[row] @ b, rel=1e-6, abs=1e-8)
    assert found.left_out[:, 0, 0] == pytest.approx(r)  # the anchor unchanged


def test_without_a_penalty_it_is_least_squares_and_with_an_infinite_one_the_anchor(rng: np.random.Generator) -> None:
    x = rng.standard_normal((20, 3))
    d, r = s.decomposed(x, centred=True), rng.standard_normal(20)
    factors = s.slope_factors(d.values, 20)
    exact = np.linalg.lstsq(np.column_stack([np.ones(20), x]), r, rcond=None)[0][1:]
    assert d.slopes(factors[-1] * (d.left.T @ r)) == pytest.approx(exact)
    assert not factors[0].any()


def test_a_column_of_equal_numbers_is_left_out_although_its_mean_is_rounded() -> None:
    x = np.column_stack([np.full(47, -0.428), np.arange(47.0)])
    assert s.decomposed(x, centred=True).used.tolist() == [False, True]
    assert s.decomposed(x.astype(np.float32), centred=True).used.tolist() == [False, True]


def test_the_marginal_likelihood_is_that_of_the_normal_distribution(rng: np.random.Generator) -> None:
    """Differences between candidates, by the covariance matrix I + K with (I + K)⁻¹ = I − H, below the cap."""
    n = 9
    d, r = s.decomposed(rng.standard_normal((n, 2)), centred=True), rng.standard_normal(n)
    found = s.candidates(r, d.left, s.INTERCEPT_FACTORS, s.slope_factors(d.values, n))
    scores = s.evidence(found, free=False)

    def direct(a: float, f: Floats) -> float:
        rest = np.eye(n) - a / n - (d.left * f) @ d.left.T
        spread = r @ rest @ r + s.NOISE_ROWS * (r @ r) / n
        return float(0.5 * np.linalg.slogdet(rest)[1] - 0.5 * (n + s.NOISE_ROWS) * np.log(spread))

    for g, index in ((1, 3), (4, 6), (5, 0)):
        expected = direct(s.INTERCEPT_FACTORS[g], found.slopes[index]) - direct(0.0, found.slopes[0])
        assert scores[g, index] - scores[0, 0] == pytest.approx(expected)


def test_proximal_fits_are_stationary_and_do_not_diverge_on_separable_data(rng: np.random.Generator) -> None:
    x, loss = rng.standard_normal((40, 2)), logistic_loss()
    y = (x[:, 0] > 0).astype(float)
    d = s.decomposed(x, centred=True)
    basis, penalties = d.left * d.values, (np.array([0.3, 0.003]), np.array([0.3, 0.003]))
    a, b = s.proximal_fits(np.zeros((40, 1)), y, basis, penalties, np.ones((2, 40), dtype=bool), loss)
    pull = loss.slope(a + basis @ b, y[None])
    gradient = basis.T @ pull / 40 + loss.curvature * penalties[1][:, None, None] * b
    assert np.abs(gradient[0]).max() < 1e-4
    assert np.isfinite(b).all()
    assert np.abs(gradient[1]).max() < 0.02
