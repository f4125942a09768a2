"""Metamorphic tests of `coterie`: a change of the features' and targets' coordinates changes coordinates, nothing else.

Features x become xA + b (b where there is an intercept), targets y become cy + a. The attacks are equivariant too:
`sign-flip` and `paper` are linear in gradients and centres. `alie` is so under changes of units only, since it moves
along the axes of the server's coordinates in the direction of their signs, which are arbitrary.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

import coterie as ct
from coterie._src.metrics import adjusted_rand_index

SIGMA = 0.2**0.5
"""The standard deviation of the noise in the targets."""
TOLERANCE = {"float64": 1e-3, "float32": 1e-2}
"""Of predictions, in standard deviations of the noise, or of scores, by the precision."""
FAMILIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "correlated": {"correlation": 0.9},
    "factors": {"factors": 2},
    "scales": {"scales": 2.0},
    "binary": {"binary": 0.5},
    "client means": {"client_means": 1.0},
}
families = pytest.mark.parametrize("family", FAMILIES)
TaskName = Literal["linear", "logistic", "softmax"]
CLASSES = 3
BYZANTINE = 0.1


@cache
def federation(
    family: str, task: TaskName = "linear", dim: int = 10, byzantine: bool = False, seed: int = 2
) -> ct.Federation:
    """40 clients in 2 clusters, in float64; the last column is an intercept."""
    samples = 60 if task == "linear" else 120
    return ct.tabular(
        seed, clients=40, clusters=2, samples=samples, dim=dim, task=task, classes=CLASSES,
        byzantine=BYZANTINE if byzantine else 0.0, intercept=True, dtype=np.float64, **FAMILIES[family],
    )  # fmt: skip


def changed(
    drawn: ct.Federation,
    matrix: np.ndarray | None = None,
    dtype: str = "float64",
    factor: float = 1.0,
    shift: float = 0.0,
) -> ct.Federation:
    """The same clients with the features x·matrix and the targets factor·y + shift."""
    clients, truth = drawn.clients, drawn.truth
    assert truth is not None
    assert clients.targets is not None
    features = clients.features if matrix is None else clients.features @ matrix
    targets = factor * clients.targets + shift
    without_centres = ct.Truth(np.zeros((len(truth.centres), 0)), truth.labels)
    return ct.Federation(ct.Clients(features.astype(dtype), targets.astype(dtype), clients.sizes), without_centres)


def fitted(drawn: ct.Federation, task: TaskName = "linear", clusters: Any = 2, attack: str | None = None) -> ct.Result:
    attacking = None if attack is None else ct.attack(attack)
    options: dict[str, Any] = {"classes": CLASSES} if task == "softmax" else {}
    return ct.fit(drawn, task, clusters, BYZANTINE, attack=attacking, max_clusters=4, **options)


@cache
def fitted_before(
    family: str, task: TaskName, dim: int, attack: str | None, dtype: str, clusters: Any, seed: int = 2
) -> ct.Result:
    drawn = changed(federation(family, task, dim, attack is not None, seed), dtype=dtype)
    return fitted(drawn, task, clusters, attack)


def affine(rng: np.random.Generator, number: float, dim: int) -> np.ndarray:
    """(dim, dim): a map x ↦ xA + b of condition number(A) = number, for rows whose last entry is 1."""
    left, right = (np.linalg.qr(rng.standard_normal((dim - 1, dim - 1)))[0] for _ in range(2))
    found = np.eye(dim)
    found[:-1, :-1] = left * number ** np.linspace(0.5, -0.5, dim - 1) @ right
    found[-1, :-1] = rng.standard_normal(dim - 1)
    return found


def scores(result: ct.Result, drawn: ct.Federation, outputs: int = 1) -> np.ndarray:
    """(samples, outputs): under the centre of the sample's client, without a number that is added to all outputs."""
    clients = drawn.clients
    weights = result.centres[result.labels].astype(np.float64).reshape(clients.count, clients.dim, outputs)
    owner = np.repeat(np.arange(clients.count), clients.sizes)
    found: np.ndarray = np.einsum("nd,ndo->no", clients.features.astype(np.float64), weights[owner])
    return np.asarray(found - found.mean(axis=1, keepdims=True)) if outputs > 1 else found


def of_honest(drawn: ct.Federation) -> np.ndarray:
    """(samples,): whether a sample is of an honest client."""
    assert drawn.truth is not None
    return np.repeat(~drawn.truth.is_byzantine, drawn.clients.sizes)


