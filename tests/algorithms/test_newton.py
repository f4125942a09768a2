"""One Newton step by hand: where it leads, what it remembers, and when it is not taken."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coterie._src.aggregators import Mean, SpectralFilter, median
from coterie._src.algorithms.base import State
from coterie._src.algorithms.newton import SHARE, newton_step
from coterie._src.data import Clients
from coterie._src.init.conditioning import ask_conditioning, ask_sizes
from coterie._src.intake import Accepted
from coterie._src.projections import Box
from coterie._src.server import Server
from coterie._src.simulation import SimulatedNetwork
from coterie._src.tasks import linear_regression

ENDS = np.array([[1.0, -2.0, 3.0], [-4.0, 0.5, 2.0]])
LABELS = np.array([0, 1] * 6)


def problem(seed: int = 0) -> tuple[SimulatedNetwork, State]:
    """Twelve clients with the same features and no noise, of two clusters, and a state at 0 with coordinates."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((30, 3)) @ np.array([[3.0, 0, 0], [1, 0.2, 0], [0, 1, 1]])
    clients = Clients(np.tile(x, (12, 1)), (ENDS[LABELS] @ x.T).ravel(), np.full(12, 30))
    network = SimulatedNetwork(linear_regression(clients), np.zeros(12, np.bool_), None, rng)
    centres = np.zeros((2, 3))
    return network, State(0, centres, conditioning=ask_conditioning(network, centres[:1], None, ask_sizes(network), 0))


def replies(network: SimulatedNetwork, state: State, labels: np.ndarray = LABELS) -> Accepted:
    updates = network.task.gradients(state.centres, labels)
    return Accepted(np.arange(12), labels, updates, np.zeros(12, np.int64))


def test_a_step_is_a_share_of_the_way_to_the_minimiser_of_each_cluster() -> None:
    network, state = problem()
    accepted = replies(network, state)
    step, _, rows = newton_step(Server(median), state, accepted, 1.0)
    np.testing.assert_allclose(step.centres, ENDS, rtol=0.02)  # a little less: the Hessians are shrunk
    shorter, *_ = newton_step(Server(median), state, accepted, 0.25)
    np.testing.assert_allclose(shorter.centres, 0.25 * step.centres, rtol=1e-9)
    np.testing.assert_allclose(shorter.moves, 0.25 * step.moves, rtol=1e-9)
    assert step.sizes.tolist() == [6, 6]
    assert not step.rejected.any()
    assert rows.shape == (12, 3)
    elsewhere = state._replace(centres=ENDS[::-1].copy())
    after, *_ = newton_step(Server(median), elsewhere, replies(network, elsewhere), 0.5)
    np.testing.assert_allclose(after.centres, (ENDS + ENDS[::-1]) / 2, rtol=0.02, atol=0.03)


def test_replies_three_times_as_steep_do_not_diverge() -> None:
    """The share is chosen for them: the way changes by a factor of 1 − 3·share, which is above −1."""
    network, state = problem()
    assert abs(1 - 3 * SHARE) < 1
    assert SHARE > 0.5  # and honest ways are more than halved
    for _ in range(20):
        accepted = replies(network, state)
        step, _, _ = newton_step(Server(median), state, accepted._replace(updates=3 * accepted.updates), SHARE)
        state = state._replace(centres=step.centres)
    np.testing.assert_allclose(state.centres, ENDS, atol=0.2)


@pytest.mark.parametrize("longest", [0.5, 1e3, math.inf])
def test_no_step_is_longer_than_the_longest(longest: float) -> None:
    """In the coordinates of the federation, per cluster; shorter ones are taken whole."""
    network, state = problem()
    assert state.conditioning is not None
    whole, *_ = newton_step(Server(median), state, replies(network, state), 1.0)
    step, *_ = newton_step(Server(median), state, replies(network, state), 1.0, longest)
    lengths = [np.linalg.norm(state.conditioning.coordinates.points(one.centres), axis=1) for one in (whole, step)]
    np.testing.assert_allclose(lengths[1], np.minimum(lengths[0], longest), rtol=1e-6)
    cosines = (whole.centres * step.centres).sum(axis=1) / np.linalg.norm(whole.centres, axis=1)
    np.testing.assert_allclose(cosines, np.linalg.norm(step.centres, axis=1), rtol=1e-9)


def test_the_maps_of_the_last_round_serve_only_the_same_clients_and_labels() -> None:
    network, state = problem()
    accepted = replies(network, state)
    expected, newton, _ = newton_step(Server(median), state, accepted, 1.0)
    again, same, _ = newton_step(Server(median), state._replace(newton=newton), accepted, 1.0)
    assert same is newton
    np.testing.assert_array_equal(again.centres, expected.centres)
    swapped = replies(network, state, 1 - LABELS)
    fresh, *_ = newton_step(Server(median), state, swapped, 1.0)
    stale, other, _ = newton_step(Server(median), state._replace(newton=newton), swapped, 1.0)
    assert other is not newton
    np.testing.assert_array_equal(stale.centres, fresh.centres)
    few = Accepted(accepted.clients[2:], accepted.labels[2:], accepted.updates[2:], accepted.verdicts)
    _, other, rows = newton_step(Server(median), state._replace(newton=newton), few, 1.0)
    assert other is not newton
    assert len(rows) == 10


