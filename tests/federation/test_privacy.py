"""Clipping, noise, and the ε that it gives, against 50 digits and against the definition."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from coterie._src.federation import Question
from coterie._src.federation.guard import private_answer
from coterie._src.federation.messages import Answer
from coterie._src.federation.privacy import delta_of, epsilon_of, released
from coterie._src.federation.site_policy import SitePolicy


def exact_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """P(L > ε) − e^ε·P(L' > ε) with normal distributions of 50 digits."""
    with mpmath.workdps(50):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
def test_epsilon_is_the_smallest_and_never_too_small(mu: float, delta: float) -> None:
    epsilon = epsilon_of(mu, delta)
    assert exact_delta(epsilon, mu) <= delta * (1 + 1e-6)
    if epsilon:
        assert exact_delta(epsilon * (1 - 1e-6), mu) > delta * (1 - 1e-6)
        assert delta_of(epsilon, mu) == pytest.approx(float(exact_delta(epsilon, mu)), rel=1e-6)
    rho = mu**2 / 2
    assert epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta))


def test_delta_is_that_of_two_normal_distributions() -> None:
    """The integral of (p − e^ε·q) where it is positive, p and q of deviation 1 and μ apart."""
    mu, epsilon = 0.7, 0.4
    x, step = np.linspace(-12, 12, 400_001, retstep=True)
    p, q = (np.exp(-((x - shift) ** 2) / 2) / math.sqrt(2 * math.pi) for shift in (mu, 0.0))
    assert delta_of(epsilon, mu) == pytest.approx(np.maximum(p - math.exp(epsilon) * q, 0).sum() * step, rel=1e-6)


def test_no_answer_costs_nothing() -> None:
    assert epsilon_of(0.0, 1e-6) == 0.0


def test_what_leaves_has_a_bounded_norm_whatever_it_was() -> None:
    rng = np.random.default_rng(0)
    np.testing.assert_allclose(released(np.array([30.0, 40.0]), 5.0, None, rng), [3.0, 4.0])
    np.testing.assert_array_equal(released(np.array([0.3, 0.4]), 5.0, None, rng), [0.3, 0.4])
    for wild in ([1e300, 1e300], [np.nan, 1.0], [np.inf, -np.inf], [0.0, 0.0]):
        assert np.linalg.norm(released(np.array(wild), 2.0, None, rng)) <= 2.0 * (1 + 1e-12)
    np.testing.assert_allclose(released(np.array([1e300, 0.0]), 2.0, None, rng), [2.0, 0.0])
    noisy = released(np.zeros(40_000), 3.0, 0.5, rng)
    assert noisy.std() == pytest.approx(1.5, abs=4 * 1.5 / math.sqrt(80_000))
    assert abs(noisy.mean()) < 4 * 1.5 / 200


def test_with_noise_all_that_leaves_is_noisy() -> None:
    """The cluster is chosen by noisy losses, and the loss and the margin stay."""
    centres = np.zeros((2, 3))
    asked: list[Question] = []

    def respond(question: Question) -> Answer:
        asked.append(question)
        losses = np.array([0.0, 1e-3])
        update = losses if question.kind == "loss" else np.array([3.0, 0.0, 4.0], np.float32)
        return Answer(0, question.label, update, 40, 0.1, 0.2)

    policy, rng = SitePolicy(clip=1.0, noise=2.0), np.random.default_rng(0)
    answers = [private_answer(policy, Question("gradient", 0, centres), respond, rng) for _ in range(400)]
    assert {answer.label for answer in answers} == {0, 1}  # 0 is better, but by less than the noise
    assert all(answer.loss is None and answer.margin is None for answer in answers)
    assert all(answer.update.dtype == np.float32 for answer in answers)
    mean = np.mean([answer.update for answer in answers], axis=0)
    np.testing.assert_allclose(mean, [0.6, 0.0, 0.8], atol=4 * 2.0 / 20)
    assert {question.kind for question in asked} == {"loss", "gradient"}
    assert all(question.label >= 0 for question in asked if question.kind == "gradient")
    assert policy.cost(Question("gradient", 0, centres)) == 2.0
    assert policy.cost(Question("gradient", 0, centres, 1)) == policy.cost(Question("gradient", 0, centres[:1])) == 1.0
    size = private_answer(policy, Question("size", -1, centres), respond, rng)
    np.testing.assert_array_equal(size.update, [3.0, 0.0, 4.0])
    first, second = (private_answer(policy, Question("hessian", -1, centres, 0), respond) for _ in range(2))
    assert not np.array_equal(first.update, second.update)  # no seed that somebody could know