def assert_the_same(
    before: ct.Result,
    after: ct.Result,
    drawn: ct.Federation,
    other: ct.Federation,
    tolerance: float,
    factor: float = 1.0,
    shift: float = 0.0,
    rounds: int = 3,
) -> None:
    """The same clusters, predictions and number of rounds, up to the map of the targets."""
    assert len(after.centres) == len(before.centres)
    assert adjusted_rand_index(after.labels, before.labels) == 1.0
    difference = (scores(after, other) - shift) / factor - scores(before, drawn)
    assert np.abs(difference[of_honest(drawn)]).max() < tolerance
    assert abs(len(after.rounds) - len(before.rounds)) <= max(rounds, 0.2 * len(before.rounds))


# --- linear maps of the features --------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1e1, 1e4])
@pytest.mark.parametrize("attack", [None, "sign-flip", "paper"])
@families
def test_linear_regression_does_not_depend_on_the_coordinates_of_the_features(
    family: str, attack: str | None, number: float
) -> None:
    """In float32 up to a condition number of 1e5, that of the columns included; then a direction may be left out."""
    drawn = federation(family, byzantine=attack is not None)
    for dtype, tolerance in TOLERANCE.items():
        smaller = 10 if dtype == "float32" and family == "scales" else 1
        matrix = affine(np.random.default_rng(1), number / smaller, 10)
        before = fitted_before(family, "linear", 10, attack, dtype, 2)
        other = changed(drawn, matrix, dtype)
        after = fitted(other, attack=attack)
        assert_the_same(before, after, changed(drawn, dtype=dtype), other, tolerance * SIGMA)
    assert drawn.truth is not None
    honest = ~drawn.truth.is_byzantine
    assert adjusted_rand_index(after.labels[honest], drawn.truth.labels[honest]) == 1.0


@pytest.mark.parametrize("attack", [None, "sign-flip", "paper"])
@families
def test_few_columns_for_which_the_rule_is_a_median_are_judged_along_the_same_axes(
    family: str, attack: str | None
) -> None:
    drawn = federation(family, "linear", 5, attack is not None)
    before = fitted_before(family, "linear", 5, attack, "float64", 2)
    other = changed(drawn, affine(np.random.default_rng(2), 1e2, 5))
    assert_the_same(before, fitted(other, attack=attack), drawn, other, 1e-3 * SIGMA)


@pytest.mark.parametrize("attack", [None, "sign-flip"])
@families
def test_the_number_of_clusters_does_not_depend_on_the_coordinates(family: str, attack: str | None) -> None:
    drawn, dtype = federation(family, byzantine=attack is not None), "float32" if attack is None else "float64"
    before = fitted_before(family, "linear", 10, attack, dtype, "auto")
    assert len(before.centres) == 2
    other = changed(drawn, affine(np.random.default_rng(3), 1e3, 10), dtype)
    after = fitted(other, clusters="auto", attack=attack)
    assert_the_same(before, after, changed(drawn, dtype=dtype), other, TOLERANCE[dtype] * SIGMA)


@pytest.mark.parametrize("attack", [None, "sign-flip", "paper"])
@families
def test_logistic_regression_does_not_depend_on_the_coordinates_of_the_features(
    family: str, attack: str | None
) -> None:
    """On data that say which client is in which cluster.

    With the seed 2 of the other tests one client with binary features fits both clusters under a sign flip, and where
    the features are changed at random by 1e-5 of themselves, as float32 does here, its cluster changes in float64, too.
    """
    seed = 11
    drawn = federation(family, "logistic", 5, attack is not None, seed)
    for (dtype, tolerance), number in zip(TOLERANCE.items(), (1e4, 1e3), strict=True):
        before = fitted_before(family, "logistic", 5, attack, dtype, 2, seed)
        other = changed(drawn, affine(np.random.default_rng(4), number, 5), dtype)
        after = fitted(other, "logistic", attack=attack)
        assert_the_same(before, after, changed(drawn, dtype=dtype), other, tolerance)


def test_the_number_of_clusters_of_logistic_regression_does_not_depend_on_the_coordinates() -> None:
    drawn = federation("correlated", "logistic", 5)
    before = fitted_before("correlated", "logistic", 5, None, "float64", "auto")
    other = changed(drawn, affine(np.random.default_rng(5), 1e2, 5))
    assert_the_same(before, fitted(other, "logistic", "auto"), drawn, other, 1e-3)


@pytest.mark.parametrize("attack", [None, "sign-flip"])
@families
def test_softmax_regression_hardly_depends_on_the_coordinates_of_the_features(family: str, attack: str | None) -> None:
    """The Hessian at 0 is S ⊗ (I − J/c)/c: two equal eigenvalues for each of S, so that the axes may turn in pairs.

    The clusters are the same, and the probabilities up to a small part of their statistical error.
    """
    drawn = federation(family, "softmax", 4, attack is not None, seed=1)
    before = fitted_before(family, "softmax", 4, attack, "float64", 2, seed=1)
    matrix = affine(np.random.default_rng(6), 1e2, 4)
    other = changed(drawn, matrix)
    after = fitted(other, "softmax", attack=attack)
    assert drawn.truth is not None
    honest = ~drawn.truth.is_byzantine
    assert adjusted_rand_index(after.labels[honest], before.labels[honest]) == 1.0
    ours, theirs = (softmax(scores(*one, CLASSES), axis=1) for one in ((after, other), (before, drawn)))
    rms = np.sqrt(((ours - theirs)[of_honest(drawn)] ** 2).mean())
    assert rms < 1e-3


