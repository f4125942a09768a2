"""Coordinates from the clients' Hessians: the same for all units and correlations, hardly moved by false ones."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

import coterie as ct
from coterie._src.aggregators import Mean
from coterie._src.algorithms import ClusteredDescent, State, descent
from coterie._src.attacks import Attack
from coterie._src.coordinates import Coordinates
from coterie._src.data import Clients, tabular
from coterie._src.init.axes import RANK
from coterie._src.init.conditioning import (
    LARGEST,
    SPECIFIC,
    Conditioning,
    ask_conditioning,
    ask_hessians,
    ask_sizes,
    condition,
)
from coterie._src.packed import PackedMatrices, packed, unpacked
from coterie._src.server import Server
from coterie._src.simulation import SimulatedNetwork
from coterie._src.tasks import linear_regression, logistic_regression

CLIENTS, SAMPLES, DIM = 60, 40, 8


def hessians(rng: np.random.Generator, client_means: float = 0.0, dim: int = DIM) -> np.ndarray:
    """(60, dim, dim): twice the second moments of normal features, around a mean of each client's own."""
    x = rng.standard_normal((CLIENTS, SAMPLES, dim)) + client_means * rng.standard_normal((CLIENTS, 1, dim))
    return np.asarray(2 * x.transpose(0, 2, 1) @ x / SAMPLES)


def mixing(rng: np.random.Generator, number: float, dim: int = DIM) -> np.ndarray:
    """(dim, dim): a random matrix with this condition number."""
    left, right = (np.linalg.qr(rng.standard_normal((dim, dim)))[0] for _ in range(2))
    return np.asarray(left * number ** np.linspace(0.5, -0.5, dim) @ right)


def held(matrices: np.ndarray) -> PackedMatrices:
    return PackedMatrices(packed(matrices), matrices.shape[-1])


def conditioned(matrices: np.ndarray, byzantine: int = 0) -> Conditioning:
    found = condition(held(matrices), np.arange(len(matrices)), np.full(len(matrices), float(SAMPLES)), byzantine)
    assert found is not None
    return found


def in_coordinates(matrix: np.ndarray, coordinates: Coordinates) -> np.ndarray:
    return np.asarray(coordinates.basis.T @ matrix @ coordinates.basis)


def number_of(matrix: np.ndarray) -> float:
    """The condition number of a positive definite matrix."""
    values = np.linalg.eigvalsh(matrix)
    return float(values[-1] / values[0])


# --- honest Hessians --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1.0, 1e2, 1e4])
def test_a_typical_client_has_the_hessian_one(number: float, rng: np.random.Generator) -> None:
    matrix = mixing(rng, number)
    matrices = matrix.T @ hessians(rng) @ matrix
    found = conditioned(matrices)
    np.testing.assert_allclose(in_coordinates(matrices.mean(axis=0), found.coordinates), np.eye(DIM), atol=1e-2)
    np.testing.assert_allclose(found.coordinates.inverse @ found.coordinates.basis, np.eye(DIM), atol=1e-8)
    inner = in_coordinates(matrices, found.coordinates)
    np.testing.assert_allclose(found.hessians, inner, rtol=1e-5, atol=1e-5)
    assert found.hessians.dtype == np.float32
    assert found.leverages.tolist() == [1.0] * CLIENTS
    assert found.samples == SAMPLES
    assert found.specific == 0.0


@pytest.mark.parametrize("client_means", [0.0, 1.0])
@pytest.mark.parametrize("number", [1e1, 1e2, 1e3, 1e4])
@pytest.mark.parametrize("seed", range(3))
def test_the_coordinates_do_not_depend_on_those_of_the_parameters(
    seed: int, number: float, client_means: float
) -> None:
    """With AᵀH_iA in the place of H_i the basis is A⁻¹B up to signs, and every client's Hessian is the same."""
    rng = np.random.default_rng(seed)
    matrices, matrix = hessians(rng, client_means), mixing(rng, number)
    before, after = conditioned(matrices), conditioned(matrix.T @ matrices @ matrix)
    relation = before.coordinates.inverse @ matrix @ after.coordinates.basis
    np.testing.assert_allclose(np.abs(relation), np.eye(DIM), atol=1e-5)  # rounding × the square of 1e4
    signs = np.sign(np.diag(relation))
    np.testing.assert_allclose(after.hessians * signs * signs[:, None], before.hessians, atol=1e-4)
    np.testing.assert_allclose(after.leverages, before.leverages, rtol=1e-6)
    assert after.specific == pytest.approx(before.specific, abs=1e-6)


