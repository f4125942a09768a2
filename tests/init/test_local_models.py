"""Quadratic models of the clients' losses: exact for a squared loss, and with them the server finds the clusters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coterie._src.data import Federation, tabular
from coterie._src.init.conditioning import ask_conditioning, ask_sizes
from coterie._src.init.local_models import LocalModels
from coterie._src.metrics import adjusted_rand_index
from coterie._src.simulation import SimulatedNetwork
from coterie._src.tasks import linear_regression

CLIENTS, DIM = 60, 10
SIGMA = 0.2**0.5
"""The standard deviation of the noise in the targets."""


def drawn_models(seed: int = 0, **options: Any) -> tuple[Federation, LocalModels]:
    """A federation whose Byzantine clients answer by their own data, and its models around 0."""
    shape: dict[str, Any] = {"clients": CLIENTS, "clusters": 2, "samples": 80, "dim": DIM, "byzantine": 0.0}
    drawn = tabular(seed, dtype=np.float64, **{**shape, "correlation": 0.8, "client_means": 0.5, **options})
    assert drawn.truth is not None
    task = linear_regression(drawn.clients)
    network = SimulatedNetwork(task, np.zeros(CLIENTS, np.bool_), None, np.random.default_rng(0))
    origin, everyone = np.zeros((1, DIM)), np.zeros(CLIENTS, np.int64)
    found = ask_conditioning(network, origin, None, ask_sizes(network), int(drawn.truth.is_byzantine.sum()))
    assert found is not None
    updates = -found.coordinates.updates(task.gradients(origin, everyone))
    return drawn, LocalModels(found, np.arange(CLIENTS), updates)


def pooled(drawn: Federation) -> np.ndarray:
    """(k, d): the oracle's centres, by least squares on the honest samples of every cluster."""
    truth, features, targets = drawn.truth, drawn.clients.features, drawn.clients.targets
    assert truth is not None
    assert targets is not None
    owner = np.repeat(truth.labels, drawn.clients.sizes)
    clusters = range(len(truth.centres))
    return np.stack([np.linalg.lstsq(features[owner == j], targets[owner == j], rcond=None)[0] for j in clusters])


