"""Personal models of networks: proximal training against a plain loop and a closed form, and what clients choose."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from coterie._src import tasks
from coterie._src.data import Clients
from coterie._src.evaluation import held_out_scores
from coterie._src.personal import personalise
from coterie._src.tasks import proximal
from coterie._src.tasks.proximal import KEEP, OWN, PENALTIES, chosen, validation_split
from coterie._src.tasks.torch_module import LocalTraining, NetworkTask

SQUARED = nn.MSELoss(reduction="none")
CROSS = nn.CrossEntropyLoss(reduction="none")


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return SQUARED(outputs[:, 0], targets)


def regression(sizes: list[int], training: LocalTraining | None = None, seed: int = 0) -> NetworkTask:
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((sum(sizes), 3)), rng.standard_normal(sum(sizes))
    clients = Clients(torch.from_numpy(x), torch.from_numpy(y), np.array(sizes))
    return tasks.module(lambda: nn.Linear(3, 1, bias=False).double(), squared, training=training)(clients)


def classes(
    count: int, rows: int, noise: float, seed: int, swapped: bool = False, training: LocalTraining | None = None
) -> tuple[NetworkTask, torch.Tensor]:
    """Clients with three classes, and the model that explains them; swapped: but for a permutation of each client."""
    rng = np.random.default_rng(seed)
    weights = 3.0 * rng.standard_normal((5, 3))
    x = rng.standard_normal((count * rows, 5))
    y = (x @ weights + noise * rng.gumbel(size=(count * rows, 3))).argmax(axis=1)
    if swapped:
        y = np.concatenate([rng.permutation([1, 2, 0])[part] for part in np.split(y, count)])
    clients = Clients(torch.from_numpy(x), torch.from_numpy(y), np.full(count, rows))
    torch.manual_seed(0)
    found = tasks.module(lambda: nn.Linear(5, 3, bias=False).double(), CROSS, training=training)(clients)
    return found, torch.from_numpy(weights.T.reshape(1, -1) / noise)


@pytest.mark.parametrize("training", [None, LocalTraining(4, 0.05), LocalTraining(9, 0.05, batch=4, momentum=0.8)])
def test_training_near_a_model_is_a_plain_loop(training: LocalTraining | None) -> None:
    """v ← v − γ·m, then v ← (v + γλ·θ_j)/(1 + γλ): the proximal step of λ/2·‖v − θ_j‖²."""
    found = regression([8, 8, 10], training)
    anchors = torch.from_numpy(np.random.default_rng(1).standard_normal((3, 3)))
    penalties = np.array([0.0, 0.7, 5.0])
    models = found.trained_near(anchors, penalties)
    step, momentum, batch = (training.step, training.momentum, training.batch) if training else (0.1, 0.0, 0)
    for client in range(3):
        x, y = found.clients.samples(client)
        model, moved = anchors[client].clone(), torch.zeros(3, dtype=torch.float64)
        n = len(x)
        for t in range(proximal.EPOCHS * -(-n // (batch or n))):
            rows = torch.arange(t * (batch or n), (t + 1) * (batch or n)) % n
            moved = momentum * moved + 2 * x[rows].T @ (x[rows] @ model - y[rows]) / len(rows)
            pull = step * penalties[client]
            model = (model - step * moved + pull * anchors[client]) / (1 + pull)
        torch.testing.assert_close(models[client], model, rtol=1e-9, atol=1e-12)


def test_training_near_a_model_ends_at_the_minimiser_of_the_penalised_risk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proximal, "EPOCHS", 2000)
    found = regression([20, 20])
    anchors = torch.from_numpy(np.random.default_rng(1).standard_normal((2, 3)))
    models = found.trained_near(anchors, np.array([0.3, 3.0]))
    for client, penalty in enumerate((0.3, 3.0)):
        x, y = (part.numpy() for part in found.clients.samples(client))
        left = 2 * x.T @ x / 20 + penalty * np.eye(3)
        expected = np.linalg.solve(left, 2 * x.T @ y / 20 + penalty * anchors[client].numpy())
        np.testing.assert_allclose(models[client], expected, rtol=1e-8)


def test_a_huge_penalty_keeps_the_model() -> None:
    found = regression([8, 8])
    anchors = torch.from_numpy(np.random.default_rng(1).standard_normal((2, 3)))
    torch.testing.assert_close(found.trained_near(anchors, np.array([1e12, np.inf])), anchors, rtol=0, atol=1e-10)


def test_a_network_with_fewer_samples_than_features_is_also_held_near_the_model() -> None:
    """Where training without a penalty runs in dual form."""
    torch.manual_seed(0)
    clients = Clients(torch.randn(16, 20).double(), torch.arange(16) % 3, np.array([8, 8]))
    build = tasks.module(
        lambda: nn.Sequential(nn.Linear(20, 4), nn.Tanh(), nn.Linear(4, 3)).double(), CROSS, training=LocalTraining()
    )
    found = build(clients)
    anchors = torch.stack([found.fresh(np.random.default_rng(seed)) for seed in range(2)])
    free, held = (found.trained_near(anchors, np.full(2, penalty)) for penalty in (0.0, 10.0))
    distances = [torch.linalg.vector_norm(models - anchors, dim=1) for models in (free, held)]
    assert (distances[1] < 0.3 * distances[0]).all()
    free_in_dual = anchors - found._update(anchors, next(clients.blocks()), LocalTraining(proximal.EPOCHS))
    torch.testing.assert_close(free, free_in_dual, rtol=1e-6, atol=1e-8)


@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6), seed=st.integers(0, 9))
def test_a_quarter_of_a_client_s_samples_validates(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = np.arange(float(sum(sizes)))
    clients = Clients(rows[:, None], rng.integers(0, 3, len(rows)).astype(float), np.array(sizes))
    split = validation_split(clients)
    counts = np.array(sizes) // 4
    assert (split.rest.sizes == np.array(sizes) - counts).all()
    if split.validation is None:
        assert not counts.any()
        return
    assert split.validation.owners.tolist() == np.flatnonzero(counts).tolist()
    assert (split.validation.clients.sizes == counts[counts > 0]).all()
    both = np.concatenate([split.rest.features[:, 0], split.validation.clients.features[:, 0]])
    assert sorted(both) == rows.tolist()
    for index, owner in enumerate(split.validation.owners):  # the client's own samples, whoever the others are
        alone = validation_split(clients.take([owner])).validation
        assert alone is not None
        assert np.array_equal(alone.clients.features, split.validation.clients.samples(index)[0])


def test_the_choice_by_hand() -> None:
    """Gains of 1 ± 1 over two samples are worth more than half a standard error, 0.5·1/√2; gains of 0.3 ± 1 are not."""
    level, gain, slight = np.array([5.0, 5.0]), np.array([3.0, 5.0]), np.array([3.7, 5.7])
    nothing = [level] * len(PENALTIES)
    assert chosen([level, *nothing, level]) == KEEP
    assert chosen([level, level, gain, level, level, level]) == 1
    assert chosen([level, level, slight, level, level, level]) == KEEP
    assert chosen([level, *nothing, gain]) == OWN
    assert chosen([level, level, gain, level, level, gain]) == 1
    assert chosen([level, level, gain, level, level, np.array([1.0, 3.0])]) == OWN
    assert chosen([np.array([np.nan, 1.0]), *nothing, level]) == 0
    assert chosen([np.array([np.inf, 1.0]), *[np.array([np.nan, np.nan])] * len(PENALTIES), level]) == OWN
    assert chosen([level, *[np.array([np.nan, -9.0])] * len(PENALTIES), np.array([np.inf, 0.0])]) == KEEP


def test_clients_that_the_cluster_s_model_explains_keep_near_it() -> None:
    """Few samples: an own fit has a far higher loss on new samples, and the cluster's model is (near) the best."""
    found, centre = classes(30, 20, noise=1.5, seed=0)
    fresh, _ = classes(30, 400, noise=1.5, seed=0)  # the same weights
    personal = personalise(found, centre, np.zeros(30, np.int64))
    own = found.minimisers()
    losses = [np.diag(fresh.losses(torch.as_tensor(models)).numpy()).mean() for models in (personal.models, own)]
    kept = fresh.losses(centre).numpy().mean()
    assert losses[0] < kept + 0.35 * (losses[1] - kept)
    assert (personal.shrinkage == 1.0).mean() > 0.3
    assert personal.anchors.count("cluster") > 20


