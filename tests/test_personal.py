"""Personal models: what they gain, what they cost, and what they do not depend on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie._src.data import Clients, Federation, tabular
from coterie._src.personal import personalise
from coterie._src.tasks import (
    linear_regression,
    logistic_regression,
    mean_estimation,
    softmax_regression,
)

ROWS, HELD_OUT = 60, 200


def halves(seed: int, clients: int = 80, **options: Any) -> tuple[Federation, Clients, Clients]:
    """A federation, and its clients' training and held-out rows."""
    drawn = tabular(
        seed, clients=clients, clusters=2, byzantine=0.0, samples=ROWS + HELD_OUT, dtype=np.float64, intercept=True,
        **options,
    )  # fmt: skip
    x = drawn.clients.features.reshape(clients, ROWS + HELD_OUT, -1)
    y = drawn.clients.targets.reshape(clients, -1)  # type: ignore[union-attr]

    def part(rows: slice) -> Clients:
        some = x[:, rows]
        return Clients(some.reshape(-1, x.shape[2]), y[:, rows].reshape(-1), np.full(clients, some.shape[1]))

    return drawn, part(slice(ROWS)), part(slice(ROWS, None))


def held_out(clients: Clients, models: Any) -> np.ndarray:
    return np.diag(linear_regression(clients, "direct").losses(models))


def test_with_spread_it_beats_the_cluster_and_the_own_model() -> None:
    drawn, train, test = halves(3, clients=200, dim=10, spread=0.3)
    task, truth = linear_regression(train), drawn.truth
    assert truth is not None
    found = held_out(test, personalise(task, truth.centres, truth.labels).models)
    for other in (truth.centres[truth.labels], task.minimisers(), personalise(task).models):
        gain = held_out(test, other) - found
        assert gain.mean() > 3 * gain.std() / np.sqrt(len(gain))


@pytest.mark.parametrize(("dim", "bound"), [(10, 1.015), (30, 1.015), (80, 1.025)])
def test_without_spread_it_costs_one_or_two_percent(dim: int, bound: float) -> None:
    drawn, train, test = halves(4, dim=dim, correlation=0.5)
    truth = drawn.truth
    assert truth is not None
    found = held_out(test, personalise(linear_regression(train), truth.centres, truth.labels).models).mean()
    assert found < bound * held_out(test, truth.centres[truth.labels]).mean()


@pytest.mark.parametrize("wrong", [1e6, 1e200, np.nan])
def test_an_absurd_centre_does_no_harm(wrong: float) -> None:
    drawn, train, test = halves(5, dim=10, spread=0.3)
    assert drawn.truth is not None
    task, labels = linear_regression(train), drawn.truth.labels
    found = personalise(task, np.full((2, 10), wrong), labels)
    own = personalise(task)
    assert set(own.anchors) == {"own"}
    assert held_out(test, found.models).mean() < 1.03 * held_out(test, own.models).mean()


@given(st.integers(0, 2**31), st.lists(st.floats(-4, 4), min_size=4, max_size=4), st.floats(-4, 4))
@settings(deadline=None, max_examples=25)
def test_units_origin_and_order_do_not_matter(seed: int, units: list[float], unit: float) -> None:
    rng = np.random.default_rng(seed)
    sizes = np.array([1, 2, 9, 30])
    x = np.column_stack([rng.standard_normal((42, 4)), np.ones(42)])
    y, centre = rng.standard_normal(42), rng.standard_normal((2, 5))
    labels = np.array([0, 1, 1, -1])
    first = personalise(linear_regression(Clients(x, y, sizes), "direct"), centre, labels)
    scale, target, origin = 10.0 ** np.array(units), 10.0**unit, rng.standard_normal(4)
    moved = np.column_stack([(x[:, :4] + origin) * scale, np.ones(42)])
    shifted = centre.copy()
    shifted[:, 4] -= centre[:, :4] @ origin
    shifted[:, :4] /= scale
    second = personalise(linear_regression(Clients(moved, target * y, sizes), "direct"), target * shifted, labels)
    expected = np.einsum("nd,nd->n", x, np.repeat(first.models, sizes, axis=0))
    assert np.einsum("nd,nd->n", moved, np.repeat(second.models, sizes, axis=0)) == pytest.approx(
        target * expected, rel=1e-5, abs=1e-5 * target
    )
    assert second.shrinkage == pytest.approx(first.shrinkage, abs=1e-6)

    order = np.array([3, 1, 0, 2])
    rows = np.concatenate([rng.permutation(np.arange(sizes[:i].sum(), sizes[: i + 1].sum())) for i in range(4)])
    clients = Clients(x[rows], y[rows], sizes).take(order)
    third = personalise(linear_regression(clients, "direct"), centre, labels[order])
    assert third.models == pytest.approx(first.models[order], rel=1e-6, abs=1e-8)
    assert third.anchors == tuple(first.anchors[i] for i in order)


