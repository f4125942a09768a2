"""Algorithm 1 and its baselines on small problems with known answers."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from coterie._src import attacks
from coterie._src.aggregators import Aggregator, mean, median, trimmed_mean
from coterie._src.algorithms import Algorithm, ClusteredDescent, LocalMinimisers, Network, Oracle, State, ThreeStage
from coterie._src.algorithms.three_stage import trimmed_kmeans
from coterie._src.client import assign, respond
from coterie._src.data import Clients, Federation, gaussian_means, mixed_regression
from coterie._src.init import warm
from coterie._src.metrics import evaluate, matched_distance
from coterie._src.server import Server
from coterie._src.simulation import SimulatedNetwork, choices, play
from coterie._src.tasks import Task, linear_regression, mean_estimation


def network(task: Task, federation: Federation, attack: attacks.Attack | None = None, seed: int = 0) -> Network:
    assert federation.truth is not None
    return SimulatedNetwork(task, federation.truth.byzantine, attack, np.random.default_rng(seed))


def last(algorithm: Algorithm, clients: Network, start: np.ndarray, seed: int = 0) -> State:
    *_, final = play(algorithm, clients, start, np.random.default_rng(seed))
    return final.state


@pytest.fixture
def easy(rng: np.random.Generator) -> Federation:
    return mixed_regression(rng, clients=40, clusters=2, samples=60, dim=8, byzantine=0.1, dtype=np.float64)


@pytest.fixture
def start(easy: Federation, rng: np.random.Generator) -> np.ndarray:
    assert easy.truth is not None
    return warm(easy.truth, 0.2, rng)


def test_a_centre_that_is_no_number_is_not_at_rest() -> None:
    drawn = mixed_regression(np.random.default_rng(0), clients=12, clusters=2, samples=20, dim=3)
    network = SimulatedNetwork(linear_regression(drawn.clients), np.zeros(12, np.bool_), None, np.random.default_rng(1))
    algorithm = ClusteredDescent(Server(median), rounds=3, size=1e-9, tolerance=1.0)
    for lost in (0, 1):
        start = np.ones((2, 3), dtype=np.float32)
        start[lost] = np.nan
        assert len(list(play(algorithm, network, start, np.random.default_rng(2)))) == 4


def test_a_round_of_ifca_is_the_mean_of_each_cluster_s_gradients(easy: Federation, start: np.ndarray) -> None:
    task = linear_regression(easy.clients)
    algorithm = ClusteredDescent(Server(mean), rounds=3, size=0.1)
    expected = start
    for _ in range(3):
        labels = task.losses(expected).argmin(axis=1)
        gradients = task.gradients(expected, labels)
        expected = np.stack([expected[j] - 0.1 * gradients[labels == j].mean(axis=0) for j in range(2)])
    np.testing.assert_allclose(last(algorithm, network(task, easy), start).centres, expected, rtol=1e-10)


@pytest.mark.parametrize("rule", [median, partial(trimmed_mean, trim=0.25)])
@pytest.mark.parametrize("size", [0.1, None])
def test_algorithm_1_comes_near_the_oracle_under_attack(
    rule: Aggregator, size: float | None, easy: Federation, start: np.ndarray
) -> None:
    assert easy.truth is not None
    task = linear_regression(easy.clients)
    attacked = network(task, easy, attacks.Attack(attacks.paper, attacks.smallest))
    state = last(ClusteredDescent(Server(rule), rounds=150, size=size), attacked, start)
    oracle = last(Oracle(task, easy.truth.labels), attacked, start)
    floor = matched_distance(oracle.centres, easy.truth.centres)
    assert matched_distance(state.centres, easy.truth.centres) < 3 * floor
    assert evaluate(state.centres, choices(task, state), easy.truth)["misclustered"] == 0.0
    # while the mean is thrown off by the same four of forty clients
    ifca = last(ClusteredDescent(Server(mean), rounds=150, size=size), attacked, start)
    assert matched_distance(ifca.centres, easy.truth.centres) > 3 * floor


def test_an_empty_cluster_keeps_its_centre(easy: Federation, start: np.ndarray) -> None:
    far = np.concatenate([start, np.full((1, 8), 1e3)])
    state = last(
        ClusteredDescent(Server(median), rounds=5, size=0.1), network(linear_regression(easy.clients), easy), far
    )
    assert np.array_equal(state.centres[2], far[2])


def test_an_empty_cluster_may_follow_a_random_client(easy: Federation, start: np.ndarray) -> None:
    """One round moves it along the gradient, at its own centre, of some client; not of the same one each time."""
    task = linear_regression(easy.clients)
    far = np.concatenate([start, np.full((2, 8), 1e3)])
    at_far = np.asarray(task.gradients(far, np.full(40, 2)))
    followed = set()
    for seed in range(20):
        algorithm = ClusteredDescent(Server(median), rounds=1, size=0.1, empty="random-client")
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
    byzantine = easy.truth.byzantine
    for rule in (mean, median, partial(trimmed_mean, trim=0.1)):
        algorithm = ClusteredDescent(Server(rule), rounds=20)
        attack = attacks.Attack(attacks.sign_flip, attacks.smallest)
        ours = SimulatedNetwork(task, byzantine, attack, np.random.default_rng(0))
        theirs = SimulatedNetwork(shuffled, byzantine[order], attack, np.random.default_rng(0))
        *_, one = play(algorithm, ours, start, np.random.default_rng(0))
        *_, other = play(algorithm, theirs, start, np.random.default_rng(0))
        np.testing.assert_allclose(other.state.centres, one.state.centres, rtol=1e-8, atol=1e-10)
        assert one.exchange is not None
        assert other.exchange is not None
        assert np.array_equal(other.exchange.labels, one.exchange.labels[order])
        assert np.array_equal(other.exchange.sizes, one.exchange.sizes)


def test_torch_and_numpy_walk_the_same_way(easy: Federation, start: np.ndarray) -> None:
    assert easy.clients.targets is not None
    assert easy.truth is not None
    there = Clients(torch.from_numpy(easy.clients.features), torch.from_numpy(easy.clients.targets), easy.clients.sizes)
    attack = attacks.Attack(attacks.paper)
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
    movements = [r.exchange.movement for r in played[1:] if r.exchange is not None]
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
    state = last(ClusteredDescent(Server(median), rounds=rounds, size=0.2, resample=True), network(task, drawn), start)
    np.testing.assert_allclose(state.centres, expected, rtol=1e-10)
    with pytest.raises(ValueError, match="at least 60 samples"):
        last(ClusteredDescent(Server(median), rounds=30, resample=True), network(task, drawn), start)


def test_byzantine_clients_resample_too(rng: np.random.Generator) -> None:
    drawn = gaussian_means(rng, clients=12, clusters=2, samples=20, dim=3, byzantine=0.25, dtype=np.float64)
    assert drawn.truth is not None
    task, centres = mean_estimation(drawn.clients), drawn.truth.centres
    honest = network(task, drawn).gradients(centres, 1, part=(1, 5))
    unattacked = network(task, drawn, attacks.Attack(attacks.none)).gradients(centres, 1, part=(1, 5))
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


def test_a_round_in_which_nobody_is_heard_is_not_convergence(easy: Federation, start: np.ndarray) -> None:
    task = linear_regression(easy.clients)
    silent = SimulatedNetwork(task, np.ones(40, np.bool_), attacks.Attack(attacks.garbage), np.random.default_rng(0))
    algorithm = ClusteredDescent(Server(median), rounds=5, size=0.1, tolerance=1e-3)
    assert last(algorithm, silent, start).round == 5


def test_trimmed_kmeans_survives_any_finite_point(rng: np.random.Generator) -> None:
    points = np.concatenate([rng.standard_normal((30, 2)), [[1e300, -1e300], [-1e308, 1e308]]])
    centres, labels = trimmed_kmeans(points, 2, trim=0.1, iterations=9, starts=3, rng=rng)
    assert np.isfinite(centres).all()
    assert len(labels) == 32


def test_respond_takes_labels_that_the_server_fixed(easy: Federation, start: np.ndarray) -> None:
    task = linear_regression(easy.clients)
    fixed = np.ones(40, dtype=np.int64)
    found = respond(task, start, fixed)
    assert np.array_equal(found.labels, fixed)
    assert np.array_equal(found.updates, task.gradients(start, fixed))


def test_a_centre_that_ran_away_is_never_chosen() -> None:
    assert assign(np.array([[np.nan, 5.0], [np.inf, 2.0], [np.nan, np.nan]])).tolist() == [1, 1, 0]


# --- Three-Stage and the points of reference ------------------------------------------------------------


def test_trimmed_kmeans_finds_blobs_among_outliers(rng: np.random.Generator) -> None:
    blobs = np.repeat([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]], 20, axis=0)
    points = np.concatenate([blobs + 0.1 * rng.standard_normal(blobs.shape), [[500.0, 500.0], [12.0, 3.0]]])
    # one outlier of the 20 and one is beyond the 95 % quantile of its cluster; the far one needs trimming to be free
    centres, labels = trimmed_kmeans(points, 3, trim=0.05, iterations=50, starts=20, rng=rng)
    assert len({tuple(labels[i * 20 : (i + 1) * 20]) for i in range(3)}) == 3
    assert all(len(set(labels[i * 20 : (i + 1) * 20])) == 1 for i in range(3))
    # standard error of a blob's mean: 0.1/√20 = 0.022 per coordinate
    assert matched_distance(centres, [[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]]) < 0.15


def test_trimmed_kmeans_may_begin_with_given_labels(rng: np.random.Generator) -> None:
    points = np.concatenate([rng.standard_normal((20, 2)), 8 + rng.standard_normal((20, 2)), [[100.0, 100.0]]])
    given = np.array([1] * 20 + [0] * 20 + [-1])  # an outlier without a label
    centres, labels = trimmed_kmeans(points, 2, trim=0.05, iterations=9, starts=1, rng=rng, first=given)
    assert np.array_equal(labels[:40], given[:40])
    assert np.linalg.norm(centres[0] - 8) < 1.5  # five standard errors of a mean of 20


def test_three_stage_recovers_separated_clusters(rng: np.random.Generator) -> None:
    drawn = gaussian_means(rng, clients=60, clusters=3, samples=50, dim=10, byzantine=0.05, dtype=np.float64)
    assert drawn.truth is not None
    task = mean_estimation(drawn.clients)
    descent = ClusteredDescent(Server(partial(trimmed_mean, trim=0.1)), rounds=60)
    clients = network(task, drawn, attacks.Attack(attacks.paper))
    state = last(ThreeStage(descent, trim=0.1), clients, np.zeros((3, 10)))
    oracle = last(Oracle(task, drawn.truth.labels), clients, np.zeros((3, 10)))
    floor = matched_distance(oracle.centres, drawn.truth.centres)
    assert evaluate(state.centres, choices(task, state), drawn.truth)["misclustered"] == 0.0
    assert matched_distance(state.centres, drawn.truth.centres) < 3 * floor


def test_three_stage_without_enough_answers_learns_nothing(easy: Federation, start: np.ndarray) -> None:
    everyone = Federation(easy.clients, easy.truth)
    task = linear_regression(everyone.clients)
    silent = SimulatedNetwork(task, np.ones(40, np.bool_), attacks.Attack(attacks.garbage), np.random.default_rng(0))
    state = last(ThreeStage(ClusteredDescent(Server(median), rounds=3)), silent, start)
    assert np.array_equal(state.centres, start)


def test_oracle_and_local_minimisers(easy: Federation, start: np.ndarray) -> None:
    assert easy.truth is not None
    task = linear_regression(easy.clients)
    clients = network(task, easy)
    pooled = last(Oracle(task, easy.truth.labels), clients, start).centres
    for j in range(2):
        own = easy.clients.pool(np.flatnonzero(easy.truth.labels == j))
        np.testing.assert_allclose(pooled[j], np.linalg.lstsq(own.features, own.targets, rcond=None)[0], rtol=1e-8)
    local = last(LocalMinimisers(task), clients, start)
    assert np.array_equal(local.centres, task.minimisers())
    with pytest.raises(ValueError, match="no rounds"):
        LocalMinimisers(task).step(local, clients, np.random.default_rng(0))