def test_clients_count_by_their_weights() -> None:
    """With a mean of two groups of clients, the step is that of the weighted mean of their updates."""
    network, state = problem()
    labels = np.zeros(12, np.int64)
    state = state._replace(centres=np.zeros((1, 3)))
    accepted = replies(network, state, labels)
    for heavy in (1.0, 3.0):
        weights = np.where(LABELS == 0, heavy, 1.0) / heavy
        step, *_ = newton_step(Server(Mean()), state._replace(weights=weights), accepted, 1.0)
        expected = (heavy * ENDS[0] + ENDS[1]) / (heavy + 1)
        np.testing.assert_allclose(step.centres, [expected], rtol=0.03, atol=0.05)


def test_a_projection_and_the_audit_are_the_server_s() -> None:
    network, state = problem()
    accepted = replies(network, state)
    step, _, _ = newton_step(Server(median, Box(0.75), trim=0.25), state, accepted, 1.0)
    assert np.abs(step.centres).max() == 0.75
    assert step.trimmed is not None
    assert step.trimmed.shape == (12,)
    assert newton_step(Server(median, audit=False), state, accepted, 1.0)[0].trimmed is None
    shifted = accepted._replace(updates=accepted.updates + 1e-3 * np.arange(12)[:, None])
    step, _, _ = newton_step(Server(median, trim=0.25), state, shifted, 1.0)
    assert step.trimmed is not None
    assert set(np.flatnonzero(step.trimmed == 1.0)) >= {0, 1, 10, 11}


def test_rows_that_the_rule_leaves_out_are_still_audited() -> None:
    """Where the clients' Hessians differ, the step is that of the kept rows; the audit and the errors are of all."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 60, 10)) + 2 * rng.standard_normal((20, 1, 10))
    y = x @ np.ones(10) + rng.standard_normal((20, 60))
    network = SimulatedNetwork(
        linear_regression(Clients(x.reshape(-1, 10), y.ravel(), np.full(20, 60))), np.zeros(20, np.bool_), None, rng
    )
    centres, labels = np.zeros((1, 10)), np.zeros(20, np.int64)
    conditioning = ask_conditioning(network, centres, None, ask_sizes(network), 4)
    assert conditioning is not None
    assert conditioning.specific > 0
    updates = network.task.gradients(centres, labels)
    updates[3] *= -50.0
    accepted = Accepted(np.arange(20), labels, updates, np.zeros(20, np.int64))
    step, newton, rows = newton_step(
        Server(SpectralFilter(4), trim=0.1), State(0, centres, conditioning=conditioning), accepted, 1.0
    )
    np.testing.assert_allclose(step.centres, np.ones((1, 10)), atol=0.3)
    assert step.sizes.tolist() == [20]
    np.testing.assert_allclose(rows, newton.rows(conditioning.coordinates.updates(updates)), rtol=1e-9)
    assert step.trimmed is not None
    assert step.trimmed.shape == (20,)
    assert step.trimmed[3] > 0.5


@pytest.mark.parametrize("cluster", [0, 1])
def test_a_step_that_float32_cannot_hold_is_not_taken(cluster: int) -> None:
    _, state = problem()
    own, start = np.arange(12) % 2 == cluster, np.zeros((2, 3), np.float32)
    start[cluster] = 3e38
    state = state._replace(centres=start)
    updates = np.zeros((12, 3), np.float32)
    updates[own] = -1e38
    updates[~own] = 1.0
    accepted = Accepted(np.arange(12), LABELS, updates, np.zeros(12, np.int64))
    step, _, _ = newton_step(Server(median), state, accepted, 1.0)
    assert step.rejected.tolist() == [cluster == 0, cluster == 1]
    assert np.array_equal(step.centres[cluster], start[cluster])
    assert step.centres.dtype == np.float32
    assert np.isfinite(step.centres).all()
    assert (step.centres[1 - cluster] != 0).any()


def test_a_cluster_without_replies_stays() -> None:
    network, state = problem()
    accepted = replies(network, state)
    only = LABELS == 0
    some = Accepted(accepted.clients[only], accepted.labels[only], accepted.updates[only], accepted.verdicts)
    step, _, _ = newton_step(Server(median), state._replace(centres=ENDS[::-1].copy()), some, 1.0)
    assert step.sizes.tolist() == [6, 0]
    assert np.array_equal(step.centres[1], ENDS[0])
    assert step.moves[1] == 0
