"""Linear models: least squares, logistic and softmax regression against independent solvers."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from coterie._src.data import Clients, mixed_regression
from coterie._src.tasks import linear, linear_regression, logistic_regression, softmax_regression
from coterie._src.tasks.linear import (
    Loss,
    float32_inverse,
    least_squares,
    logistic_loss,
    smooth_minimiser,
    softmax_loss,
)


def test_least_squares_of_many_samples_is_summed_in_parts(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = rng.standard_normal((50, 4)).astype(np.float32), rng.standard_normal(50).astype(np.float32)
    monkeypatch.setattr(linear, "CACHED_ELEMENTS", 4 * 7)
    expected = np.linalg.lstsq(x.astype(np.float64), y.astype(np.float64), rcond=None)[0]
    np.testing.assert_allclose(least_squares(x, y, 0.0), expected, rtol=1e-9)


@pytest.mark.parametrize("spread", [0.0, 2.0, 3.5, 6.0, 12.0])
def test_least_squares_at_any_condition(spread: float, rng: np.random.Generator) -> None:
    """Columns from 1 down to 10^-spread: by Cholesky, from some point on by QR, with as many digits as there are."""
    x = rng.standard_normal((200, 8)) * 10 ** -np.linspace(0, spread, 8)
    truth = rng.standard_normal(8)
    found = least_squares(x, x @ truth, 0.0)
    np.testing.assert_allclose(found, truth, rtol=max(1e-9, 1e-14 * 10**spread))
    assert least_squares(np.zeros((9, 3)), np.ones(9), 0.0).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("samples", "dim"), [(30, 10), (10, 10), (10, 30)])
def test_local_minimisers_are_of_least_norm(samples: int, dim: int, rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((samples, dim)), rng.standard_normal(samples)
    task = linear_regression(Clients(x, y, np.array([samples])))
    np.testing.assert_allclose(task.minimisers()[0], np.linalg.pinv(x) @ y, rtol=1e-7, atol=1e-9)
    theirs = Ridge(alpha=0.1 * samples, fit_intercept=False, solver="svd").fit(x, y).coef_
    np.testing.assert_allclose(task.minimisers(0.1)[0], theirs, rtol=1e-7, atol=1e-9)


def test_the_published_inverse_is_right_where_it_is_well_posed_only(rng: np.random.Generator) -> None:
    x = rng.standard_normal((200, 5))
    y = x @ np.arange(5.0)
    np.testing.assert_allclose(float32_inverse(x, y, 0.0), np.arange(5.0), atol=1e-4)
    np.testing.assert_allclose(float32_inverse(x, y, 0.3), least_squares(x, y, 0.3), atol=1e-4)
    singular = np.column_stack([x, x[:, 0]])
    assert np.isfinite(float32_inverse(np.zeros((3, 2)), np.zeros(3), 0.0)).all()
    assert float32_inverse(singular, y, 0.0).shape == (6,)


def test_a_repeated_column_does_not_break_the_minimiser(rng: np.random.Generator) -> None:
    x = rng.standard_normal((8, 2))
    doubled = np.column_stack([x, x[:, 0]])
    found = linear_regression(Clients(doubled, x @ [2.0, 1.0], np.array([8]))).minimisers()[0]
    np.testing.assert_allclose(found, [1.0, 1.0, 1.0], atol=1e-9)  # least norm shares the weight


def test_logistic_and_softmax_agree_with_scikit_learn(rng: np.random.Generator) -> None:
    n, ridge = 200, 0.01
    x = rng.standard_normal((n, 4))
    y = np.argmax(x[:, :3] + rng.gumbel(size=(n, 3)), axis=1).astype(float)
    # scikit-learn minimises ½‖w‖² + C·Σ loss, ours the mean loss + ridge·‖w‖²
    peer = LogisticRegression(C=1 / (2 * ridge * n), fit_intercept=False, tol=1e-10, max_iter=10_000)
    softmax = softmax_regression(Clients(x, y, np.array([n])), 3).minimisers(ridge)[0].reshape(4, 3)
    np.testing.assert_allclose(softmax.T, peer.fit(x, y).coef_, atol=2e-4)
    binary = (y > 0).astype(float)
    logistic = logistic_regression(Clients(x, binary, np.array([n]))).minimisers(ridge)[0]
    np.testing.assert_allclose(logistic, peer.fit(x, binary).coef_[0], atol=2e-4)


def conditioned(rng: np.random.Generator, dim: int, condition: float) -> np.ndarray:
    """(dim, dim), with singular values from √condition to 1/√condition."""
    left, right = (np.linalg.qr(rng.standard_normal((dim, dim)))[0] for _ in range(2))
    return left * condition ** np.linspace(0.5, -0.5, dim) @ right


@pytest.mark.parametrize("loss", [logistic_loss(), softmax_loss(3)], ids=["logistic", "softmax"])
def test_smooth_minimisers_do_not_depend_on_the_coordinates(loss: Loss, rng: np.random.Generator) -> None:
    x = rng.standard_normal((400, 6)) + 0.5
    classes = max(2, loss.outputs)
    y = np.argmax(x[:, :classes] + rng.gumbel(size=(400, classes)), axis=1).astype(float)
    matrix = conditioned(rng, 6, 1e4)
    minimise = smooth_minimiser(loss)
    found, changed = (minimise(features, y, 0.0).reshape(6, loss.outputs) for features in (x, x @ matrix))
    gradient = x.T @ loss.slope(x @ found, y) / 400
    assert np.abs(gradient).max() < 1e-7
    assert np.abs(x @ found).max() > 1
    np.testing.assert_allclose(x @ matrix @ changed, x @ found, atol=1e-5)
    if loss.outputs > 1:  # the number that could be added to all classes stays 0
        np.testing.assert_allclose(found.sum(axis=1), 0, atol=1e-9)
        np.testing.assert_allclose((matrix @ changed).sum(axis=1), 0, atol=1e-9)


def test_smooth_minimisers_lie_in_the_span_of_the_samples(rng: np.random.Generator) -> None:
    minimise = smooth_minimiser(logistic_loss())
    x, y = rng.standard_normal((90, 2)), (np.arange(90) % 3 == 0).astype(float)
    alone = minimise(x, y, 0.0)
    doubled = minimise(np.column_stack([x, x[:, 0]]), y, 0.0)
    np.testing.assert_allclose(doubled, [alone[0] / 2, alone[1], alone[0] / 2], atol=1e-7)
    assert minimise(np.zeros((4, 3)), np.array([0.0, 1.0, 1.0, 1.0]), 0.0).tolist() == [0.0, 0.0, 0.0]


def test_a_ridge_is_a_penalty_in_the_given_coordinates(rng: np.random.Generator) -> None:
    scales = np.array([100.0, 1.0, 0.01])
    x, y = rng.standard_normal((50, 3)) * scales, (np.arange(50) % 3 == 0).astype(float)
    loss, ridge = logistic_loss(), 0.05
    found = smooth_minimiser(loss)(x, y, ridge)
    gradient = x.T @ loss.slope(x @ found[:, None], y)[:, 0] / 50 + 2 * ridge * found
    assert np.abs(gradient / scales).max() < 1e-7


def test_a_gradient_of_very_many_samples_keeps_its_digits() -> None:
    features = np.random.default_rng(0).uniform(1, 2, size=(3_000_000, 1)).astype(np.float32)
    clients = Clients(features, np.zeros(len(features), dtype=np.float32), np.array([len(features)]))
    found = linear_regression(clients, "direct").gradients(np.ones((1, 1), dtype=np.float32), np.zeros(1, np.int64))
    np.testing.assert_allclose(found[0, 0], 2 * (features.astype(np.float64) ** 2).mean(), rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", ">f4"])
def test_other_number_formats_take_the_general_way(dtype: str, rng: np.random.Generator) -> None:
    features, targets = rng.standard_normal((20, 3)).astype(dtype), rng.standard_normal(20).astype(dtype)
    task = linear_regression(Clients(features, targets, np.full(2, 10)), "direct")
    exact = linear_regression(Clients(features.astype(float), targets.astype(float), np.full(2, 10)), "direct")
    centres = rng.standard_normal((2, 3)).astype(dtype)
    np.testing.assert_allclose(task.losses(centres), exact.losses(centres.astype(float)), rtol=1e-2)


def test_losses_do_not_overflow() -> None:
    clients = Clients(np.array([[1.0], [-1.0]]), np.array([1.0, 0.0]), np.array([2]))
    far = np.array([[1e4], [-1e4]])
    assert logistic_regression(clients).losses(far).tolist() == [[0.0, 1e4]]
    assert np.isfinite(softmax_regression(clients, 2).losses(np.array([[1e4, -1e4]]))).all()


def test_targets_that_are_no_class_name_client_and_row() -> None:
    clients = Clients(np.zeros((3, 1)), np.array([0.0, 1.0, 2.0]), np.array([2, 1]), ("oslo", "bern"))
    with pytest.raises(ValueError, match=r"client bern, row 1: target 2.0 is not a class from 0 to 1"):
        logistic_regression(clients)
    with pytest.raises(ValueError, match="classes must be at least 2"):
        softmax_regression(clients, 1)
    with pytest.raises(ValueError, match="targets are missing"):
        linear_regression(Clients(np.zeros((3, 1)), None, np.array([3])))


def test_losses_need_little_memory_beside_the_samples() -> None:
    """The errors of all samples at all centres in float64 would take more than the samples themselves."""
    drawn = mixed_regression(0, clients=4000, clusters=5, samples=100, dim=20)
    task, centres = linear_regression(drawn.clients, "direct"), np.zeros((5, 20), dtype=np.float32)
    tracemalloc.start()
    try:
        task.losses(centres)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.2 * drawn.clients.features.nbytes
