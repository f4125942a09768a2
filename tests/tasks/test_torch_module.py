"""Modules as tasks: the updates are those of a plain loop over clients, and of torch's own SGD."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from coterie._src import tasks
from coterie._src.data import Clients
from coterie._src.kernels.perceptron import perceptron_slopes
from coterie._src.tasks import torch_module
from coterie._src.tasks.torch_dual import is_perceptron
from coterie._src.tasks.torch_module import LocalTraining, NetworkTask, perceptron

DIGITS = load_digits()
CROSS = nn.CrossEntropyLoss(reduction="none")


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
    response, losses = found.respond(points), found.losses(points)
    for client in range(len(sizes)):
        x, y = found.clients.samples(client)
        for j in range(3):
            expected = cross_entropy(load(found, points[j])(x), y)
            assert losses[client, j].item() == pytest.approx(expected.item(), rel=1e-5)
        model = load(found, points[response.labels[client]])
        cross_entropy(model(x), y).backward()
        slope = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])  # type: ignore[union-attr]
        torch.testing.assert_close(response.updates[client], slope, rtol=1e-4, atol=1e-6)
    assert np.array_equal(response.labels, losses.argmin(dim=1).numpy())


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
    answered = found.respond(points)
    assert np.array_equal(answered.labels, found.losses(points).argmin(dim=1).numpy())
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
    whole, losses = found.respond(points), found.losses(points)
    monkeypatch.setattr("coterie._src.tasks.torch_pieces.PIECE_BYTES", 4 * 4 * found.dim * 2)
    found = task([8] * 9, training)
    assert len(found._pieces()) > 3
    pieces = found.respond(points)
    torch.testing.assert_close(pieces.updates, whole.updates, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found.losses(points), losses, rtol=1e-5, atol=1e-7)
    assert np.array_equal(pieces.labels, whole.labels)


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


def test_flipped_targets_and_targets_from_a_model() -> None:
    found = task([10, 10])
    assert found.clients.targets is not None
    flipped = found.poisoned(lambda y, classes: classes - 1 - y).clients.targets
    assert torch.equal(flipped, found.clients.targets.max() - found.clients.targets)
    model = found.parameters()
    explained = found.with_targets_from(model)
    assert torch.equal(explained.clients.targets, found.outputs(model, found.clients.features).argmax(dim=1))
    numbers = Clients(torch.zeros(4, 3), torch.arange(4.0), np.array([4]))
    straight = tasks.module(lambda: nn.Linear(3, 1), lambda s, y: (s[:, 0] - y) ** 2)(numbers)
    assert torch.equal(straight.poisoned(lambda y, classes: classes - y).clients.targets, -torch.arange(4.0))
    assert straight.with_targets_from(straight.parameters()).clients.targets.shape == (4,)


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


# --- perceptrons, which have kernels -------------------------------------------------------------------


def sparse_samples(
    seed: int, clients: int, samples: int, inputs: int, share: float = 0.2
) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of which a share is not zero, and one of three classes for each sample."""
    rng = np.random.default_rng(seed)
    full = rng.normal(size=(clients, samples, inputs)) * (rng.random((clients, samples, inputs)) < share)
    return torch.from_numpy(full).float(), torch.from_numpy(rng.integers(0, 3, (clients, samples)))


