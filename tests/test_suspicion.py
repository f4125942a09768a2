"""Which clients stand out by their losses."""

from __future__ import annotations

import numpy as np
import pytest

from coterie._src.data import Clients
from coterie._src.membership import membership_of
from coterie._src.suspicion import TOO_SMALL, Suspicion, suspicion
from coterie._src.tasks import TASKS


def found_in(targets: np.ndarray, labels: list[int], centres: list[float], bound: int, refused: int = -1) -> Suspicion:
    """targets: (m, n), each the noise around 0 of a client whose feature is 1, so that a centre is a mean."""
    count, samples = targets.shape
    clients = Clients(np.ones((targets.size, 1)), targets.ravel(), np.full(count, samples))
    task, numbers = TASKS["linear"].build(clients, 2), np.array(labels)
    rows, shares = np.array(centres)[:, None], (np.arange(count) == refused) / 4
    return suspicion(task, rows, numbers, membership_of(task, rows, numbers, bound), shares, bound)


def noise(clients: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((clients, 30))


def test_a_client_with_other_data_stands_out() -> None:
    targets = noise(20)
    targets[7] += 4.0
    found = found_in(targets, [0] * 20, [0.0], 1)
    assert found.scores.argmax() == 7
    assert found.reasons[7].startswith("its loss is ")
    assert "times the usual one of cluster 0 (p = " in found.reasons[7]
    assert [i for i, reason in enumerate(found.reasons) if reason] == [7]
    np.testing.assert_allclose(found.losses, (targets**2).mean(axis=1))


def test_a_cluster_that_may_be_byzantine_says_nothing_for_its_members() -> None:
    """One client is in a cluster of its own, which fits it; it is judged by the cluster of the others."""
    targets = noise(20)
    targets[3] += 5.0
    labels = [1 if i == 3 else 0 for i in range(20)]
    found = found_in(targets, labels, [0.0, 5.0], 1)
    assert found.losses[3] < 2
    assert found.scores[3] > 5
    assert f"cluster 1 has {TOO_SMALL} (1) than may be Byzantine (1)" in found.reasons[3]
    assert found_in(targets, labels, [0.0, 5.0], 0).reasons[3] == ""


def test_refusals_are_a_reason_and_a_client_in_no_cluster_has_no_loss() -> None:
    found = found_in(noise(12), [-1] + [0] * 11, [0.0], 1, refused=4)
    assert found.reasons[4] == "refused in 25% of the rounds"
    assert np.isnan(found.losses[0])
    assert np.isfinite(found.scores).all()


@pytest.mark.parametrize("clusters", [1, 2])
def test_about_one_honest_client_in_a_hundred_is_named(clusters: int) -> None:
    """Of 40 × 30 clients, 1 % with a standard error of 0.3 %."""
    named = 0
    for seed in range(40):
        labels = [i % clusters for i in range(30)]
        found = found_in(noise(30, seed) + 9.0 * np.array(labels)[:, None], labels, [0.0, 9.0][:clusters], 1)
        named += sum(map(bool, found.reasons))
    assert named / 1200 < 0.02
