"""Many trials at once against the single path: on a CPU, and on a GPU where there is one."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from coterie._src.aggregators import Aggregator, Krum, Mean, Median, TrimmedMean, mean, median
from coterie._src.algorithms import ClusteredDescent
from coterie._src.attacks import Attack, paper
from coterie._src.batch import Batch, BatchedMethod, descend
from coterie._src.batch.descent import aggregate, automatic_steps
from coterie._src.data import Federation, mixed_regression
from coterie._src.projections import L2Ball, UnitSphere
from coterie._src.server import Server
from coterie._src.simulation import SimulatedNetwork
from coterie._src.step_sizes import automatic_steps as single_steps
from coterie._src.tasks import linear_regression
from devices import DEVICES

RULES: list[Aggregator] = [Median(), TrimmedMean(0.1), Mean(), Mean(30)]
TRIALS, CLIENTS, CLUSTERS, DIM = 3, 30, 3, 7


def federations(**changes: int) -> list[Federation]:
    shape = {"clients": CLIENTS, "clusters": CLUSTERS, "samples": 20, "dim": DIM} | changes
    return [mixed_regression(np.random.default_rng(t), byzantine=0.1, **shape) for t in range(TRIALS)]


def batch_of(drawn: list[Federation], device: str = "cpu") -> Batch:
    clients, truths = [f.clients for f in drawn], [f.truth for f in drawn]
    m, d = clients[0].count, clients[0].dim
    features = torch.stack([torch.from_numpy(c.features).reshape(m, -1, d) for c in clients])
    targets = torch.stack([torch.from_numpy(c.targets).reshape(m, -1) for c in clients])
    scales = torch.stack([torch.from_numpy(np.where(t.is_byzantine, 3.0, 1.0).astype(np.float32)) for t in truths])
    return Batch(features.to(device), targets.to(device), scales.to(device))


def starts(methods: int, clusters: int = CLUSTERS, dim: int = DIM, device: str = "cpu") -> torch.Tensor:
    drawn = np.random.default_rng(9).standard_normal((TRIALS, 1, clusters, dim)) / np.sqrt(dim)
    return torch.from_numpy(drawn).float().repeat(1, methods, 1, 1).to(device)


@pytest.mark.parametrize("device", DEVICES)
def test_every_trial_and_method_ends_where_the_single_path_ends(device: str) -> None:
    drawn = federations()
    fixed = torch.from_numpy(np.random.default_rng(1).integers(CLUSTERS, size=(TRIALS, CLIENTS)))
    methods = [BatchedMethod(rule) for rule in RULES] + [BatchedMethod(median, UnitSphere(), fixed.to(device))]
    start = starts(len(methods))
    found = descend(batch_of(drawn, device), start.to(device), methods, rounds=40, step=0.05).cpu().numpy()
    for trial, federation in enumerate(drawn):
        assert federation.truth is not None
        for index, method in enumerate(methods):
            network = SimulatedNetwork(
                linear_regression(federation.clients, form="direct"),
                federation.truth.is_byzantine,
                Attack(paper),
                np.random.default_rng(0),
            )
            algorithm = ClusteredDescent(Server(method.aggregator, method.project), rounds=40, step_size=0.05)
            state = algorithm.initial_state(network, start[trial, index].numpy(), np.random.default_rng(0))
            if method.fixed_labels is not None:
                state = state._replace(fixed=fixed[trial].numpy())
            for _ in range(40):
                state, _ = algorithm.step(state, network, np.random.default_rng(0))
            np.testing.assert_allclose(found[trial, index], state.centres, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_a_substitute_answers_for_a_cluster_that_no_client_chose(device: str) -> None:
    drawn = federations()
    batch = batch_of(drawn)
    start = starts(1)
    start[:, :, 2] = 1e3
    substitutes = torch.arange(TRIALS)[None, :, None, None].expand(1, TRIALS, 1, CLUSTERS) + 27  # the last is Byzantine
    one = partial(descend, batch_of(drawn, device), start.to(device), [BatchedMethod(mean)], rounds=1, step=0.1)
    assert torch.equal(one()[:, 0, 2].cpu(), start[:, 0, 2])
    moved = one(substitutes=substitutes.contiguous().to(device))[:, 0, 2].cpu()
    for trial in range(TRIALS):
        x, y, scale = (part[trial, 27 + trial].double() for part in batch)
        gradient = 2 / len(y) * x.T @ (scale * x @ start[trial, 0, 2].double() - y)
        torch.testing.assert_close(
            moved[trial].double(), start[trial, 0, 2].double() - 0.1 * gradient, rtol=1e-4, atol=0.01
        )


def test_a_step_to_infinity_is_not_taken_and_projections_hold() -> None:
    batch = batch_of(federations())
    methods = [BatchedMethod(mean), BatchedMethod(mean, L2Ball(0.5))]
    start = starts(2)
    assert torch.equal(descend(batch, start, methods, rounds=1, step=1e40)[:, 0], start[:, 0])
    held = descend(batch, start, methods, rounds=3, step=0.2)[:, 1]
    assert held.norm(dim=-1).max() <= 0.5 + 1e-6


def test_automatic_steps_are_those_of_the_single_path() -> None:
    """With clusters of any size, an empty one among them, and curvatures as clients with as many samples have them."""
    rng = np.random.default_rng(3)
    curvatures = rng.uniform(0.9, 1.1, size=(TRIALS, CLIENTS, 2)) * [(1 + np.sqrt(0.4)) ** 2, 0.4]
    labels = rng.integers(CLUSTERS, size=(TRIALS, 2, CLIENTS))
    labels[0] = np.minimum(labels[0], 1)
    found = automatic_steps(torch.from_numpy(curvatures), torch.from_numpy(labels), CLUSTERS)
    for trial, method in np.ndindex(TRIALS, 2):
        expected = single_steps(curvatures[trial], labels[trial, method], CLUSTERS)
        np.testing.assert_allclose(found[trial, method], expected, rtol=1e-6)


def test_an_aggregator_without_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="aggregator: in a batch must be a mean between ranks"):
        aggregate(torch.zeros((1, 1, 4, 2)), torch.zeros((1, 1, 4)), 1, [Krum(0.25)])
