"""Pieces of the robust starts by hand: which points and candidates are kept, chosen and compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coterie._src.aggregators import TrimmedMean
from coterie._src.data import Clients, gaussian_means, mixed_regression
from coterie._src.init import RobustStart, asking, densest_balls, spectral
from coterie._src.init.asking import (
    STRAY_CLIENTS,
    CandidateLosses,
    _allowed,
    _fraction,
    _losses,
    _lowest,
    _lowest_in_pairs,
    _ranked,
    _simplest,
    _small,
    _standard_error,
    agreement_of,
)
from coterie._src.init.kmeans import Clusters
from coterie._src.init.robust import _ball_radii, leading_directions, without_outliers
from coterie._src.metrics import matched_distance
from coterie._src.simulation import SimulatedNetwork
from coterie._src.tasks import linear_regression, mean_estimation


def generator() -> np.random.Generator:
    return np.random.default_rng(0)


# --- points -------------------------------------------------------------------------------------------


def test_the_second_pass_sees_all_points_or_those_that_the_first_kept() -> None:
    points, seen = generator().standard_normal((20, 5)), []

    def cluster(given: np.ndarray, clusters: int, fraction: float, rng: np.random.Generator) -> Clusters:
        seen.append(given.shape)
        kept = np.arange(len(given)) < first
        return Clusters(np.zeros((clusters, given.shape[1])), np.zeros(len(given), np.int64), kept)

    for reconsider, first, expected in ((True, 15, 20), (False, 15, 15), (False, 2, 2), (False, 1, 20)):
        seen.clear()
        centres = spectral(points, 2, 0.0, generator(), reconsider=reconsider, cluster=cluster)
        assert seen == [(20, 4), (expected, min(2, first))]  # 2k directions, then k
        np.testing.assert_allclose(centres, np.tile(points[:first].mean(axis=0), (2, 1)), atol=1e-12)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_leading_directions_do_not_depend_on_the_unit(scale: float) -> None:
    rows = generator().standard_normal((20, 3)) @ np.diag([5.0, 3.0, 1.0])
    points, embed = leading_directions(scale * rows, 3)
    expected, _ = leading_directions(rows, 3)
    np.testing.assert_allclose(np.abs(points), scale * np.abs(expected), rtol=1e-6, atol=1e-9 * scale)
    np.testing.assert_allclose(embed(points), scale * rows, atol=1e-5 * scale)


def test_a_row_at_an_infinite_distance_has_no_coordinates() -> None:
    rows = generator().standard_normal((20, 3))
    rows[7] = 1e200
    points, embed = leading_directions(rows, 3)
    assert not points[7].any()
    inside = np.arange(20) != 7
    np.testing.assert_allclose(embed(points)[inside], rows[inside], atol=1e-5)


def test_one_row_has_no_directions() -> None:
    points, embed = leading_directions(np.array([[3.0, 4.0]]), 2)
    assert points.tolist() == [[0.0]]
    assert embed(points).tolist() == [[3.0, 4.0]]


def test_as_many_copies_as_may_be_byzantine_and_the_point_that_they_copy_are_one() -> None:
    """Of 20 points 2 may be Byzantine: three that are equal count once, four are more than these could make."""
    points = generator().standard_normal((20, 3))
    points[:3] = 1.0
    assert len(np.unique(without_outliers(points, 0.1, True)[0], axis=0)) == len(without_outliers(points, 0.1, True)[0])
    points[3] = 1.0
    inside, _ = without_outliers(points, 0.1, True)
    assert (np.abs(inside - inside[0]).max(axis=1) < 1e-12).sum() in (0, 4)


@pytest.mark.parametrize(("fewest", "left"), [(7, 8), (8, 8), (9, 10)])
def test_outliers_stay_where_too_few_points_would_be_left(fewest: int, left: int) -> None:
    points = np.concatenate([np.eye(8), 50.0 * np.eye(8)[:2]])
    assert len(without_outliers(points, 0.2, True, fewest)[0]) == left


@pytest.mark.parametrize("origin", [-30.0, 1000.0])
def test_outliers_are_far_from_the_median_and_not_from_the_origin(origin: float) -> None:
    points = generator().standard_normal((20, 3))
    points[[4, 11]] = 30.0
    expected, left = without_outliers(points, 0.1, True)
    assert len(expected) == 18
    assert left == 0.0
    assert np.abs(expected).max() < 10
    np.testing.assert_allclose(without_outliers(points + origin, 0.1, True)[0] - origin, expected, atol=1e-9)


@pytest.mark.parametrize("members", [1, 2, 300, 600])
def test_the_radius_of_a_ball_is_the_distance_to_its_farthest_member(members: int) -> None:
    """Of so many points that NumPy does not sort all distances for want of something better."""
    points = generator().standard_normal((600, 3))
    apart = np.linalg.norm(points[:, None] - points, axis=2)
    np.testing.assert_allclose(_ball_radii(points, members), np.sort(apart, axis=1)[:, members - 1], rtol=1e-9)


def test_where_balls_leave_no_point_the_farthest_from_all_seeds_is_one() -> None:
    points = np.array([[0.0], [1.0], [2.0], [1.5], [0.5]])
    found = densest_balls(points, 3, 0.4, generator())
    assert len(np.unique(found.labels)) > 1
    assert np.ptp(found.centres) > 0.5


# --- candidates ---------------------------------------------------------------------------------------


def judged(sizes: list[int], gain: float = 0.0) -> CandidateLosses:
    """Clients of which so many choose each centre; the loss there is 1 − gain, and 2 elsewhere."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    losses = np.full((len(labels), len(sizes)), 2.0)
    losses[np.arange(len(labels)), labels] = 1.0 - gain
    return CandidateLosses(np.arange(float(len(sizes)))[:, None], losses, losses)


