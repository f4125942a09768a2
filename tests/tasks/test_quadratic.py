"""Parabolas: mean estimation, and linear regression through its statistics."""

from __future__ import annotations

import numpy as np
import pytest

from coterie._src.data import Clients, mixed_regression
from coterie._src.tasks import Quadratic, linear_regression, mean_estimation, quadratic


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


@pytest.mark.parametrize("form", ["mean", "gram"])
def test_a_block_of_clients_at_a_time_gives_the_same_bits(
    form: str, ragged: Clients, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = mean_estimation(ragged) if form == "mean" else linear_regression(ragged, "gram")
    centres = rng.standard_normal((3, task.dim))
    whole = task.respond(centres)
    monkeypatch.setattr(quadratic, "BLOCK", 7 * task.dim)  # two clients
    pieces = task.respond(centres)
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


@pytest.mark.parametrize("gap", [0.0, 1e-15, 1e-13, 1e-10, 1e-7, 1e-4])
@pytest.mark.parametrize("samples", [12, 70])
def test_losses_of_clients_whose_columns_hardly_differ(gap: float, samples: int) -> None:
    """A column that is a multiple of the intercept, up to a gap, as a school's mean is in the table of its pupils."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, samples, 4))
    x[:, :, 3] = 1.0
    x[5:9, :, 1] = 0.15302041
    x[5:9, :, 1] += gap * rng.standard_normal((4, samples))
    y = 12.0 + 3 * rng.standard_normal((20, samples))
    clients = Clients(x.reshape(-1, 4), y.ravel(), np.full(20, samples))
    centres = np.array([[2.0, -3.0, 1.4, 12.6], [-9.0, 5.0, -8.0, -36.0]])
    wanted = ((np.einsum("cnd,kd->cnk", x, centres) - y[:, :, None]) ** 2).mean(axis=1)
    np.testing.assert_allclose(linear_regression(clients).losses(centres), wanted, rtol=1e-6)
