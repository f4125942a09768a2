"""Hessians of the tasks: against finite differences of their gradients, and the form of the regression they decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from coterie._src.data import Clients
from coterie._src.packed import unpacked
from coterie._src.tasks import (
    LinearModel,
    Quadratic,
    Task,
    linear,
    linear_regression,
    logistic_regression,
    mean_estimation,
    softmax_regression,
)
from coterie._src.tasks.linear import logistic_loss, second_moments, softmax_loss

CLASSES = 3
LABELS = np.array([0, 1, 1, 0, 2, 2])
"""The centres of the six ragged clients."""


def with_classes(clients: Clients, classes: int) -> Clients:
    assert clients.targets is not None
    return Clients(clients.features, np.abs(clients.targets * 10).astype(np.int64) % classes * 1.0, clients.sizes)


TASKS: dict[str, Callable[[Clients], Any]] = {
    "linear-direct": lambda clients: linear_regression(clients, "direct"),
    "linear-gram": lambda clients: linear_regression(clients, "gram"),
    "logistic": lambda clients: logistic_regression(with_classes(clients, 2)),
    "softmax": lambda clients: softmax_regression(with_classes(clients, CLASSES), CLASSES),
}
tasks = pytest.mark.parametrize("name", TASKS)


def by_differences(task: Task, centres: np.ndarray, labels: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """(m, d, d): central differences of the gradients; row l is the change of the gradient along parameter l."""
    rows = []
    for column in range(task.dim):
        along = step * np.eye(task.dim)[column]
        rows.append((task.gradients(centres + along, labels) - task.gradients(centres - along, labels)) / (2 * step))
    return np.stack(rows, axis=1)


def hessians(task: Task, centres: Any, labels: np.ndarray) -> np.ndarray:
    """(m, d, d)."""
    return np.asarray(unpacked(task.hessians(centres, labels), task.dim))


@tasks
def test_hessians_are_the_differences_of_the_gradients(name: str, ragged: Clients, rng: np.random.Generator) -> None:
    task = TASKS[name](ragged)
    centres = rng.standard_normal((3, task.dim))
    expected = by_differences(task, centres, LABELS)
    found = hessians(task, centres, LABELS)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8)
    # a Hessian at another centre is another one, unless the loss is quadratic
    elsewhere = hessians(task, centres, (LABELS + 1) % 3)
    assert np.allclose(elsewhere, found) == (task.hessians_known == "constant")


@tasks
def test_hessians_are_positive_semidefinite(name: str, ragged: Clients, rng: np.random.Generator) -> None:
    """Also of the clients with 1 and with 3 samples of 4 columns, whose Hessians are singular."""
    task = TASKS[name](ragged)
    found = hessians(task, 3 * rng.standard_normal((3, task.dim)), LABELS)
    values = np.linalg.eigvalsh(found)
    assert (values[:, 0] >= -1e-12 * values[:, -1]).all()
    assert (values[:, -1] > 0).all()


@tasks
def test_a_block_of_clients_at_a_time_gives_the_same_hessians(
    name: str, ragged: Clients, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = TASKS[name](ragged)
    centres = rng.standard_normal((3, task.dim))
    whole = task.hessians(centres, LABELS)
    monkeypatch.setattr(linear, "CACHED_ELEMENTS", 1)
    np.testing.assert_allclose(task.hessians(centres, LABELS), whole, rtol=1e-12, atol=1e-14)


@tasks
def test_hessians_of_tensors_are_those_of_arrays(name: str, ragged: Clients, rng: np.random.Generator) -> None:
    ours = TASKS[name](ragged)
    there = Clients(torch.from_numpy(ours.clients.features), torch.from_numpy(ours.clients.targets), ragged.sizes)
    builds: dict[str, Callable[[Clients], Any]] = {
        "logistic": logistic_regression,
        "softmax": lambda clients: softmax_regression(clients, CLASSES),
    }
    theirs = builds.get(name, TASKS[name])(there)
    centres = rng.standard_normal((3, ours.dim))
    found = theirs.hessians(torch.from_numpy(centres), LABELS)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, ours.hessians(centres, LABELS), rtol=1e-12, atol=1e-14)


def test_softmax_of_two_classes_is_logistic_in_the_difference_of_its_columns(
    ragged: Clients, rng: np.random.Generator
) -> None:
    """With w = w₁ − w₀ = JW the losses are equal, so that the Hessian of softmax is Jᵀ(that of logistic)J."""
    clients = with_classes(ragged, 2)
    softmax, logistic = softmax_regression(clients, 2), logistic_regression(clients)
    difference = np.kron(np.eye(4), [[-1.0, 1.0]])  # (4, 8): parameters are ordered by column, then by class
    centres = rng.standard_normal((3, 8))
    np.testing.assert_allclose(softmax.losses(centres), logistic.losses(centres @ difference.T), rtol=1e-12)
    expected = difference.T @ hessians(logistic, centres @ difference.T, LABELS) @ difference
    np.testing.assert_allclose(hessians(softmax, centres, LABELS), expected, rtol=1e-10, atol=1e-14)


def test_second_derivatives_do_not_overflow() -> None:
    far = np.array([[-1e6], [-800.0], [0.0], [800.0], [1e6]])
    second = logistic_loss().second
    assert second is not None
    with np.errstate(over="raise", invalid="raise"):
        found = second(far)
    assert found.shape == (5, 1, 1)
    assert found[2, 0, 0] == 0.25
    assert (found[[0, 1, 3, 4]] < 1e-300).all()
    second = softmax_loss(3).second
    assert second is not None
    np.testing.assert_allclose(second(np.array([[1e6, -1e6, 0.0]])), np.zeros((1, 3, 3)), atol=1e-300)
    np.testing.assert_allclose(second(np.zeros((1, 3)))[0], np.eye(3) / 3 - 1 / 9, atol=1e-15)


def test_a_mean_has_no_hessian_to_ask_for(ragged: Clients) -> None:
    task = mean_estimation(Clients(ragged.features, None, ragged.sizes))
    assert task.hessians_known == "never"
    with pytest.raises(ValueError, match="a mean has none"):
        task.hessians(np.zeros((1, 4)), np.zeros(6, dtype=np.int64))


def columns(condition: float, dtype: str, rng: np.random.Generator) -> Clients:
    """Ten clients with 40 samples of 6 equally scaled columns, whose matrix has a given condition number."""
    whole = np.linalg.qr(rng.standard_normal((400, 6)))[0]
    mixed = whole * condition ** -np.linspace(0, 1, 6) @ np.linalg.qr(rng.standard_normal((6, 6)))[0]
    mixed *= np.sqrt(400) / np.linalg.norm(mixed, axis=0)
    return Clients(mixed.astype(dtype), rng.standard_normal(400).astype(dtype), np.full(10, 40))


def test_second_moments_of_float32_samples_keep_the_digits_of_float64(rng: np.random.Generator) -> None:
    clients = columns(1e5, "float32", rng)
    x = clients.features.astype(np.float64)
    expected = np.stack([x[40 * i : 40 * i + 40].T @ x[40 * i : 40 * i + 40] / 40 for i in range(10)])
    np.testing.assert_allclose(unpacked(second_moments(clients), 6), expected, rtol=1e-12)
    gram = linear_regression(clients, "gram")
    found = hessians(gram, np.zeros((1, 6)), np.zeros(10, np.int64))
    np.testing.assert_allclose(found, 2 * expected, rtol=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("condition", "dtype", "gram"),
    [(1.0, "float32", True), (10.0, "float32", True), (1e4, "float32", False), (1e5, "float32", False),
     (1e6, "float32", False), (10.0, "float64", True), (1e4, "float64", True)],
)  # fmt: skip
def test_correlated_columns_are_read_directly(condition: float, dtype: str, gram: bool, seed: int) -> None:
    """XᵀX has the squared condition number: from 1e8 on, nothing of it is left in float32."""
    rng = np.random.default_rng(seed)
    assert isinstance(linear_regression(columns(condition, dtype, rng)), Quadratic) == gram


def test_the_units_of_columns_do_not_matter_for_the_form(rng: np.random.Generator) -> None:
    clients = columns(10.0, "float32", rng)
    rescaled = Clients(clients.features * np.logspace(-6, 6, 6, dtype=np.float32), clients.targets, clients.sizes)
    assert isinstance(linear_regression(rescaled), Quadratic)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("apart", [1e-4, 1e-6])
def test_nearly_equal_columns_are_read_in_float32_and_not_summed(seed: int, apart: float) -> None:
    """The smallest eigenvalue of their Gram matrix is a rounding error, which may be negative."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((400, 6))
    x[:, 5] = x[:, 4] + apart * rng.standard_normal(400)
    clients = Clients(x.astype(np.float32), x[:, 0].astype(np.float32), np.full(10, 40))
    assert isinstance(linear_regression(clients), LinearModel)
