"""Membership in numbers that can be computed by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

import coterie as ct
from coterie._src import membership
from coterie._src.membership import Membership, held_out_losses, learn_membership, whitening
from coterie._src.tasks import linear_regression

NAN = math.nan


def record(**changes: Any) -> Membership:
    """Three clusters: one whose clients differ, one with samples of known noise, one of which nothing is known."""
    values: dict[str, Any] = {
        "loss": (2.0, 0.5, NAN), "spread": (0.09, 0.05, 0.0), "sampling": (0.04, 0.08, 0.0), "noise": (0.0, 2.0, 0.0),
        "members": (10, 20, 0), "degrees": (9.0, 23.0, 0.0), "power": 0.25, "resolution": 0.0,
    }  # fmt: skip
    return Membership(**values | changes)


def by_hand(loss: float, spread: float, total: float, members: int, degrees: float, relative: float) -> float:
    """P(T > (g − (1 − λ)/2·(spread − total))/√(total + spread/members)), g = (x^λ − 1)/λ at λ = ¼."""
    scaled = (relative**0.25 - 1) / 0.25
    middle = 0.375 * (spread - total)
    return float(student.sf((scaled - middle) / math.sqrt(total + spread / members), degrees))


@pytest.mark.parametrize("loss", [0.3, 2.0, 3.0, 9.0])
def test_the_probability_of_a_loss(loss: float) -> None:
    found = record().p_values(np.full(3, loss), np.full(3, NAN), 4)
    assert found[0] == pytest.approx(by_hand(loss, 0.09, 0.09, 10, 9.0, loss / 2.0))
    # the samples of a new client explain 2/4; the spread between clients is 0, since 0.05 − 0.08 is below it
    assert found[1] == pytest.approx(by_hand(loss, 0.05, 0.5, 20, 23.0, loss / 0.5))
    assert found[2] == 1.0


def test_the_noise_of_a_client_s_own_samples_may_be_larger() -> None:
    """variance/loss² per sample, where it is more than the cluster's 2; not of one sample, and not where it is 0."""
    loss, own = 1.0, 6.0
    for n, variance, total in (
        (4, own, own / 4),
        (4, 1.0, 2 / 4),
        (1, own, 2.0),
        (4, math.inf, 2 / 4),
        (2, own, own / 2),
    ):
        found = record().p_values(np.full(3, loss), np.full(3, variance), n)
        assert found[1] == pytest.approx(by_hand(loss, 0.05, total, 20, 23.0, 2.0)), (n, variance)
        assert found[0] == pytest.approx(by_hand(loss, 0.09, 0.09, 10, 9.0, 0.5))  # where no noise is known


def test_losses_at_the_ends() -> None:
    found = record().p_values(np.array([math.inf, NAN, math.inf]), np.full(3, 1.0), 5)
    assert found.tolist() == [0.0, 0.0, 1.0]
    assert record().p_values(np.zeros(3), np.full(3, 1.0), 5)[0] > 0.999
    assert record(members=(0, 20, 0)).p_values(np.full(3, 99.0), np.full(3, NAN), 5)[0] == 1.0
    assert record(degrees=(0.0, 23.0, 0.0)).p_values(np.full(3, 99.0), np.full(3, NAN), 5)[0] == 1.0
    raised = record(resolution=1.0).p_values(np.full(3, 1.0), np.full(3, NAN), 4)
    assert raised[0] == pytest.approx(by_hand(1.0, 0.09, 0.09, 10, 9.0, 1.0))


def test_a_record_under_other_numbers() -> None:
    one, earlier = record(), record(loss=(7.0, 8.0, 9.0), members=(1, 2, 3), degrees=(4.0, 5.0, 6.0))
    found = one.renumbered([2, 0, 1], 3, None)
    assert found.members == (20, 0, 10)
    assert found.loss[0] == 0.5
    assert found.loss[2] == 2.0
    assert math.isnan(found.loss[1])
    kept = one.renumbered([2, 0, 1], 4, earlier)  # of cluster 1 nothing new is known, and of cluster 3 nothing at all
    assert kept.members == (20, 2, 10, 0)
    assert kept.loss[:3] == (0.5, 8.0, 2.0)
    assert kept.degrees == (23.0, 5.0, 9.0, 0)
    assert len(kept.spread) == 4
    assert (found.power, found.resolution) == (0.25, 0.0)