def test_a_client_with_one_row_keeps_the_model_of_its_cluster(rng: np.random.Generator) -> None:
    for ones in (True, False):
        x = rng.standard_normal((1, 3))
        x[:, 2] = 1 if ones else 0.5
        centre = rng.standard_normal((1, 3))
        found = personalise(linear_regression(Clients(x, np.ones(1), np.array([1]))), centre, np.zeros(1, np.int64))
        assert found.models == pytest.approx(centre)
        assert found.shrinkage.tolist() == [1.0]
        assert found.anchors == ("cluster",)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["linear", "logistic", "softmax", "mean"])
def test_odd_data_give_finite_models(rng: np.random.Generator, kind: str, dtype: Any) -> None:
    """n < d, one row, constant and duplicated columns, columns of very different units, equal targets."""
    sizes = np.array([1, 2, 5, 40, 3])
    x = rng.standard_normal((51, 12))
    x[:, 1], x[:, 2], x[:, 3], x[:, 4], x[:, 11] = x[:, 0], 0.0, 0.1, 1e6 * x[:, 4], 1.0
    x[-3:] = x[-3]
    y = rng.integers(2, size=51).astype(float)
    y[:8] = 1.0
    clients = Clients(x.astype(dtype), None if kind == "mean" else y.astype(dtype), sizes)
    task: Any = {
        "linear": linear_regression,
        "logistic": logistic_regression,
        "softmax": lambda c: softmax_regression(c, 3),
        "mean": mean_estimation,
    }[kind](clients)
    centres = rng.standard_normal((2, task.dim)).astype(dtype)
    for labels in (np.array([0, 1, 1, 0, -1]), np.full(5, -1)):
        with np.errstate(all="raise", under="ignore"):
            found = personalise(task, centres, labels)
        assert found.models.dtype == dtype
        assert found.models.shape == (5, task.dim)
        assert np.isfinite(found.models).all()
        assert ((found.shrinkage > -1e-9) & (found.shrinkage < 1 + 1e-9)).all()
        assert found.anchors[4] == "own"


@pytest.mark.parametrize("kind", ["logistic", "softmax"])
def test_classifiers_gain_with_spread_and_cost_little_without(kind: Any) -> None:
    build = logistic_regression if kind == "logistic" else lambda c: softmax_regression(c, 3)
    for spread in (0.0, 3.0):
        drawn, train, test = halves(6, clients=25, dim=6, task=kind, spread=spread)
        truth = drawn.truth
        assert truth is not None
        models = personalise(build(train), truth.centres, truth.labels).models
        found, centre = (np.diag(build(test).losses(m)) for m in (models, truth.centres[truth.labels]))
        if spread:
            assert (centre - found).mean() > 3 * (centre - found).std() / 5
        else:
            assert found.mean() < 1.025 * centre.mean()


def test_a_mean_is_shrunk_by_the_ratio_of_the_variances(rng: np.random.Generator) -> None:
    """d is large, so that λ = σ²/(nτ²) is known well: the factor is nτ²/(nτ² + σ²) = 1/2 for n = 4, σ = 2τ."""
    own = rng.standard_normal((10, 2000))
    samples = np.repeat(own, 4, axis=0) + 2 * rng.standard_normal((40, 2000))
    task = mean_estimation(Clients(samples, None, np.full(10, 4)))
    found = personalise(task, np.zeros((1, 2000)), np.zeros(10, np.int64))
    assert set(found.anchors) == {"cluster"}
    assert found.shrinkage == pytest.approx(0.5, abs=0.1)
    assert ((found.models - own) ** 2).mean() < 0.55  # 1 for the centre and for the own mean


class Plain:
    """A user's task without personal models."""

    def __init__(self, task: Any) -> None:
        self.clients, self.dim, self.minimisers = task.clients, task.dim, task.minimisers