def test_differences_beyond_the_sampling_error_are_noticed(rng: np.random.Generator) -> None:
    alike, different = conditioned(hessians(rng)), conditioned(hessians(rng, client_means=2.0))
    assert alike.specific == 0.0
    assert SPECIFIC <= different.specific < 1


@pytest.mark.parametrize("kind", ["a repeated column", "a sum of columns", "a column of zeros"])
@pytest.mark.parametrize("number", [1.0, 1e3])
def test_directions_without_features_are_left_out(kind: str, number: float, rng: np.random.Generator) -> None:
    matrix = mixing(rng, number)
    matrices = matrix.T @ hessians(rng) @ matrix
    longer = np.zeros((DIM + 1, DIM))
    longer[:DIM] = np.eye(DIM)
    if kind != "a column of zeros":
        longer[DIM, 0] = 1.0
    if kind == "a sum of columns":
        longer[DIM] = 1.0
    matrices = longer @ matrices @ longer.T
    found = conditioned(matrices)
    assert found.coordinates.dim == DIM
    np.testing.assert_allclose(in_coordinates(matrices.mean(axis=0), found.coordinates), np.eye(DIM), atol=1e-2)
    if kind == "a column of zeros":
        np.testing.assert_array_equal(found.coordinates.basis[DIM], 0)


@pytest.mark.parametrize("number", [1.0, 1e3])
@pytest.mark.parametrize("byzantine", [0, 1, 3])
def test_a_column_that_varies_for_one_client_alone_is_scaled_by_that_client(
    number: float, byzantine: int, rng: np.random.Generator
) -> None:
    """The other clients' Hessians are 0 there but for rounding, which must not be taken for the scale of the axis."""
    x = rng.standard_normal((CLIENTS, SAMPLES, DIM))
    x[..., -1] = 0.0
    x[5, 0, -1] = 1.0  # one row of one client
    mixed = x @ mixing(rng, number)
    matrices = 2 * mixed.transpose(0, 2, 1) @ mixed / SAMPLES
    coordinates = conditioned(matrices, byzantine).coordinates
    assert coordinates.dim == DIM
    inside = in_coordinates(matrices[5], coordinates)
    others = np.array([in_coordinates(matrix, coordinates) for matrix in np.delete(matrices, 5, axis=0)])
    assert np.linalg.eigvalsh(inside).max() < 2 * CLIENTS
    assert np.linalg.eigvalsh(others.mean(axis=0)).max() < 10
    assert np.linalg.norm(coordinates.basis, axis=0).max() < 100 * np.sqrt(SAMPLES) * number


@pytest.mark.parametrize("size", [1.0, 3.0, 5.0, 7.0])
def test_negative_hessians_take_no_axis(size: float, rng: np.random.Generator) -> None:
    """They are outweighed in the plain mean, but not in one in which the honest Hessians count less."""
    matrices = hessians(rng)
    forged = -size * matrices[:8]
    coordinates = conditioned(np.concatenate([matrices, forged]), 8).coordinates
    assert coordinates.dim == DIM
    assert number_of(in_coordinates(matrices.mean(axis=0), coordinates)) < 3


def test_no_client_with_an_answer_or_with_a_positive_one_gives_no_coordinates() -> None:
    nobody = np.zeros(0, dtype=np.int64)
    assert condition(held(np.zeros((0, 3, 3))), nobody, np.ones(4), 0) is None
    assert condition(held(-np.ones((4, 1, 1))), np.arange(4), np.ones(4), 0) is None


def test_clients_without_an_answer_have_the_hessian_one(rng: np.random.Generator) -> None:
    matrices = hessians(rng)
    found = condition(held(matrices[5:]), np.arange(5, CLIENTS), np.full(CLIENTS, float(SAMPLES)), 0)
    assert found is not None
    np.testing.assert_array_equal(found.hessians[:5], np.tile(np.eye(DIM, dtype=np.float32), (5, 1, 1)))
    assert found.leverages[:5].tolist() == [1.0] * 5
    assert not np.allclose(found.hessians[5:], np.eye(DIM), atol=0.1)


