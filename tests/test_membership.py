"""Membership: whether a new client's loss is what a member of the cluster would have."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import f as f_distribution

import coterie as ct
from coterie._src.membership import (
    LEVEL,
    Membership,
    cluster_of,
    held_out_losses,
    learn_membership,
    loss_variances,
    membership_of,
)
from coterie._src.tasks import LinearModel, linear_regression, logistic_regression, mean_estimation, squared_loss
from coterie._src.tasks.linear import least_squares

ALL_ZERO = np.zeros(30, dtype=np.int64)


def chi_square_losses(rng: np.random.Generator, n: Any, count: int) -> tuple[Any, Any]:
    """The mean and the variance of n squared standard normal errors, of `count` clients."""
    each = [rng.standard_normal(size) ** 2 for size in np.broadcast_to(n, count)]
    return np.array([one.mean() for one in each]), np.array(
        [one.var(ddof=1) if len(one) > 1 else np.nan for one in each]
    )


@pytest.mark.parametrize(("n", "new"), [(50, 50), (50, 5), (20, 200)])
def test_the_p_value_is_near_the_exact_one_of_normal_errors(n: int, new: int) -> None:
    """F/F_j of a new client has the F distribution with (n_new, Σ n_i) degrees of freedom."""
    rng = np.random.default_rng(0)
    losses, variances = chi_square_losses(rng, n, 400)
    found = learn_membership(losses, variances, np.full(400, n), np.zeros(400, dtype=np.int64), 1, 0)
    for exact in (0.5, 0.1, 0.01):
        loss = f_distribution.isf(exact, new, 400 * n)
        p = found.p_values(np.array([loss]), np.array([2 * loss**2]), new)[0]
        assert exact / 1.6 < p < 1.6 * exact


@pytest.mark.parametrize(("members", "most"), [(2, 0.02), (3, 0.02), (5, 0.02), (20, 0.02)])
@pytest.mark.parametrize("between", [0.0, 0.5])
def test_false_alarms_are_rare_in_small_clusters_too(members: int, most: float, between: float) -> None:
    rng, alarms, trials = np.random.default_rng(1), 0, 3000
    for _ in range(trials):
        losses, variances = chi_square_losses(rng, 40, 3 * members + 1)
        factors = np.exp(between * rng.standard_normal(len(losses)))
        losses, variances = losses * factors, variances * factors**2
        labels = np.arange(3 * members) % 3
        found = learn_membership(losses[:-1], variances[:-1], np.full(3 * members, 40), labels, 3, 0)
        alarms += bool(found.p_values(losses[-1:].repeat(3), variances[-1:].repeat(3), 40)[0] < LEVEL)
    assert alarms / trials <= most
    if members == 20:
        assert alarms / trials >= 0.003


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 3),
    st.sampled_from([0.0, 1e-300, 1e3, 1e300, math.inf, math.nan, 1.0]),
    st.sampled_from(["losses", "variances", "both"]),
)
def test_absurd_losses_of_byzantine_members_change_little(seed: int, count: int, absurd: float, what: str) -> None:
    rng = np.random.default_rng(seed)
    losses, variances = chi_square_losses(rng, 30, 30)
    sizes = np.full(30, 30)
    honest = learn_membership(losses[count:], variances[count:], sizes[count:], ALL_ZERO[count:], 1, 3)
    if what != "variances":
        losses[:count] = absurd
    if what != "losses":
        variances[:count] = absurd
    found = learn_membership(losses, variances, sizes, ALL_ZERO, 1, 3)
    assert found.loss[0] == pytest.approx(honest.loss[0], rel=0.1)
    assert honest.spread[0] / 2 < found.spread[0] < 2 * honest.spread[0]
    assert found.cluster_of(np.array([5.0]), np.array([50.0]), 30) == -1
    assert found.cluster_of(np.array([1.0]), np.array([2.0]), 30) == 0


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.floats(1e-6, 1e6), st.integers(2, 12))
def test_units_and_order_do_not_matter_and_larger_losses_are_less_likely(seed: int, unit: float, members: int) -> None:
    rng = np.random.default_rng(seed)
    losses, variances = chi_square_losses(rng, 10, 2 * members)
    sizes, labels = np.full(2 * members, 10), np.arange(2 * members) % 2
    found = learn_membership(losses, variances, sizes, labels, 2, 1)
    order = rng.permutation(2 * members)
    other = learn_membership(unit * losses[order], unit**2 * variances[order], sizes[order], labels[order], 2, 1)
    tried = np.array([0.5, 1.0, 2.0, 4.0])
    p = np.array([found.p_values(np.full(2, loss), np.full(2, 2.0), 10) for loss in tried])
    q = np.array([other.p_values(np.full(2, unit * loss), np.full(2, 2.0 * unit**2), 10) for loss in tried])
    np.testing.assert_allclose(p, q, rtol=1e-6)
    fixed = np.array([found.p_values(np.full(2, loss), np.full(2, np.nan), 10) for loss in tried])
    assert (np.diff(fixed, axis=0) <= 0).all()
    assert Membership.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_what_nothing_is_known_about_is_not_refused() -> None:
    unknown = np.full(3, np.nan)
    found = learn_membership(np.ones(3), unknown, np.ones(3, dtype=np.int64), np.array([0, 0, 1]), 3, 0)
    assert found.members == (2, 1, 0)
    assert found.p_values(np.full(3, 1.0), unknown, 1)[2] == 1.0
    alone = learn_membership(np.ones(1), unknown[:1], np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64), 1, 0)
    assert alone.cluster_of(np.array([1e9]), np.array([np.nan]), 5) == 0
    assert json.dumps(found.as_dict(), allow_nan=False)


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e160, 1e300])
def test_losses_of_any_size_can_be_judged(size: float) -> None:
    """As of a method that diverged."""
    losses = size * np.array([1.0, 1.1, 0.9, 1.0, 1.2])
    found = learn_membership(losses, np.full(5, np.nan), np.full(5, 9), np.zeros(5, dtype=np.int64), 1, 1)
    json.dumps(found.as_dict(), allow_nan=False)
    assert found.cluster_of(losses[:1], np.full(1, np.nan), 9) == 0
    assert found.cluster_of(1e6 * losses[:1], np.full(1, np.nan), 9) == -1
    assert found.cluster_of(np.zeros(1), np.zeros(1), 9) == 0


@pytest.mark.parametrize(
    "change",
    [{"loss": [1.0, 2.0]}, {"loss": [None]}, {"spread": ["a"]}, {"power": 2.0}, {"resolution": math.inf}, {"more": 1},
     {"members": [1.5]}, {"degrees": 3}, {"noise": [-1.0]}, {"sampling": [True]}],
)  # fmt: skip
def test_a_wrong_record_is_refused(change: dict[str, Any]) -> None:
    good = learn_membership(np.ones(5), np.ones(5), np.full(5, 9), np.zeros(5, dtype=np.int64), 1, 1).as_dict()
    Membership.from_dict(good)
    with pytest.raises(ValueError, match="membership"):
        Membership.from_dict(good | change)


def test_held_out_losses_are_those_of_a_fit_without_the_client() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((6 * 15, 4))
    clients = ct.Clients(x, x @ np.ones(4) + rng.standard_normal(90), np.full(6, 15))
    for task in (linear_regression(clients, "gram"), linear_regression(clients, "direct")):
        centre = task.on(clients.pool(range(6))).minimisers()
        found = held_out_losses(task, centre, np.zeros(6, dtype=np.int64))
        for i in range(6):
            others = [j for j in range(6) if j != i]
            without = task.on(clients.pool(others)).minimisers()
            assert found[i] == pytest.approx(float(task.losses(without)[i, 0]), rel=1e-8)


def test_a_client_that_alone_determines_a_direction_has_a_bounded_leverage() -> None:
    """Five clients see the first column, one the second: its share of the information there is 1, and counts as 0.98.

    By hand, for F = (θ_2 − 2)² at θ = 0: slope −4/√2 and Hessian 1 in coordinates in which all information is I.
    """
    x = np.array([[1.0, 0.0]] * 5 + [[0.0, 1.0]])
    task = linear_regression(ct.Clients(x, np.array([0.0, 0.0, 0.0, 0.0, 0.0, 2.0]), np.ones(6, dtype=int)), "direct")
    found = held_out_losses(task, np.zeros((1, 2)), np.zeros(6, dtype=np.int64))
    assert found.tolist() == pytest.approx([0, 0, 0, 0, 0, 4 + 8 / 0.02 + 0.5 * 0.98 * 8 / 0.02**2])


def test_loss_variances_are_those_of_the_samples() -> None:
    rng = np.random.default_rng(4)
    x, sizes = rng.standard_normal((10, 3)), np.array([4, 1, 5])
    y = rng.standard_normal(10)
    centres, labels = rng.standard_normal((2, 3)), np.array([1, 0, 0])
    owner = np.repeat(np.arange(3), sizes)
    clients = ct.Clients(x, y, sizes)
    own = centres[labels][owner]
    scores = (x * own).sum(axis=1)
    binary = (y > 0).astype(float)
    tasks: list[tuple[Any, Any]] = [
        (linear_regression(clients, "gram"), (scores - y) ** 2),
        (LinearModel(clients, squared_loss(), least_squares), (scores - y) ** 2),
        (logistic_regression(ct.Clients(x, binary, sizes)), np.log1p(np.exp(scores)) - binary * scores),
        (mean_estimation(ct.Clients(x, None, sizes)), ((x - own) ** 2).sum(axis=1)),
    ]
    for task, each in tasks:
        found = loss_variances(task, centres, labels)
        assert np.isnan(found[1])
        for i in (0, 2):
            assert found[i] == pytest.approx(each[owner == i].var(ddof=1))


@pytest.mark.parametrize("kind", ["linear", "logistic"])
def test_new_clients_of_a_cluster_belong_to_it_and_others_to_none(kind: str) -> None:
    """Clients that the fit has not seen, 30 per cluster; a third cluster that it has not seen either."""
    n = 60 if kind == "linear" else 300
    drawn = ct.tabular(
        5, clients=390, clusters=3, samples=n, dim=6, task=kind, byzantine=0.0, heavy=0.5, client_means=0.5, spread=0.1,
        separation=2.0 if kind == "linear" else 4.0, dtype=np.float64,
    )  # fmt: skip
    assert drawn.truth is not None
    labels = drawn.truth.labels
    first = np.concatenate([np.flatnonzero(labels == j)[:30] for j in (0, 1)])
    result = ct.fit(drawn.clients.take(first), kind, clusters=2, max_byzantine=0.05)
    assert result.membership is not None
    answers = []
    for j in range(3):
        rest = np.flatnonzero(labels == j)[30:]
        answers.append([result.assign(*map(np.asarray, drawn.clients.samples(int(i)))) for i in rest])  # type: ignore[arg-type]
    alarms = np.mean([np.array(one) == -1 for one in answers[:2]])
    assert alarms <= 0.03
    assert np.mean(np.array(answers[2]) == -1) > 0.9
    x, y = drawn.clients.samples(int(np.flatnonzero(labels == 2)[-1]))
    assert result.assign(x, y, nearest=True) in (0, 1)
    with pytest.raises(ValueError, match="x holds a value that is not a finite number"):
        result.assign(np.full((2, 6), np.nan), [0.0, 1.0])


def test_data_without_noise_are_judged_by_the_rounding_errors() -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((80, 3))
    clients = ct.Clients(x, x @ np.array([1.0, 2.0, 3.0]), np.full(8, 10))
    task = linear_regression(clients)
    centre, labels = np.array([[1.0, 2.0, 3.0]]), np.zeros(8, dtype=np.int64)
    found = membership_of(task, centre, labels, 0)
    z = rng.standard_normal((9, 3))
    exact = ct.Clients(z, z @ (centre[0] + 1e-12), np.array([9]))
    assert cluster_of(linear_regression(exact), centre, found) == 0
    other = ct.Clients(z, z @ (centre[0] + 1e-2), np.array([9]))
    assert cluster_of(linear_regression(other), centre, found) == -1
    assert cluster_of(linear_regression(other), centre, None) == 0