def test_what_clients_choose_and_lose() -> None:
    choosing = np.array([[1.0, 2.0], [3.0, 0.5], [np.nan, 1.0], [0.1, 0.2], [5.0, 4.0]])
    judging = np.array([[7.0, 8.0], [9.0, 6.0], [1.0, 1.0], [np.inf, 1.0], [2.0, 3.0]])
    one = CandidateLosses(np.zeros((2, 3)), choosing, judging)
    assert one.answered.tolist() == [True, True, False, False, True]
    assert one.labels.tolist() == [0, 1, -1, -1, 1]
    np.testing.assert_array_equal(one.losses, [7.0, 6.0, np.nan, np.nan, 3.0])
    assert one.sizes.tolist() == [1, 2]
    assert one.count == 2
    left = one.without(np.array([True, False]))
    assert left.centres.shape == (1, 3)
    assert left.labels.tolist() == [0, 0, 0, 0, 0]  # without the centre whose losses were no numbers
    assert _losses([one, left]).tolist() == [[7.0, 8.0], [6.0, 6.0], [3.0, 3.0]]


def test_no_answer_at_all_is_an_error() -> None:
    nothing = CandidateLosses(np.zeros((1, 1)), np.full((3, 1), np.nan), np.full((3, 1), np.nan))
    with pytest.raises(ValueError, match="needs well-formed answers, got none"):
        _losses([nothing])


def test_fractions_stay_below_one_half() -> None:
    assert [_fraction(byzantine, 10) for byzantine in (0, 1, 4)] == [0.0, 0.1, 0.4]
    assert 0.49 < _fraction(5, 10) < 0.5
    assert 0.49 < _fraction(50, 10) < 0.5


def test_small_clusters_are_those_that_byzantine_clients_and_a_few_others_may_make() -> None:
    assert STRAY_CLIENTS == 2
    assert [_small(byzantine, 200) for byzantine in (0, 1, 5)] == [0, 3, 7]
    # few clients are seldom led astray: two of 20 or more, one of 10 or more
    assert [_small(1, clients) for clients in (6, 9, 10, 19, 20)] == [1, 1, 2, 2, 3]
    assert _small(0, 6) == 0


