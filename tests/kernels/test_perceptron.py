"""The sparse first layer and the slopes of a perceptron, beside torch's operators in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from coterie._src.kernels.perceptron import perceptron_outputs, perceptron_slopes, sparse_samples
from coterie._src.tasks.torch_dual import Head, layout_of, slopes_of
from coterie._src.tasks.torch_module import perceptron

CROSS = nn.CrossEntropyLoss(reduction="none")


def draw(seed: int, clients: int, samples: int, inputs: int, share: float = 0.2) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    full = rng.normal(size=(clients, samples, inputs)) * (rng.random((clients, samples, inputs)) < share)
    return torch.from_numpy(full).float(), torch.from_numpy(rng.integers(0, 3, (clients, samples)))


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
    pre_activations = torch.from_numpy(rng.normal(size=(clients, samples, width)))
    pre_activations[rng.random(pre_activations.shape) < 0.1] = 0.0  # where ReLU has a kink torch's slope is 0
    rest = torch.from_numpy(rng.normal(size=(clients, classes * (width + 1))))
    targets = torch.from_numpy(rng.integers(0, classes, (clients, samples)))
    later = nn.Sequential(*list(perceptron(4, width, classes).double())[1:])
    head = Head(width, 4, True, later, layout_of(later))
    outputs = perceptron_outputs(rest[0], pre_activations[0])
    torch.testing.assert_close(outputs, head.rest(rest[0], pre_activations[0]), rtol=1e-9, atol=1e-12)
    for found, expected in zip(
        perceptron_slopes(rest, pre_activations, targets),
        slopes_of(head, CROSS)(rest, pre_activations, targets),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    huge = perceptron_slopes(rest * 1e3, pre_activations * 1e3, targets)
    assert all(bool(one.isfinite().all()) for one in huge)


def test_classes_that_do_not_exist_are_refused() -> None:
    rest, pre_activations = torch.zeros(1, 2 * 4), torch.zeros(1, 5, 3)
    for wrong in (-1, 2, 50_000_000):
        targets = torch.tensor([[0, 1, wrong, 0, 1]])
        with pytest.raises(IndexError, match="targets: must be from 0 to 1"):
            perceptron_slopes(rest, pre_activations, targets)