def honest_labels(drawn: Federation, models: LocalModels, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The true clusters of the honest clients, and those of the models."""
    assert drawn.truth is not None
    honest = ~drawn.truth.is_byzantine
    return drawn.truth.labels[honest], models.losses(points).argmin(axis=1)[honest]


def away(drawn: Federation, models: LocalModels, points: np.ndarray) -> float:
    """The largest root mean square difference of predictions from the oracle's, in standard deviations of the noise."""
    centres, oracle = models.conditioning.coordinates.parameters(points), pooled(drawn)
    differences = drawn.clients.features @ (centres[None] - oracle[:, None]).transpose(0, 2, 1)  # (oracle, n, found)
    return float(np.sqrt((differences**2).mean(axis=1)).min(axis=1).max() / SIGMA)


def test_the_models_are_exact_for_a_squared_loss(rng: np.random.Generator) -> None:
    drawn, models = drawn_models()
    task, coordinates = linear_regression(drawn.clients, "direct"), models.conditioning.coordinates
    points, labels = rng.standard_normal((3, DIM)), rng.integers(3, size=CLIENTS)
    centres = coordinates.parameters(points)
    expected = task.losses(centres) - task.losses(np.zeros((1, DIM)))
    # the Hessians are in float32
    np.testing.assert_allclose(models.losses(points), expected, rtol=1e-4, atol=1e-4)
    gradients = coordinates.updates(task.gradients(centres, labels))
    np.testing.assert_allclose(models.gradients(points, labels), gradients, rtol=1e-4, atol=1e-4)


def test_the_models_of_some_clients_are_theirs(rng: np.random.Generator) -> None:
    _, models = drawn_models()
    some = np.array([3, 40, 41, 7])
    few = LocalModels(models.conditioning, some, models.updates[some])
    points, labels = rng.standard_normal((2, DIM)), np.array([0, 1, 1, 0])
    everyone = np.zeros(CLIENTS, np.int64)
    everyone[some] = labels
    np.testing.assert_allclose(few.losses(points), models.losses(points)[some], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(few.gradients(points, labels), models.gradients(points, everyone)[some], rtol=1e-6)
    np.testing.assert_allclose(few.shrunk_minimisers(), models.shrunk_minimisers()[some], rtol=1e-5, atol=1e-6)


def test_shrunk_minimisers_are_those_with_a_ridge() -> None:
    _, models = drawn_models()
    ridge = DIM / 80
    gradients = np.einsum("crs,cs->cr", models.conditioning.hessians, models.shrunk_minimisers()) - models.updates
    np.testing.assert_allclose(gradients, -ridge * models.shrunk_minimisers(), atol=1e-4)


@pytest.mark.parametrize("byzantine", [0.0, 0.1])
@pytest.mark.parametrize("clusters", [1, 2, 3])
def test_refined_centres_near_the_truth_are_those_of_the_oracle(clusters: int, byzantine: float) -> None:
    """Six Byzantine clients ask for a step a hundred times as long in a common direction; those are filtered out."""
    for seed in range(3):
        drawn, models = drawn_models(seed, clusters=clusters, byzantine=byzantine)
        assert drawn.truth is not None
        rng = np.random.default_rng(seed)
        count = int(drawn.truth.is_byzantine.sum())
        if count:
            updates = models.updates.copy()
            updates[drawn.truth.is_byzantine] = 100 * rng.standard_normal(DIM)
            models = LocalModels(models.conditioning, models.clients, updates)
        start = models.conditioning.coordinates.points(drawn.truth.centres)
        near = start + 0.2 * rng.standard_normal(start.shape)
        before = away(drawn, models, near)
        assert before > 0.5
        refined = models.refined(near, count)
        assert adjusted_rand_index(*honest_labels(drawn, models, refined)) == 1.0
        assert away(drawn, models, refined) < (before / 3 if count else 0.01)


@pytest.mark.parametrize("clusters", [2, 3])
@pytest.mark.parametrize("lost", ["a duplicate", "far away"])
def test_an_empty_centre_goes_where_a_cluster_lacks_one(lost: str, clusters: int) -> None:
    for seed in range(3):
        drawn, models = drawn_models(seed, clusters=clusters)
        assert drawn.truth is not None
        start = models.conditioning.coordinates.points(drawn.truth.centres)
        start[1] = start[0] if lost == "a duplicate" else 1e4
        assert len(np.unique(models.losses(start).argmin(axis=1))) < clusters
        refined = models.refined(start, 0)
        assert adjusted_rand_index(*honest_labels(drawn, models, refined)) == 1.0
        assert away(drawn, models, refined) < 0.1


def test_two_equal_centres_between_two_clusters_part() -> None:
    drawn, models = drawn_models()
    start = np.tile(models.conditioning.coordinates.points(pooled(drawn).mean(axis=0)[None]), (2, 1))
    refined = models.refined(start, 0)
    assert adjusted_rand_index(*honest_labels(drawn, models, refined)) == 1.0


def test_copies_of_one_client_are_not_split() -> None:
    """There is nothing to cut in two where all minimisers are equal: the centres stay, and finite."""
    _, models = drawn_models()
    hessians = np.tile(models.conditioning.hessians[:1], (CLIENTS, 1, 1))
    models.conditioning.hessians[:] = hessians
    copies = LocalModels(models.conditioning, models.clients, np.tile(models.updates[:1], (CLIENTS, 1)))
    refined = copies.refined(np.zeros((2, DIM)), 0)
    assert np.isfinite(refined).all()


def test_an_empty_centre_stays_where_no_client_asks_for_another() -> None:
    drawn, models = drawn_models(clusters=1, noise_variance=0.0)
    best = models.conditioning.coordinates.points(pooled(drawn))
    centres = np.concatenate([best + 1e3, best])  # the first is empty, and no client has a regret at the second
    np.testing.assert_allclose(models.refined(centres, 0), centres, rtol=1e-6)


def test_candidates_with_the_same_partition_are_refined_once() -> None:
    drawn, models = drawn_models()
    assert drawn.truth is not None
    first = models.conditioning.coordinates.points(drawn.truth.centres)
    other = np.concatenate([first[:1], first[:1] + 1e3])
    candidates = [first, first[::-1] + 1e-3, other]
    found = models.all_refined(candidates, 0)
    assert len(found) == 2
    np.testing.assert_array_equal(found[0], models.refined(first, 0))
    np.testing.assert_array_equal(found[1], models.refined(other, 0))
