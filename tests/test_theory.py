"""The theory by hand, by its limits, and against Monte Carlo."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from coterie._src import theory
from coterie._src.data import gaussian_means, mixed_regression
from coterie._src.tasks import linear_regression, mean_estimation


def setting(**changes: float) -> theory.Setting:
    base = theory.Setting(
        clients=200, clusters=5, byzantine=0.05, share=0.19, samples=100, total=19_000, dim=100, trim=0.05,
        separation=1.0, start=0.25, quantities=theory.mixed_regression_quantities(100, 0.2),
    )  # fmt: skip
    return replace(base, **changes)


@pytest.mark.parametrize(
    ("clusters", "clients", "expected"), [(2, 80, 0.42), (5, 200, 1.05), (10, 400, 2.1), (15, 600, 3.2)]
)
def test_the_paper_s_own_settings_are_outside_its_theorems(clusters: int, clients: int, expected: float) -> None:
    share = theory.smallest_share(clients, clusters, 0.05)
    s = setting(clients=clients, clusters=clusters, share=share, constants=theory.Constants(c1=0.0))
    found = theory.theorem2_condition(s)
    assert found.left == pytest.approx(expected, abs=0.05)
    assert not found.holds


def test_worst_contamination_and_limits_by_hand() -> None:
    assert theory.worst_contamination(0.1, 0.3) == pytest.approx(0.25)
    assert theory.worst_contamination(0.0, 0.3) == 0.0
    assert [theory.breakdown_limit(rule, 0.1) for rule in ("mean", "trimmed-mean", "median")] == [0.0, 0.1, 0.5]
    assert theory.c_epsilon(0.5) == pytest.approx(math.sqrt(2 * math.pi))


def test_theorem_1_by_hand() -> None:
    s = setting(clients=100_000, share=0.5, samples=10_000, dim=2, total=10**9, byzantine=0.01,
                constants=theory.Constants(c1=2.0, delta=0.2, epsilon=0.05),
                quantities=theory.Quantities(2.0, 4.0, 3.0, 5.0, 1.5, 1.0, 7.0, 2.0, 0.1))  # fmt: skip
    wrong = 2.0 * 9.0 / (0.2 * 4.0 * 10_000)
    assert theory.misclustered_share(s) == pytest.approx(wrong)
    log = math.log(1 + 1e9 * 7.0 * 2.0)
    left = 4 * wrong / 0.5 + 4 * 0.01 / 0.5 + math.sqrt(2 * log / (1e5 * (0.125 - wrong - 0.01))) + 0.4748 * 1.5 / 100
    assert theory.theorem1_condition(s).left == pytest.approx(left)
    log = math.log(1e9 * 7.0 * 2.0)  # the bound has no 1 + in its logarithm
    assert theory.theorem1_condition(s).right == pytest.approx(0.45)
    noise = theory.c_epsilon(0.05) * 5.0 * (1.5 / 1e4 + 0.01 / 100 + math.sqrt(2 * log / (1e4 * 1e5 * 0.5)))
    assert theory.theorem1_noise(s) == pytest.approx(noise)
    proven = 2 * math.sqrt(2) / 1e4 + math.sqrt(2) * theory.c_epsilon(0.05) * 5.0 / 100 * left
    assert theory.theorem1_noise_of_proof(s) == pytest.approx(proven)
    assert theory.error_bound(s, noise, 3) == pytest.approx((1 - 2 / 6) ** 3 * 0.25 + noise)
    assert theory.start_condition(s).right == pytest.approx(0.25 * math.sqrt(0.5))


def test_theorem_2_by_hand() -> None:
    s = setting(constants=theory.Constants(epsilon=0.2), dim=10, samples=400, trim=0.1, total=999)
    log = math.log(999 * s.quantities.lipschitz * 2.0)
    rate = 0.1 / 20 + 1 / math.sqrt(0.19 * 200 * 400)
    assert theory.theorem2_noise(s) == pytest.approx(2 * math.sqrt(0.2) * 10 / 0.2 * rate * math.sqrt(log))


def test_rounds_are_enough_and_not_one_less_than_the_formula() -> None:
    s = setting(start=1.0)
    noise = 0.01
    rounds = theory.rounds_needed(s, noise)
    assert rounds == math.ceil(2 * math.log(2 * 1.0 / 0.02))
    assert theory.error_bound(s, noise, rounds) <= 4 * noise / 2
    with pytest.raises(ValueError, match="noise"):
        theory.rounds_needed(s, 0.0)


@pytest.mark.parametrize("condition", [theory.theorem1_condition, theory.theorem2_condition])
def test_the_largest_alpha_is_the_edge_of_the_condition(condition: object) -> None:
    s = setting(clients=10**6, samples=10**6, total=10**12, dim=5, trim=0.3, separation=1.0)
    edge = theory.largest_byzantine(s, condition)
    assert 0 < edge < s.share
    assert condition(replace(s, byzantine=edge - 1e-6)).holds
    assert not condition(replace(s, byzantine=edge + 1e-6)).holds
    assert theory.largest_byzantine(setting(samples=1), condition) == 0.0


def test_a_trim_beyond_one_half_less_epsilon_is_not_admitted() -> None:
    s = setting(byzantine=0.0, constants=theory.Constants(c1=0.0, epsilon=0.1), trim=0.45)
    assert not theory.theorem2_condition(s).holds
    assert theory.theorem2_condition(replace(s, trim=0.4)).holds


def test_separation_is_the_least_over_pairs() -> None:
    assert theory.typical_separation(1, 5) == math.inf
    assert theory.typical_separation(3, 1) == 0.0
    # two of many dimensions: ‖θ − θ'‖² is about 1 with standard deviation 1/√d; the median of 201 draws is closer
    assert theory.typical_separation(2, 400) == pytest.approx(1.0, abs=0.02)
    assert theory.typical_separation(15, 20) < theory.typical_separation(5, 20) < theory.typical_separation(2, 20)


def test_assumption_5_by_hand() -> None:
    s = setting(quantities=theory.Quantities(2.0, 2.0, 3.0, 1.0, 1.0, 1.0, 1.0, 2.0, 0.1), separation=0.5)
    assert theory.samples_condition(s) == (pytest.approx(5 * 9 / (4 * 0.5**4)), 100.0)
    assert theory.share_condition(s) == (pytest.approx(math.log(19_000) / 200), 0.19)
    assert theory.separation_condition(s) == (pytest.approx(100**-0.2), 0.5)
    rest = 4 * 2 / (1 + 0.25 * 0.19 * 200 * 100 * 1.0 * 2.0) ** 2
    assert theory.failure_probability(replace(s, dim=2)) == pytest.approx(0.1 + rest)
    assert theory.failure_probability(s) == pytest.approx(0.1)
    assert theory.three_stage_misclustering(setting(separation=0.0)) == math.inf


def test_the_lower_bound_is_below_the_oracle_s_error() -> None:
    """Both go with the noise; with one cluster of honest clients they are the same, up to d among the samples."""
    for noise in (0.2, 5.0):
        quantities = theory.mixed_regression_quantities(100, noise)
        s = setting(clusters=1, byzantine=0.0, share=1.0, quantities=quantities, dim=100)
        assert theory.lower_bound(s) == pytest.approx(theory.oracle_error(s), rel=0.01)


def test_the_oracle_of_a_mean_needs_no_degrees_of_freedom() -> None:
    s = setting(clients=20, share=0.2, samples=5, dim=100, quantities=theory.gaussian_means_quantities(100, 0.2))
    assert theory.oracle_error(s) == pytest.approx(math.sqrt(0.2 * 100 / 20))


def test_the_smallest_trim_that_theorem_2_admits() -> None:
    wide = setting(byzantine=0.01, constants=theory.Constants(c1=0.0))
    assert theory.theorem2_trim(wide) == pytest.approx(4 * 0.01 / 0.19)
    assert theory.theorem2_trim(setting()) is None


def test_rates_have_the_paper_s_exponents() -> None:
    """Log-log slopes of each term where it dominates."""

    def slope(rate: object, name: str, base: theory.Setting) -> float:
        low, high = replace(base, **{name: getattr(base, name)}), replace(base, **{name: getattr(base, name) * 16})
        return math.log(rate(high) / rate(low)) / math.log(16)

    clean = setting(byzantine=0.0, samples=10**8, total=10**12)
    assert slope(theory.theorem1_rate, "dim", clean) == pytest.approx(0.5, abs=0.01)
    assert slope(theory.theorem1_rate, "clients", clean) == pytest.approx(-0.5, abs=0.01)
    assert slope(theory.theorem2_rate, "dim", clean) == pytest.approx(1.0, abs=0.01)
    assert slope(theory.lower_bound, "dim", clean) == pytest.approx(0.5, abs=0.01)
    dirty = setting(byzantine=0.1, clients=10**12, samples=10**6)
    assert slope(theory.theorem1_rate, "byzantine", dirty) == pytest.approx(1.0, abs=0.1)
    assert slope(theory.lower_bound, "byzantine", dirty) == pytest.approx(0.5, abs=0.01)
    assert slope(lambda s: theory.three_stage_rate(s, 0.0), "dim", clean) == pytest.approx(1.0, abs=0.01)


def test_three_stage_by_hand() -> None:
    s = setting()
    assert theory.three_stage_rate(s, 0.0) == pytest.approx(0.05 / 0.24 * 100 / 10 + 100 / math.sqrt(0.19 * 200 * 100))
    assert theory.three_stage_misclustering(s) > 0.05
    assert theory.three_stage_misclustering(setting(separation=0.1)) > theory.three_stage_misclustering(s)


@pytest.mark.parametrize("distance", [0.0, 0.7])
def test_quantities_against_samples(distance: float) -> None:
    """η² and ν² of the two Gaussian problems, from 200,000 samples (five standard errors of each estimate)."""
    dim, variance, count = 6, 0.2, 200_000
    for make, task_of, quantities in (
        (mixed_regression, linear_regression, theory.mixed_regression_quantities(dim, variance, distance)),
        (gaussian_means, mean_estimation, theory.gaussian_means_quantities(dim, variance, distance)),
    ):
        drawn = make(np.random.default_rng(1), clients=count, clusters=1, samples=1, dim=dim, byzantine=0.0,
                     noise_variance=variance, dtype=np.float64)  # fmt: skip
        assert drawn.truth is not None
        task = task_of(drawn.clients)
        point = drawn.truth.centres + distance * np.eye(dim)[:1]
        losses = task.losses(point)[:, 0]
        gradients = task.gradients(point, np.zeros(count, np.int64))
        squares = np.sum((gradients - gradients.mean(axis=0)) ** 2, axis=1)
        assert losses.var() == pytest.approx(quantities.loss_sd**2, rel=5 * 8 / math.sqrt(count) + 0.02)
        assert squares.mean() == pytest.approx(quantities.gradient_sd**2, abs=5 * squares.std() / math.sqrt(count))
        shape = np.mean(np.abs(gradients[:, 1]) ** 3) / gradients[:, 1].var() ** 1.5
        if distance == 0:
            assert shape == pytest.approx(quantities.skewness, rel=0.05)


def test_the_oracle_s_error_is_that_of_least_squares() -> None:
    """E‖θ̂ − θ*‖² over 400 draws, within five standard errors."""
    rng = np.random.default_rng(5)
    s = setting(clients=10, share=0.5, samples=8, dim=6, quantities=theory.mixed_regression_quantities(6, 0.2))
    squares = []
    for _ in range(400):
        x = rng.standard_normal((40, 6))
        squares.append(np.sum(np.linalg.lstsq(x, math.sqrt(0.2) * rng.standard_normal(40), rcond=None)[0] ** 2))
    assert theory.oracle_error(s) ** 2 == pytest.approx(np.mean(squares), abs=5 * np.std(squares) / 20)
    assert theory.oracle_error(setting(samples=1, dim=500)) == math.inf
    assert theory.poisson_means_quantities(50).noise > 0
