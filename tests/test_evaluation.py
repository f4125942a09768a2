"""Scores on held-out samples against scikit-learn's, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, r2_score, roc_auc_score

from coterie._src.data import Clients, HeldOut, hold_out
from coterie._src.evaluation import Scores, cluster_models, compare, held_out_metrics, held_out_scores
from coterie._src.tasks import (
    LinearModel,
    linear_regression,
    logistic_regression,
    mean_estimation,
    softmax_regression,
    squared_loss,
)
from coterie._src.tasks.linear import least_squares

SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=8)


@given(sizes=SIZES, fraction=st.floats(0, 0.99), seed=st.integers(0, 5))
def test_a_split_deals_every_sample_to_one_side(sizes: list[int], fraction: float, seed: int) -> None:
    rows = np.arange(float(sum(sizes)))
    clients = Clients(rows[:, None], rows, np.array(sizes))
    rest, held_out = hold_out(clients, fraction, np.random.default_rng(seed))
    counts = np.floor(np.array(sizes) * fraction).astype(int)
    assert (rest.sizes == np.array(sizes) - counts).all()
    assert rest.names == clients.names
    if not counts.any():
        assert held_out is None
        return
    assert held_out is not None
    assert held_out.owners.tolist() == np.flatnonzero(counts).tolist()
    assert held_out.clients.sizes.tolist() == counts[counts > 0].tolist()
    for client in range(len(sizes)):
        own = set(rest.samples(client)[0][:, 0])
        if client in held_out.owners:
            index = held_out.owners.tolist().index(client)
            held = set(held_out.clients.samples(index)[0][:, 0])
            assert not own & held
            assert (held_out.clients.samples(index)[1] == held_out.clients.samples(index)[0][:, 0]).all()
            own |= held
        assert own == set(clients.samples(client)[0][:, 0])


def test_a_split_is_random_and_follows_its_generator() -> None:
    clients = Clients(np.arange(40.0)[:, None], None, np.array([20, 20]))
    once, again, other = (hold_out(clients, 0.5, np.random.default_rng(seed))[0].features for seed in (0, 0, 1))
    assert (once == again).all()
    assert (once != other).any()
    with pytest.raises(ValueError, match=r"holdout must be at least 0 and less than 1, got 1.0"):
        hold_out(clients, 1.0, np.random.default_rng(0))


def some(rng: np.random.Generator, sizes: tuple[int, ...], dim: int = 3) -> Clients:
    return Clients(rng.standard_normal((sum(sizes), dim)), rng.standard_normal(sum(sizes)), np.array(sizes))


def test_r2_of_one_client_is_the_usual_one_and_the_loss_is_the_mean_squared_error() -> None:
    rng = np.random.default_rng(0)
    clients = some(rng, (40,))
    model = rng.standard_normal((1, 3))
    found = held_out_scores(linear_regression(clients), HeldOut(clients, np.array([0])), model, np.array([True]))
    predicted = clients.features @ model[0]
    assert found.r2[0] == pytest.approx(r2_score(clients.targets, predicted))
    assert found.losses[0] == pytest.approx(np.mean((predicted - clients.targets) ** 2))
    assert found.samples[0] == pytest.approx((predicted - clients.targets) ** 2)
    assert (found.main == found.r2).all()


def test_r2_of_several_clients_by_hand() -> None:
    """Targets 0, 2 and 4, 6: the mean of the clients' means is 3, the mean squared deviation 5."""
    held = Clients(np.ones((4, 1)), np.array([0.0, 2.0, 4.0, 6.0]), np.array([2, 2]))
    task = linear_regression(Clients(np.ones((3, 1)), np.zeros(3), np.array([1, 1, 1])))
    models = np.array([[1.0], [9.0], [4.0]])
    found = held_out_scores(task, HeldOut(held, np.array([0, 2])), models, np.ones(3, dtype=bool))
    assert found.losses == pytest.approx([1.0, math.nan, 2.0], nan_ok=True)
    assert found.r2 == pytest.approx([0.8, math.nan, 0.6], nan_ok=True)
    metrics = held_out_metrics(found, np.ones(3, dtype=bool))
    assert metrics["test_r2"] == pytest.approx(0.7)
    assert metrics["test_worst_r2"] == pytest.approx(0.6)
    assert metrics["test_loss"] == pytest.approx(1.5)
    assert math.isnan(metrics["test_accuracy"])
    assert math.isnan(metrics["test_auc"])


def test_clients_that_are_not_counted_change_nothing() -> None:
    rng = np.random.default_rng(1)
    clients, models = some(rng, (20, 20, 20)), rng.standard_normal((3, 3))
    wild = Clients(clients.features, np.where(np.arange(60) < 40, clients.targets, 1e6), clients.sizes)
    counted = np.array([True, True, False])
    everyone = np.arange(3)
    honest, poisoned = (
        held_out_metrics(held_out_scores(linear_regression(data), HeldOut(data, everyone), models, counted), counted)
        for data in (clients, wild)
    )
    assert honest == pytest.approx(poisoned, nan_ok=True)


