"""Starts from a sample of the clients: how many of it may be Byzantine, and what the sample is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import hypergeom

import coterie as ct
from coterie._src.arrays import as_numpy
from coterie._src.attacks import Attack, paper
from coterie._src.data import mixed_regression
from coterie._src.experiments import method_setting
from coterie._src.init import conditioning, sampling
from coterie._src.init.sampling import UNLIKELY, byzantine_among, draw_sample
from coterie._src.intake import own_numbers
from coterie._src.network import SomeClients
from coterie._src.packed import unpacked
from coterie._src.simulation import SimulatedNetwork
from coterie._src.tasks import linear_regression


@pytest.mark.parametrize("clients", [9_000, 100_000, 10_000_000])
@pytest.mark.parametrize("share", [0.0001, 0.01, 0.05, 0.3])
@pytest.mark.parametrize("drawn", [200, 8192])
def test_the_bound_of_a_sample_holds_but_for_one_in_a_million(clients: int, share: float, drawn: int) -> None:
    """Against the exact hypergeometric tail, of which the bound is at most a fifth above the quantile."""
    byzantine = round(share * clients)
    found = byzantine_among(drawn, byzantine, clients)
    exact = hypergeom(clients, byzantine, drawn)
    assert exact.sf(found) <= UNLIKELY
    quantile = int(exact.isf(UNLIKELY))
    assert found <= quantile + 3 + 0.2 * (quantile - share * drawn)


def test_the_bound_of_a_sample_is_below_half_and_no_more_than_there_are() -> None:
    assert byzantine_among(100, 450, 1000) == 49
    assert byzantine_among(100, 2, 1000) == 2
    assert byzantine_among(100, 0, 1000) == 0


def network_of(clients: int, **options: Any) -> tuple[SimulatedNetwork, Any]:
    drawn = mixed_regression(0, clients=clients, clusters=3, samples=20, dim=8, byzantine=0.05, **options)
    task = linear_regression(drawn.clients)
    return SimulatedNetwork(task, drawn.is_byzantine, Attack(paper), np.random.default_rng(0)), drawn


def test_some_clients_answer_as_they_would_among_all() -> None:
    network, _ = network_of(60)
    clients = np.array([3, 4, 17, 55, 58, 59])  # 57 to 59 are Byzantine
    some, centres = SomeClients(network, clients), np.eye(3, 8, dtype=np.float32)
    labels = np.array([0, 1, 2, 0, 1, 2])
    everywhere = np.zeros(60, dtype=np.int64)
    everywhere[clients] = labels
    pairs = [
        (some.sizes(), network.sizes()),
        (some.losses(centres), network.losses(centres)),
        (some.losses(centres, (0, 1), True), network.losses(centres, (0, 1), True)),
        (some.curvatures(), network.curvatures()),
        (some.minimisers(centres, 0.0), network.minimisers(centres, 0.0)),
        (some.hessians(centres, labels), network.hessians(centres, everywhere)),
        (some.gradients(centres, 0), network.gradients(centres, 0)),
        (some.gradients(centres, 0, labels), network.gradients(centres, 0, everywhere)),
    ]
    honest = np.flatnonzero(clients < 57)
    for own, whole in pairs:
        assert own.clients.tolist() == list(range(6))
        np.testing.assert_allclose(
            as_numpy(own.updates)[honest], as_numpy(whole.updates)[clients[honest]], rtol=2e-5, atol=1e-6
        )
        assert np.array_equal(np.asarray(own.labels)[honest], np.asarray(whole.labels)[clients[honest]])
    assert some.losses(centres, asked=np.array([2, 5])).clients.tolist() == [2, 5]
    two = some.hessians(centres, labels[[1, 2]], np.array([1, 2]))
    assert two.clients.tolist() == [1, 2]
    np.testing.assert_allclose(two.updates, some.hessians(centres, labels).updates[[1, 2]])


def test_senders_that_are_none_of_the_clients_are_unknown() -> None:
    clients = np.array([2, 5, 9])
    assert own_numbers(np.array([9, 2, 3, -1, 2**62]), clients).tolist() == [2, 0, -1, -1, -1]
    assert own_numbers([5, True, 2.0, "9", 10**40, None], clients).tolist() == [1, -1, -1, -1, -1, -1]


def test_few_clients_are_all_asked() -> None:
    network, _ = network_of(60)
    rng = np.random.default_rng(0)
    sample = draw_sample(network, 3, rng)
    assert sample.network is network
    assert (sample.clients, sample.byzantine) == (None, 3)
    assert rng.random() == np.random.default_rng(0).random()


@pytest.fixture
def small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sampling, conditioning, method_setting):
        monkeypatch.setattr(module, "SAMPLE", 300)


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize(
    ("numbers", "bound", "clusters"), [(1 << 25, 0.05, "auto"), (300 * 64, 0.05, "auto"), (300 * 64, "auto", 3)]
)
def test_a_start_from_a_sample_leads_to_the_same_end(
    numbers: int, bound: Any, clusters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether all clients are asked for Hessians, or the sample alone."""
    for module in ("algorithms.descent", "experiments.method_setting"):
        monkeypatch.setattr(f"coterie._src.{module}.MAX_NUMBERS", numbers)
    counts: list[int] = []
    hessians = SimulatedNetwork.hessians

    def counting(self: SimulatedNetwork, centres: Any, labels: Any, asked: Any = None) -> Any:
        counts.append(self.count if asked is None else len(asked))
        return hessians(self, centres, labels, asked)

    monkeypatch.setattr(SimulatedNetwork, "hessians", counting)
    federation = ct.mixed_regression(1, clients=1500, clusters=3, samples=30, dim=8, byzantine=0.05)
    found = ct.fit(federation, clusters=clusters, max_byzantine=bound, attack=ct.attack("paper"))
    assert found.metrics["clusters"] == 3
    assert found.metrics["ari"] > 0.95
    assert int(found.rounds[-1]["round"]) <= 12  # as with the Hessians of all: the filter sees white noise
    assert found.metrics["oracle_ratio"] < 1.05
    assert max(counts) == (1500 if numbers == 1 << 25 else 300)


