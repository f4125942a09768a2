"""Many trials at once against the single path, on a CPU; on a GPU (where there is one) the kernels against torch."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from coterie._src import attacks
from coterie._src.aggregators import Aggregator, mean, mean_over, median, trimmed_mean
from coterie._src.algorithms import ClusteredDescent
from coterie._src.batch import Batch, Lane, descend, descent, respond
from coterie._src.data import Federation, mixed_regression
from coterie._src.server import Server, l2_ball, unit_sphere
from coterie._src.simulation import SimulatedNetwork
from coterie._src.tasks import linear_regression

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
RULES: list[Aggregator] = [median, partial(trimmed_mean, trim=0.1), mean, partial(mean_over, clients=30)]
TRIALS, CLIENTS, CLUSTERS, DIM = 3, 30, 3, 7


def federations(**changes: int) -> list[Federation]:
    shape = {"clients": CLIENTS, "clusters": CLUSTERS, "samples": 20, "dim": DIM} | changes
    return [mixed_regression(np.random.default_rng(t), byzantine=0.1, **shape) for t in range(TRIALS)]


def batch_of(drawn: list[Federation], device: str = "cpu") -> Batch:
    clients, truths = [f.clients for f in drawn], [f.truth for f in drawn]
    m, d = clients[0].count, clients[0].dim
    features = torch.stack([torch.from_numpy(c.features).reshape(m, -1, d) for c in clients])
    targets = torch.stack([torch.from_numpy(c.targets).reshape(m, -1) for c in clients])
    scales = torch.stack([torch.from_numpy(np.where(t.byzantine, 3.0, 1.0).astype(np.float32)) for t in truths])
    return Batch(features.to(device), targets.to(device), scales.to(device))


def starts(lanes: int, clusters: int = CLUSTERS, dim: int = DIM, device: str = "cpu") -> torch.Tensor:
    drawn = np.random.default_rng(9).standard_normal((TRIALS, 1, clusters, dim)) / np.sqrt(dim)
    return torch.from_numpy(drawn).float().repeat(1, lanes, 1, 1).to(device)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_every_trial_and_method_ends_where_the_single_path_ends(device: str) -> None:
    drawn = federations()
    fixed = torch.from_numpy(np.random.default_rng(1).integers(CLUSTERS, size=(TRIALS, CLIENTS)))
    lanes = [Lane(rule) for rule in RULES] + [Lane(median, unit_sphere, fixed.to(device))]
    start = starts(len(lanes))
    found = descend(batch_of(drawn, device), start.to(device), lanes, rounds=40, step=0.05).cpu().numpy()
    for trial, federation in enumerate(drawn):
        assert federation.truth is not None
        for place, lane in enumerate(lanes):
            network = SimulatedNetwork(
                linear_regression(federation.clients, form="direct"),
                federation.truth.byzantine,
                attacks.Attack(attacks.paper),
                np.random.default_rng(0),
            )
            algorithm = ClusteredDescent(Server(lane.rule, lane.project), rounds=40, size=0.05)
            state = algorithm.init(network, start[trial, place].numpy(), np.random.default_rng(0))
            if lane.fixed is not None:
                state = state._replace(fixed=fixed[trial].numpy())
            for _ in range(40):
                state, _ = algorithm.step(state, network, np.random.default_rng(0))
            np.testing.assert_allclose(found[trial, place], state.centres, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_a_stand_in_answers_for_a_cluster_that_nobody_chose(device: str) -> None:
    drawn = federations()
    batch = batch_of(drawn)
    start = starts(1)
    start[:, :, 2] = 1e3
    picked = torch.arange(TRIALS)[None, :, None, None].expand(1, TRIALS, 1, CLUSTERS) + 27  # the last is Byzantine
    one = partial(descend, batch_of(drawn, device), start.to(device), [Lane(mean)], rounds=1, step=0.1)
    assert torch.equal(one()[:, 0, 2].cpu(), start[:, 0, 2])
    moved = one(stand_ins=picked.contiguous().to(device))[:, 0, 2].cpu()
    for trial in range(TRIALS):
        x, y, scale = (part[trial, 27 + trial].double() for part in batch)
        gradient = 2 / len(y) * x.T @ (scale * x @ start[trial, 0, 2].double() - y)
        torch.testing.assert_close(
            moved[trial].double(), start[trial, 0, 2].double() - 0.1 * gradient, rtol=1e-4, atol=0.01
        )


def test_a_step_to_infinity_is_not_taken_and_projections_hold() -> None:
    batch = batch_of(federations())
    lanes = [Lane(mean), Lane(mean, partial(l2_ball, radius=0.5))]
    start = starts(2)
    assert torch.equal(descend(batch, start, lanes, rounds=1, step=1e40)[:, 0], start[:, 0])
    held = descend(batch, start, lanes, rounds=3, step=0.2)[:, 1]
    assert held.norm(dim=-1).max() <= 0.5 + 1e-6


@needs_gpu
@pytest.mark.parametrize(
    ("samples", "clusters", "dim"),
    [(100, 15, 500), (100, 10, 200), (64, 5, 33), (3, 2, 1), (300, 70, 64), (20, 3, 1900), (20, 3, 3000)],
)
def test_the_response_kernel_agrees_with_torch(samples: int, clusters: int, dim: int) -> None:
    drawn = federations(clients=40, samples=samples, dim=dim)
    batch = batch_of(drawn, "cuda")
    fixed = torch.randint(clusters, (TRIALS, 40), device="cuda")
    lanes = [Lane(median), Lane(mean), Lane(median), Lane(mean, fixed=fixed)]
    centres = starts(4, clusters, dim, "cuda")
    centres = centres + 0.1 * torch.randn(
        centres.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(0)
    )
    assert descent.response.serves(batch.features, centres)
    ours = respond(batch, centres, lanes)
    double = Batch(*(part.double() for part in batch))
    theirs = respond(double, centres.double(), lanes)  # in float64, by torch
    assert (ours.labels == theirs.labels).all()
    torch.testing.assert_close(ours.losses.double(), theirs.losses, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.gradients.double(), theirs.gradients, rtol=1e-4, atol=1e-4)


def test_tiles_fit_into_any_processor_s_memory() -> None:
    kilobyte = 1024
    for most in (28 * kilobyte, 79 * kilobyte, 143 * kilobyte, 207 * kilobyte):  # a small GPU, and larger ones
        served = []
        for dim in range(1, 5000, 7):
            shape = descent.response.shape_of(100, dim, 4, 15, most)
            served.append(shape is not None)
            if shape is not None:
                assert shape.shared_bytes(4, 15) <= most
                assert shape.rows >= 100 or shape.buffers == 2
        assert served == sorted(served, reverse=True)  # up to some number of columns, without a gap
        assert served[500 // 7]


@needs_gpu
@pytest.mark.parametrize(("clusters", "dim", "size"), [(3, 7, 0.3), (15, 100, 0.02), (6, 601, 0.1)])
def test_what_clients_remember_changes_no_label(clusters: int, dim: int, size: float) -> None:
    """While centres wander, some far and some hardly, one of them to where losses are not finite."""
    drawn = federations(clients=40, samples=50, dim=dim)
    batch = batch_of(drawn, "cuda")
    lanes = [Lane(median)] * 5
    centres = starts(5, clusters, dim, "cuda")
    memory = descent.response.nothing_known(batch.features, centres)
    generator = torch.Generator("cuda").manual_seed(0)
    changed = 0
    before = torch.zeros((TRIALS, 5, 40), device="cuda")
    for round in range(60):
        ours = respond(batch, centres, lanes, memory)
        double = Batch(*(part.double() for part in batch))
        theirs = respond(double, centres.double(), lanes)
        assert (ours.labels == theirs.labels).all()
        torch.testing.assert_close(ours.losses.double(), theirs.losses, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours.gradients.double(), theirs.gradients, rtol=1e-4, atol=1e-4)
        changed += int((ours.labels != before).sum())
        before = ours.labels
        steps = size * torch.randn(centres.shape, device="cuda", generator=generator) / dim**0.5
        steps *= torch.rand(centres.shape[:3], device="cuda", generator=generator)[..., None] ** 4
        if round == 30:
            steps[:, :, 0] = 1e25
        if round == 40:
            steps[:, :, 0] = -1e25
        memory.paths.add_(steps.norm(dim=3))
        centres = centres + steps
    assert changed > 600  # more than the first choice


@needs_gpu
@pytest.mark.parametrize("clients", [1, 2, 16, 17, 60, 200, 600])
@pytest.mark.parametrize("clusters", [1, 3])
def test_the_aggregation_kernel_agrees_with_per_cluster(clients: int, clusters: int) -> None:
    generator = torch.Generator("cuda").manual_seed(clients)
    lanes = [Lane(rule) for rule in RULES]
    updates = torch.randn((2, 4, clients, 150), device="cuda", generator=generator)
    updates = torch.where(torch.rand(updates.shape, device="cuda", generator=generator) < 0.2, 0.5, updates)  # ties
    labels = torch.randint(clusters, (2, 4, clients), device="cuda", dtype=torch.int32, generator=generator)
    assert descent.kernels.serves_aggregation(updates, RULES)
    ours, sizes = descent.aggregate(updates, labels, clusters, lanes)
    theirs, counts = descent.aggregate(updates.cpu().double(), labels.cpu(), clusters, lanes)
    assert torch.equal(sizes.cpu().long(), counts)
    torch.testing.assert_close(ours.cpu().double(), theirs, rtol=1e-5, atol=1e-6)