def test_candidates_with_too_small_clusters_are_not_allowed_but_what_is_left_of_them_may_be() -> None:
    """Of 3 Byzantine clients and 2 others: a cluster of 5 is too small, one of 6 is not."""
    sizes = [[30], [25, 5], [10, 10, 10], [12, 12, 6], [16, 7, 5, 2]]
    found = _allowed([judged(one) for one in sizes], 3)
    # two centres are those of (16, 7): its other centres are dropped, and their clients choose among these
    assert [one.count for one in found] == [1, 2, 3, 3]
    assert [one.centres.ravel().tolist() for one in found] == [[0], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert found[1].sizes.min() > 5
    assert [one.count for one in _allowed([judged([30]), judged([25, 5])], 0)] == [1, 2]
    assert [one.count for one in _allowed([judged([4]), judged([2, 2])], 5)] == [1]  # one centre is always allowed


def test_what_is_left_of_a_candidate_must_itself_be_allowed() -> None:
    """(9, 9, 5): without the third centre its clients choose the first."""
    found = _allowed([judged([23]), judged([9, 9, 5])], 3)
    assert [one.sizes.tolist() for one in found] == [[23], [14, 9]]
    choosing = np.array([[1.0, 2.0, 0.0]] * 10 + [[2.0, 1.0, 0.0]] * 4 + [[3.0, 1.0, 2.0]] * 6)
    fewer = CandidateLosses(np.zeros((3, 1)), choosing, choosing)
    assert fewer.sizes.tolist() == [0, 6, 14]
    assert [one.sizes.tolist() for one in _allowed([fewer], 3)] == [[6, 14]]


def test_the_simplest_candidate_within_a_standard_error_of_the_best() -> None:
    rng = generator()
    noise = rng.standard_normal(100)

    def candidate(count: int, loss: float, spread: float) -> CandidateLosses:
        """Losses that differ from those of the best by `loss`, give or take."""
        values = noise + loss + spread * rng.standard_normal(100)
        return CandidateLosses(np.zeros((count, 1)), np.tile(values[:, None], count), np.tile(values[:, None], count))

    best = candidate(3, 0.0, 0.0)
    assert _simplest([candidate(1, 5.0, 1.0), candidate(2, 1.0, 1.0), best, candidate(4, 0.01, 0.0)], 0) is best
    near = candidate(2, 0.0, 1.0)
    assert _simplest([candidate(1, 5.0, 1.0), near, best], 0) is near  # as good as the best, by its standard error
    assert _simplest([best], 5) is best


def test_losses_are_ranked_by_trimmed_means() -> None:
    losses = np.array([[1.0, 2.0, 0.0], [1.0, 2.0, 0.0], [1.0, 2.0, 0.0], [1.0, -99.0, 1e9], [1.0, 2.0, 0.0]])
    assert _ranked(losses, 1) == [2, 0, 1]
    assert _ranked(losses, 0) == [1, 0, 2]
    assert _lowest(losses, 1) == 2
    # three of four clients prefer the second by 1, whatever their own losses are
    apart = np.array([[0.0, 25.0], [10.0, 9.0], [20.0, 19.0], [30.0, 29.0]])
    assert (_lowest(apart, 1), _lowest_in_pairs(apart, 1)) == (0, 1)


def test_the_standard_error_is_that_of_a_trimmed_mean() -> None:
    values = np.array([5.0, 1.0, 3.0, 2.0, 4.0, -1e9, 1e9, 2.5])
    winsorised = np.clip(values, 1.0, 5.0)
    assert _standard_error(values, 1) == pytest.approx(winsorised.std() / ((1 - 2 / 8) * np.sqrt(8)))
    assert _standard_error(values[:5], 0) == pytest.approx(values[:5].std() / np.sqrt(5))
    # and about what a simulation shows
    draws = generator().standard_normal((2000, 50))
    spread = np.std([TrimmedMean(0.2)(draw[:, None])[0] for draw in draws])
    assert np.mean([_standard_error(draw, 10) for draw in draws[:200]]) == pytest.approx(spread, rel=0.1)


def test_agreement_counts_the_clients_of_both() -> None:
    assert agreement_of(np.array([0, 0, 1, 1, -1]), np.array([1, 1, 0, 1, 0])) == 0.75
    assert agreement_of(np.array([2, 2, 0, -1]), np.array([0, 0, 1, 1])) == 1.0
    assert agreement_of(np.array([-1, 0]), np.array([0, -1])) == 0.0


# --- the search ---------------------------------------------------------------------------------------

TRUE = np.array([[-3.0, 0.0], [3.0, 0.0]])


def means_network(clients: int = 24) -> SimulatedNetwork:
    """Clients with one sample near −3 or 3, the first two thirds near −3."""
    points = TRUE[(np.arange(clients) >= 2 * clients // 3).astype(int)] + 0.01 * generator().standard_normal(
        (clients, 2)
    )
    task = mean_estimation(Clients(np.repeat(points, 2, axis=0), None, np.full(clients, 2)))
    return SimulatedNetwork(task, np.zeros(clients, np.bool_), None, generator())


class Finder:
    """Candidates by their two options, and what it was asked."""

    def __init__(self, **found: np.ndarray) -> None:
        self.found = found
        self.seen: list[tuple[bool, bool]] = []
        self.points = np.zeros((0, 0))

    def __call__(
        self, points: np.ndarray, clusters: int, fraction: float, rng: Any, outliers_count: bool, reconsider: bool
    ) -> np.ndarray:
        self.points = points
        self.seen.append((outliers_count, reconsider))
        return self.found[("first" if outliers_count else "second") + ("" if reconsider else "_again")]


def test_of_two_candidates_the_one_of_lower_loss_is_used() -> None:
    merged = np.array([[-3.0, 0.0], [-3.0, 50.0]])
    for found in ({"first": merged, "second": TRUE}, {"first": TRUE, "second": merged}):
        finder = Finder(**found)
        start = RobustStart(finder, "gradient", 0.0, 2)
        centres, agreement = start.search(means_network(), np.ones((2, 2)), generator())
        assert np.array_equal(centres, TRUE)
        assert agreement == pytest.approx(2 / 3)  # with the other candidate all are in one cluster
        assert finder.seen == [(True, True), (False, True)]
        # the points estimate the clients' optima, whatever the example is
        np.testing.assert_allclose(np.sort(finder.points[:, 0])[[0, -1]], [-3, 3], atol=0.05)


@pytest.mark.parametrize(("fraction", "again"), [(0.0, False), (0.1, False), (0.3, True)])
def test_a_cluster_that_may_be_byzantine_clients_is_considered_again(fraction: float, again: bool) -> None:
    """8 of 24 clients are in the smaller cluster: more than 2 + 2, no more than 7 + 2."""
    finder = Finder(first=TRUE + 0.5, second=TRUE + 0.5, first_again=TRUE + 0.4, second_again=TRUE)
    centres, agreement = RobustStart(finder, "gradient", fraction, 2).search(
        means_network(), np.ones((2, 2)), generator()
    )
    assert np.array_equal(centres, TRUE if again else TRUE + 0.5)
    assert finder.seen[2:] == ([(True, False), (False, False)] if again else [])
    assert agreement == 1.0


def test_what_is_no_better_by_a_standard_error_is_not_used() -> None:
    finder = Finder(first=TRUE, second=TRUE, first_again=TRUE + 0.3, second_again=TRUE)
    centres, _ = RobustStart(finder, "gradient", 0.3, 2).search(means_network(), np.ones((2, 2)), generator())
    assert centres.tolist() == TRUE.tolist()
    assert len(finder.seen) == 4


def test_shared_coordinates_are_those_of_all_clusters() -> None:
    finder = Finder(first=TRUE, second=TRUE)
    centres, _ = RobustStart(finder, "gradient", 0.0, 2, shared=1).search(means_network(), np.ones((2, 2)), generator())
    assert centres.tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("origin", [None, np.array([[5.0, -7.0]])])
@pytest.mark.parametrize("curvature", [2.0, 4.0])
def test_an_answer_is_a_step_from_the_origin(origin: np.ndarray | None, curvature: float) -> None:
    """origin − gradient/curvature; the gradient of ‖θ − z‖² is 2(θ − z)."""
    finder, network = Finder(first=TRUE, second=TRUE), means_network()
    RobustStart(finder, "gradient", 0.0, 2, curvature=curvature, origin=origin).search(
        network, np.array([[0.0, 1.0]]), generator()
    )
    at = np.zeros((1, 2)) if origin is None else origin
    optima = network.task.minimisers(0.0)
    np.testing.assert_allclose(finder.points, at + (optima - at) * 2 / curvature, rtol=1e-12, atol=1e-12)
    asked = Finder(first=TRUE, second=TRUE)
    RobustStart(asked, "minimiser", 0.0, 2).search(network, np.ones((1, 2)), generator())
    np.testing.assert_allclose(asked.points, optima, rtol=1e-12)


@pytest.mark.parametrize("question", ["gradient", "minimiser"])
@pytest.mark.parametrize("clusters", [3, None])
def test_wide_answers_give_nearly_the_same_start(
    question: Any, clusters: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = gaussian_means(generator(), clients=60, clusters=3, samples=30, dim=12, byzantine=0.0, dtype=np.float64)
    assert drawn.truth is not None
    network = SimulatedNetwork(mean_estimation(drawn.clients), drawn.truth.is_byzantine, None, generator())
    start = RobustStart(spectral, question, 0.05, clusters, max_clusters=5)
    narrow = start(network, np.zeros((1, 12)), generator())
    monkeypatch.setattr(asking, "WIDE", 12)
    wide = start(network, np.zeros((1, 12)), generator())
    assert narrow.shape == wide.shape == (3, 12)
    np.testing.assert_allclose(matched_distance(wide, drawn.truth.centres), 0, atol=0.5)
    assert matched_distance(wide, narrow) < 0.05


@pytest.mark.parametrize(("most", "found"), [(1, 1), (2, 2), (3, 3), (7, 3), (8, 3)])
def test_no_more_clusters_than_asked_for(most: int, found: int) -> None:
    drawn = mixed_regression(generator(), clients=45, clusters=3, samples=60, dim=6, byzantine=0.0, dtype=np.float64)
    assert drawn.truth is not None
    network = SimulatedNetwork(linear_regression(drawn.clients), drawn.truth.is_byzantine, None, generator())
    start = RobustStart(spectral, "gradient", 0.05, None, max_clusters=most)
    assert start(network, np.zeros((1, 6)), generator()).shape == (found, 6)


class Mislabelled:
    """A network in which the first client answers every question under another label."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self.network = network

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.network, name)
        if name not in ("gradients", "losses"):
            return value

        def ask(*arguments: Any, **named: Any) -> Any:
            replies = value(*arguments, **named)
            labels = np.array(replies.labels)
            labels[0] = 1
            return replace(replies, labels=labels)

        return ask


def test_answers_about_something_else_are_refused() -> None:
    finder = Finder(first=TRUE, second=TRUE)
    network: Any = Mislabelled(means_network())
    _, agreement = RobustStart(finder, "gradient", 0.0, 2).search(network, np.ones((2, 2)), generator())
    assert len(finder.points) == 23
    assert agreement == 1.0
    form = np.zeros((1, 2))
    answers = asking._answers(network, network.losses(TRUE), form)
    assert np.isnan(answers[0]).all()
    assert np.isfinite(answers[1:]).all()
