"""Every formula of `theory` against the paper's, evaluated with 40 digits at random settings.

The formulas are those of the paper's text, in its notation. Every term of a sum counts in the settings: the tolerance
is a thousandth of the smallest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from types import SimpleNamespace

import mpmath as mp
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coterie._src import theory

Formula = Callable[[SimpleNamespace], list[mp.mpf]]
"""The terms of a sum, given the paper's symbols."""

Bound = Callable[[theory.Setting], theory.Condition]

CLOSE = 1e-9


def near(value: object) -> object:
    return pytest.approx(float(value), rel=CLOSE)  # type: ignore[arg-type]  # a number of mpmath


@st.composite
def problems(draw: st.DrawFn) -> theory.Setting:
    def between(low: float, high: float) -> float:
        return draw(st.floats(low, high, allow_subnormal=False))

    quantities = theory.Quantities(
        strong_convexity=between(0.5, 2), smoothness=between(2, 5), loss_sd=between(0.1, 0.5),
        gradient_sd=between(0.5, 5), skewness=between(1, 4), sub_exponential=between(0.3, 2),
        lipschitz=between(1, 50), diameter=between(1, 4), noise=between(0.1, 2), regression=draw(st.booleans()),
    )  # fmt: skip
    constants = theory.Constants(
        c1=between(0.5, 3), bound=between(0.5, 3), c3=between(0.5, 3), delta=between(0.05, 0.2),
        epsilon=between(0.02, 0.3),
    )  # fmt: skip
    clusters, samples = draw(st.integers(2, 6)), draw(st.integers(20, 400))
    clients = draw(st.integers(100, 5000))
    return theory.Setting(
        clients=clients, clusters=clusters, byzantine=between(0.001, 0.02), share=between(0.12, 0.16),
        samples=samples, total=samples * clients + draw(st.integers(0, 5000)), dim=draw(st.integers(2, 40)),
        trim=between(0.05, 0.3), separation=between(0.9, 1.4), start=between(0.05, 1), quantities=quantities,
        constants=constants,
    )  # fmt: skip


def symbols(s: theory.Setting) -> SimpleNamespace:
    """The paper's symbols, with 40 digits."""
    mp.mp.dps = 40
    q, c = s.quantities, s.constants
    number = mp.mpf
    return SimpleNamespace(
        m=number(s.clients), k=number(s.clusters), alpha=number(s.byzantine), p=number(s.share), n=number(s.samples),
        N=number(s.total), d=number(s.dim), beta=number(s.trim), Delta=number(s.separation), start=number(s.start),
        lambda_F=number(q.strong_convexity), L_F=number(q.smoothness), eta=number(q.loss_sd), nu=number(q.gradient_sd),
        S=number(q.skewness), sigma=number(q.sub_exponential), L_f=number(q.lipschitz), D=number(q.diameter),
        noise=number(q.noise), c_1=number(c.c1), c=number(c.c3), O=number(c.bound), delta=number(c.delta),
        epsilon=number(c.epsilon),
    )  # fmt: skip


def quantile(probability: mp.mpf) -> mp.mpf:
    """Φ⁻¹."""
    return mp.sqrt(2) * mp.erfinv(2 * probability - 1)


def c_of_epsilon(v: SimpleNamespace) -> mp.mpf:
    """Theorem 1: √(2π) exp(½ (Φ⁻¹(1 − ε))²)."""
    return mp.sqrt(2 * mp.pi) * mp.exp(quantile(1 - v.epsilon) ** 2 / 2)


def condition_1(v: SimpleNamespace) -> list[mp.mpf]:
    """The left side of Theorem 1's condition on α."""
    return [
        4 * v.c_1 * v.eta**2 / (v.p * v.delta * v.lambda_F**2 * v.Delta**4 * v.n),
        4 * v.alpha / v.p,
        mp.sqrt(
            v.d
            * mp.log(1 + v.N * v.L_f * v.D)
            / (v.m * (v.p / 4 - v.c_1 * v.eta**2 / (v.delta * v.lambda_F**2 * v.Delta**4 * v.n) - v.alpha))
        ),
        mp.mpf("0.4748") * v.S / mp.sqrt(v.n),
    ]


def omega(v: SimpleNamespace) -> list[mp.mpf]:
    """ω of Theorem 1."""
    factor = v.O * c_of_epsilon(v) * v.nu
    log = mp.log(v.N * v.L_f * v.D)
    return [
        factor * v.S / v.n,
        factor * v.alpha / mp.sqrt(v.n),
        factor * mp.sqrt(v.d * log / (v.n * v.m * v.p)),
    ]


