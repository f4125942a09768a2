"""The kernels of networks on a CPU, beside torch's operators in float64."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from coterie._src import tasks
from coterie._src.client import assign
from coterie._src.data import Clients
from coterie._src.kernels.perceptron import is_perceptron, perceptron_slopes, sparse_samples
from coterie._src.tasks import networks
from coterie._src.tasks.torch_dual import slopes_of
from coterie._src.tasks.torch_module import LocalTraining, NetworkTask, perceptron

CROSS = nn.CrossEntropyLoss(reduction="none")


def draw(seed: int, clients: int, samples: int, inputs: int, share: float = 0.2) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    full = rng.normal(size=(clients, samples, inputs)) * (rng.random((clients, samples, inputs)) < share)
    return torch.from_numpy(full).float(), torch.from_numpy(rng.integers(0, 3, (clients, samples)))


def task_of(features: torch.Tensor, targets: torch.Tensor, training: LocalTraining) -> NetworkTask:
    count, samples, inputs = features.shape
    made = tasks.module(lambda: perceptron(inputs, 7, 3), partial(cross_entropy, reduction="none"), training=training)
    return made(Clients(features.reshape(-1, inputs), targets.reshape(-1), np.full(count, samples)))


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 40),
    st.integers(1, 19),
    st.booleans(),
)
def test_sparse_products_are_those_of_full_matrices(
    seed: int, clients: int, samples: int, inputs: int, width: int, double: bool
) -> None:
    features, _ = draw(seed, clients, samples, inputs, 0.15)
    features = features.double() if double else features
    found = sparse_samples(features)
    if found is None:
        assert features.count_nonzero() > 0.3 * features.numel()
        return
    rng = np.random.default_rng(seed + 1)
    weights, biases, own = (
        torch.from_numpy(rng.normal(size=shape)).to(features)
        for shape in ((2, width, inputs), (2, 1, width), (clients, samples, width))
    )
    expected = features.reshape(-1, inputs).double() @ weights.double().mT + biases.double()
    atol = 1e-12 if double else 1e-5
    torch.testing.assert_close(found.first_layer(weights, biases).double(), expected, rtol=0, atol=atol)
    out = torch.full((clients, width * inputs + 2), 9.0).to(features)
    found.weigh(own, out)
    expected = (own.double().mT @ features.double()).reshape(clients, -1)
    torch.testing.assert_close(out[:, :-2].double(), expected, rtol=0, atol=atol)
    assert (out[:, -2:] == 9.0).all()


def test_what_is_not_sparse_stays_as_it_is() -> None:
    features, _ = draw(0, 2, 5, 30, 0.6)
    assert sparse_samples(features) is None
    assert sparse_samples(features.half() * 0) is None
    odd = torch.zeros(1, 2, 30)
    odd[0, 1, 3] = torch.nan  # it stands where it stood
    found = sparse_samples(odd)
    assert found is not None
    assert found.first_layer(torch.ones(1, 4, 30), torch.zeros(1, 1, 4)).isnan().any(dim=2).tolist() == [[False, True]]


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 9), st.integers(1, 19), st.integers(1, 5))
def test_a_perceptron_s_slopes_are_autograd_s(seed: int, clients: int, samples: int, width: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    leaning = torch.from_numpy(rng.normal(size=(clients, samples, width)))
    leaning[rng.random(leaning.shape) < 0.1] = 0.0  # where ReLU has a kink torch's slope is 0
    rest = torch.from_numpy(rng.normal(size=(clients, classes * (width + 1))))
    targets = torch.from_numpy(rng.integers(0, classes, (clients, samples)))
    model = perceptron(4, width, classes).double()
    head = tasks.module(lambda: model, CROSS)(
        Clients(torch.zeros(1, 4, dtype=torch.float64), torch.zeros(1, dtype=torch.int64), np.array([1]))
    )._head
    assert head is not None
    for found, expected in zip(
        perceptron_slopes(rest, leaning, targets), slopes_of(head, CROSS)(rest, leaning, targets), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    huge = perceptron_slopes(rest * 1e3, leaning * 1e3, targets)
    assert all(bool(one.isfinite().all()) for one in huge)


def test_which_models_have_these_slopes() -> None:
    plain = perceptron(4, 3, 2)
    assert is_perceptron(plain, CROSS)
    assert is_perceptron(plain, partial(cross_entropy, reduction="none"))
    assert not is_perceptron(plain, partial(cross_entropy, reduction="none", label_smoothing=0.1))
    assert not is_perceptron(plain, nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1))
    assert not is_perceptron(plain, nn.CrossEntropyLoss(reduction="none", ignore_index=1))
    assert not is_perceptron(plain, lambda outputs, targets: cross_entropy(outputs, targets, reduction="none"))
    assert not is_perceptron(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), CROSS)
    assert not is_perceptron(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=False)), CROSS)
    assert not is_perceptron(nn.Linear(4, 3), CROSS)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("share", [0.2, 1.0])
@pytest.mark.parametrize(("momentum", "clients"), [(0.0, 4), (0.9, 4), (0.0, 60)])
def test_a_round_is_torch_s_own_sgd(
    share: float, momentum: float, clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many clients in pieces that run beside each other."""
    monkeypatch.setattr(networks, "CACHED_BYTES", 1 << 14)
    monkeypatch.setattr(networks, "WIDE", 7)
    features, targets = draw(3, clients, 10, 33, share)
    training = LocalTraining(6, 0.1, momentum=momentum)
    found = task_of(features, targets, training)
    centres = torch.stack([found.fresh(np.random.default_rng(seed)) for seed in range(3)])
    answered = found.respond(centres, assign)
    assert found._slopes is perceptron_slopes
    assert len(found._pieces()) > 1
    sparse = [made for (what, _, _), (_, made) in found._kept.made.items() if what == "sparse"]
    assert all((made is not None) == (share < 0.3) for made in sparse)
    assert torch.get_num_threads() == 2  # as before
    losses = found.losses(centres)
    torch.testing.assert_close(answered.losses, losses, rtol=0, atol=0)
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
    features, targets = draw(3, 1, 6, 33)
    targets[0, 2] = 3
    found = task_of(features, targets, LocalTraining(2, 0.1))
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        found.gradients(found.parameters()[None], np.zeros(1, np.int64))