def test_a_task_without_personal_models_keeps_those_of_the_clusters(rng: np.random.Generator) -> None:
    task = linear_regression(Clients(rng.standard_normal((30, 2)), rng.standard_normal(30), np.full(3, 10)))
    plain: Any = Plain(task)
    centres = rng.standard_normal((2, 2))
    found = personalise(plain, centres, np.array([1, -1, 0]))
    assert np.array_equal(found.models[[0, 2]], centres[[1, 0]])
    assert np.array_equal(found.models[1], task.minimisers()[1])
    assert found.shrinkage.tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("centres", "labels", "message"),
    [
        (np.zeros((2, 2)), None, "labels must be given with centres"),
        (np.zeros((2, 3)), np.zeros(3, np.int64), r"centres must have shape \(k, 2\)"),
        (np.zeros((2, 2)), np.zeros(4, np.int64), "labels must be 3 whole numbers"),
        (np.zeros((2, 2)), np.array([0, 2, 0]), "labels must be from -1 to 1"),
    ],
)
def test_wrong_input_is_named(rng: np.random.Generator, centres: Any, labels: Any, message: str) -> None:
    task = linear_regression(Clients(rng.standard_normal((30, 2)), rng.standard_normal(30), np.full(3, 10)))
    with pytest.raises(ValueError, match=message):
        personalise(task, centres, labels)


RARE = 0.05


def with_rare_levels(rng: np.random.Generator, rows: int, clients: int = 15) -> tuple[Clients, Clients]:
    """Clients whose last columns but the intercept are levels that differ in held-out rows, and not in their own.

    Of the four, a client has none at all of one, and always another; two always come together in its own rows.
    """
    total = rows + HELD_OUT
    x = np.empty((clients, total, 8))
    x[..., :3] = rng.standard_normal((clients, total, 3))
    rare = rng.random((clients, total, 4)) < RARE
    rare[:, :rows, 0] = rare[:, :rows, 1] = False
    rare[:, :rows, 2] = rng.random((clients, rows)) < 0.3
    rare[:, :rows, 3] = rare[:, :rows, 2]
    x[..., 3:7] = rare
    x[..., 4] = 1 - x[..., 4]
    x[..., 7] = 1
    y = x @ COEFFICIENTS + rng.standard_normal((clients, total))
    parts = [(x[:, some], y[:, some]) for some in (slice(rows), slice(rows, None))]
    train, test = (Clients(a.reshape(-1, 8), b.reshape(-1), np.full(clients, b.shape[1])) for a, b in parts)
    return train, test


COEFFICIENTS = np.array([1, -1, 0.5, 0.3, -0.3, 0.5, 0.2, 3])
WRONG = {
    "an unknown level": [0, 0, 0, 1, 0, 0, 0, 0],
    "a level that all rows have": [0, 0, 0, 0, 1, 0, 0, -1],
    "levels that come together": [0, 0, 0, 0, 0, 1, -1, 0],
    "a known column": [0, 1, 0, 0, 0, 0, 0, 0],
    "everywhere": [1, 1, 1, 1, 1, 1, 1, 1],
}
SIZES = (10.0, 1e3, 1e12, 1e200, np.nan)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["linear", "logistic"])
@pytest.mark.parametrize("where", WRONG)
def test_whatever_the_centre_a_personal_model_is_about_as_good_as_the_own_one(
    where: str, kind: str, dtype: Any, rng: np.random.Generator
) -> None:
    for rows in (2, 3, 10, 40):
        train, test = with_rare_levels(rng, rows)
        assert train.targets is not None
        assert test.targets is not None
        if kind == "logistic":
            train, test = (replace(part, targets=(part.targets > 3).astype(float)) for part in (train, test))
        build: Any = linear_regression if kind == "linear" else logistic_regression
        task = build(replace(train, features=train.features.astype(dtype), targets=train.targets.astype(dtype)))
        own = np.diag(build(test).losses(personalise(task).models.astype(np.float64))).mean()
        for size in SIZES:
            centre = np.where(WRONG[where], size * np.array(WRONG[where]), 0.0) + COEFFICIENTS
            with np.errstate(over="ignore"):
                found = personalise(task, centre.astype(dtype)[None], np.zeros(train.count, dtype=np.int64))
            assert np.diag(build(test).losses(found.models.astype(np.float64))).mean() < 2.5 * own, (rows, size)


def test_what_a_client_does_not_know_it_takes_from_a_good_centre(rng: np.random.Generator) -> None:
    train, _ = with_rare_levels(rng, 40)
    found = personalise(linear_regression(train), COEFFICIENTS[None], np.zeros(train.count, dtype=np.int64)).models
    assert found[:, 3:5] == pytest.approx(np.tile(COEFFICIENTS[3:5], (train.count, 1)))
