"""One server step by hand, and the automatic step size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie._src.aggregators import Aggregator, CentredClipping, Mean, Median, TrimmedMean, mean, median
from coterie._src.data import mixed_regression
from coterie._src.intake import Accepted
from coterie._src.projections import Box, L2Ball
from coterie._src.server import Server, take_step
from coterie._src.step_sizes import STEEPER, automatic_steps
from coterie._src.tasks import linear_regression

CENTRES = np.array([[0.0, 0.0], [10.0, 10.0], [5.0, 5.0]])


def replies(labels: list[int], updates: list[list[float]]) -> Accepted:
    return Accepted(
        np.arange(len(labels)), np.array(labels, dtype=np.int64), np.array(updates, dtype=float), np.zeros(len(labels))
    )


FIVE = replies([0, 0, 0, 1, 1], [[1, 2], [3, 2], [100, -100], [4, 4], [6, 8]])


@pytest.mark.parametrize(
    ("rule", "first", "second"),
    [
        (Median(), [-0.3, -0.2], [9.5, 9.4]),
        (Mean(), [-104 / 30, 96 / 30], [9.5, 9.4]),
        (TrimmedMean(0.4), [-0.3, -0.2], [9.5, 9.4]),
    ],
)
def test_one_step_by_hand(rule: Aggregator, first: list[float], second: list[float]) -> None:
    step = take_step(Server(rule), CENTRES, FIVE, np.full(3, 0.1))
    np.testing.assert_allclose(step.centres, [first, second, [5.0, 5.0]], atol=1e-12)  # nobody chose the third
    assert step.sizes.tolist() == [3, 2, 0]
    assert not step.rejected.any()
    assert CENTRES.tolist() == [[0, 0], [10, 10], [5, 5]]


def test_step_sizes_are_per_cluster() -> None:
    step = take_step(Server(median), CENTRES, FIVE, np.array([0.0, 1.0, 1.0]))
    assert step.centres.tolist() == [[0, 0], [5, 4], [5, 5]]
    np.testing.assert_allclose(step.moves, [0, np.sqrt(61), 0])


def test_a_substitute_moves_the_cluster_that_no_client_chose() -> None:
    substitute = replies([2], [[4.0, -2.0]])
    step = take_step(Server(Mean(5)), CENTRES, FIVE, np.full(3, 0.5), substitute)
    assert step.centres[2].tolist() == [3.0, 6.0]  # by its whole update, whatever the rule
    assert step.sizes.tolist() == [3, 2, 0]


@pytest.mark.parametrize("columns", [3, 5])
def test_a_rule_that_returns_the_wrong_number_of_columns_is_an_error(columns: int) -> None:
    with pytest.raises(ValueError, match="shape"):
        take_step(Server(lambda rows: np.ones(columns)), CENTRES, replies([0, 1, 2], np.ones((3, 2))), np.ones(3))


def test_no_reply_at_all_keeps_all_centres() -> None:
    nothing = replies([], [])._replace(updates=np.zeros((0, 2)))
    assert np.array_equal(take_step(Server(median), CENTRES, nothing, np.ones(3)).centres, CENTRES)


def test_a_step_to_infinity_is_not_taken() -> None:
    huge = np.finfo(np.float32).max
    centres = np.array([[-huge], [1.0]], np.float32)
    accepted = Accepted(np.arange(2), np.array([0, 1]), np.array([[huge], [0.5]], np.float32), np.zeros(2))
    with np.errstate(over="ignore"):
        step = take_step(Server(mean), centres, accepted, np.ones(2))
    assert step.centres.tolist() == [[-huge], [0.5]]
    assert step.rejected.tolist() == [True, False]
    with np.errstate(over="ignore"):  # nor is it turned into a corner of the box
        boxed = take_step(Server(mean, Box(9.0)), centres, accepted, np.ones(2))
    assert boxed.centres.tolist() == [[-huge], [0.5]]
    tensor = tensors(accepted)
    assert tensor is not None
    step = take_step(Server(mean, audit=False), torch.from_numpy(centres), tensor, np.ones(2))
    assert step.centres.tolist() == [[-huge], [0.5]]
    assert step.rejected.tolist() == [True, False]
    assert step.moves.tolist() == [0.0, 0.5]


def test_a_step_that_is_infinite_in_one_coordinate_is_not_taken() -> None:
    centres = np.array([[-1.7e308, 1.0], [2.0, 3.0]])
    with np.errstate(over="ignore"):
        step = take_step(Server(mean), centres, replies([0, 1], [[1.7e308, 1.0], [1.0, 1.0]]), np.ones(2))
    assert step.centres.tolist() == [[-1.7e308, 1.0], [1.0, 2.0]]
    assert step.rejected.tolist() == [True, False]


def test_the_audit_counts_five_per_cent_per_side() -> None:
    """Of 40 rows the two smallest and the two largest of each coordinate."""
    updates = np.stack([np.arange(40.0), np.zeros(40)], axis=1)
    accepted = replies([0] * 40, updates.tolist())
    step = take_step(Server(median), CENTRES, accepted, np.full(3, 0.1))
    assert step.trimmed is not None
    assert np.flatnonzero(step.trimmed).tolist() == [0, 1, 38, 39]
    assert set(step.trimmed.tolist()) == {0.0, 0.5}
    assert take_step(Server(median, audit=False), CENTRES, accepted, np.full(3, 0.1)).trimmed is None


def test_torch_takes_the_same_step() -> None:
    server = Server(median, L2Ball(2.0))
    for substitutes in (None, replies([2], [[4.0, -2.0]])):
        ours = take_step(server, CENTRES, FIVE, np.full(3, 0.1), substitutes)
        theirs = take_step(server, torch.from_numpy(CENTRES), tensors(FIVE), np.full(3, 0.1), tensors(substitutes))
        np.testing.assert_allclose(theirs.centres.numpy(), ours.centres)
        np.testing.assert_allclose(theirs.moves, ours.moves)
        assert np.array_equal(theirs.trimmed, ours.trimmed)


def tensors(accepted: Accepted | None) -> Accepted | None:
    return accepted and accepted._replace(updates=torch.from_numpy(accepted.updates))


def test_the_automatic_step_is_a_known_share_of_one_over_l(rng: np.random.Generator) -> None:
    """For x ~ N(0, I) the pooled Hessian is 2·XᵀX/n: the step must come near 1/(3·λ_max) of every cluster."""
    clients = mixed_regression(rng, clients=60, clusters=1, samples=50, dim=40, byzantine=0.0).clients
    curvatures = linear_regression(clients).curvatures()
    for count in (1, 2, 5, 60):
        x = clients.features[: count * 50].astype(np.float64)
        exact = 1 / (STEEPER * np.linalg.eigvalsh(2 * x.T @ x / len(x)).max())
        found = automatic_steps(curvatures[:count], np.zeros(count, np.int64), 1)[0]
        assert 0.5 * exact < found < 1.2 * exact


def test_a_byzantine_minority_does_not_choose_the_step() -> None:
    curvatures = np.tile([4.0, 0.0], (10, 1))
    labels = np.repeat([0, 1], 5)
    honest = automatic_steps(curvatures, labels, 3)
    assert honest.tolist() == pytest.approx([1 / 12] * 3)  # the third is empty and takes what all report
    for forged in (1e300, 1e-300, -1.0, 0.0, np.nan):
        attacked = curvatures.copy()
        attacked[[0, 1]] = forged
        np.testing.assert_allclose(automatic_steps(attacked, labels, 3), honest)
    nothing = automatic_steps(np.full((10, 2), np.nan), labels, 3)
    assert nothing.tolist() == [0.0] * 3  # without any report no step is safe


def honest_curvatures(rng: np.random.Generator, clients: int, dim: int = 100) -> np.ndarray:
    """λ_max = (1 + √(d/n_i))² and trace/n = d/n_i of clients with very different numbers of samples."""
    ratio = dim / np.exp(rng.uniform(np.log(5), np.log(3000), clients))
    return np.stack([(1 + np.sqrt(ratio)) ** 2, ratio], axis=1)


@pytest.mark.parametrize("byzantine", [1, 10, 19])
def test_no_minority_makes_a_step_longer_than_honest_members_support(byzantine: int, rng: np.random.Generator) -> None:
    """L is 1 for every honest client: a step below 2 does not diverge, whatever pairs the others report."""
    labels = np.zeros(40, np.int64)
    honest = honest_curvatures(rng, 40)
    for forged in (
        *([1e-12, huge] for huge in (0.0, 1e-12, 1.0, 1e12)),
        *([value, value] for value in np.geomspace(0.01, 100, 20)),
        *([value, 1e12] for value in np.geomspace(0.01, 100, 5)),
    ):
        reported = honest.copy()
        reported[:byzantine] = forged
        assert 0.01 < automatic_steps(reported, labels, 1)[0] < 1.5


def test_pairs_that_no_data_have_are_ignored(rng: np.random.Generator) -> None:
    honest, labels = honest_curvatures(rng, 40), np.repeat([0, 1], 20)
    expected = automatic_steps(np.where(np.arange(40)[:, None] % 20 < 5, np.nan, honest), labels, 2)
    for impossible in ([1e-12, 1e12], [1.0, 1.01], [0.0, 0.0], [1.0, -1.0]):
        reported = honest.copy()
        reported[np.arange(40) % 20 < 5] = impossible
        np.testing.assert_array_equal(automatic_steps(reported, labels, 2), expected)


def test_shared_coordinates_follow_all_clients() -> None:
    server = Server(mean, shared=1)
    step = take_step(server, CENTRES, replies([0, 0, 1], [[1, 1], [2, 3], [6, 5]]), np.full(3, 1.0))
    assert step.centres.tolist() == [[-3, -2], [7, 5], [2, 5]]  # the third has no reply of its own


def test_a_rule_with_memory_remembers_the_shared_coordinates() -> None:
    """An aggregate moves by 1 per round from the last one towards the row; the first is the row itself."""
    server = Server(CentredClipping(radius=1.0, iterations=1, history=True), shared=1)
    first = take_step(server, CENTRES, replies([0], [[4, 0]]), np.full(3, 1.0))
    assert first.centres[:, 0].tolist() == [-4, 6, 1]
    second = take_step(server, CENTRES, replies([1], [[9, 0]]), np.full(3, 1.0), memory=first.memory)
    assert second.centres[:, 0].tolist() == [-5, 5, 0]
    nothing = replies([], [])._replace(updates=np.zeros((0, 2)))
    silent = take_step(server, CENTRES, nothing, np.full(3, 1.0), memory=second.memory)
    third = take_step(server, CENTRES, replies([2], [[9, 0]]), np.full(3, 1.0), memory=silent.memory)
    assert third.centres[:, 0].tolist() == [-6, 4, -1]


def test_below_the_quorum_a_cluster_keeps_its_centre() -> None:
    step = take_step(Server(median, quorum=3), CENTRES, FIVE, np.full(3, 0.1))
    np.testing.assert_allclose(step.centres, [[-0.3, -0.2], [10.0, 10.0], [5.0, 5.0]])
    assert step.sizes.tolist() == [3, 2, 0]


@pytest.mark.parametrize(("quorum", "moved"), [(1, [True, True]), (2, [True, False]), (3, [False, False])])
def test_a_quorum_is_the_fewest_replies_that_move_a_centre(quorum: int, moved: list[bool]) -> None:
    accepted = replies([0, 0, 1], [[1, 2], [3, 2], [4, 4]])
    step = take_step(Server(median, quorum=quorum), CENTRES, accepted, np.full(3, 0.1))
    assert (step.moves > 0).tolist() == [*moved, False]
    assert step.sizes.tolist() == [2, 1, 0]  # the replies that arrived are counted as they are