@given(
    seed=st.integers(0, 2**32 - 1),
    digits=st.floats(1, 4),
    family=st.sampled_from(sorted(FAMILIES)),
    attack=st.sampled_from([None, "sign-flip", "paper"]),
)
@settings(max_examples=25)
def test_any_change_of_coordinates(seed: int, digits: float, family: str, attack: str | None) -> None:
    drawn = federation(family, byzantine=attack is not None)
    before = fitted_before(family, "linear", 10, attack, "float64", 2)
    other = changed(drawn, affine(np.random.default_rng(seed), 10**digits, 10))
    assert_the_same(before, fitted(other, attack=attack), drawn, other, 1e-3 * SIGMA)


@pytest.mark.parametrize("clusters", [3, "auto"])
def test_the_paper_s_mixture_does_not_depend_on_its_coordinates(clusters: Any) -> None:
    drawn = ct.mixed_regression(0, clients=60, clusters=3, samples=50, dim=12, byzantine=0.05, dtype=np.float64)
    rng = np.random.default_rng(7)
    matrix = np.linalg.qr(rng.standard_normal((12, 12)))[0] * np.logspace(-2, 2, 12)
    other = changed(drawn, matrix)
    before, after = (fitted(one, clusters=clusters, attack="paper") for one in (changed(drawn), other))
    assert len(before.centres) == 3
    assert_the_same(before, after, drawn, other, 1e-3 * SIGMA)


# --- the units of the targets, and of the features under alie ---------------------------------------------


@pytest.mark.parametrize("attack", [None, "sign-flip", "paper", "alie"])
@pytest.mark.parametrize("factor", [1e-6, 1e-2, 1e3, 1e6])
def test_the_units_of_the_targets_are_those_of_the_centres(factor: float, attack: str | None) -> None:
    for family in ("correlated", "client means"):
        drawn = federation(family, byzantine=attack is not None)
        for dtype, tolerance in (("float64", 1e-9), ("float32", 1e-4)):
            before = fitted_before(family, "linear", 10, attack, dtype, 2)
            other = changed(drawn, dtype=dtype, factor=factor)
            after = fitted(other, attack=attack)
            assert_the_same(before, after, changed(drawn, dtype=dtype), other, tolerance * SIGMA, factor, rounds=0)


@pytest.mark.parametrize("shift", [5.0, 100.0])
@pytest.mark.parametrize("attack", [None, "sign-flip"])
@families
def test_a_number_added_to_all_targets_is_added_to_the_intercept(family: str, attack: str | None, shift: float) -> None:
    """The way to the common origin of the start begins at 0, so that the descent is another; its end is not."""
    drawn = federation(family, byzantine=attack is not None)
    before = fitted_before(family, "linear", 10, attack, "float64", 2)
    other = changed(drawn, factor=2.0, shift=shift)
    after = fitted(other, attack=attack)
    assert_the_same(before, after, drawn, other, 5e-3 * SIGMA, 2.0, shift, rounds=2)


@pytest.mark.parametrize("task", ["linear", "logistic"])
def test_alie_does_no_more_damage_in_other_units(task: TaskName) -> None:
    """With powers of two nothing is rounded, so that the signs of the axes stay."""
    powers = 2.0 ** np.random.default_rng(8).integers(-12, 13, size=10)
    drawn = federation("correlated", task, 10, byzantine=True)
    before = fitted_before("correlated", task, 10, "alie", "float64", 2)
    other = changed(drawn, np.diag(powers))
    assert_the_same(before, fitted(other, task, attack="alie"), drawn, other, 1e-6, rounds=0)


@families
def test_alie_finds_no_coordinates_in_which_it_does_much_more_damage(family: str) -> None:
    drawn = federation(family, byzantine=True)
    assert drawn.truth is not None
    honest = ~drawn.truth.is_byzantine
    before = fitted_before(family, "linear", 10, "alie", "float64", 2)
    other = changed(drawn, affine(np.random.default_rng(9), 1e3, 10))
    after = fitted(other, attack="alie")
    assert adjusted_rand_index(after.labels[honest], drawn.truth.labels[honest]) == 1.0
    difference = (scores(after, other) - scores(before, drawn))[of_honest(drawn)]
    assert np.sqrt((difference**2).mean()) < 0.1 * SIGMA