def test_two_classes_against_scikit_learn() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((50, 2))
    y = (rng.random(50) < 0.4).astype(float)
    clients, models = Clients(x, y, np.array([30, 20])), rng.standard_normal((2, 2))
    both = HeldOut(clients, np.arange(2))
    found = held_out_scores(logistic_regression(clients), both, models, np.ones(2, dtype=bool))
    scores = np.concatenate([x[:30] @ models[0], x[30:] @ models[1]])
    chances = 1 / (1 + np.exp(-scores))
    assert found.losses[0] == pytest.approx(log_loss(y[:30], chances[:30]))
    assert found.losses[1] == pytest.approx(log_loss(y[30:], chances[30:]))
    assert found.accuracies[1] == np.mean((chances[30:] > 0.5) == y[30:])
    assert found.auc == pytest.approx(roc_auc_score(y, scores))
    assert np.isnan(found.r2).all()
    assert (found.main == found.accuracies).all()


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=20))
def test_the_area_under_the_curve_counts_ties_by_half(rows: list[tuple[int, bool]]) -> None:
    x, y = np.array([[float(score)] for score, _ in rows]), np.array([float(label) for _, label in rows])
    clients = Clients(x, y, np.array([len(rows)]))
    one = HeldOut(clients, np.array([0]))
    found = held_out_scores(logistic_regression(clients), one, np.ones((1, 1)), np.array([True])).auc
    if len(set(y)) < 2:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(roc_auc_score(y, x[:, 0]))


def test_several_classes_and_means() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((30, 2)), rng.integers(0, 3, 30).astype(float)
    clients, models = Clients(x, y, np.array([30])), rng.standard_normal((1, 6))
    one = HeldOut(clients, np.array([0]))
    found = held_out_scores(softmax_regression(clients, 3), one, models, np.array([True]))
    scores = x @ models.reshape(2, 3)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    assert found.losses[0] == pytest.approx(log_loss(y, chances))
    assert found.accuracies[0] == np.mean(scores.argmax(axis=1) == y)
    means = Clients(x, None, np.array([30]))
    found = held_out_scores(mean_estimation(means), HeldOut(means, np.array([0])), models[:, :2], np.array([True]))
    assert found.losses[0] == pytest.approx(np.mean(((x - models[0, :2]) ** 2).sum(axis=1)))
    assert found.samples == ()


def test_both_forms_of_linear_regression_have_the_same_scores() -> None:
    rng = np.random.default_rng(4)
    clients, models = some(rng, (12, 8)), rng.standard_normal((2, 3))
    everyone, counted = HeldOut(clients, np.arange(2)), np.ones(2, dtype=bool)
    direct = LinearModel(clients, squared_loss(), least_squares)
    assert (
        held_out_scores(direct, everyone, models, counted).losses
        == held_out_scores(linear_regression(clients), everyone, models, counted).losses
    ).all()


def test_a_client_in_no_cluster_uses_the_centre_that_suits_it() -> None:
    clients = Clients(np.ones((2, 1)), np.array([5.0, 1.0]), np.array([1, 1]))
    centres = np.array([[1.0], [5.0]])
    assert cluster_models(linear_regression(clients), centres, np.array([-1, 1])).tolist() == [[5.0], [5.0]]


def scores(*samples: list[float]) -> Scores:
    rows = tuple(np.array(each) for each in samples)
    empty = np.full(len(rows), np.nan)
    losses = np.array([each.mean() if len(each) else np.nan for each in rows])
    return Scores(losses, empty, empty, math.nan, rows)


def test_better_and_worse_are_judged_by_the_standard_error_of_the_difference() -> None:
    """The differences are (1, 1), (−1, −1), (2, −1), none, and a client without held-out samples."""
    first = scores([2.0, 2.0], [1.0, 1.0], [3.0, 1.0], [1.0, 2.0], [])
    other = scores([1.0, 1.0], [2.0, 2.0], [1.0, 2.0], [1.0, 2.0], [])
    found = compare(first, other, np.ones(5, dtype=bool))
    assert (found.better, found.worse, found.clients) == (1, 1, 4)
    assert compare(first, other, np.array([True, False, False, False, False])).worse == 1


def test_a_model_that_is_not_finite_is_worse() -> None:
    assert compare(scores([math.nan, 1.0]), scores([1.0, 1.0]), np.array([True])).worse == 1


def test_the_worst_tenth_is_rounded_up() -> None:
    values = np.arange(11.0)
    found = Scores(np.ones(11), values, np.full(11, np.nan), math.nan, ())
    assert held_out_metrics(found, np.ones(11, dtype=bool))["test_worst_r2"] == 0.5