def test_clients_that_differ_from_their_cluster_get_a_model_of_their_own() -> None:
    found, centre = classes(12, 80, noise=0.5, seed=1, swapped=True)
    personal = personalise(found, centre, np.zeros(12, np.int64))
    own, kept = np.diag(found.losses(torch.as_tensor(personal.models)).numpy()), found.losses(centre).numpy()[:, 0]
    differs = kept > 2.0
    assert differs.sum() >= 6
    assert (own[differs] < 0.5 * kept[differs]).all()
    assert (personal.shrinkage[differs] < 0.5).all()
    near = np.array([anchor == "cluster" for anchor in personal.anchors]) & (personal.shrinkage < 1)
    assert near.any()
    shrinkage = np.where(near, personal.shrinkage, 0.0)
    trained = found.trained_near(torch.cat([centre] * 12), shrinkage / (1 - shrinkage))  # on all samples
    np.testing.assert_allclose(np.asarray(personal.models)[near], np.asarray(trained)[near], rtol=1e-9)


@pytest.mark.parametrize("bad", [np.nan, 1e30])
def test_an_absurd_model_of_the_cluster_does_no_harm(bad: float) -> None:
    found, centre = classes(4, 40, noise=0.5, seed=2)
    personal = personalise(found, torch.full_like(centre, bad), np.zeros(4, np.int64))
    assert personal.anchors == ("own",) * 4
    torch.testing.assert_close(torch.as_tensor(personal.models), found.minimisers())