def omega_of_proof(v: SimpleNamespace) -> list[mp.mpf]:
    """Inequality (ineq.1) of the proof of Theorem 1."""
    factor = mp.sqrt(2) * c_of_epsilon(v) * v.nu / mp.sqrt(v.n)
    return [2 * mp.sqrt(2) / v.n, *(factor * term for term in condition_1(v))]


def omega_prime(v: SimpleNamespace) -> list[mp.mpf]:
    """ω′ of Theorem 2."""
    factor = v.O * v.sigma * v.d / v.epsilon * mp.sqrt(mp.log(v.N * v.L_f * v.D))
    return [factor * v.beta / mp.sqrt(v.n), factor / mp.sqrt(v.p * v.m * v.n)]


def rho(v: SimpleNamespace) -> list[mp.mpf]:
    """Appendix C, β_j = β and α_j = α/(α + p) in every cluster, σ = ν/(λ_F √n) over √d coordinates."""
    gamma_1 = v.p / (1 - v.alpha)
    sigma = v.nu / (v.lambda_F * mp.sqrt(v.n) * mp.sqrt(v.d))
    r_1 = v.Delta / sigma * mp.sqrt(gamma_1 / (1 + v.k * v.d / ((1 - v.alpha) * v.m)))
    alpha_j = v.alpha / (v.alpha + v.p)
    Gamma = (1 - v.beta) / (1 - alpha_j)
    return [
        Gamma * v.c / r_1**2,
        Gamma * mp.sqrt(5 * v.k * mp.log((1 - v.alpha) * v.m) / (gamma_1**2 * (1 - v.alpha) * v.m)),
        v.beta / (1 - alpha_j),
    ]


def rate_of_three_stage(v: SimpleNamespace, misclustered: mp.mpf) -> list[mp.mpf]:
    """Section 5.3: α̃_j d/√n + d/√(p_j m n)."""
    return [
        misclustered * v.p / (v.p + v.alpha) * v.d / mp.sqrt(v.n),
        v.alpha / (v.p + v.alpha) * v.d / mp.sqrt(v.n),
        v.d / mp.sqrt(v.p * v.m * v.n),
    ]


SUMS: dict[str, tuple[Callable[[theory.Setting], float], Formula]] = {
    "condition of Theorem 1": (lambda s: theory.theorem1_condition(s).left, condition_1),
    "condition of Theorem 2": (lambda s: theory.theorem2_condition(s).left, lambda v: condition_1(v)[:2]),
    "noise of Theorem 1": (theory.theorem1_noise, omega),
    "noise of the proof of Theorem 1": (theory.theorem1_noise_of_proof, omega_of_proof),
    "noise of Theorem 2": (theory.theorem2_noise, omega_prime),
    "misclustering of Three-Stage": (theory.three_stage_misclustering, rho),
    "rate of Three-Stage": (
        lambda s: theory.three_stage_rate(s, 0.07),
        lambda v: rate_of_three_stage(v, mp.mpf(0.07)),
    ),
    "rate after Theorem 1": (
        theory.theorem1_rate,
        lambda v: [v.alpha / mp.sqrt(v.n), mp.sqrt(v.d) / mp.sqrt(v.p * v.m * v.n), 1 / v.n],
    ),
    "rate after Theorem 2": (
        theory.theorem2_rate,
        lambda v: [v.alpha * v.d / (v.p * mp.sqrt(v.n)), v.d / mp.sqrt(v.p * v.m * v.n)],
    ),
    "error after 7 rounds": (
        lambda s: theory.error_bound(s, 0.03, 7),
        lambda v: [(1 - v.lambda_F / (v.lambda_F + v.L_F)) ** 7 * v.start, 2 / v.lambda_F * mp.mpf(0.03)],
    ),
    "square of the lower bound": (
        lambda s: theory.lower_bound(s) ** 2,
        lambda v: [v.noise * v.alpha / v.n, v.noise * v.d / (v.m * v.n)],
    ),
    "needed samples": (
        lambda s: theory.samples_condition(s).left,
        lambda v: [v.k * v.eta**2 / (v.lambda_F**2 * v.Delta**4)],
    ),
    "needed share": (lambda s: theory.share_condition(s).left, lambda v: [mp.log(v.N) / v.m]),
    "admitted start": (
        lambda s: theory.start_condition(s).right,
        lambda v: [mp.sqrt(v.lambda_F / v.L_F) * v.Delta / 4],
    ),
    "needed separation": (
        lambda s: theory.separation_condition(s).left,
        lambda v: [max(v.n ** mp.mpf("-0.2"), v.m ** (-mp.mpf(1) / 6) * v.n ** (-mp.mpf(1) / 3))],
    ),
    "misclustered": (
        theory.misclustered_share,
        lambda v: [v.c_1 * v.eta**2 / (v.delta * v.lambda_F**2 * v.Delta**4 * v.n)],
    ),
    "C_epsilon": (lambda s: theory.c_epsilon(s.constants.epsilon), lambda v: [c_of_epsilon(v)]),
}


