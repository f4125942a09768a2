"""Algorithm 1 on small problems with known answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie._src.aggregators import Aggregator, TrimmedMean, mean, median
from coterie._src.algorithms import ClusteredDescent, Oracle, ThreeStage
from coterie._src.attacks import Attack, data_poisoning, paper, sign_flip, smallest
from coterie._src.attacks.payloads import garbage
from coterie._src.client import assign, respond
from coterie._src.data import Clients, Federation, gaussian_means, mixed_regression
from coterie._src.init import warm
from coterie._src.metrics import evaluate, matched_distance
from coterie._src.server import Server
from coterie._src.simulation import SimulatedNetwork, choices, play
from coterie._src.tasks import linear_regression, mean_estimation
from playing import last, network


def test_a_centre_that_is_no_number_is_not_at_rest() -> None:
    drawn = mixed_regression(np.random.default_rng(0), clients=12, clusters=2, samples=20, dim=3)
    network = SimulatedNetwork(linear_regression(drawn.clients), np.zeros(12, np.bool_), None, np.random.default_rng(1))
    algorithm = ClusteredDescent(Server(median), rounds=3, step_size=1e-9, tolerance=1.0)
    for lost in (0, 1):
        start = np.ones((2, 3), dtype=np.float32)
        start[lost] = np.nan
        assert len(list(play(algorithm, network, start, np.random.default_rng(2)))) == 4


def test_a_round_of_ifca_is_the_mean_of_each_cluster_s_gradients(easy: Federation, start: np.ndarray) -> None:
    task = linear_regression(easy.clients)
    algorithm = ClusteredDescent(Server(mean), rounds=3, step_size=0.1)
    expected = start
    for _ in range(3):
        labels = task.losses(expected).argmin(axis=1)
        gradients = task.gradients(expected, labels)
        expected = np.stack([expected[j] - 0.1 * gradients[labels == j].mean(axis=0) for j in range(2)])
    np.testing.assert_allclose(last(algorithm, network(task, easy), start).centres, expected, rtol=1e-10)


@pytest.mark.parametrize("rule", [median, TrimmedMean(0.25)])
@pytest.mark.parametrize("step_size", [0.1, None])
def test_algorithm_1_comes_near_the_oracle_under_attack(
    rule: Aggregator, step_size: float | None, easy: Federation, start: np.ndarray
) -> None:
    assert easy.truth is not None
    task = linear_regression(easy.clients)
    attacked = network(task, easy, Attack(paper, smallest))
    state = last(ClusteredDescent(Server(rule), rounds=150, step_size=step_size), attacked, start)
    oracle = last(Oracle(task, easy.truth.labels), attacked, start)
    floor = matched_distance(oracle.centres, easy.truth.centres)
    assert matched_distance(state.centres, easy.truth.centres) < 3 * floor
    assert evaluate(state.centres, choices(task, state), easy.truth)["misclustered"] == 0.0
    # while the mean is thrown off by the same four of forty clients
    ifca = last(ClusteredDescent(Server(mean), rounds=150, step_size=step_size), attacked, start)
    assert matched_distance(ifca.centres, easy.truth.centres) > 3 * floor


def test_an_empty_cluster_keeps_its_centre(easy: Federation, start: np.ndarray) -> None:
    far = np.concatenate([start, np.full((1, 8), 1e3)])
    state = last(
        ClusteredDescent(Server(median), rounds=5, step_size=0.1), network(linear_regression(easy.clients), easy), far
    )
    assert np.array_equal(state.centres[2], far[2])


def test_an_empty_cluster_may_follow_a_random_client(easy: Federation, start: np.ndarray) -> None:
    """One round moves it along the gradient, at its own centre, of some client; not of the same one each time."""
    task = linear_regression(easy.clients)
    far = np.concatenate([start, np.full((2, 8), 1e3)])
    at_far = np.asarray(task.gradients(far, np.full(40, 2)))
    followed = set()
    for seed in range(20):
        algorithm = ClusteredDescent(Server(median), rounds=1, step_size=0.1, empty="random-client")
        *_, played = play(algorithm, network(task, easy), far, np.random.default_rng(seed))
        for centre in played.state.centres[2:]:
            fits = np.isclose(far[2] - 0.1 * at_far, centre, rtol=1e-4).all(axis=1)
            followed.add(int(np.flatnonzero(fits)[0]))
    assert len(followed) > 10


def test_the_order_of_the_clients_is_no_matter(easy: Federation, start: np.ndarray, rng: np.random.Generator) -> None:
    order = rng.permutation(40)
    shuffled = linear_regression(easy.clients.take(order))
    task = linear_regression(easy.clients)
    assert easy.truth is not None
    is_byzantine = easy.truth.is_byzantine
    for rule in (mean, median, TrimmedMean(0.1)):
        algorithm = ClusteredDescent(Server(rule), rounds=20)
        attack = Attack(sign_flip, smallest)
        ours = SimulatedNetwork(task, is_byzantine, attack, np.random.default_rng(0))
        theirs = SimulatedNetwork(shuffled, is_byzantine[order], attack, np.random.default_rng(0))
        *_, one = play(algorithm, ours, start, np.random.default_rng(0))
        *_, other = play(algorithm, theirs, start, np.random.default_rng(0))
        np.testing.assert_allclose(other.state.centres, one.state.centres, rtol=1e-8, atol=1e-10)
        assert one.info is not None
        assert other.info is not None
        assert np.array_equal(other.info.labels, one.info.labels[order])
        assert np.array_equal(other.info.sizes, one.info.sizes)


def test_torch_and_numpy_walk_the_same_way(easy: Federation, start: np.ndarray) -> None:
    assert easy.clients.targets is not None
    assert easy.truth is not None
    there = Clients(torch.from_numpy(easy.clients.features), torch.from_numpy(easy.clients.targets), easy.clients.sizes)
    attack = Attack(paper)
    for form in ("direct", "gram"):
        ours = network(linear_regression(easy.clients, form), easy, attack)
        theirs = network(linear_regression(there, form), easy, attack)
        descent = ClusteredDescent(Server(median), rounds=30)
        for algorithm in (descent, ThreeStage(descent)):
            state = last(algorithm, theirs, torch.from_numpy(start))
            assert isinstance(state.centres, torch.Tensor)
            np.testing.assert_allclose(state.centres, last(algorithm, ours, start).centres, rtol=1e-6, atol=1e-8)


def test_unequal_sample_counts(rng: np.random.Generator) -> None:
    drawn = mixed_regression(rng, clients=40, clusters=2, samples=range(20, 90), dim=8, dtype=np.float64)
    assert drawn.truth is not None
    task = linear_regression(drawn.clients)
    state = last(ClusteredDescent(Server(median), rounds=150), network(task, drawn), warm(drawn.truth, 0.2, rng))
    assert matched_distance(state.centres, drawn.truth.centres) < 0.1


def test_it_stops_at_the_tolerance(easy: Federation, start: np.ndarray) -> None:
    task = linear_regression(easy.clients)
    played = list(play(ClusteredDescent(Server(median), rounds=500, tolerance=1e-6), network(task, easy), start,
                       np.random.default_rng(0)))  # fmt: skip
    movements = [r.info.movement for r in played[1:] if r.info is not None]
    assert len(movements) < 500
    assert movements[-1] <= 1e-6 < movements[-2]


def test_resampling_uses_every_part_once(rng: np.random.Generator) -> None:
    """Round t of T chooses on part 2t and computes on part 2t + 1 of 2T."""
    rounds = 4
    drawn = gaussian_means(rng, clients=12, clusters=2, samples=range(9, 30), dim=3, byzantine=0.0, dtype=np.float64)
    assert drawn.truth is not None
    task = mean_estimation(drawn.clients)
    start = warm(drawn.truth, 0.2, rng)
    expected = start
    for t in range(rounds):
        choose, compute = (mean_estimation(drawn.clients.part(2 * t + i, 2 * rounds)) for i in (0, 1))
        labels = assign(choose.losses(expected))
        gradients = compute.gradients(expected, labels)
        expected = np.stack([expected[j] - 0.2 * np.median(gradients[labels == j], axis=0) for j in range(2)])
    state = last(
        ClusteredDescent(Server(median), rounds=rounds, step_size=0.2, resample=True), network(task, drawn), start
    )
    np.testing.assert_allclose(state.centres, expected, rtol=1e-10)
    with pytest.raises(ValueError, match="at least 60 samples"):
        last(ClusteredDescent(Server(median), rounds=30, resample=True), network(task, drawn), start)


def test_byzantine_clients_resample_too(rng: np.random.Generator) -> None:
    drawn = gaussian_means(rng, clients=12, clusters=2, samples=20, dim=3, byzantine=0.25, dtype=np.float64)
    assert drawn.truth is not None
    task, centres = mean_estimation(drawn.clients), drawn.truth.centres
    honest = network(task, drawn).gradients(centres, 1, part=(1, 5))
    unattacked = network(task, drawn, Attack(data_poisoning)).gradients(centres, 1, part=(1, 5))
    np.testing.assert_allclose(unattacked.updates, honest.updates, rtol=1e-12)


def test_the_automatic_step_of_resampling_knows_that_a_round_has_few_samples(rng: np.random.Generator) -> None:
    drawn = mixed_regression(rng, clients=20, clusters=1, samples=80, dim=30, byzantine=0.0, dtype=np.float64)
    assert drawn.truth is not None
    clients = network(linear_regression(drawn.clients), drawn)
    algorithm = ClusteredDescent(Server(mean), rounds=20, resample=True)
    state = last(algorithm, clients, np.zeros((1, 30)))
    assert matched_distance(state.centres, drawn.truth.centres) < 1.0  # where it began


def test_a_start_of_another_dtype_is_answered_in_kind(easy: Federation, start: np.ndarray) -> None:
    assert easy.truth is not None
    descent = ClusteredDescent(Server(median), rounds=40)
    for algorithm in (descent, ThreeStage(descent)):
        state = last(algorithm, network(linear_regression(easy.clients), easy), start.astype(np.float32))
        assert state.centres.dtype == np.float32
        assert matched_distance(state.centres, easy.truth.centres) < 0.2


def test_a_round_in_which_nobody_answers_is_not_convergence(easy: Federation, start: np.ndarray) -> None:
    task = linear_regression(easy.clients)
    silent = SimulatedNetwork(task, np.ones(40, np.bool_), Attack(garbage), np.random.default_rng(0))
    algorithm = ClusteredDescent(Server(median), rounds=5, step_size=0.1, tolerance=1e-3)
    assert last(algorithm, silent, start).round == 5


def test_respond_takes_labels_that_the_server_fixed(easy: Federation, start: np.ndarray) -> None:
    task = linear_regression(easy.clients)
    fixed = np.ones(40, dtype=np.int64)
    found = respond(task, start, fixed)
    assert np.array_equal(found.labels, fixed)
    assert np.array_equal(found.updates, task.gradients(start, fixed))


def test_a_centre_that_diverged_is_never_chosen() -> None:
    assert assign(np.array([[np.nan, 5.0], [np.inf, 2.0], [np.nan, np.nan]])).tolist() == [1, 1, 0]


def test_known_labels_stay_and_who_has_none_counts_nowhere(easy: Federation, start: np.ndarray) -> None:
    assert easy.truth is not None
    task, labels = linear_regression(easy.clients), easy.truth.labels
    algorithm = ClusteredDescent(Server(mean), rounds=2, step_size=0.1, labels=labels)
    expected = start
    for _ in range(2):
        gradients = task.gradients(expected, np.maximum(labels, 0))
        expected = np.stack([expected[j] - 0.1 * gradients[labels == j].mean(axis=0) for j in range(2)])
    attacked = network(task, easy, Attack(sign_flip))
    *_, played = play(algorithm, attacked, start, np.random.default_rng(0))
    np.testing.assert_allclose(played.state.centres, expected, rtol=1e-10)
    assert np.array_equal(choices(task, played.state), labels)
    assert played.info is not None
    assert np.array_equal(played.info.labels, labels)
