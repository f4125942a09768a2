"""Modules as tasks: the vectorised updates are those of a plain loop over clients."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from coterie._src import tasks
from coterie._src.client import assign
from coterie._src.data import Clients
from coterie._src.tasks.torch_module import LocalTraining, NetworkTask

DIGITS = load_digits()


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


def each(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def clients(sizes: list[int]) -> Clients:
    total = sum(sizes)
    features = torch.from_numpy(DIGITS.data[:total] / 16.0).float()
    return Clients(features, torch.from_numpy(DIGITS.target[:total]), np.array(sizes))


def task(sizes: list[int], training: LocalTraining | None = None) -> NetworkTask:
    return tasks.module(build, each, training=training)(clients(sizes))


def centres(found: NetworkTask, count: int = 3) -> torch.Tensor:
    return torch.stack([found.fresh(np.random.default_rng(seed)) for seed in range(count)])


def load(found: NetworkTask, centre: torch.Tensor) -> nn.Module:
    model = copy.deepcopy(found.model)
    model.load_state_dict(found.state(centre))
    return model


@pytest.mark.parametrize("sizes", [[12] * 6, [5, 5, 9, 1, 9]])
def test_losses_and_gradients_are_those_of_a_loop(sizes: list[int]) -> None:
    found = task(sizes)
    points = centres(found)
    response = found.respond(points, assign)
    assert response.losses is not None
    for client in range(len(sizes)):
        x, y = found.clients.samples(client)
        for j in range(3):
            expected = cross_entropy(load(found, points[j])(x), y)
            assert response.losses[client, j].item() == pytest.approx(expected.item(), rel=1e-5)
        model = load(found, points[response.labels[client]])
        cross_entropy(model(x), y).backward()
        slope = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])  # type: ignore[union-attr]
        torch.testing.assert_close(response.updates[client], slope, rtol=1e-4, atol=1e-6)
    assert np.array_equal(response.labels, response.losses.argmin(dim=1).numpy())


@pytest.mark.parametrize(
    ("training", "sizes"),
    [
        (LocalTraining(5, 0.1), [10, 10, 6]),  # fewer samples than features, whole batches: the dual form
        (LocalTraining(5, 0.1, momentum=0.9), [10, 10, 6]),
        (LocalTraining(5, 0.1, batch=99), [10, 10, 6]),
        (LocalTraining(7, 0.05, batch=4, momentum=0.9), [10, 10, 6]),
        (LocalTraining(5, 0.1), [70, 70, 65]),
    ],
)
def test_local_training_is_torch_s_own_sgd(training: LocalTraining, sizes: list[int]) -> None:
    found = task(sizes, training)
    points = centres(found)
    updates = found.gradients(points, np.array([2, 0, 1]))
    answered = found.respond(points, assign)
    torch.testing.assert_close(answered.losses, found.losses(points))
    torch.testing.assert_close(answered.updates, found.gradients(points, answered.labels), rtol=1e-5, atol=1e-6)
    for client, label in enumerate([2, 0, 1]):
        x, y = found.clients.samples(client)
        model = load(found, points[label])
        sgd = torch.optim.SGD(model.parameters(), lr=training.step, momentum=training.momentum)
        batch = min(training.batch or len(x), len(x))
        for step in range(training.steps):
            place = torch.arange(step * batch, (step + 1) * batch) % len(x)
            sgd.zero_grad()
            cross_entropy(model(x[place]), y[place]).backward()
            sgd.step()
        moved = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
        torch.testing.assert_close(points[label] - updates[client], moved, rtol=1e-4, atol=1e-5)


def test_which_modules_have_a_dual_form() -> None:
    assert task([5])._head is not None
    for build_one, shape in (
        (lambda: nn.Linear(64, 10), ()),
        (lambda: nn.Sequential(nn.Linear(64, 10)), ()),
        (lambda: nn.Sequential(nn.Linear(64, 10), nn.Tanh()), ()),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10)), (1, 8, 8)),
    ):
        assert tasks.module(build_one, each, shape=shape)(clients([5]))._head is None
    without = tasks.module(
        lambda: nn.Sequential(nn.Linear(64, 8, bias=False), nn.ReLU(), nn.Linear(8, 10)),
        each,
        training=LocalTraining(3),
    )(clients([6, 6]))
    assert without._head is not None
    points = centres(without, 2)
    dual = without.gradients(points, np.array([0, 1]))
    model = load(without, points[1])
    x, y = without.clients.samples(1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        sgd.zero_grad()
        cross_entropy(model(x), y).backward()
        sgd.step()
    torch.testing.assert_close(
        points[1] - dual[1], nn.utils.parameters_to_vector(model.parameters()).detach(), rtol=1e-4, atol=1e-6
    )


def test_predictions_and_accuracies() -> None:
    found = task([10, 30])
    points = centres(found, 2)
    accuracies = found.accuracies(points)
    assert accuracies.shape == (2, 2)
    x, y = found.clients.samples(1)
    assert accuracies[1, 0] == pytest.approx((load(found, points[0])(x).argmax(dim=1) == y).float().mean().item())


def test_the_leading_layers_of_a_module() -> None:
    found = task([4])
    assert [found.leading(layers) for layers in (0, 1)] == [0, 65 * 16]
    with pytest.raises(ValueError, match="shared_layers must be from 0 to 1"):
        found.leading(2)


@pytest.mark.parametrize("training", [None, LocalTraining(3, 0.1)])
def test_pieces_that_fit_into_memory_give_the_same(
    monkeypatch: pytest.MonkeyPatch, training: LocalTraining | None
) -> None:
    found = task([8] * 9, training)
    points = centres(found, 2)
    whole = found.respond(points, assign)
    monkeypatch.setattr("coterie._src.tasks.torch_pieces.PIECE_BYTES", 4 * 4 * found.dim * 2)
    found = task([8] * 9, training)
    assert len(found._pieces()) > 3
    pieces = found.respond(points, assign)
    torch.testing.assert_close(pieces.updates, whole.updates, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(pieces.losses, whole.losses, rtol=1e-5, atol=1e-7)


def test_images_keep_their_shape() -> None:
    def convolution() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10))

    found = tasks.module(convolution, each, shape=(1, 8, 8))(clients([5, 5]))
    points = centres(found, 2)
    updates = found.gradients(points, np.array([1, 0]))
    x, y = found.clients.samples(0)
    model = load(found, points[1])
    cross_entropy(model(x.reshape(-1, 1, 8, 8)), y).backward()
    slope = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])  # type: ignore[union-attr]
    torch.testing.assert_close(updates[0], slope, rtol=1e-4, atol=1e-6)


def test_a_short_local_fit_lowers_the_loss_from_a_common_start() -> None:
    found = task([60, 60])
    points = found.minimisers()
    before = found.losses(found.parameters()[None])[:, 0]
    after = torch.stack([found.losses(points)[i, i] for i in range(2)])
    assert (after < before).all()
    smaller = found.minimisers(ridge=1.0)
    torch.testing.assert_close(2 * smaller, points)


def test_flipped_and_posing_targets() -> None:
    found = task([10, 10])
    assert found.clients.targets is not None
    flipped = found.flipped().clients.targets
    assert torch.equal(flipped, found.clients.targets.max() - found.clients.targets)
    model = found.parameters()
    posing = found.posing(model)
    assert torch.equal(posing.clients.targets, found.outputs(model, found.clients.features).argmax(dim=1))
    numbers = Clients(torch.zeros(4, 3), torch.arange(4.0), np.array([4]))
    straight = tasks.module(lambda: nn.Linear(3, 1), lambda s, y: (s[:, 0] - y) ** 2)(numbers)
    assert torch.equal(straight.flipped().clients.targets, -torch.arange(4.0))
    assert straight.posing(straight.parameters()).clients.targets.shape == (4,)


def test_fresh_parameters_follow_the_generator_and_leave_torch_alone() -> None:
    found = task([4])
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    one, again = (found.fresh(np.random.default_rng(3)) for _ in range(2))
    assert torch.equal(one, again)
    assert not torch.equal(one, found.fresh(np.random.default_rng(4)))
    assert torch.equal(before, torch.random.get_rng_state())


def test_what_is_no_task_is_named() -> None:
    with pytest.raises(ValueError, match=r"buffers \(1.running_mean"):
        tasks.module(lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), each)
    with pytest.raises(ValueError, match="no parameters"):
        tasks.module(nn.ReLU, each)
    with pytest.raises(ValueError, match="steps"):
        tasks.module(build, each, training=LocalTraining(0))
    with pytest.raises(ValueError, match="targets are missing"):
        tasks.module(build, each)(Clients(torch.zeros(2, 64), None, np.array([2])))
    with pytest.raises(ValueError, match="torch tensors"):
        tasks.module(build, each)(Clients(np.zeros((2, 64)), np.zeros(2), np.array([2])))
    with pytest.raises(ValueError, match=r"algorithm\.step"):
        task([3]).curvatures()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("training", [None, LocalTraining(5, 0.1), LocalTraining(5, 0.1, batch=4, momentum=0.9)])
def test_a_gpu_gives_the_same(training: LocalTraining | None) -> None:
    here = task([12] * 6, training)
    samples = here.clients
    assert samples.targets is not None
    there = here.on(Clients(samples.features.cuda(), samples.targets.cuda(), samples.sizes))
    points = centres(here)
    one, other = here.respond(points, assign), there.respond(points.cuda(), assign)
    assert np.array_equal(one.labels, other.labels)
    torch.testing.assert_close(other.updates.cpu(), one.updates, rtol=1e-3, atol=1e-5)
