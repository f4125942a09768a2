"""Seeds, the simulated network, and runs under malformed replies."""

from __future__ import annotations

import numpy as np
import pytest

from coterie._src.aggregators import median
from coterie._src.algorithms import ClusteredDescent
from coterie._src.attacks import Attack, paper
from coterie._src.attacks.payloads import constant, garbage
from coterie._src.client import AssignmentCache
from coterie._src.data import gaussian_means, mixed_regression
from coterie._src.init import bernoulli, warm
from coterie._src.intake import Verdict
from coterie._src.metrics import matched_distance
from coterie._src.server import Server
from coterie._src.simulation import SimulatedNetwork, play, stream
from coterie._src.tasks import linear_regression, mean_estimation


def test_streams_are_repeatable_and_apart() -> None:
    keys = [(seed, trial, purpose) for seed in (0, 1) for trial in (0, 1) for purpose in ("data", "start", "attack")]
    first = {key: stream(*key).integers(2**63) for key in keys}
    assert first == {key: stream(*key).integers(2**63) for key in reversed(keys)}
    assert len(set(first.values())) == len(keys)


@pytest.mark.parametrize("byzantine", [0.05, 0.25, 0.5])
def test_garbage_from_up_to_half_of_the_clients(byzantine: float) -> None:
    """The run ends, every malformed reply is refused, and the answer is that of the honest clients alone."""
    drawn = mixed_regression(np.random.default_rng(1), clients=60, clusters=2, samples=40, dim=6, byzantine=byzantine)
    assert drawn.truth is not None
    is_byzantine = drawn.truth.is_byzantine
    task = linear_regression(drawn.clients)
    start = warm(drawn.truth, 0.2, np.random.default_rng(2)).astype(np.float32)
    algorithm = ClusteredDescent(Server(median), rounds=60)
    network = SimulatedNetwork(task, is_byzantine, Attack(garbage), np.random.default_rng(3))
    played = list(play(algorithm, network, start, np.random.default_rng(4)))
    seen: set[int] = set()
    for _, info in played[1:]:
        assert info is not None
        assert np.all(info.verdicts[is_byzantine] != Verdict.ACCEPTED)
        assert np.all(info.verdicts[~is_byzantine] == Verdict.ACCEPTED)
        seen |= set(info.verdicts[is_byzantine].tolist())
    faults = {Verdict.WRONG_LABEL, Verdict.WRONG_TYPE, Verdict.WRONG_SHAPE, Verdict.NOT_FINITE, Verdict.WRONG_ROUND}
    assert faults <= seen
    alone = drawn.clients.take(np.flatnonzero(~is_byzantine))
    honest = SimulatedNetwork(linear_regression(alone), np.zeros(alone.count, np.bool_), None, np.random.default_rng(5))
    *_, expected = play(algorithm, honest, start, np.random.default_rng(4))
    np.testing.assert_allclose(played[-1].state.centres, expected.state.centres, rtol=1e-5, atol=1e-6)
    assert matched_distance(played[-1].state.centres, drawn.truth.centres) < 0.1


@pytest.mark.parametrize("dim", [12, 40])  # by statistics, and by samples
def test_byzantine_clients_with_a_cache_send_what_others_would(dim: int) -> None:
    drawn = mixed_regression(np.random.default_rng(1), clients=40, clusters=3, samples=30, dim=dim, byzantine=0.3)
    assert drawn.truth is not None
    task, attack = linear_regression(drawn.clients), Attack(paper)
    cached, uncached = (
        SimulatedNetwork(task, drawn.truth.is_byzantine, attack, np.random.default_rng(2), cache=cache)
        for cache in (AssignmentCache(), None)
    )
    centres = bernoulli(3, dim, np.random.default_rng(3)).astype(np.float32)
    algorithm = ClusteredDescent(Server(median, audit=False), rounds=30, step_size=0.05)
    labels = set()
    for state, _ in play(algorithm, cached, centres, np.random.default_rng(4)):
        ours, theirs = (network.gradients(state.centres, state.round) for network in (cached, uncached))
        assert np.array_equal(ours.labels, theirs.labels)
        assert np.array_equal(ours.updates, theirs.updates)
        labels.add(tuple(ours.labels[drawn.truth.is_byzantine]))
    assert cached._byzantine_cache is not None
    assert cached._byzantine_cache.lower_bounds is not None
    assert len(labels) > 1  # they moved


