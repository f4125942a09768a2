"""The dual form of local training: which modules have it, and which have the kernels of a perceptron."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from coterie._src import tasks
from coterie._src.data import Clients
from coterie._src.tasks.torch_dual import is_perceptron
from coterie._src.tasks.torch_module import LocalTraining, perceptron

CROSS = nn.CrossEntropyLoss(reduction="none")


def test_which_models_have_the_slopes_of_a_perceptron() -> None:
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


def clients(sizes: list[int]) -> Clients:
    rng = np.random.default_rng(0)
    features, targets = rng.random((sum(sizes), 64)), rng.integers(10, size=sum(sizes))
    return Clients(torch.from_numpy(features).float(), torch.from_numpy(targets), np.array(sizes))


def test_which_modules_have_a_dual_form() -> None:
    plain = tasks.module(lambda: nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)), CROSS)
    assert plain(clients([5]))._head is not None
    for build_one, shape in (
        (lambda: nn.Linear(64, 10), ()),
        (lambda: nn.Sequential(nn.Linear(64, 10)), ()),
        (lambda: nn.Sequential(nn.Linear(64, 10), nn.Tanh()), ()),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10)), (1, 8, 8)),
    ):
        assert tasks.module(build_one, CROSS, shape=shape)(clients([5]))._head is None
    without = tasks.module(
        lambda: nn.Sequential(nn.Linear(64, 8, bias=False), nn.ReLU(), nn.Linear(8, 10)),
        CROSS,
        training=LocalTraining(3),
    )(clients([6, 6]))
    assert without._head is not None
    points = torch.stack([without.fresh(np.random.default_rng(seed)) for seed in range(2)])
    dual = without.gradients(points, np.array([0, 1]))
    model = copy.deepcopy(without.model)
    model.load_state_dict(without.state(points[1]))
    x, y = without.clients.samples(1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        sgd.zero_grad()
        cross_entropy(model(x), y).backward()
        sgd.step()
    torch.testing.assert_close(
        points[1] - dual[1], nn.utils.parameters_to_vector(model.parameters()).detach(), rtol=1e-4, atol=1e-6
    )