def test_targets_and_samples_that_change_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "WIDE", 7)
    features, targets = draw(3, 2, 6, 33)
    found = task_of(features, targets, LocalTraining(2, 0.1))
    start, labels = found.parameters()[None], np.zeros(2, np.int64)
    found.respond(start, assign)
    assert isinstance(found.clients.features, torch.Tensor)
    assert isinstance(found.clients.targets, torch.Tensor)
    found.clients.features.mul_(3.0)
    fresh = task_of(found.clients.features.reshape(features.shape), targets, LocalTraining(2, 0.1))
    torch.testing.assert_close(found.losses(start), fresh.losses(start))
    torch.testing.assert_close(found.gradients(start, labels), fresh.gradients(start, labels))
    found.clients.targets[1] = 50_000_000
    with pytest.raises(IndexError, match="from 0 to 2"):
        found.gradients(start, labels)


@pytest.mark.usefixtures("two_threads")
def test_any_mode_and_any_module_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Centres that want a gradient, inference, hooks, and parameters that are one number."""
    monkeypatch.setattr(networks, "CACHED_BYTES", 1 << 14)
    features, targets = draw(3, 30, 10, 33)
    found = task_of(features, targets, LocalTraining(2, 0.1))
    start = found.parameters()[None]
    expected = found.respond(start, assign).updates
    assert torch.equal(found.respond(start.clone().requires_grad_(), assign).updates, expected)
    with torch.inference_mode():
        assert torch.equal(found.respond(start, assign).updates, expected)

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
    assert one.respond(one.parameters()[None], assign).updates.shape == (30, one.dim)
    doubled = perceptron(33, 7, 3)
    doubled[2].register_forward_hook(lambda module, given, result: 2 * result)
    assert not is_perceptron(doubled, CROSS)
    made = tasks.module(lambda: doubled, CROSS)(clients)
    x, y = clients.samples(0)
    torch.testing.assert_close(made.losses(made.parameters()[None])[0, 0], CROSS(doubled(x), y).mean().detach())
