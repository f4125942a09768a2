"""Which cluster the Byzantine clients claim."""

from __future__ import annotations

import numpy as np

from coterie._src.attacks import Attack, View, own, paper, smallest
from coterie._src.attacks.targets import emptiest, random, rotating


def test_targets(view: View) -> None:
    own_at_three = view.task.losses(3 * view.centres).argmin(axis=1)
    labels = Attack(paper)(view).labels  # the paper's clients work on 3·θ throughout
    assert np.array_equal(labels, own_at_three)
    own_at_minus_one = view.task.losses(-view.centres).argmin(axis=1)
    assert not np.array_equal(own_at_minus_one, own_at_three)
    assert np.array_equal(Attack(paper, scale=-1.0)(view).labels, own_at_minus_one)
    crowded = view._replace(labels=np.array([0] * 6 + [1] * 3 + [2] * 7 + [0] * 4))
    assert smallest(crowded).tolist() == [1] * 4
    assert np.array_equal(own(view), view.labels[view.is_byzantine])
    assert [rotating(view._replace(round=t))[0] for t in range(4)] == [0, 1, 2, 0]
    drawn = [tuple(random(view)) for _ in range(20)]
    assert len(set(drawn)) > 5
    assert np.all((np.array(drawn) >= 0) & (np.array(drawn) < 3))


def test_the_smallest_cluster_is_one_that_honest_clients_are_in(view: View) -> None:
    labels = np.where(view.labels == 2, 0, view.labels)  # nobody is in cluster 2
    assert 2 not in smallest(view._replace(labels=labels))


def test_emptiest_captures_a_cluster_that_nobody_chose(view: View) -> None:
    labels = np.where(view.labels == 2, 0, view.labels)
    assert set(emptiest(view._replace(labels=labels))) == {2}