def covered(s: theory.Setting) -> bool:
    """Whether the root in Theorem 1 is that of a positive number."""
    return s.share / 4 - theory.misclustered_share(s) - s.byzantine > 1e-4


@pytest.mark.parametrize("name", SUMS)
@settings(max_examples=20)
@given(problems())
def test_the_code_is_the_paper_s_formula(name: str, s: theory.Setting) -> None:
    assume(covered(s))
    code, formula = SUMS[name]
    terms = formula(symbols(s))
    assert code(s) == near(mp.fsum(terms))
    # no term is lost in the tolerance
    assert all(term > 1000 * CLOSE * mp.fsum(terms) for term in terms)


@settings(max_examples=20)
@given(problems())
def test_the_right_sides_and_what_holds(s: theory.Setting) -> None:
    assume(covered(s))
    half = 0.5 - s.constants.epsilon
    assert theory.theorem1_condition(s).right == pytest.approx(half)
    assert theory.theorem2_condition(s).right == (s.trim if s.trim <= half else -math.inf)
    assert theory.theorem2_condition(replace(s, trim=half)).right == half  # β = ½ − ε is admitted
    assert theory.start_condition(s).left == s.start
    assert theory.samples_condition(s).right == s.samples
    assert theory.share_condition(s).right == s.share
    assert theory.separation_condition(s).right == s.separation
    needed = theory.theorem2_condition(s).left
    assert theory.theorem2_trim(s) == (needed if needed <= half else None)
    for found in (theory.theorem1_condition(s), theory.theorem2_condition(s), theory.start_condition(s)):
        assert found.holds == (found.left <= found.right)


def test_an_inequality_holds_with_equality() -> None:
    assert theory.Condition(1.0, 1.0).holds
    assert not theory.Condition(1.0 + 1e-9, 1.0).holds
    assert theory.Condition(1.0, 1.0 + 1e-9).holds


@settings(max_examples=20)
@given(problems(), st.integers(1, 4))
def test_the_failure_probability(s: theory.Setting, dim: int) -> None:
    """δ + 4d/(1 + ¼ p m n L_f D)^d, where the second term is not lost beside the first."""
    quantities = replace(s.quantities, lipschitz=0.05, diameter=0.4)
    s = replace(s, dim=dim, clients=20, samples=5, quantities=quantities)
    v = symbols(s)
    term = 4 * v.d / (1 + v.p * v.m * v.n * v.L_f * v.D / 4) ** v.d
    assert theory.failure_probability(s) == near(min(mp.mpf(1), v.delta + term))
    s = replace(s, clients=10**4, samples=100)
    v = symbols(s)
    term = 4 * v.d / (1 + v.p * v.m * v.n * v.L_f * v.D / 4) ** v.d
    assert theory.failure_probability(s) - s.constants.delta == pytest.approx(float(term), abs=1e-15, rel=1e-6)


@settings(max_examples=20)
@given(problems(), st.floats(1e-4, 0.5))
def test_the_rounds_are_the_least_after_which_the_error_is_bounded(s: theory.Setting, noise: float) -> None:
    v = symbols(s)
    needed = (v.L_F + v.lambda_F) / v.lambda_F * mp.log(v.lambda_F / (2 * mp.mpf(noise)) * v.start)
    assume(abs(needed - mp.nint(needed)) > 1e-6)
    assert theory.rounds_needed(s, noise) == max(1, int(mp.ceil(needed)))
    assert theory.error_bound(s, noise, theory.rounds_needed(s, noise)) <= 4 * noise / s.quantities.strong_convexity + (
        s.start if needed < 0 else 0
    )


def test_a_start_that_is_near_enough_takes_one_round() -> None:
    """The error of the start is at most that of the noise."""
    s = theory.Setting(
        clients=100, clusters=2, byzantine=0.0, share=0.5, samples=100, total=10_000, dim=3, trim=0.1, separation=1.0,
        start=0.01, quantities=theory.gaussian_means_quantities(3, 0.1),
    )  # fmt: skip
    assert theory.rounds_needed(s, 0.5) == 1
    assert theory.rounds_needed(replace(s, start=1.0), 1.0) == 1  # the logarithm is 0
    for noise in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="noise must be positive"):
            theory.rounds_needed(s, noise)


