"""What the server makes of aggregated updates: plain steps, momentum and Adam."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from coterie._src.aggregators import mean
from coterie._src.intake import Accepted
from coterie._src.optimisers import Adam, Momentum, Optimiser, PlainSteps
from coterie._src.server import Server, ServerMemory, take_step

CENTRES = np.array([[0.0, 0.0], [10.0, 10.0]])


def replies(labels: list[int], updates: list[list[float]]) -> Accepted:
    return Accepted(
        np.arange(len(labels)), np.array(labels, dtype=np.int64), np.array(updates, dtype=float), np.zeros(len(labels))
    )


def test_momentum_and_adam_are_torch_s_own() -> None:
    """Over five rounds of a cluster's aggregates, the same centres as torch.optim gives for the same gradients."""
    rng = np.random.default_rng(0)
    for optimiser, theirs in (
        (Momentum(0.8), partial(torch.optim.SGD, lr=0.1, momentum=0.8)),
        (Adam(0.8, 0.95, 1e-3), partial(torch.optim.Adam, lr=0.1, betas=(0.8, 0.95), eps=1e-3)),
    ):
        centres, memory = rng.standard_normal((1, 4)), ServerMemory()
        parameter = torch.nn.Parameter(torch.from_numpy(centres[0].copy()))
        judge = theirs([parameter])
        for _ in range(5):
            rows = rng.standard_normal((3, 4))
            step = take_step(
                Server(mean, optimiser=optimiser),
                centres,
                replies([0, 0, 0], rows.tolist()),
                np.full(1, 0.1),
                memory=memory,
            )
            centres, memory = step.centres, step.memory
            parameter.grad = torch.from_numpy(rows.mean(axis=0))
            judge.step()
            np.testing.assert_allclose(centres[0], parameter.detach().numpy(), rtol=1e-9)


@pytest.mark.parametrize("optimiser", [Momentum(), Adam()])
def test_a_cluster_that_no_client_chose_stays_and_forgets_nothing(optimiser: Optimiser) -> None:
    server = Server(mean, optimiser=optimiser)
    heard = take_step(server, CENTRES, replies([0, 1], [[1, 1], [2, 2]]), np.full(2, 0.1))
    silent = take_step(server, heard.centres, replies([0], [[1, 1]]), np.full(2, 0.1), memory=heard.memory)
    assert silent.centres[1].tolist() == heard.centres[1].tolist()
    assert heard.memory.moments is not None
    assert silent.memory.moments is not None
    assert silent.memory.moments.first[1].tolist() == heard.memory.moments.first[1].tolist()
    assert silent.centres[0].tolist() != heard.centres[0].tolist()
    lost = take_step(server, silent.centres, replies([0], [[np.inf, 0]]), np.full(2, 0.1), memory=silent.memory)
    assert lost.rejected.tolist() == [True, False]
    assert lost.memory.moments is not None
    assert np.isfinite(lost.memory.moments.first).all()


def test_plain_steps_remember_nothing() -> None:
    gradients = np.ones((2, 3))
    assert PlainSteps().update(gradients, np.array([True, False]), None) == (gradients, None)
    assert PlainSteps() == PlainSteps()
    assert Momentum(0.9) == Momentum() != Momentum(0.8)


@pytest.mark.parametrize("optimiser", [Momentum(), Adam()])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_first_update_that_is_not_finite_leaves_no_trace(optimiser: Optimiser, bad: float) -> None:
    everyone = np.array([True, True])
    with np.errstate(invalid="ignore"):
        along, moments = optimiser.update(np.array([[1.0, 2.0], [bad, 0.0]]), everyone, None)
    assert moments is not None
    assert np.isfinite(along[0]).all()
    assert not np.asarray(moments.first[1]).any()
    expected, _ = optimiser.update(np.ones((2, 2)), everyone, None)
    later, _ = optimiser.update(np.ones((2, 2)), everyone, moments)
    np.testing.assert_array_equal(later[1], expected[1])


def test_adam_counts_only_rounds_with_a_finite_update() -> None:
    gradients, everyone = np.array([[1.0, 2.0], [np.inf, 0.0]]), np.array([True, True])
    with np.errstate(invalid="ignore"):
        _, moments = Adam().update(gradients, everyone, None)
    assert moments is not None
    assert moments.rounds.tolist() == [1, 0]
    _, later = Adam().update(np.ones((2, 2)), np.array([False, True]), moments)
    assert later is not None
    assert later.rounds.tolist() == [1, 1]