# --- false Hessians ---------------------------------------------------------------------------------------


Forge = Callable[[int, np.ndarray, np.random.Generator], np.ndarray]


def _indefinite(rng: np.random.Generator, dim: int) -> np.ndarray:
    square = rng.standard_normal((dim, dim))
    return square + square.T


def _rubbish(rng: np.random.Generator, dim: int) -> np.ndarray:
    square = rng.standard_normal((dim, dim))
    return square @ square.T


def _spikes(rng: np.random.Generator, count: int, dim: int) -> np.ndarray:
    along = rng.standard_normal((count, dim))
    return np.asarray(np.einsum("cd,ce->cde", along, along))


FALSE: dict[str, Forge] = {
    "zero": lambda count, mean, rng: np.zeros((count, *mean.shape)),
    "the same rubbish": lambda count, mean, rng: np.tile(1e6 * _rubbish(rng, len(mean)), (count, 1, 1)),
    "one direction": lambda count, mean, rng: np.tile(1e6 * _spikes(rng, 1, len(mean)), (count, 1, 1)),
    "a direction each": lambda count, mean, rng: 1e6 * _spikes(rng, count, len(mean)),
    "one direction as long as all": lambda count, mean, rng: np.tile(
        len(mean) * _spikes(rng, 1, len(mean)), (count, 1, 1)
    ),
    "a million times as large": lambda count, mean, rng: np.tile(1e6 * mean, (count, 1, 1)),
    "a million times as small": lambda count, mean, rng: np.tile(1e-6 * mean, (count, 1, 1)),
    "negative": lambda count, mean, rng: np.tile(-1e6 * np.eye(len(mean)), (count, 1, 1)),
    "a little negative": lambda count, mean, rng: np.tile(-0.1 * mean, (count, 1, 1)),
    "indefinite": lambda count, mean, rng: np.tile(1e6 * _indefinite(rng, len(mean)), (count, 1, 1)),
    "indefinite as honest ones": lambda count, mean, rng: np.tile(_indefinite(rng, len(mean)), (count, 1, 1)),
}
MOST = 20.0
"""The condition number of honest Hessians in coordinates from false ones, at most: so many rounds more, at most."""


@pytest.mark.parametrize("byzantine", [3, 12])
@pytest.mark.parametrize("kind", FALSE)
def test_false_hessians_take_no_axis_and_determine_no_scale(kind: str, byzantine: int) -> None:
    """5 % and 20 % of the clients; with features that are alike and with a mean of each client's own."""
    for seed, (number, client_means) in enumerate([(1.0, 0.0), (1.0, 1.0), (1e2, 0.0), (1e4, 1.0)]):
        rng = np.random.default_rng(seed)
        matrix = mixing(rng, number)
        matrices = matrix.T @ hessians(rng, client_means) @ matrix
        honest = matrices[byzantine:].mean(axis=0)
        matrices[:byzantine] = FALSE[kind](byzantine, honest, rng)
        found = conditioned(matrices, byzantine)
        assert found.coordinates.dim == DIM
        inner = in_coordinates(honest, found.coordinates)
        assert number_of(inner) < (MOST if kind == "one direction as long as all" else 4)
        assert 0.3 < np.trace(inner) / DIM < 3
        assert np.isfinite(found.hessians).all()
        assert ((found.leverages > 0) & (found.leverages <= 1)).all()
        if "negative" in kind or "indefinite" in kind:
            expected = np.tile(np.eye(DIM, dtype=np.float32), (byzantine, 1, 1))
            np.testing.assert_array_equal(found.hessians[:byzantine], expected)