def test_mean_hessians_of_all_clients_are_those_of_the_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked in blocks of 20: the weighted means, in which hardly anything is left of a tenth that are far too large.

    These are neighbours, so that blocks in the order of the clients would consist of them alone.
    """
    monkeypatch.setattr(conditioning, "SAMPLE", 20)
    network, _ = network_of(200)
    hessians = SimulatedNetwork.hessians

    def inflated(self: SimulatedNetwork, centres: Any, labels: Any, asked: Any = None) -> Any:
        replies = hessians(self, centres, labels, asked)
        return replace(replies, updates=replies.updates * np.where(replies.clients < 180, 1.0, 20.0)[:, None])

    monkeypatch.setattr(SimulatedNetwork, "hessians", inflated)
    centres, labels = np.zeros((4, 8), dtype=np.float32), np.arange(200) % 3
    labels[::7] = -1
    sample = conditioning.ask_conditioning(network, centres, None, np.full(200, 20.0), 20)
    assert sample is not None
    found = sample.of_everyone(network, centres, labels, np.random.default_rng(0))
    assert found.means is not None
    assert found.means.shape == (4, 8, 8)
    assert found.leverages_of(np.arange(180, 200)).max() < 0.05
    assert np.median(found.leverages) == 1.0
    basis = sample.coordinates.basis
    rows = as_numpy(network.hessians(centres, np.zeros(200, dtype=np.int64)).updates)
    own = np.einsum("dr,cde,es->crs", basis, unpacked(rows, 8), basis)
    for j in range(3):
        expected = np.average(own[labels == j], axis=0, weights=found.leverages[labels == j])
        np.testing.assert_allclose(found.means[j], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.means[3], np.eye(8))  # a cluster of nobody
    maps = found.newton(np.arange(200), np.maximum(labels, 0), 4, found.leverages)
    assert maps.own is None
    np.testing.assert_allclose(np.linalg.inv(maps.roots[0].T @ maps.roots[0]), found.means[0], rtol=0.1, atol=0.02)
