"""One contract for all tasks: their definition, finite differences, and NumPy beside torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from coterie._src import tasks as task_module
from coterie._src.data import Clients
from coterie._src.tasks import (
    Task,
    TaskRecord,
    assign,
    linear_regression,
    logistic_regression,
    mean_estimation,
    softmax_regression,
)

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
def test_a_response_is_choice_and_gradients_in_one(name: str, ragged: Clients, rng: np.random.Generator) -> None:
    task = TASKS[name](ragged)
    centres = rng.standard_normal((3, task.dim))
    for order in ([0, 1, 2], [2, 0, 1]):
        found = task.respond(centres[order])
        labels = assign(task.losses(centres[order]))
        assert np.array_equal(found.labels, labels)
        np.testing.assert_allclose(found.updates, task.gradients(centres[order], labels), rtol=1e-9, atol=1e-12)


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


def opposite(targets: np.ndarray, classes: int) -> np.ndarray:
    return classes - 1 - targets if classes else -targets


@tasks
def test_flipped_twice_is_the_task_itself(name: str, ragged: Clients, rng: np.random.Generator) -> None:
    task = TASKS[name](ragged)
    centres = rng.standard_normal((2, task.dim))
    flipped = task.poisoned(opposite)
    assert not np.allclose(flipped.losses(centres), task.losses(centres))
    np.testing.assert_allclose(flipped.poisoned(opposite).losses(centres), task.losses(centres), rtol=1e-9)


@tasks
def test_targets_from_a_model_are_explained_by_it(name: str, ragged: Clients, rng: np.random.Generator) -> None:
    """The model has then a lower loss than its opposite, for every client; for the square loss, none."""
    task, model = TASKS[name](ragged), rng.standard_normal(TASKS[name](ragged).dim)
    explained = task.with_targets_from(model)
    losses = explained.losses(np.stack([model, -model]))
    assert (losses[:, 0] < losses[:, 1]).all()
    if name.startswith("linear"):
        np.testing.assert_allclose(losses[:, 0], 0, atol=1e-12)
    if name == "mean":
        np.testing.assert_allclose(explained.minimisers(), np.tile(model, (6, 1)), atol=1e-12)


@pytest.mark.parametrize("record", list(task_module.TASKS), ids=lambda record: record.name)
def test_records_build_their_task(record: TaskRecord, ragged: Clients) -> None:
    clients = with_classes(ragged, 2) if record.classifies else ragged
    task = record.build(clients, 2)
    assert task.clients is clients
    assert task.has_curvatures
    assert task.curvature_bound > 0
    assert record.needs_targets == (record.name != "mean")
    if record.loss is not None:
        assert record.loss(2).outputs * clients.dim == task.dim