# --- permutations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", [None, "sign-flip"])
@families
def test_the_order_of_the_columns_is_that_of_the_coefficients(family: str, attack: str | None) -> None:
    drawn, order = federation(family, byzantine=attack is not None), np.random.default_rng(10).permutation(10)
    before = fitted_before(family, "linear", 10, attack, "float64", 2)
    after = fitted(changed(drawn, np.eye(10)[:, order]), attack=attack)
    assert adjusted_rand_index(after.labels, before.labels) == 1.0
    mine = [int(np.flatnonzero(after.labels == j)[0]) for j in range(2)]
    expected = before.centres[before.labels[mine]][:, order]
    np.testing.assert_allclose(after.centres, expected, atol=1e-6)


@pytest.mark.parametrize("task", ["linear", "logistic"])
@pytest.mark.parametrize("attack", [None, "sign-flip"])
@pytest.mark.parametrize("family", ["plain", "client means"])
def test_the_order_of_the_clients_is_that_of_the_labels(family: str, attack: str | None, task: TaskName) -> None:
    drawn, order = federation(family, task, 10, attack is not None), np.random.default_rng(11).permutation(40)
    assert drawn.truth is not None
    before = fitted_before(family, task, 10, attack, "float64", 2)
    moved = ct.Federation(drawn.clients.take(order), ct.Truth(np.zeros((2, 0)), drawn.truth.labels[order]))
    after = fitted(moved, task, attack=attack)
    assert adjusted_rand_index(after.labels, before.labels[order]) == 1.0
    first = [int(np.flatnonzero(after.labels == j)[0]) for j in range(2)]
    differences = drawn.clients.features @ (after.centres - before.centres[before.labels[order][first]]).T
    assert np.abs(differences).max() < 0.1 * SIGMA


# --- tables -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"correlation": 0.9}, {"factors": 3}, {"mean": 2.0}, {"client_means": 1.0}], ids=lambda o: next(iter(o))
)
def test_tables_cost_nothing_beside_the_oracle(options: dict[str, Any]) -> None:
    drawn = ct.tabular(0, clients=100, clusters=3, samples=60, dim=20, **options)
    found = ct.fit(drawn, clusters=3, attack=ct.attack("sign-flip")).metrics
    assert found["ari"] == 1.0
    assert found["oracle_ratio"] <= 1.05


@pytest.mark.parametrize("seed", range(3))
def test_honest_clients_with_other_features_are_not_taken_for_byzantine(seed: int) -> None:
    """Their updates are noisier, which only their own Hessians tell; judged alike, the error is up to 1.3 times it."""
    drawn = ct.tabular(seed, clients=60, clusters=2, samples=40, dim=12, byzantine=0.0, client_means=2.0)
    found = ct.fit(drawn, clusters=2, max_byzantine=0.2).metrics
    assert found["ari"] == 1.0
    assert found["oracle_ratio"] <= 1.02


def test_a_loss_that_is_not_quadratic_does_not_diverge_under_attack() -> None:
    """Newton steps without a limit led to ever flatter regions here, and quadratic models to one cluster only."""
    for family, seed in (("factors", 2), ("scales", 15)):
        drawn = ct.tabular(
            seed, clients=40, clusters=2, samples=120, dim=4, task="softmax", byzantine=0.1, intercept=True,
            dtype=np.float64, **{family: 2},
        )  # fmt: skip
        found = ct.fit(drawn, "softmax", 2, 0.1, attack=ct.attack("sign-flip"))
        assert found.metrics["ari"] == 1.0
        assert found.metrics["oracle_ratio"] < 1.05
        assert found.metrics["rounds"] < 60


@pytest.mark.parametrize("seed", range(3))
def test_a_target_far_from_zero_costs_steps_to_the_origin_only(seed: int) -> None:
    drawn = federation("client means", byzantine=True, seed=seed)
    honest = ~drawn.truth.is_byzantine
    found = fitted(changed(drawn, shift=1e5), attack="sign-flip")
    assert adjusted_rand_index(found.labels[honest], drawn.truth.labels[honest]) == 1.0


def test_features_that_are_all_zero_teach_nothing_and_break_nothing() -> None:
    clients = {str(i): (np.zeros((10, 2)), np.full(10, float(i % 2))) for i in range(8)}
    found = ct.fit(clients, clusters=2, max_byzantine=0.0)
    assert in_turn(found.labels)
    bare = ct.fit(ct.Clients(np.zeros((80, 2)), np.ones(80), np.full(8, 10)), clusters=1, max_byzantine=0.0)
    assert not bare.centres.any()


def in_turn(labels: np.ndarray) -> bool:
    return bool((labels[::2] == labels[0]).all() and (labels[1::2] == labels[1]).all() and labels[0] != labels[1])
