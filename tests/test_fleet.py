"""Clients of different speeds: who counts in which round, how much, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie._src.aggregators import Mean, Median, SpectralFilter
from coterie._src.algorithms import ClusteredDescent
from coterie._src.attacks import Attack, paper, payloads
from coterie._src.data import gaussian_means, mixed_regression
from coterie._src.fleet import Fleet
from coterie._src.intake import Replies, Verdict, admit
from coterie._src.server import Server
from coterie._src.simulation import SimulatedNetwork, play
from coterie._src.tasks import linear_regression, mean_estimation


def simulated(seed: int = 0, clients: int = 20, attack: Attack | None = None) -> tuple[SimulatedNetwork, np.ndarray]:
    drawn = mixed_regression(seed, clients=clients, clusters=2, samples=40, dim=6, byzantine=0.2)
    assert drawn.truth is not None
    network = SimulatedNetwork(linear_regression(drawn.clients), drawn.is_byzantine, attack, np.random.default_rng(1))
    return network, (drawn.truth.centres + 0.2).astype(np.float32)


def centres_of(network: Any, start: np.ndarray, descent: ClusteredDescent) -> np.ndarray:
    *_, last = play(descent, network, start, np.random.default_rng(2))
    found: np.ndarray = last.state.centres
    return found


@pytest.mark.parametrize("payload", [None, paper, payloads.garbage])
def test_a_fleet_that_is_awaited_is_the_network_itself(payload: Any) -> None:
    """And its round takes as long as the slowest client, whatever the Byzantine ones send."""
    attack = None if payload is None else Attack(payload)
    descent = ClusteredDescent(Server(SpectralFilter(0.3)), rounds=5)
    network, start = simulated(attack=attack)
    expected = centres_of(network, start, descent)
    network, start = simulated(attack=attack)
    fleet = Fleet(network, np.linspace(1.0, 100.0, 20), wait_for=20)
    assert centres_of(fleet, start, replace(descent, max_age=7)).tobytes() == expected.tobytes()
    assert fleet.schedule.clock == 500.0


def rounds_of(fleet: Fleet, rounds: int) -> list[tuple[float, list[tuple[int, int]]]]:
    """Per round the clock, and the clients that count with the rounds that they answer."""
    found = []
    for round in range(rounds):
        replies = fleet.gradients(np.full((1, 2), float(round)), round)
        pairs = zip(replies.clients, replies.rounds, strict=True)
        found.append((fleet.schedule.clock, [(int(client), int(answered)) for client, answered in pairs]))
        for answered, update in zip(replies.rounds, replies.updates, strict=True):
            assert (update == 2 * answered).all(), "of the centres of the round that it answers"
    return found


def three_clients() -> SimulatedNetwork:
    """Whose updates are twice the centres."""
    drawn = gaussian_means(0, clients=3, clusters=1, samples=1, dim=2, byzantine=0.0)
    clients = replace(drawn.clients, features=np.zeros_like(drawn.clients.features, dtype=np.float64))
    return SimulatedNetwork(mean_estimation(clients), np.zeros(3, dtype=bool), None, np.random.default_rng(0))


def test_by_hand() -> None:
    """Clients that take 1, 2 and 5 seconds."""
    seconds = np.array([1.0, 2.0, 5.0])
    one = rounds_of(Fleet(three_clients(), seconds, wait_for=1), 6)
    assert one == [
        (1.0, [(0, 0)]), (2.0, [(0, 1), (1, 0)]), (3.0, [(0, 2)]), (4.0, [(0, 3), (1, 2)]), (5.0, [(0, 4), (2, 0)]),
        (6.0, [(0, 5), (1, 4)]),
    ]  # fmt: skip
    two = rounds_of(Fleet(three_clients(), seconds, wait_for=2), 3)
    assert two == [(2.0, [(0, 0), (1, 0)]), (4.0, [(0, 1), (1, 1)]), (5.0, [(0, 2), (2, 0)])]
    latest = rounds_of(Fleet(three_clients(), seconds, wait_for=1, latest=True), 5)
    assert [counted for _, counted in latest] == [
        [(0, 0)], [(0, 1), (1, 0)], [(0, 2), (1, 0)], [(0, 3), (1, 2)], [(0, 4), (1, 2), (2, 0)],
    ]  # fmt: skip


def test_ages() -> None:
    like, updates = np.zeros((1, 2)), np.ones((6, 2))
    rounds: list[Any] = [9, 7, 6, 10, -1, 2**70]
    replies = Replies(list(range(6)), rounds, [0] * 6, list(updates))
    accepted = admit(replies, clients=6, clusters=1, round=9, like=like, max_age=2)
    assert accepted.verdicts.tolist() == [0, 0, *[Verdict.WRONG_ROUND] * 4]
    assert accepted.ages is not None
    assert accepted.ages.tolist() == [0, 2]
    arrays = Replies(np.arange(5), np.array(rounds[:5]), np.zeros(5, np.int64), updates[:5])
    assert admit(arrays, clients=5, clusters=1, round=9, like=like, max_age=2).verdicts.tolist() == [0, 0, 5 - 2, 3, 3]
    assert admit(replies, clients=6, clusters=1, round=9, like=like).verdicts.tolist() == [0, *[3] * 5]
    assert admit(replies, clients=6, clusters=1, round=9, like=like).ages is None


def test_a_late_reply_counts_less_in_a_rule_with_weights() -> None:
    """θ ← θ − γ Σ w_i g_i/Σ w_i, with w = 1/√(1 + age); of the median, the replies count the same."""
    for rule, weights in ((Mean(), [1.0, 1 / np.sqrt(4.0)]), (Median(), [1.0, 1.0])):
        descent = ClusteredDescent(Server(rule), rounds=9, step_size=0.1, max_age=3)
        network = Fleet(three_clients(), np.array([1.0, 50.0, 4.0]), wait_for=1)
        states = [
            finished.state.centres for finished in play(descent, network, np.ones((1, 2)), np.random.default_rng(0))
        ]
        before, gradients = states[3], np.array([states[3][0], states[0][0]])
        expected = before[0] - 0.2 * np.average(gradients, axis=0, weights=weights)
        np.testing.assert_allclose(states[4][0], expected, rtol=1e-12)


def test_mistakes() -> None:
    network = three_clients()
    with pytest.raises(ValueError, match="seconds must be 3 positive numbers"):
        Fleet(network, np.array([1.0, 0.0, 2.0]), 1)
    with pytest.raises(ValueError, match="wait_for must be from 1 to 3, got 4"):
        Fleet(network, np.ones(3), 4)
    with pytest.raises(ValueError, match="max_age must be at least 0"):
        ClusteredDescent(Server(Median()), max_age=-1)
    with pytest.raises(ValueError, match="0 where conditioned"):
        ClusteredDescent(Server(Median()), max_age=1, conditioned="constant")