@pytest.mark.parametrize("attack", [Attack(paper), Attack(garbage)])
def test_a_round_asks_a_share_of_the_clients(attack: Attack) -> None:
    drawn = mixed_regression(np.random.default_rng(1), clients=40, clusters=2, samples=40, dim=6, byzantine=0.1)
    assert drawn.truth is not None
    start = warm(drawn.truth, 0.2, np.random.default_rng(2)).astype(np.float32)
    algorithm = ClusteredDescent(Server(median), rounds=40, participation=0.3)
    network = SimulatedNetwork(
        linear_regression(drawn.clients), drawn.truth.is_byzantine, attack, np.random.default_rng(3)
    )
    played = list(play(algorithm, network, start, np.random.default_rng(4)))
    answered = np.zeros(40)
    for _, info in played[1:]:
        assert info is not None
        assert info.asked is not None
        assert len(info.asked) == len(info.verdicts) == len(info.labels) == 12
        whole = info.whole(40)
        asked = whole.verdicts != Verdict.SILENT
        assert np.flatnonzero(asked).tolist() == info.asked.tolist()
        assert (whole.labels[~asked] == -1).all()
        assert whole.labels[asked].tolist() == info.labels.tolist()
        answered += asked
    assert (answered > 0).all()
    assert matched_distance(played[-1].state.centres, drawn.truth.centres) < 0.2
    again = list(play(algorithm, network, start, np.random.default_rng(4)))
    assert [r.info.verdicts.tolist() for r in again[1:3] if r.info] == [
        r.info.verdicts.tolist() for r in played[1:3] if r.info
    ]


def test_who_is_asked_answers_as_always() -> None:
    drawn = mixed_regression(np.random.default_rng(1), clients=20, clusters=2, samples=30, dim=5, byzantine=0.2)
    assert drawn.truth is not None
    network = SimulatedNetwork(
        linear_regression(drawn.clients), drawn.truth.is_byzantine, Attack(paper), np.random.default_rng(3)
    )
    centres = warm(drawn.truth, 0.2, np.random.default_rng(2)).astype(np.float32)
    whole, some = network.gradients(centres, 0), network.gradients(centres, 0, asked=np.array([2, 7, 19]))
    assert some.clients.tolist() == [2, 7, 19]  # type: ignore[union-attr]
    np.testing.assert_allclose(some.updates, whole.updates[[2, 7, 19]], rtol=1e-6)
    assert some.labels.tolist() == whole.labels[[2, 7, 19]].tolist()  # type: ignore[union-attr, call-overload]


def test_a_loss_that_is_infinite_is_the_largest_number_whoever_has_it() -> None:
    drawn = mixed_regression(np.random.default_rng(0), clients=4, clusters=1, samples=5, dim=3)
    network = SimulatedNetwork(linear_regression(drawn.clients), np.zeros(4, bool), None, np.random.default_rng(0))
    centres = np.array([[1e30] * 3, [0.0] * 3], dtype=np.float32)
    with np.errstate(over="ignore"):
        found = np.asarray(network.losses(centres).updates)
    assert np.all(found[:, 0] == np.finfo(np.float32).max)
    assert np.all(found[:, 1] < 100)


def test_an_attack_does_not_write_into_what_a_task_keeps() -> None:
    drawn = gaussian_means(0, clients=20, clusters=2, samples=10, dim=3, byzantine=0.2)
    task = mean_estimation(drawn.clients)
    before = np.array(task.minimisers())
    network = SimulatedNetwork(task, drawn.is_byzantine, Attack(constant, scale=9.0), np.random.default_rng(0))
    replies = network.minimisers(np.zeros((1, 3), dtype=np.float32), 0.0)
    assert np.all(np.asarray(replies.updates)[drawn.is_byzantine] == 9.0)
    assert np.array_equal(np.asarray(replies.updates)[~drawn.is_byzantine], before[~drawn.is_byzantine])
    assert np.array_equal(task.minimisers(), before)
    sizes = drawn.clients.sizes.copy()
    network.sizes()
    assert np.array_equal(drawn.clients.sizes, sizes)


@pytest.mark.parametrize("t", [0, 1, 2])
def test_every_question_about_a_round_is_answered_on_its_own_samples(t: int, rng: np.random.Generator) -> None:
    """Round t of 3 chooses on part 2t of 6 and computes on part 2t + 1 (Section 5), and so do starts that ask."""
    clients = mixed_regression(rng, clients=4, clusters=2, samples=36, dim=3, byzantine=0.0, dtype=np.float64).clients
    task = linear_regression(clients, "direct")
    network = SimulatedNetwork(task, np.zeros(4, np.bool_), None, rng)
    choosing, computing = (task.on(clients.part(2 * t + half, 6)) for half in (0, 1))
    centres, like = rng.standard_normal((2, 3)), np.zeros((1, 3))
    for found, expected in (
        (network.losses(centres, (t, 3)), choosing.losses(centres)),
        (network.losses(centres, (t, 3), computing=True), computing.losses(centres)),
        (network.losses(centres), task.losses(centres)),
        (network.minimisers(like, 0.1, (t, 3)), computing.minimisers(0.1)),
        (network.minimisers(like, 0.1), task.minimisers(0.1)),
        (network.curvatures(3), task.on(clients.part(1, 6)).curvatures()),
        (network.curvatures(), task.curvatures()),
    ):
        np.testing.assert_array_equal(found.updates, expected)