def test_a_record_as_plain_values() -> None:
    plain = record().as_dict()
    assert plain["loss"] == [2.0, 0.5, None]
    assert plain["members"] == [10, 20, 0]
    again = Membership.from_dict(plain)
    assert again.loss[:2] == (2.0, 0.5)
    assert math.isnan(again.loss[2])
    assert (again.power, again.resolution, again.members) == (0.25, 0.0, (10, 20, 0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": []}, "loss must be a list with one number for each cluster"),
        ({"spread": (1.0, 2.0, 3.0)}, "spread must be a list"),
        ({"spread": [1.0, 2.0]}, "spread must be a list"),
        ({"spread": "abc"}, "spread must be a list"),
        ({"spread": [1.0, None, 1.0]}, "spread must hold finite numbers of at least 0"),
        ({"loss": [1.0, -1.0, 1.0]}, "loss must hold finite numbers"),
        ({"loss": [0.0, 1.0, None]}, "loss must be positive for a cluster with members"),
        ({"loss": [None, 1.0, None]}, "loss must be positive for a cluster with members"),
        ({"members": [1, 2.0, 0]}, "members must hold whole numbers"),
        ({"power": 1.5}, "power must be a number of at least 0, and power at most 1"),
        ({"power": -0.1}, "power must be"),
        ({"resolution": -1.0}, "resolution must be"),
        ({"power": True}, "power must be"),
    ],
)
def test_what_is_wrong_with_a_record_is_said(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Membership.from_dict(record().as_dict() | change)


def test_a_record_with_ends_of_the_ranges_is_read() -> None:
    good = record().as_dict() | {"power": 1, "resolution": 12.0, "spread": [0, 0.0, 5]}
    found = Membership.from_dict(good)
    assert (found.power, found.resolution, found.spread) == (1.0, 12.0, (0, 0.0, 5))
    for wrong in (None, [], {"loss": [1.0]}):
        with pytest.raises(ValueError, match="membership must have exactly the keys"):
            Membership.from_dict(wrong)


# --- what is learnt -----------------------------------------------------------------------------------


def learn(losses: list[float], labels: list[int], clusters: int, **options: Any) -> Membership:
    count = len(losses)
    variances, sizes = options.pop("variances", [NAN] * count), options.pop("sizes", [9] * count)
    return learn_membership(
        np.array(losses), np.array(variances, float), np.array(sizes), np.array(labels), clusters,
        options.pop("max_byzantine", 0), **options,
    )  # fmt: skip


def test_without_known_noise_losses_are_compared_by_their_logarithms() -> None:
    logs = np.array([0.0, 0.3, -0.2, 0.1])
    found = learn(list(2 * np.exp(logs)), [0] * 4, 1)
    assert found.power == 0.0
    assert found.loss[0] == pytest.approx(2 * math.exp(logs.mean()))
    assert found.spread[0] == pytest.approx(logs.var(ddof=1))
    assert (found.sampling, found.noise, found.members, found.degrees) == ((0.0,), (0.0,), (4,), (3.0,))


def test_small_clusters_take_part_in_the_spread_of_the_others() -> None:
    """Four degrees of freedom, or as many as the others have, are added to those of a cluster."""
    logs = {0: [0.0, 0.4], 1: [0.1, -0.3, 0.2], 2: [0.5], 3: [0.0, 0.1, 0.4, -0.1]}
    losses = [math.exp(one) for row in logs.values() for one in row]
    labels = [j for j, row in logs.items() for _ in row]
    found = learn(losses, labels, 5)
    own = {j: np.var(row, ddof=1) if len(row) > 1 else 0.0 for j, row in logs.items()}
    free = {j: len(row) - 1 for j, row in logs.items()}
    for j in range(4):
        others = [i for i in range(4) if i != j and free[i]]
        total = sum(free[i] for i in others)
        shared = min(4, total)
        elsewhere = sum(free[i] * own[i] for i in others) / total
        expected = (free[j] * own[j] + shared * elsewhere) / (free[j] + shared)
        assert found.spread[j] == pytest.approx(expected), j
        assert found.degrees[j] == free[j] + shared
        assert found.loss[j] == pytest.approx(math.exp(np.mean(logs[j])))
    assert math.isnan(found.loss[4])
    assert (found.members[4], found.degrees[4]) == (0, 0.0)


def test_losses_that_are_no_losses_are_left_out() -> None:
    found = learn([1.0, NAN, 1.2, math.inf, -1.0, 0.9, 50.0], [0, 0, 0, 0, 0, 0, -1], 1)
    assert found.members == (3,)
    assert found.loss[0] == pytest.approx((1.2 * 0.9) ** (1 / 3))


def test_a_member_that_is_far_from_the_others_is_left_out() -> None:
    logs = [0.0, 0.1, -0.1, 0.05, -0.05, 3.0, -3.0]
    losses = [math.exp(one) for one in logs]
    found = [learn(losses, [0] * 7, 1, max_byzantine=most) for most in (0, 1, 2, 9)]
    assert [one.members[0] for one in found] == [7, 6, 5, 5]
    assert found[2].spread[0] == pytest.approx(np.var(logs[:5], ddof=1))
    assert found[2].loss[0] == pytest.approx(1.0)


def test_what_samples_explain_is_the_variance_of_their_losses() -> None:
    """Equal losses of 2 with a variance of 8: noise 8/(4 − 8/9) per sample, and a ninth of it per client."""
    found = learn([2.0] * 5, [0] * 5, 1, variances=[8.0] * 5)
    noise = (8 / 4) / (1 - 8 / 4 / 9)
    assert found.noise[0] == pytest.approx(noise)
    assert found.sampling[0] == pytest.approx(noise / 9)
    assert found.spread[0] == pytest.approx(noise / 9)  # at least what the samples explain
    assert found.power == pytest.approx(1 / 3)
    assert found.loss[0] == pytest.approx(2.0)
    single = learn([2.0] * 5, [0] * 5, 1, variances=[8.0] * 5, sizes=[1] * 5)
    assert single.noise == (0.0,)  # one sample has no variance


def test_one_client_alone_is_judged_by_its_samples() -> None:
    found = learn([2.0], [0], 1, variances=[8.0])
    assert found.degrees == (1.0,)
    assert found.members == (1,)
    assert learn([2.0], [0], 1).degrees == (0.0,)


# --- held-out losses ----------------------------------------------------------------------------------


def test_whitening_by_hand() -> None:
    rng = np.random.default_rng(0)
    root = rng.standard_normal((4, 3)) * np.array([[1e6], [1.0], [1e-3], [5.0]])
    matrix = root @ root.T
    found = whitening(matrix)
    assert found.shape == (4, 3)  # the rank
    np.testing.assert_allclose(found.T @ matrix @ found, np.eye(3), atol=1e-6)


def test_who_is_alone_or_in_no_cluster_keeps_its_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    clients = ct.Clients(rng.standard_normal((30, 2)), rng.standard_normal(30), np.full(6, 5))
    task, centres = linear_regression(clients), rng.standard_normal((3, 2))
    labels = np.array([0, 0, 0, 1, -1, -1])
    plain = np.asarray(task.losses(centres))[np.arange(6), np.maximum(labels, 0)]
    found = held_out_losses(task, centres, labels)
    assert (found[:3] > plain[:3]).all()
    np.testing.assert_array_equal(found[3:], plain[3:])
    # an answer that is not finite does not change those of the others
    gradients = np.array(task.gradients(centres, np.maximum(labels, 0)))
    two = held_out_losses(task.on(clients.take(np.array([0, 1, 3]))), centres, np.array([0, 0, 1]))
    broken = Broken(task, np.where(np.arange(6)[:, None] == 2, NAN, gradients))
    np.testing.assert_allclose(held_out_losses(broken, centres, labels)[:2], two[:2], rtol=1e-10)
    monkeypatch.setattr(membership, "MAX_NUMBERS", 23)  # 6 Hessians of 4 numbers are more
    np.testing.assert_array_equal(held_out_losses(task, centres, labels), plain)
    monkeypatch.setattr(membership, "MAX_NUMBERS", 24)
    np.testing.assert_array_equal(held_out_losses(task, centres, labels), found)


class Broken:
    """A task with other gradients."""

    def __init__(self, task: Any, gradients: np.ndarray) -> None:
        self.task, self.own = task, gradients

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def gradients(self, centres: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return self.own
