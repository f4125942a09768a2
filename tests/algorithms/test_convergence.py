"""When a descent stops: moves, errors and the distance that is left, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from coterie._src.algorithms import ClusteredDescent
from coterie._src.algorithms.base import State
from coterie._src.algorithms.convergence import distances_left, progress, standard_errors
from coterie._src.data import Clients
from coterie._src.intake import Accepted
from coterie._src.server import Server, Step
from coterie._src.simulation import SimulatedNetwork, play
from coterie._src.tasks import mean_estimation


def replies(labels: list[int], updates: Any) -> Accepted:
    count = len(labels)
    return Accepted(np.arange(count), np.array(labels, np.int64), np.array(updates, float), np.zeros(count, np.int64))


# per cluster, four replies of which the median is 0 and the squared distance 4: an error of γ√(4/4) = γ
UNIT = replies([0] * 4 + [1] * 4, [[-2.0], [-2.0], [2.0], [2.0]] * 2)


def step(moves: list[float], rejected: tuple[bool, ...] | None = None) -> Step:
    k = len(moves)
    return Step(np.zeros((k, 1)), np.full(k, 4), None, np.array(rejected or (False,) * k), np.array(moves))


def state(smallest: float = 2.0, since: int = 3, moves: list[float] | None = None) -> State:
    before = None if moves is None else np.array(moves)
    return State(5, np.zeros((2, 1)), smallest_move=smallest, rounds_since=since, moves=before)


def test_the_error_of_a_move_by_hand() -> None:
    # squared distances to the medians (3, 0), none, (1, 0), none: 4, 0, 16 + 4 with the median 4; and 1, 1
    labels = [0, 2, 0, 1, 2, 0]
    updates = [[1, 0], [0, 0], [3, 0], [50, 60], [2, 0], [5, 4]]
    found = standard_errors(replies(labels, updates), np.array([0.5, 3.0, 2.0, 1.0]))
    typical = 2.5  # the median of 4 and 1
    expected = [0.5 * math.sqrt(4 / 3), 3 * math.sqrt(typical), 2 * math.sqrt(1 / 2), math.sqrt(typical)]
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_two_replies_show_an_error() -> None:
    found = standard_errors(replies([0, 0, 1], [[0.0], [2.0], [7.0]]), np.ones(3))
    np.testing.assert_allclose(found, [math.sqrt(1 / 2), 1.0, 1.0], rtol=1e-14)


def test_single_replies_show_no_error() -> None:
    assert standard_errors(replies([0, 1], [[3.0], [4.0]]), np.ones(3)).tolist() == [0.0, 0.0, 0.0]


def test_moves_that_shrink_by_a_factor_add_up() -> None:
    moves = np.array([1.0, 0.5, 0.8, 0.99, 2.0, 0.0, 1.0])
    before = np.array([2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    # factors ½ (as far again), ¼ (less than the last move), 0.8 (4 times), and from 0.9 on 9 times
    expected = [1.0, 0.5, 3.2, 9 * 0.99, 18.0, 0.0, 9.0]
    np.testing.assert_allclose(distances_left(moves, before), expected, rtol=1e-12)
    assert distances_left(moves, None) is moves
    assert distances_left(moves, np.ones(6)) is moves  # another number of clusters


@pytest.mark.parametrize(
    ("moves", "smallest", "since", "expected"),
    [
        ([0.3, 0.6], 2.0, 3, (0.6, 0)),  # the cluster that moves most counts
        ([0.6, 0.3], 2.0, 3, (0.6, 0)),
        ([0.3, 0.44], 0.5, 3, (0.44, 0)),  # smaller by more than a tenth
        ([0.3, 0.46], 0.5, 3, (0.5, 4)),  # by less
        ([0.3, 0.9], 1.0, 7, (1.0, 8)),  # by a tenth exactly: 0.9 is not below 0.9·1
        ([0.3, 1.0], 0.5, 3, (1.0, 0)),  # as large as its error: the count begins anew
        ([0.3, 7.0], 0.5, 3, (7.0, 0)),
    ],
)
def test_rounds_since_the_smallest_move(
    moves: list[float], smallest: float, since: int, expected: tuple[float, int]
) -> None:
    found = progress(state(smallest, since), step(moves), UNIT, np.ones(2))
    assert found == (*expected, max(moves))
    doubled = progress(state(smallest, since), step([2 * move for move in moves]), UNIT, np.full(2, 2.0))
    assert doubled == found  # relative to errors


def test_what_is_left_is_that_of_the_cluster_with_most() -> None:
    *_, left = progress(state(moves=[1.0, 0.5]), step([0.8, 0.01]), UNIT, np.array([2.0, 1.0]))
    assert left == pytest.approx(0.8 * 4 / 2)


def test_a_round_without_replies_or_with_a_rejected_step_says_nothing() -> None:
    nothing = replies([], np.zeros((0, 1)))
    assert progress(state(), step([0.0, 0.0]), nothing, np.ones(2)) == (2.0, 3, math.inf)
    stuck = step([0.0, 0.1], rejected=(True, False))
    assert progress(state(), stuck, UNIT, np.ones(2)) == (2.0, 3, math.inf)


def test_a_rest_without_noise_is_the_end() -> None:
    same = replies([0, 0, 1, 1], [[1.0]] * 4)
    assert progress(state(), step([0.0, 0.0]), same, np.ones(2)) == (0.0, 0, 0.0)


# --- what the descent makes of it ---------------------------------------------------------------------


class Push:
    """A rule that never comes to rest: the same update whatever the replies."""

    def __init__(self, push: float) -> None:
        self.push = push

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        return np.full(rows.shape[1], self.push)


def rounds_until_the_stop(push: float, precision: float) -> int:
    """With errors of 1 per move: four clients with means ±1, so that gradients differ by 2 from their median."""
    task = mean_estimation(Clients(np.array([[-1.0], [-1.0], [1.0], [1.0]]), None, np.ones(4, np.int64)))
    network = SimulatedNetwork(task, np.zeros(4, np.bool_), None, np.random.default_rng(0))
    algorithm = ClusteredDescent(Server(Push(push)), rounds=40, step_size=1.0, precision=precision)
    *_, final = play(algorithm, network, np.zeros((1, 1)), np.random.default_rng(0))
    return final.state.round


def test_a_descent_that_oscillates_within_its_error_stops_after_ten_rounds_without_a_smaller_move() -> None:
    assert rounds_until_the_stop(0.95, precision=1e-6) == 1 + 10
    assert rounds_until_the_stop(1.05, precision=1e-6) == 40  # moves above the error are no noise
    assert rounds_until_the_stop(0.95, precision=0.0) == 40  # not asked to stop


@pytest.mark.parametrize(("precision", "rounds"), [(0.94, 11), (0.95, 1), (1e9, 1)])
def test_it_stops_as_soon_as_what_is_left_is_within_the_precision(precision: float, rounds: int) -> None:
    """After the first round the last move is all that is known to be left, later nine times as much."""
    assert rounds_until_the_stop(0.95, precision) == rounds


@pytest.mark.parametrize(("smallest", "since", "stops"), [(0.99, 9, True), (0.99, 8, False), (1.0, 9, False)])
def test_the_smallest_move_must_be_below_its_error(smallest: float, since: int, stops: bool) -> None:
    task = mean_estimation(Clients(np.array([[-1.0], [-1.0], [1.0], [1.0]]), None, np.ones(4, np.int64)))
    network = SimulatedNetwork(task, np.zeros(4, np.bool_), None, np.random.default_rng(0))
    algorithm = ClusteredDescent(Server(Push(0.95)), rounds=40, step_size=1.0, precision=1e-6)
    before = State(3, np.zeros((1, 1)), smallest_move=smallest, rounds_since=since)
    after, info = algorithm.step(before, network, np.random.default_rng(0))
    assert (after.smallest_move, after.rounds_since) == (smallest, since + 1)
    assert info.converged == stops


def test_a_cluster_that_still_moves_is_waited_for() -> None:
    """One cluster at rest, one far from its end: the descent is not at its end, whichever of them comes first."""
    values = np.array([[-1.0], [1.0], [99.0], [101.0]])
    task = mean_estimation(Clients(values, None, np.ones(4, np.int64)))
    network = SimulatedNetwork(task, np.zeros(4, np.bool_), None, np.random.default_rng(0))
    for start in ([[0.0], [80.0]], [[80.0], [0.0]]):
        algorithm = ClusteredDescent(Server(lambda rows: rows.mean(axis=0)), step_size=0.05, precision=1e-3, rounds=500)
        *_, final = play(algorithm, network, np.array(start), np.random.default_rng(0))
        np.testing.assert_allclose(sorted(final.state.centres[:, 0]), [0.0, 100.0], atol=1e-3)
        assert 50 < final.state.round < 500