def test_a_client_with_too_few_samples_does_not_keep_a_model_that_is_not_finite() -> None:
    found = regression([3, 3])
    centres = torch.tensor([[0.1, 0.2, 0.3], [np.nan, 0.0, 0.0]], dtype=torch.float64)
    personal = personalise(found, centres, np.array([0, 1]))
    assert personal.anchors == ("cluster", "own")
    torch.testing.assert_close(torch.as_tensor(personal.models)[0], centres[0])
    assert np.isfinite(np.asarray(personal.models)).all()


def test_the_result_does_not_depend_on_the_other_clients_or_their_order() -> None:
    rng = np.random.default_rng(3)
    sizes = [12, 12, 3, 20, 12]
    clients = Clients(
        torch.from_numpy(rng.standard_normal((59, 5))), torch.from_numpy(rng.integers(0, 3, 59)), np.array(sizes)
    )
    found = tasks.module(lambda: nn.Linear(5, 3).double(), CROSS)(clients)
    centres, labels = torch.from_numpy(rng.standard_normal((2, found.dim))), np.array([0, 1, 0, -1, 1])
    together = personalise(found, centres, labels)
    order = np.array([3, 0, 4, 1, 2])
    permuted = personalise(found.on(clients.take(order)), centres, labels[order])
    np.testing.assert_allclose(permuted.models, torch.as_tensor(together.models)[order], rtol=1e-9)
    assert permuted.shrinkage.tolist() == together.shrinkage[order].tolist()
    alone = personalise(found.on(clients.take([1])), centres, labels[[1]])
    np.testing.assert_allclose(alone.models[0], together.models[1], rtol=1e-9)
    assert together.shrinkage[2] == 1.0  # three samples: none to validate by
    torch.testing.assert_close(torch.as_tensor(together.models)[2], centres[0])
    assert together.anchors[3] == "own"


def test_nothing_of_the_task_changes() -> None:
    found, centre = classes(4, 16, noise=0.5, seed=4, training=LocalTraining(3, 0.1))
    before, parameters = centre.clone(), copy.deepcopy(found.parameters())
    personalise(found, centre, np.array([0, -1, 0, 0]))
    assert torch.equal(centre, before)
    assert torch.equal(found.parameters(), parameters)
    without = personalise(found)
    assert without.anchors == ("own",) * 4
    torch.testing.assert_close(torch.as_tensor(without.models), found.minimisers())


def test_scores_of_networks_have_the_losses_of_single_samples() -> None:
    found, centre = classes(3, 12, noise=0.5, seed=5)
    split = validation_split(found.clients)
    assert split.validation is not None
    models = torch.cat([centre] * 3)
    scores = held_out_scores(found, split.validation, models, np.ones(3, dtype=bool))
    for client in range(3):
        x, y = split.validation.clients.samples(client)
        expected = nn.functional.cross_entropy(x @ centre.reshape(3, 5).T, y, reduction="none")
        np.testing.assert_allclose(scores.samples[client], expected, rtol=1e-9)
    losses = replace(found, clients=split.validation.clients).losses(centre)[:, 0]
    np.testing.assert_allclose(scores.losses, losses, rtol=1e-9)