def perceptron_task(features: torch.Tensor, targets: torch.Tensor, training: LocalTraining) -> NetworkTask:
    count, samples, inputs = features.shape
    made = tasks.module(lambda: perceptron(inputs, 7, 3), partial(cross_entropy, reduction="none"), training=training)
    return made(Clients(features.reshape(-1, inputs), targets.reshape(-1), np.full(count, samples)))


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("share", [0.2, 1.0])
@pytest.mark.parametrize(("momentum", "clients"), [(0.0, 4), (0.9, 4), (0.0, 20)])
def test_a_round_is_torch_s_own_sgd(
    share: float, momentum: float, clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many clients in pieces that run beside each other."""
    monkeypatch.setattr(torch_module, "CACHED_BYTES", 1 << 14)
    monkeypatch.setattr(torch_module, "WIDE", 7)
    features, targets = sparse_samples(3, clients, 10, 33, share)
    training = LocalTraining(6, 0.1, momentum=momentum)
    found = perceptron_task(features, targets, training)
    centres = torch.stack([found.fresh(np.random.default_rng(seed)) for seed in range(3)])
    answered = found.respond(centres)
    assert found._slopes is perceptron_slopes
    assert len(found._pieces()) > 1
    sparse = [made for (what, _, _), (_, made) in found._kept.made.items() if what == "sparse"]
    assert all((made is not None) == (share < 0.3) for made in sparse)
    assert torch.get_num_threads() == 2  # as before
    torch.set_num_threads(1)  # faster for what follows
    assert np.array_equal(answered.labels, found.losses(centres).argmin(dim=1).numpy())
    again = found.gradients(centres, answered.labels)
    torch.testing.assert_close(again, answered.updates, rtol=1e-4, atol=1e-6)
    for client, label in enumerate(answered.labels.tolist()):
        model = perceptron(33, 7, 3)
        model.load_state_dict(found.state(centres[label]))
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        for _ in range(training.steps):
            sgd.zero_grad()
            cross_entropy(model(features[client]), targets[client]).backward()
            sgd.step()
        moved = nn.utils.parameters_to_vector(model.parameters()).detach()
        torch.testing.assert_close(centres[label] - answered.updates[client], moved, rtol=1e-4, atol=1e-5)


def test_a_class_that_does_not_exist_is_torch_s_to_refuse() -> None:
    features, targets = sparse_samples(3, 1, 6, 33)
    targets[0, 2] = 3
    found = perceptron_task(features, targets, LocalTraining(2, 0.1))
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        found.gradients(found.parameters()[None], np.zeros(1, np.int64))


def test_targets_and_samples_that_change_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_module, "WIDE", 7)
    features, targets = sparse_samples(3, 2, 6, 33)
    found = perceptron_task(features, targets, LocalTraining(2, 0.1))
    start, labels = found.parameters()[None], np.zeros(2, np.int64)
    found.respond(start)
    assert isinstance(found.clients.features, torch.Tensor)
    assert isinstance(found.clients.targets, torch.Tensor)
    found.clients.features.mul_(3.0)
    fresh = perceptron_task(found.clients.features.reshape(features.shape), targets, LocalTraining(2, 0.1))
    torch.testing.assert_close(found.losses(start), fresh.losses(start))
    torch.testing.assert_close(found.gradients(start, labels), fresh.gradients(start, labels))
    found.clients.targets[1] = 50_000_000
    with pytest.raises(IndexError, match="from 0 to 2"):
        found.gradients(start, labels)


@pytest.mark.usefixtures("two_threads")
def test_any_mode_and_any_module_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Centres that want a gradient, inference, hooks, and parameters that are one number."""
    monkeypatch.setattr(torch_module, "CACHED_BYTES", 1 << 14)
    features, targets = sparse_samples(3, 30, 10, 33)
    found = perceptron_task(features, targets, LocalTraining(2, 0.1))
    start = found.parameters()[None]
    expected = found.respond(start).updates
    assert torch.equal(found.respond(start.clone().requires_grad_()).updates, expected)
    with torch.inference_mode():
        assert torch.equal(found.respond(start).updates, expected)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scale * x

    clients = found.clients
    one = tasks.module(lambda: nn.Sequential(nn.Linear(33, 3), Scaled()), CROSS, training=LocalTraining(2, 0.1))(
        clients
    )
    assert one.respond(one.parameters()[None]).updates.shape == (30, one.dim)
    doubled = perceptron(33, 7, 3)
    doubled[2].register_forward_hook(lambda module, given, result: 2 * result)
    assert not is_perceptron(doubled, CROSS)
    made = tasks.module(lambda: doubled, CROSS)(clients)
    x, y = clients.samples(0)
    torch.testing.assert_close(made.losses(made.parameters()[None])[0, 0], CROSS(doubled(x), y).mean().detach())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("training", [None, LocalTraining(5, 0.1), LocalTraining(5, 0.1, batch=4, momentum=0.9)])
def test_a_gpu_gives_the_same(training: LocalTraining | None) -> None:
    here = task([12] * 6, training)
    samples = here.clients
    assert samples.targets is not None
    there = here.on(Clients(samples.features.cuda(), samples.targets.cuda(), samples.sizes))
    points = centres(here)
    one, other = here.respond(points), there.respond(points.cuda())
    assert np.array_equal(one.labels, other.labels)
    torch.testing.assert_close(other.updates.cpu(), one.updates, rtol=1e-3, atol=1e-5)