@pytest.mark.parametrize("precision", RANK)
@pytest.mark.parametrize("size", [1e9, 1e12, 1e15, 1e100])
def test_one_absurd_hessian_hides_no_axis(size: float, precision: str, rng: np.random.Generator) -> None:
    honest = hessians(rng)
    along = rng.standard_normal(DIM)
    forged = honest.copy()
    forged[0] = size * np.outer(along, along)
    found = condition(held(forged), np.arange(CLIENTS), np.full(CLIENTS, float(SAMPLES)), 1, RANK[precision])
    assert found is not None
    assert found.coordinates.dim == DIM
    assert np.isfinite(found.hessians).all()
    mean = found.coordinates.basis.T @ honest[1:].mean(axis=0) @ found.coordinates.basis
    assert np.linalg.cond(mean) < 4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("attack", ["gaussian", "garbage", "sign-flip", "constant"])
@pytest.mark.parametrize("byzantine", [0.05, 0.2])
def test_coordinates_of_a_network_under_attack(attack: str, byzantine: float, dtype: str) -> None:
    """Whatever the Byzantine clients answer, not finite or of the wrong shape included."""
    drawn = tabular(
        0, clients=CLIENTS, clusters=2, samples=SAMPLES, dim=DIM, byzantine=byzantine, correlation=0.9, dtype=dtype
    )
    assert drawn.truth is not None
    task, false = linear_regression(drawn.clients), drawn.truth.is_byzantine
    network = SimulatedNetwork(task, false, ct.attack(attack), np.random.default_rng(1))
    start = np.zeros((1, DIM), dtype=dtype)
    with np.errstate(all="ignore"):
        found = ask_conditioning(network, start, None, ask_sizes(network), int(false.sum()))
    assert found is not None
    assert found.coordinates.dim == DIM
    honest = PackedMatrices(task.hessians(start, np.zeros(CLIENTS, np.int64))[~false], DIM).mean()
    assert number_of(honest) > 50
    assert number_of(in_coordinates(honest, found.coordinates)) < 4
    assert np.isfinite(found.hessians).all()


def test_answers_that_are_not_finite_or_too_large_are_refused() -> None:
    drawn = tabular(0, clients=12, clusters=2, samples=SAMPLES, dim=3, byzantine=0.25, dtype=np.float64)
    assert drawn.truth is not None
    false = drawn.truth.is_byzantine
    for value in (np.nan, np.inf, 1e200):
        attack = Attack(lambda view, value=value: (view.claimed, np.full((3, view.updates.shape[1]), value)))
        network = SimulatedNetwork(linear_regression(drawn.clients), false, attack, np.random.default_rng(1))
        clients, matrices = ask_hessians(network, np.zeros((1, 3)), np.zeros(12, np.int64))
        assert clients.tolist() == np.flatnonzero(~false).tolist()
        expected = network.task.hessians(np.zeros((1, 3)), np.zeros(12, np.int64))[~false]
        np.testing.assert_allclose(matrices.rows, expected, rtol=1e-12)