@settings(max_examples=20)
@given(problems())
def test_the_oracle_s_error_and_contamination(s: theory.Setting) -> None:
    v = symbols(s)
    freedom = v.p * v.m * v.n - (v.d + 1 if s.quantities.regression else 0)
    assert theory.oracle_error(s) == near(mp.sqrt(v.noise * v.d / freedom))
    assert theory.worst_contamination(s.byzantine, s.share) == near(v.alpha / (v.alpha + v.p))
    assert theory.breakdown_limit("trimmed-mean", s.trim) == s.trim


@pytest.mark.parametrize(("clients", "finite"), [(7, False), (8, False), (9, True)])
def test_least_squares_needs_more_samples_than_parameters_and_one(clients: int, finite: bool) -> None:
    """E‖θ̂ − θ*‖² of Gaussian features is σ²d/(n − d − 1), infinite from n = d + 1 downwards."""
    s = theory.Setting(
        clients=clients, clusters=1, byzantine=0.0, share=1.0, samples=1, total=clients, dim=7, trim=0.1,
        separation=math.inf, start=0.1, quantities=theory.mixed_regression_quantities(7, 0.3),
    )  # fmt: skip
    assert theory.oracle_error(s) == (pytest.approx(math.sqrt(0.3 * 7)) if finite else math.inf)


@settings(max_examples=20)
@given(problems())
def test_the_rate_of_three_stage_bounds_what_is_misclustered_by_all(s: theory.Setting) -> None:
    v = symbols(s)
    found = min(mp.mpf(1), mp.fsum(rho(v)))
    assert theory.three_stage_rate(s) == near(mp.fsum(rate_of_three_stage(v, found)))


@pytest.mark.parametrize("condition", [theory.theorem1_condition, theory.theorem2_condition])
@settings(max_examples=20)
@given(s=problems())
def test_the_largest_byzantine_share(
    condition: Callable[[theory.Setting], theory.Condition], s: theory.Setting
) -> None:
    """Where left and right meet: at p(right − the other terms)/4 for Theorem 2, by bisection for Theorem 1."""
    edge = theory.largest_byzantine(s, condition)
    assert 0 <= edge < s.share
    if not condition(replace(s, byzantine=0.0)).holds:
        assert edge == 0.0
        return
    v = symbols(s)

    def left(alpha: mp.mpf) -> mp.mpf:
        v.alpha = alpha
        if condition is theory.theorem2_condition:
            return mp.fsum(condition_1(v)[:2])
        inside = v.p / 4 - v.c_1 * v.eta**2 / (v.delta * v.lambda_F**2 * v.Delta**4 * v.n) - alpha
        return mp.fsum(condition_1(v)) if inside > 0 else mp.inf

    right = condition(s).right
    low, high = mp.mpf(0), v.p
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if left(middle) <= right else (low, middle)
    assert edge == pytest.approx(float(low), abs=1e-8)


def test_a_condition_that_always_holds_admits_as_many_as_are_honest() -> None:
    s = theory.Setting(
        clients=100, clusters=2, byzantine=0.0, share=0.5, samples=100, total=10_000, dim=3, trim=0.1, separation=1.0,
        start=0.01, quantities=theory.gaussian_means_quantities(3, 0.1),
    )  # fmt: skip
    assert theory.largest_byzantine(s, theory.start_condition) == s.share
    assert theory.largest_byzantine(replace(s, start=1.0), theory.start_condition) == 0.0


def test_where_nothing_separates_the_clusters_everything_is_infinite() -> None:
    s = theory.Setting(
        clients=100, clusters=2, byzantine=0.01, share=0.5, samples=100, total=10_000, dim=3, trim=0.1, separation=0.0,
        start=0.01, quantities=theory.gaussian_means_quantities(3, 0.1),
    )  # fmt: skip
    assert theory.misclustered_share(s) == math.inf
    assert theory.theorem1_condition(s) == (math.inf, 0.4)
    assert theory.theorem1_noise_of_proof(s) == math.inf
    assert theory.samples_condition(s).left == math.inf
    assert theory.three_stage_misclustering(s) == math.inf
    assert theory.three_stage_rate(s) == theory.three_stage_rate(s, 1.0)
    assert theory.theorem2_trim(s) is None
    noiseless = replace(s.quantities, gradient_sd=0.0)
    v = symbols(replace(s, separation=1.0))
    found = theory.three_stage_misclustering(replace(s, separation=1.0, quantities=noiseless))
    assert found == near(mp.fsum(rho(v)[1:]))


