"""Every task against finite differences, its direct definition, and independent solvers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from coterie._src.data import Clients, mixed_regression
from coterie._src.tasks import (
    Quadratic,
    Task,
    linear_model,
    linear_regression,
    logistic_regression,
    mean_estimation,
    quadratic,
    softmax_regression,
)
from coterie._src.tasks.linear import float32_inverse, least_squares

CLASSES = 3


def with_classes(clients: Clients, classes: int) -> Clients:
    assert clients.targets is not None
    return Clients(clients.features, np.abs(clients.targets * 10).astype(np.int64) % classes * 1.0, clients.sizes)


TASKS: dict[str, Callable[[Clients], Task]] = {
    "mean": mean_estimation,
    "linear-direct": lambda clients: linear_regression(clients, "direct"),
    "linear-gram": lambda clients: linear_regression(clients, "gram"),
    "logistic": lambda clients: logistic_regression(with_classes(clients, 2)),
    "softmax": lambda clients: softmax_regression(with_classes(clients, CLASSES), CLASSES),
}
tasks = pytest.mark.parametrize("name", TASKS)


def loss_by_definition(name: str, x: np.ndarray, y: np.ndarray, theta: np.ndarray) -> float:
    if name == "mean":
        return float(np.mean([np.sum((theta - z) ** 2) for z in x]))
    if name.startswith("linear"):
        return float(np.mean((y - x @ theta) ** 2))
    if name == "logistic":
        probability = 1 / (1 + np.exp(-x @ theta))
        return float(-np.mean(y * np.log(probability) + (1 - y) * np.log(1 - probability)))
    scores = x @ theta.reshape(-1, CLASSES)
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return float(-np.mean(np.log(probabilities[np.arange(len(y)), y.astype(int)])))


@tasks
def test_losses_are_the_definition_with_unequal_sample_counts(
    name: str, ragged: Clients, rng: np.random.Generator
) -> None:
    task = TASKS[name](ragged)
    centres = rng.standard_normal((3, task.dim))
    expected = [
        [loss_by_definition(name, *task.clients.samples(i), centre) for centre in centres] for i in range(ragged.count)
    ]
    np.testing.assert_allclose(task.losses(centres), expected, rtol=1e-9, atol=1e-12)


@tasks
def test_gradients_are_finite_differences_of_losses(name: str, ragged: Clients, rng: np.random.Generator) -> None:
    task = TASKS[name](ragged)
    centres = rng.standard_normal((2, task.dim))
    labels = np.array([0, 1, 1, 0, 1, 0])
    found = task.gradients(centres, labels)
    assert found.shape == (6, task.dim)
    small = 1e-6
    for h in range(task.dim):
        nudge = np.zeros(task.dim)
        nudge[h] = small
        slopes = (task.losses(centres + nudge) - task.losses(centres - nudge)) / (2 * small)
        np.testing.assert_allclose(found[:, h], slopes[np.arange(6), labels], rtol=1e-5, atol=1e-7)


@tasks
def test_a_response_is_losses_choice_and_gradients_in_one(name: str, ragged: Clients, rng: np.random.Generator) -> None:
    task = TASKS[name](ragged)
    centres = rng.standard_normal((3, task.dim))
    found = task.respond(centres, lambda losses: np.asarray(losses).argmax(axis=1))
    labels = task.losses(centres).argmax(axis=1)
    assert np.array_equal(found.labels, labels)
    np.testing.assert_allclose(found.losses, task.losses(centres), rtol=1e-12)
    np.testing.assert_allclose(found.updates, task.gradients(centres, labels), rtol=1e-9, atol=1e-12)


# few samples are separable: without a ridge the infimum of the two classifiers lies at infinity
@pytest.mark.parametrize(
    ("name", "ridge"),
    [(name, 0.3) for name in TASKS] + [(name, 0.0) for name in TASKS if name not in ("logistic", "softmax")],
)
def test_minimisers_have_no_gradient_left(name: str, ragged: Clients, ridge: float) -> None:
    task = TASKS[name](ragged.take([0, 1, 3, 4]))
    found = task.minimisers(ridge)
    gradients = task.gradients(found, np.arange(4)) + 2 * ridge * found
    np.testing.assert_allclose(gradients, 0, atol=5e-5)


@tasks
def test_torch_gives_what_numpy_gives(name: str, ragged: Clients, rng: np.random.Generator) -> None:
    assert ragged.targets is not None
    there = Clients(torch.from_numpy(ragged.features), torch.from_numpy(ragged.targets), ragged.sizes)
    if name in ("logistic", "softmax"):
        classes = 2 if name == "logistic" else CLASSES
        target = with_classes(ragged, classes).targets
        there = Clients(torch.from_numpy(ragged.features), torch.from_numpy(target), ragged.sizes)
        theirs: Task = logistic_regression(there) if classes == 2 else softmax_regression(there, classes)
    else:
        theirs = TASKS[name](there)
    ours = TASKS[name](ragged)
    centres = rng.standard_normal((2, ours.dim))
    labels = np.array([0, 1, 1, 0, 1, 0])
    tensors = torch.from_numpy(centres)
    assert isinstance(theirs.losses(tensors), torch.Tensor)
    np.testing.assert_allclose(theirs.losses(tensors), ours.losses(centres), rtol=1e-10)
    np.testing.assert_allclose(
        theirs.gradients(tensors, labels), ours.gradients(centres, labels), rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(theirs.minimisers(0.1), ours.minimisers(0.1), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(theirs.curvatures(), ours.curvatures(), rtol=1e-9)


def test_the_gram_form_is_the_direct_form_in_float32(rng: np.random.Generator) -> None:
    clients = mixed_regression(rng, clients=12, clusters=2, samples=range(5, 60), dim=20).clients
    direct, gram = linear_regression(clients, "direct"), linear_regression(clients, "gram")
    centres = rng.standard_normal((3, 20)).astype(np.float32)
    labels = rng.integers(3, size=12)
    np.testing.assert_allclose(gram.losses(centres), direct.losses(centres), rtol=2e-4)
    np.testing.assert_allclose(gram.gradients(centres, labels), direct.gradients(centres, labels), rtol=2e-3, atol=2e-3)
    assert np.array_equal(gram.minimisers(), direct.minimisers())
    np.testing.assert_allclose(gram.minimisers(0.2), direct.minimisers(0.2), rtol=1e-3, atol=1e-4)


def test_the_cheaper_form_is_chosen(ragged: Clients) -> None:
    assert type(linear_regression(ragged)) is type(linear_regression(ragged, "gram"))
    wide = Clients(np.zeros((3, 9)), np.zeros(3), np.array([3]))
    assert type(linear_regression(wide)) is type(linear_regression(wide, "direct"))
    with pytest.raises(ValueError, match="form must be"):
        linear_regression(ragged, "fast")


@pytest.mark.parametrize(("dim", "gram"), [(2, True), (3, False), (9, False)])
def test_statistics_of_many_clients_take_a_fifth_of_their_samples_memory_at_most(
    dim: int, gram: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = Clients(rng.standard_normal((20, dim)), rng.standard_normal(20), np.array([10, 10]))
    assert isinstance(linear_regression(clients), Quadratic)
    monkeypatch.setattr(quadratic, "GRAM_NUMBERS", 0)
    assert isinstance(linear_regression(clients), Quadratic) == gram


def test_least_squares_of_many_samples_is_summed_in_parts(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = rng.standard_normal((50, 4)).astype(np.float32), rng.standard_normal(50).astype(np.float32)
    monkeypatch.setattr(linear_model, "CACHED_ELEMENTS", 4 * 7)
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


@pytest.mark.parametrize("form", ["mean", "gram"])
def test_a_block_of_clients_at_a_time_gives_the_same_bits(
    form: str, ragged: Clients, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = mean_estimation(ragged) if form == "mean" else linear_regression(ragged, "gram")
    centres = rng.standard_normal((3, task.dim))
    whole = task.respond(centres, lambda losses: losses.argmin(axis=1))
    monkeypatch.setattr(quadratic, "BLOCK", 7 * task.dim)  # two clients
    pieces = task.respond(centres, lambda losses: losses.argmin(axis=1))
    for one, other in zip(whole, pieces, strict=True):
        assert np.array_equal(one, other)


def test_columns_that_differ_by_rounding_alone(rng: np.random.Generator) -> None:
    """Centimetres beside inches, in float32: the Gram form must not stand on a minimiser that is all rounding."""
    centimetres = rng.uniform(150, 190, size=(180, 1)).astype(np.float32)
    features = np.concatenate([centimetres, centimetres / np.float32(2.54), np.ones((180, 1), np.float32)], axis=1)
    targets = (0.5 * centimetres[:, 0] + rng.standard_normal(180)).astype(np.float32)
    clients = Clients(features, targets, np.full(6, 30))
    direct, gram = linear_regression(clients, "direct"), linear_regression(clients, "gram")
    centres = np.array([[0.5, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=np.float32)
    np.testing.assert_allclose(gram.losses(centres), direct.losses(centres), rtol=1e-2)
    assert np.abs(gram.minimisers()).max() < 100


def test_whole_numbers_are_numbers(rng: np.random.Generator) -> None:
    whole = rng.integers(-9, 9, size=(40, 3))
    clients = Clients(whole, whole @ [0.5, 0.4, 0.3], np.full(4, 10))
    np.testing.assert_allclose(linear_regression(clients).minimisers(), np.tile([0.5, 0.4, 0.3], (4, 1)), atol=1e-9)
    means = mean_estimation(Clients(whole, None, np.full(4, 10))).minimisers()
    np.testing.assert_allclose(means, whole.reshape(4, 10, 3).mean(axis=1))


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


def test_clients_with_one_sample_are_their_own_means(rng: np.random.Generator) -> None:
    features = rng.standard_normal((5, 3)).astype(np.float32)
    task = mean_estimation(Clients(features, None, np.ones(5, dtype=np.int64)))
    centres = rng.standard_normal((2, 3)).astype(np.float32)
    np.testing.assert_allclose(task.losses(centres), ((centres - features[:, None]) ** 2).sum(axis=2), rtol=1e-6)
    assert np.array_equal(task.minimisers(), features)


def test_a_float32_mean_of_many_samples_far_from_zero() -> None:
    samples = 1000 + np.random.default_rng(0).standard_normal((200_000, 1))
    task = mean_estimation(Clients(samples.astype(np.float32), None, np.array([200_000])))
    assert task.minimisers()[0, 0] == pytest.approx(samples.mean(), abs=1e-4)


def test_losses_do_not_overflow() -> None:
    clients = Clients(np.array([[1.0], [-1.0]]), np.array([1.0, 0.0]), np.array([2]))
    far = np.array([[1e4], [-1e4]])
    assert logistic_regression(clients).losses(far).tolist() == [[0.0, 1e4]]
    assert np.isfinite(softmax_regression(clients, 2).losses(np.array([[1e4, -1e4]]))).all()


@tasks
def test_curvatures_bound_the_hessian(name: str, ragged: Clients, rng: np.random.Generator) -> None:
    """λ_max against the exact eigenvalue; for the square loss it is equal, for the others an upper bound."""
    task = TASKS[name](ragged)
    top, spread = task.curvatures().T
    for i in range(ragged.count):
        x, _ = task.clients.samples(i)
        exact = 2.0 if name == "mean" else float(np.linalg.eigvalsh(x.T @ x / len(x)).max())
        bound = {"mean": 1.0, "logistic": 0.25, "softmax": 0.5}.get(name, 2.0)
        assert top[i] == pytest.approx(bound * exact if name != "mean" else 2.0, rel=0.02)
        assert spread[i] == pytest.approx(0.0 if name == "mean" else bound * np.sum(x**2) / len(x) ** 2)


def test_targets_that_are_no_class_name_client_and_row() -> None:
    clients = Clients(np.zeros((3, 1)), np.array([0.0, 1.0, 2.0]), np.array([2, 1]), ("oslo", "bern"))
    with pytest.raises(ValueError, match=r"client bern, row 1: target 2.0 is not a class from 0 to 1"):
        logistic_regression(clients)
    with pytest.raises(ValueError, match="classes must be at least 2"):
        softmax_regression(clients, 1)
    with pytest.raises(ValueError, match="targets are missing"):
        linear_regression(Clients(np.zeros((3, 1)), None, np.array([3])))
