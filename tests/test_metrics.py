"""Metrics by hand and against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from coterie._src.data import Truth
from coterie._src.metrics import (
    adjusted_rand_index,
    agreement,
    cluster_accuracies,
    cluster_distances,
    contamination,
    contingency,
    evaluate,
    matched_distance,
    misclustered_fraction,
    nearest_distance,
)

TRUE = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 3.0]])


def test_distances_by_hand() -> None:
    doubled = np.array([[0.0, 0.0], [0.0, 1.0], [4.0, 0.0]])  # two estimates on the first truth, none on the third
    assert nearest_distance(doubled, TRUE) == pytest.approx(1 / 3)
    assert matched_distance(doubled, TRUE) == pytest.approx(2 / 3)  # the second must go to the third
    assert matched_distance(TRUE[[2, 0, 1]], TRUE) == 0.0


def test_a_centre_that_diverged_is_infinitely_far() -> None:
    lost = TRUE.copy()
    lost[1] = np.nan
    assert nearest_distance(lost, TRUE) == np.inf
    assert matched_distance(lost, TRUE) == np.inf


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=40))
def test_adjusted_rand_index_is_scikit_learn_s(pairs: list[tuple[int, int]]) -> None:
    labels, truth = np.array(pairs).T
    assert adjusted_rand_index(labels, truth) == pytest.approx(adjusted_rand_score(truth, labels), abs=1e-12)


def test_misclustered_is_up_to_renaming() -> None:
    truth = np.array([0, 0, 0, 1, 1, 2])
    assert misclustered_fraction(np.array([2, 2, 2, 0, 0, 1]), truth) == 0.0
    assert misclustered_fraction(np.array([2, 2, 0, 0, 0, 0]), truth) == pytest.approx(2 / 6)


def test_byzantine_and_refused_clients_do_not_count() -> None:
    truth = Truth(TRUE, np.array([0, 0, 1, 1, 2, 2, -1, -1]))
    found = evaluate(TRUE, np.array([0, 0, 1, 1, 2, -1, 0, 1]), truth)
    assert found == {"dist": 0.0, "matched_dist": 0.0, "ari": 1.0, "misclustered": 0.0, "clusters": 3.0}


def test_too_few_and_too_many_estimates() -> None:
    two = TRUE[:2]
    alone = np.linalg.norm(TRUE[2] - two, axis=1).min()
    assert matched_distance(two, TRUE) == pytest.approx(alone / 3)
    assert cluster_distances(two, TRUE).tolist() == [0.0, 0.0, alone]
    four = np.concatenate([TRUE, TRUE[:1] + 50.0])
    assert matched_distance(four, TRUE) == 0.0
    assert evaluate(four, np.array([0, 1, 2]), Truth(TRUE, np.array([0, 1, 2])))["clusters"] == 4.0
    assert cluster_distances(TRUE[:1], TRUE).tolist() == np.linalg.norm(TRUE - TRUE[0], axis=1).tolist()


def test_one_model_for_all_and_one_per_client() -> None:
    truth = Truth(TRUE, np.array([0, 1, 2, -1]))
    shared = evaluate(np.array([[0.0, 0.0]]), np.zeros(4, np.int64), truth)
    assert shared["dist"] == 0.0
    assert shared["matched_dist"] == pytest.approx((0 + 4 + 3) / 3)
    own = np.array([[0.0, 1.0], [0.0, 0.0], [0.0, 3.0], [99.0, 99.0]])
    local = evaluate(own, np.arange(4), truth, local=True)
    assert local["dist"] == pytest.approx((1 + 0 + 0) / 3)
    assert local["matched_dist"] == pytest.approx((1 + 4 + 0) / 3)
    assert np.isnan(local["ari"])


def test_contamination_by_hand() -> None:
    is_byzantine = np.array([True, False, False, True, True])
    assert contamination(np.array([0, 0, 1, -1, 0]), is_byzantine, 3).tolist() == pytest.approx([2 / 3, 0.0, 0.0])
    assert contamination(np.array([0, 1, 1]), is_byzantine[:3], 2).tolist() == [1.0, 0.0]  # a single client


def test_two_estimates_of_three_centres_by_hand() -> None:
    """One to one: the far estimate is matched although no true centre is near it; the third goes to its nearest."""
    two = np.array([[0.0, 0.0], [50.0, 0.0]])
    assert cluster_distances(two, TRUE).tolist() == [0.0, 46.0, 3.0]
    assert matched_distance(two, TRUE) == pytest.approx(49 / 3)
    assert nearest_distance(two, TRUE) == 23.0
    truth = Truth(TRUE, np.array([0, 1, 2]))
    found = evaluate(two, np.array([0, 1, 0]), truth)
    assert (found["dist"], found["matched_dist"], found["clusters"]) == (23.0, pytest.approx(49 / 3), 2.0)


def test_the_table_of_labels_by_hand() -> None:
    table = contingency(np.array([0, 2, 2, 2]), np.array([1, 1, 0, 1]))
    assert table.tolist() == [[0, 1], [0, 0], [1, 2]]
    for negative in (([0, -1], [0, 0]), ([0, 0], [3, -1])):
        with pytest.raises(ValueError, match="labels: must be at least 0"):
            contingency(*map(np.array, negative))


def test_accuracies_by_hand() -> None:
    """Two clients of the first true cluster, one of them in no cluster; Byzantine clients do not count."""
    truth = Truth(np.zeros((2, 0)), np.array([0, 0, 1, 1, -1]))
    right = np.array([[0.9, 0.1], [0.2, 0.6]])
    assert cluster_accuracies(right, np.array([0, -1, 1, 0, 0]), truth).tolist() == pytest.approx([0.45, 0.4])


def test_without_clients_or_centres_measures_are_not_numbers() -> None:
    nobody = agreement(np.array([-1, 0]), Truth(TRUE, np.array([0, -1])))
    assert all(np.isnan(value) for value in nobody.values())
    blank = Truth(np.zeros((2, 0)), np.array([0, 1]))
    for local in (False, True):
        found = evaluate(np.zeros((2, 3)), np.array([0, 1]), blank, local=local)
        assert np.isnan(found["dist"])
        assert np.isnan(found["matched_dist"])
        assert np.isnan(found["ari"]) == local
    known = {"ari": 0.25, "misclustered": 0.75}
    found = evaluate(TRUE, np.array([0, 1]), Truth(TRUE, np.array([0, 1])), known=known)
    assert (found["ari"], found["misclustered"]) == (0.25, 0.75)