def test_theorem_1_needs_honest_clients_left_over() -> None:
    """p/4 − c₁η²/(δλ²Δ⁴n) − α must be positive: at α = p/4 there are none, just below there are."""
    s = theory.Setting(
        clients=10**6, clusters=2, byzantine=0.125, share=0.5, samples=100, total=10**8, dim=3, trim=0.1,
        separation=1.0, start=0.01, quantities=theory.gaussian_means_quantities(3, 0.1),
        constants=theory.Constants(c1=0.0),
    )  # fmt: skip
    assert theory.theorem1_condition(s).left == math.inf
    assert 1 < theory.theorem1_condition(replace(s, byzantine=0.125 - 1e-9)).left < math.inf


def test_the_constants_and_their_defaults() -> None:
    assert asdict(theory.Constants()) == {"c1": 128.0, "bound": 1.0, "c3": 1.0, "delta": 0.1, "epsilon": 0.1}


@settings(max_examples=20)
@given(st.integers(1, 50), st.floats(0.01, 4), st.floats(0, 3))
def test_quantities_of_the_problems(dim: int, variance: float, distance: float) -> None:
    """Moments of Gaussian and Poisson samples, written out: see the docstrings for what they belong to."""
    mp.mp.dps = 40
    d, s2, r = mp.mpf(dim), mp.mpf(variance), mp.mpf(distance)
    third = 2 * mp.sqrt(2 / mp.pi)  # E|Z|³
    expected = {
        # a loss is (sZ)² with s² = r² + σ²: its variance is E(sZ)⁴ − s⁴ = 2s⁴
        theory.mixed_regression_quantities(dim, variance, distance): (
            2, 2, mp.sqrt(2) * (r**2 + s2), mp.sqrt(4 * ((d + 1) * r**2 + d * s2)), third**2,
            2 * mp.sqrt(r**2 + s2), 2 * d, 2, s2, True,
        ),
        # ‖σZ − rδ‖²: variance 2dσ⁴ + 4σ²r²; the gradient 2(θ − z) has variance 4σ² per coordinate
        theory.gaussian_means_quantities(dim, variance, distance): (
            2, 2, mp.sqrt(2 * d * s2**2 + 4 * s2 * r**2), mp.sqrt(4 * d * s2), third,
            2 * mp.sqrt(s2), 2 * mp.sqrt(d), 2, s2, False,
        ),
    }  # fmt: skip
    rate = mp.sqrt(2 / d)  # of half of the coordinates; (z − λ)² has variance λ + 2λ², and ‖λ‖ is 1
    spread = d / 2 * (rate + 2 * rate**2) + 4 * rate * r**2 + 4 * r
    expected[theory.poisson_means_quantities(dim, distance)] = (
        2, 2, mp.sqrt(spread), mp.sqrt(4 * d / 2 * rate), rate**-0.5, 2, 2 * mp.sqrt(d), 2, rate / 2, False,
    )  # fmt: skip
    for found, values in expected.items():
        for value, wanted in zip(asdict(found).values(), values, strict=True):
            assert value == near(wanted)


@pytest.mark.parametrize("distance", [0.0, 0.4])
def test_the_variance_of_a_poisson_loss_is_bounded(distance: float) -> None:
    """η² is a bound: the exact variance Σ(λ + 2λ² + 4λδ² − 4λδ) for every δ of that length is below it."""
    for dim in (2, 8, 30):
        q = theory.poisson_means_quantities(dim, distance)
        rate, active = math.sqrt(2 / dim), dim // 2
        for sign in (-1, 1):
            each = sign * distance / math.sqrt(active)
            exact = active * (rate + 2 * rate**2 + 4 * rate * each**2 - 4 * rate * each)
            assert exact <= q.loss_sd**2 * (1 + 1e-12)


def test_shares_and_separations_of_the_generators() -> None:
    assert theory.smallest_share(100, 4, 0.2) == 0.2
    assert theory.smallest_share(100, 2, 0.0, (0.3, 0.7)) == 0.3
    assert theory.typical_separation(1, 3) == math.inf
    # two Bernoulli vectors of norm 1 in two dimensions: the same, or at a distance of 1 or √2 or √(2 − √2)
    apart = {0.0, math.sqrt(2), math.sqrt(2 - math.sqrt(2))}
    assert min(abs(theory.typical_separation(2, 2) - value) for value in apart) < 1e-12


def test_bad_rules_have_no_limit() -> None:
    assert [theory.breakdown_limit(rule, 0.2) for rule in ("mean", "trimmed-mean", "median")] == [0.0, 0.2, 0.5]
    assert theory.worst_contamination(0.0, 0.0) == 0.0