def test_a_client_with_a_larger_hessian_counts_less(rng: np.random.Generator) -> None:
    matrices = hessians(rng)
    matrices[0] *= 100
    matrices[1] *= 1.5
    matrices[2] *= 0.01
    found = conditioned(matrices, byzantine=1)
    norms = np.linalg.norm(found.hessians, axis=(1, 2))
    assert found.leverages[0] == pytest.approx((LARGEST * np.median(norms) / norms[0]) ** 2, rel=1e-4)
    assert found.leverages[0] < 0.01
    assert (found.leverages[1:] == 1).all()
    # its Hessian times its leverage, as it counts in a Newton step, is smaller than a few typical ones
    assert found.leverages[0] * norms[0] < 0.1 * LARGEST * np.median(norms)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_columns_that_differ_by_rounding_are_one_direction(precision: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((CLIENTS * SAMPLES, 3))
    x = np.column_stack([x, x[:, 0]]).astype(precision)
    x[:, 3] *= 1 + np.finfo(precision).eps
    clients = Clients(x, x[:, 0], np.full(CLIENTS, SAMPLES))
    network = SimulatedNetwork(linear_regression(clients), np.zeros(CLIENTS, np.bool_), None, np.random.default_rng(0))
    found = ask_conditioning(network, np.zeros((1, 4), dtype=precision), None, ask_sizes(network), 0)
    assert found is not None
    assert found.coordinates.dim == 3
    assert RANK["float64"] < RANK["float32"]


# --- Newton steps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("client_means", [0.0, 2.0])
def test_the_maps_of_newton_steps_are_roots_of_the_inverse_mean(client_means: float, rng: np.random.Generator) -> None:
    found = conditioned(hessians(rng, client_means))
    clients = np.arange(4, CLIENTS)
    labels, weights = clients % 3, rng.uniform(0.2, 1.0, size=len(clients))
    newton = found.newton(clients, labels, 4, weights)
    for j in range(3):
        members = labels == j
        mean = np.average(found.hessians[clients[members]], axis=0, weights=weights[members])
        lacking = 0.1 * np.sqrt(DIM / (SAMPLES * members.sum())) * np.trace(mean) / DIM
        expected = np.linalg.inv(mean + lacking * np.eye(DIM))
        np.testing.assert_allclose(newton.roots[j].T @ newton.roots[j], expected, rtol=1e-4, atol=1e-5)
    updates = rng.standard_normal((len(clients), DIM))
    expected_rows = np.stack([newton.roots[j] @ row for j, row in zip(labels, updates, strict=True)])
    np.testing.assert_allclose(newton.rows(updates), expected_rows, atol=1e-12)
    moves = newton.moves(updates[:4])
    np.testing.assert_allclose(moves, np.stack([r.T @ s for r, s in zip(newton.roots, updates[:4], strict=True)]))
    assert newton.fits(clients, labels)
    assert not newton.fits(clients, (labels + 1) % 3)
    assert not newton.fits(clients[1:], labels[1:])


def test_updates_are_standardised_where_the_hessians_differ(rng: np.random.Generator) -> None:
    """The noise of a gradient has covariance σ²H_i: R_i makes it the same for all clients, R_j for a mean one."""
    alike, different = conditioned(hessians(rng)), conditioned(hessians(rng, client_means=2.0))
    labels, weights = np.zeros(CLIENTS, np.int64), np.ones(CLIENTS)
    assert alike.newton(np.arange(CLIENTS), labels, 1, weights).standardised(np.zeros((CLIENTS, DIM))) is None
    assert different.newton(np.arange(CLIENTS), labels, 1, weights, standardise=False).own is None
    newton = different.newton(np.arange(CLIENTS), labels, 1, weights)
    roots = np.linalg.cholesky(different.hessians.astype(np.float64) + 1e-9 * np.eye(DIM))

    def spread(of: Callable[[np.ndarray], np.ndarray | None]) -> float:
        """How much the variances of the clients' standardised noise differ."""
        squares = np.zeros(CLIENTS)
        for _ in range(200):
            rows = of(np.einsum("crs,cs->cr", roots, rng.standard_normal((CLIENTS, DIM))))
            assert rows is not None
            squares += (rows**2).sum(axis=1)
        return float(squares.std() / squares.mean())

    assert spread(newton.standardised) < 0.5 * spread(newton.rows)


def test_one_newton_step_on_honest_clients_reaches_the_pooled_minimiser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the shortening for small samples: with many of them it is a thousandth of the step."""
    drawn = tabular(
        0, clients=40, clusters=2, samples=400, dim=4, byzantine=0.0, correlation=0.8, client_means=0.5,
        scales=2.0, dtype=np.float64,
    )  # fmt: skip
    assert drawn.truth is not None
    task, labels = linear_regression(drawn.clients), drawn.truth.labels
    assert drawn.clients.targets is not None
    network = SimulatedNetwork(task, np.zeros(40, np.bool_), None, np.random.default_rng(0))
    monkeypatch.setattr(descent, "SHARE", 1.0)
    algorithm = ClusteredDescent(Server(Mean(), audit=False), labels=labels, conditioned="constant")
    start = np.zeros((2, 4))
    state: State = algorithm.initial_state(network, start, np.random.default_rng(0))
    after, _ = algorithm.step(state, network, np.random.default_rng(0))
    owner = np.repeat(labels, drawn.clients.sizes)
    for j in range(2):
        x, y = drawn.clients.features[owner == j], drawn.clients.targets[owner == j]
        pooled = np.linalg.lstsq(x, y, rcond=None)[0]
        left = np.linalg.norm(x @ (after.centres[j] - pooled)) / np.linalg.norm(x @ pooled)
        assert left < 5e-3


def test_a_client_with_large_features_counts_in_a_step_by_its_leverage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is that of a pooled minimiser in which such a client has a weight; else its own would be the result."""
    drawn = tabular(0, clients=30, clusters=1, samples=400, dim=4, byzantine=0.0, dtype=np.float64)
    x, y = drawn.clients.features.copy(), np.asarray(drawn.clients.targets).copy()
    x[:400] *= 100
    y[:400] = x[:400] @ np.full(4, -3.0)
    clients = Clients(x, y, drawn.clients.sizes)
    network = SimulatedNetwork(linear_regression(clients), np.zeros(30, np.bool_), None, np.random.default_rng(0))
    monkeypatch.setattr(descent, "SHARE", 1.0)
    algorithm = ClusteredDescent(
        Server(Mean(), audit=False), labels=np.zeros(30, np.int64), conditioned="constant", max_byzantine=1
    )
    state = algorithm.initial_state(network, np.zeros((1, 4)), np.random.default_rng(0))
    assert state.conditioning is not None
    leverages = state.conditioning.leverages
    assert leverages[0] < 1e-3
    assert (leverages[1:] == 1).all()
    after, _ = algorithm.step(state, network, np.random.default_rng(0))
    weights = np.sqrt(np.repeat(leverages, 400))
    expected = np.linalg.lstsq(weights[:, None] * x, weights * y, rcond=None)[0]
    np.testing.assert_allclose(after.centres[0], expected, atol=1e-2)
    assert np.linalg.norm(after.centres[0] + 3) > 4


def test_hessians_are_refreshed_where_they_vary() -> None:
    drawn = tabular(0, clients=20, clusters=2, samples=60, dim=3, byzantine=0.0, task="logistic", dtype=np.float64)
    assert drawn.truth is not None
    network = SimulatedNetwork(
        logistic_regression(drawn.clients), np.zeros(20, np.bool_), None, np.random.default_rng(0)
    )
    centres, labels = 3 * drawn.truth.centres, drawn.truth.labels
    before = ask_conditioning(network, 0 * centres[:1], None, ask_sizes(network), 0)
    assert before is not None
    after = before.at(network, centres, labels)
    assert after.coordinates is before.coordinates
    expected = in_coordinates(unpacked(network.task.hessians(centres, labels), network.task.dim), before.coordinates)
    np.testing.assert_allclose(after.hessians, expected, rtol=1e-5, atol=1e-6)
    assert np.trace(after.hessians.mean(axis=0)) < 0.9 * np.trace(before.hessians.mean(axis=0))
    algorithm = ClusteredDescent(Server(Mean(), audit=False), labels=labels, conditioned="varying")
    state = algorithm.initial_state(network, np.zeros((2, 3)), np.random.default_rng(0))
    assert state.conditioning is not None
    known = [state.conditioning.hessians]
    for _ in range(4):
        state, _ = algorithm.step(state, network, np.random.default_rng(0))
        assert state.conditioning is not None
        known.append(state.conditioning.hessians)
    refreshed = [not np.array_equal(one, other) for one, other in pairwise(known)]
    assert refreshed == [False, True, False, True]  # in rounds 1, 3, 7, … as they are counted from 0


@pytest.mark.parametrize("size", [3.0, 1e6])
def test_negative_hessians_do_not_count_in_the_scales(size: float, rng: np.random.Generator) -> None:
    """With them among the clients, and as many left out as may be Byzantine, the scales would be of any size.

    Only two honest clients know the last direction, so that a mean without the largest values has nothing along it.
    """
    honest = hessians(rng)
    honest[:-2, -1], honest[:-2, :, -1] = 0.0, 0.0
    forged = np.concatenate([np.tile(-size * honest.mean(axis=0), (6, 1, 1)), honest])
    count = len(forged)
    alone = condition(held(honest), np.arange(6, count), np.full(count, float(SAMPLES)), 0)
    found = condition(held(forged), np.arange(count), np.full(count, float(SAMPLES)), 6)
    assert alone is not None
    assert found is not None
    np.testing.assert_array_equal(found.coordinates.basis, alone.coordinates.basis)
    np.testing.assert_array_equal(found.hessians, alone.hessians)
    np.testing.assert_array_equal(found.leverages, alone.leverages)
    assert found.leverages[-2:].min() > 0.01
