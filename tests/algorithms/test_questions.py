"""What Algorithm 1 asks the clients, when, and what it makes of the answers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie._src.aggregators import Mean, median
from coterie._src.algorithms import ClusteredDescent
from coterie._src.algorithms.base import State
from coterie._src.algorithms.descent import ask_weights, bounded_weights
from coterie._src.attacks import Attack
from coterie._src.attacks.payloads import garbage
from coterie._src.data import Clients, Federation
from coterie._src.init.asking import RobustStart
from coterie._src.init.robust import spectral
from coterie._src.intake import Verdict
from coterie._src.network import Network
from coterie._src.server import Server
from coterie._src.simulation import SimulatedNetwork
from coterie._src.tasks import linear_regression, logistic_regression
from playing import network

DESCENT = ClusteredDescent(Server(median), rounds=7)


class Recorder:
    """A network that passes every question on and keeps it: (name, arguments)."""

    def __init__(self, clients: Network) -> None:
        self.clients = clients
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.clients, name)
        if not callable(value):
            return value

        def ask(*arguments: Any, **named: Any) -> Any:
            self.asked.append((name, (*arguments, *named.values())))
            return value(*arguments, **named)

        return ask

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.asked]


@pytest.fixture
def recorder(easy: Federation) -> Recorder:
    return Recorder(network(linear_regression(easy.clients), easy))


def generator() -> np.random.Generator:
    return np.random.default_rng(0)


# --- before the first round ---------------------------------------------------------------------------


def test_with_a_step_size_nothing_is_asked(recorder: Recorder, start: np.ndarray) -> None:
    state = replace(DESCENT, step_size=0.1).initial_state(recorder, start, generator())
    assert recorder.asked == []
    assert state.centres is start
    assert (state.round, state.fixed, state.curvatures, state.weights) == (0, None, None, None)
    assert math.isnan(state.start_agreement)


@pytest.mark.parametrize(("resample", "rounds", "expected"), [(False, 7, None), (True, 7, 7), (True, 0, None)])
def test_curvatures_are_those_of_the_samples_of_a_round(
    resample: bool, rounds: int, expected: int | None, recorder: Recorder, start: np.ndarray
) -> None:
    state = replace(DESCENT, resample=resample, rounds=rounds).initial_state(recorder, start, generator())
    assert recorder.asked == [("curvatures", (expected,))]
    assert state.curvatures is not None
    assert state.curvatures.shape == (40, 2)
    assert np.isfinite(state.curvatures).all()


def test_weights_are_asked_for(recorder: Recorder, start: np.ndarray) -> None:
    algorithm = ClusteredDescent(Server(Mean()), step_size=0.1, weighted=True)
    state = algorithm.initial_state(recorder, start, generator())
    assert recorder.names == ["sizes"]
    assert np.array_equal(state.weights, np.ones(40))
    assert state.conditioning is None


def test_coordinates_are_asked_for_once_and_at_the_origin(recorder: Recorder, start: np.ndarray) -> None:
    """No curvatures beside them; the point is 0 wherever the start is, also in a coordinate where that is 0."""
    start = start.copy()
    start[:, 0] = 0.0
    algorithm = ClusteredDescent(Server(median), conditioned="constant", max_byzantine=4)
    state = algorithm.initial_state(recorder, start, generator())
    assert recorder.names == ["sizes", "hessians"]
    centres, labels = recorder.asked[1][1]
    assert np.array_equal(centres, np.zeros((1, 8)))
    assert not labels.any()
    assert state.conditioning is not None
    assert (state.weights, state.curvatures) == (None, None)
    recorder.asked.clear()
    for _ in range(3):
        state, _ = algorithm.step(state, recorder, generator())
    assert recorder.names == ["gradients"] * 3


def test_the_start_may_be_found_by_asking(recorder: Recorder, start: np.ndarray) -> None:
    found = RobustStart(spectral, "gradient", byzantine_fraction=0.1, clusters=2)
    algorithm = ClusteredDescent(Server(median), step_size=0.1, init=found)
    state = algorithm.initial_state(recorder, start, generator())
    expected, agreement = found.search(recorder, start, generator(), None)
    assert np.array_equal(state.centres, expected)
    assert not np.array_equal(state.centres, start)
    assert state.start_agreement == agreement or math.isnan(agreement)


def test_known_labels_are_passed_to_the_clients(recorder: Recorder, start: np.ndarray) -> None:
    labels = np.arange(40) % 3 - 1
    algorithm = ClusteredDescent(Server(median), step_size=0.1, labels=labels)
    state = algorithm.initial_state(recorder, start, generator())
    assert state.fixed is labels
    _, info = algorithm.step(state, recorder, generator())
    assert recorder.asked[0][1][2] is labels
    assert np.array_equal(info.labels, labels)
    assert info.sizes.tolist() == [int((labels == j).sum()) for j in (0, 1)]


# --- weights ------------------------------------------------------------------------------------------


def test_a_client_counts_by_its_samples_but_not_more_than_the_median_client() -> None:
    assert bounded_weights(np.array([1.0, 4.0, 2.0, 1e9])).tolist() == [1 / 3, 1.0, 2 / 3, 1.0]


def test_a_client_whose_size_is_refused_counts_as_one_sample(rng: np.random.Generator) -> None:
    sizes = np.array([4, 4, 10, 6, 2])
    task = linear_regression(Clients(rng.standard_normal((26, 2)), rng.standard_normal(26), sizes))
    refusing = SimulatedNetwork(task, np.array([False, False, True, False, False]), Attack(garbage), rng)
    np.testing.assert_allclose(ask_weights(refusing), [1.0, 1.0, 1 / 4, 1.0, 2 / 4])


class Lying:
    """A network in which client 0 reports another size."""

    def __init__(self, clients: Network, size: float) -> None:
        self.clients, self.size = clients, size

    def __getattr__(self, name: str) -> Any:
        return getattr(self.clients, name)

    def sizes(self) -> Any:
        replies = self.clients.sizes()
        updates = np.array(replies.updates)
        updates[0] = self.size
        return replace(replies, updates=updates)


@pytest.mark.parametrize(("size", "weight"), [(-7.0, 0.25), (0.0, 0.25), (0.5, 0.25), (3.0, 0.75), (1e300, 1.0)])
def test_no_size_is_less_than_one_sample(size: float, weight: float, rng: np.random.Generator) -> None:
    task = linear_regression(Clients(rng.standard_normal((20, 2)), rng.standard_normal(20), np.full(5, 4)))
    honest = SimulatedNetwork(task, np.zeros(5, np.bool_), None, rng)
    assert ask_weights(Lying(honest, size)).tolist() == [weight, 1.0, 1.0, 1.0, 1.0]


# --- rounds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "count"), [(1.0, 40), (0.5, 20), (0.26, 10), (0.001, 1)])
def test_a_round_asks_a_share_of_the_clients(share: float, count: int, recorder: Recorder, start: np.ndarray) -> None:
    algorithm = ClusteredDescent(Server(median), step_size=0.1, participation=share)
    state, rng = State(0, start), generator()
    asked = []
    for _ in range(2):
        state, info = algorithm.step(state, recorder, rng)
        info = info.whole(40)
        assert int((info.verdicts != Verdict.SILENT).sum()) == count
        asked.append(np.flatnonzero(info.verdicts != Verdict.SILENT).tolist())
        clients = recorder.asked[-1][1][4]
        assert clients is None if count == 40 else clients.tolist() == asked[-1]
    assert (asked[0] != asked[1]) == (count < 40)  # drawn anew


def test_resampling_names_the_round_and_all_rounds(recorder: Recorder, start: np.ndarray) -> None:
    algorithm = ClusteredDescent(Server(median), step_size=0.1, rounds=5, resample=True)
    state = State(0, start)
    for _ in range(2):
        state, _ = algorithm.step(state, recorder, generator())
    assert [arguments[3] for _, arguments in recorder.asked] == [(0, 5), (1, 5)]


def test_random_clients_for_empty_clusters_are_asked_on_the_samples_of_the_round(
    recorder: Recorder, start: np.ndarray
) -> None:
    far = np.concatenate([start, np.full((1, 8), 1e3)])
    algorithm = ClusteredDescent(Server(median), step_size=0.1, rounds=5, resample=True, empty="random-client")
    algorithm.step(State(0, far), recorder, generator())
    (_, first), (_, second) = recorder.asked
    assert first[3] == second[3] == (0, 5)
    labels = second[2]
    assert labels.max() == 2
    assert (labels >= 0).sum() == 1
    recorder.asked.clear()
    algorithm.step(State(0, start), recorder, generator())  # no cluster is empty
    assert len(recorder.asked) == 1


# --- coordinates --------------------------------------------------------------------------------------


def test_coordinates_are_asked_for_again_after_a_restart(recorder: Recorder, start: np.ndarray) -> None:
    """A state that was read from a file has neither coordinates nor curvatures; one with curvatures needs none."""
    start = start.copy()
    start[:, 0] = 0.0
    algorithm = ClusteredDescent(Server(median), conditioned="constant", max_byzantine=4)
    whole = algorithm.initial_state(recorder, start, generator())
    expected, _ = algorithm.step(whole, recorder, generator())
    recorder.asked.clear()
    found, _ = algorithm.step(State(0, start), recorder, generator())
    assert recorder.names == ["sizes", "hessians", "gradients"]
    assert np.array_equal(recorder.asked[1][1][0], np.zeros((1, 8)))
    np.testing.assert_allclose(found.centres, expected.centres, rtol=1e-12)
    recorder.asked.clear()
    curvatures = np.tile([2.0, 0.0], (40, 1))
    after, _ = algorithm.step(State(0, start, curvatures=curvatures), recorder, generator())
    assert recorder.names == ["gradients"]
    assert after.conditioning is None


def test_without_hessians_the_step_is_the_automatic_one(recorder: Recorder, start: np.ndarray) -> None:
    """Where no answer can be used, the curvatures are asked for instead."""
    silent = SimulatedNetwork(linear_regression(recorder.clients.task.clients), np.ones(40, np.bool_), Attack(garbage),
                              generator())  # fmt: skip
    clients = Recorder(silent)
    algorithm = ClusteredDescent(Server(median), conditioned="constant", max_byzantine=4)
    state = algorithm.initial_state(clients, start, generator())
    assert clients.names == ["sizes", "hessians", "curvatures"]
    assert state.conditioning is None
    clients.asked.clear()
    state, _ = algorithm.step(State(0, start), clients, generator())
    assert clients.names == ["sizes", "hessians", "curvatures", "gradients"]


def test_a_given_step_size_is_the_share_of_a_newton_step() -> None:
    """All clients alike and one cluster: the step is this share of the way to their minimiser, whatever the Hessian.

    A little less, since the Hessians are shrunk.
    """
    rng = generator()
    x = rng.standard_normal((30, 3)) @ np.array([[3.0, 0, 0], [1, 0.2, 0], [0, 1, 1]])
    end = np.array([1.0, -2.0, 3.0])
    clients = Clients(np.tile(x, (9, 1)), np.tile(x @ end, 9), np.full(9, 30))
    alike = SimulatedNetwork(linear_regression(clients), np.zeros(9, np.bool_), None, rng)
    ways = []
    for share in (None, 1.0, 0.25):
        algorithm = ClusteredDescent(Server(median), conditioned="constant", step_size=share)
        state = algorithm.initial_state(alike, np.zeros((1, 3)), rng)
        ways.append(algorithm.step(state, alike, rng)[0].centres[0] / end)
    np.testing.assert_allclose(ways[1], 1.0, rtol=0.02)
    np.testing.assert_allclose(ways[0], 0.6 * ways[1], rtol=1e-9)
    np.testing.assert_allclose(ways[2], 0.25 * ways[1], rtol=1e-9)


def test_newton_steps_stop_where_they_are_within_their_errors(recorder: Recorder, start: np.ndarray) -> None:
    algorithm = ClusteredDescent(Server(median), conditioned="constant", max_byzantine=4, precision=0.01)
    state, rounds = algorithm.initial_state(recorder, start, generator()), 0
    left = []
    while True:
        state, info = algorithm.step(state, recorder, generator())
        left.append(state.distance_left)
        rounds += 1
        if info.converged:
            break
    assert left[-1] <= 0.01 < min(left[:-1])
    assert 3 < rounds < 20


def test_hessians_that_vary_are_asked_for_in_rounds_1_3_7_and_where_steps_do_not_get_shorter() -> None:
    rng = generator()
    x = rng.standard_normal((400, 3))
    y = (rng.random(400) < 1 / (1 + np.exp(-x @ np.array([1.0, -1.0, 0.5])))).astype(float)
    clients = Recorder(
        SimulatedNetwork(logistic_regression(Clients(x, y, np.full(10, 40))), np.zeros(10, np.bool_), None, rng)
    )
    algorithm = ClusteredDescent(Server(median), conditioned="varying")
    state = algorithm.initial_state(clients, np.zeros((1, 3)), rng)
    assert clients.names.count("hessians") == 1

    def rounds_with_hessians(state: State, **changes: Any) -> list[int]:
        asked = []
        for t in range(9):
            clients.asked.clear()
            assert state.round == t
            state, _ = algorithm.step(state._replace(**changes), clients, rng)
            if "hessians" in clients.names:
                asked.append(t)
        return asked

    assert rounds_with_hessians(state) == [1, 3, 7]
    assert rounds_with_hessians(state, rounds_since=1) == list(range(1, 9))
    assert rounds_with_hessians(state, newton=None) == list(range(1, 9))  # after a restart


# --- what is recorded ---------------------------------------------------------------------------------


def test_what_a_round_tells(easy: Federation, start: np.ndarray) -> None:
    assert easy.truth is not None
    byzantine = easy.truth.is_byzantine
    attacked = network(linear_regression(easy.clients), easy, Attack(garbage))
    algorithm = ClusteredDescent(Server(median, trim=0.25), step_size=0.1)
    after, info = algorithm.step(State(4, start, memory=State(0, start).memory), attacked, generator())
    assert after.round == 5
    refused = info.verdicts != Verdict.ACCEPTED
    assert refused[byzantine].any()
    assert not refused[~byzantine].any()
    assert info.trimmed is not None
    assert np.array_equal(np.isnan(info.trimmed), info.labels == -1)
    assert np.array_equal(info.labels == -1, refused)
    assert info.sizes.tolist() == np.bincount(info.labels[~refused], minlength=2).tolist()
    assert info.movement == pytest.approx(np.linalg.norm(after.centres - start, axis=1).max())
    assert info.rejected == 0
    assert np.array_equal(after.moves, np.linalg.norm(after.centres - start, axis=1))
    assert (after.distance_left, after.smallest_move, after.rounds_since) == (math.inf, math.inf, 0)


def test_a_round_tells_how_many_steps_were_rejected(start: np.ndarray, easy: Federation) -> None:
    algorithm = ClusteredDescent(Server(lambda rows: np.full(rows.shape[1], 1e308)), step_size=1e10)
    clients = network(linear_regression(easy.clients), easy)
    with np.errstate(over="ignore"):
        after, info = algorithm.step(State(0, start), clients, generator())
    assert info.rejected == 2
    assert np.array_equal(after.centres, start)
