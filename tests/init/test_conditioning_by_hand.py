"""Pieces of the coordinates by hand: means, weights and maps of a few small Hessians."""

from __future__ import annotations

import numpy as np
import pytest

from coterie._src.coordinates import Coordinates
from coterie._src.init.axes import _positive_mean, _typical, _variation, _whitening, without_negative
from coterie._src.init.conditioning import HUGE, LARGEST, Conditioning, _in_coordinates, _positive, condition
from coterie._src.packed import PackedMatrices, packed

ONE = np.eye(2)


def held(matrices: np.ndarray) -> PackedMatrices:
    return PackedMatrices(packed(matrices), matrices.shape[-1])


def conditioning(hessians: np.ndarray, specific: float = 0.0, samples: float = 8.0) -> Conditioning:
    count = len(hessians)
    return Conditioning(Coordinates(ONE, ONE), hessians.astype(np.float32), np.ones(count), specific, samples, 1.0, 0)


@pytest.mark.parametrize("specific", [0.0, 0.5, 0.9])
def test_the_maps_of_a_round_by_hand(specific: float) -> None:
    """Clients 3 and 0 are in cluster 0, with weights 1 and 3; client 1 in cluster 2, and nobody in cluster 1."""
    hessians = np.stack([np.diag([4.0, 1.0]), np.diag([9.0, 2.0]), 99 * ONE, np.array([[2.0, 1.0], [1.0, 3.0]])])
    clients, labels, weights = np.array([3, 1, 0]), np.array([0, 2, 0]), np.array([1.0, 7.0, 3.0])
    found = conditioning(hessians, specific).newton(clients, labels, 3, weights)
    means = [(hessians[3] + 3 * hessians[0]) / 4, ONE, hessians[1]]
    whole = []
    for j, count in enumerate((2, 1, 1)):  # an empty cluster counts as one client
        lacking = 0.1 * np.sqrt(2 / (8.0 * count)) * np.trace(means[j]) / 2
        whole.append(means[j] + lacking * ONE)
        np.testing.assert_allclose(found.roots[j].T @ found.roots[j], np.linalg.inv(whole[j]), rtol=1e-6, atol=1e-9)
    if specific == 0:
        assert found.own is None
        return
    assert found.own is not None
    for i, (client, label) in enumerate(zip(clients, labels, strict=True)):
        own = (1 - specific) * whole[label] + specific * hessians[client]
        np.testing.assert_allclose(found.own[i].T @ found.own[i], np.linalg.inv(own), rtol=1e-6, atol=1e-9)
    assert conditioning(hessians, specific).newton(clients, labels, 3, weights, standardise=False).own is None


def test_a_client_counts_by_the_square_of_how_far_its_hessian_is_beyond_the_largest() -> None:
    """Norms of 1 to 3, and one and three thousand times the limit: leverages 1, 10⁻⁶ and 1/9·10⁻⁶."""
    limit = LARGEST * np.median([1.0, 2.0, 3.0, 2.0, 2.0, 2.0, 2.0])
    norms = np.array([1.0, 2.0, 3.0, 2.0, 2.0, 1e3 * limit, 3e3 * limit])
    inner = norms[:, None, None] * ONE / np.sqrt(2)
    hessians, leverages, *_ = _in_coordinates(np.arange(7), held(inner), ONE, 7)
    np.testing.assert_allclose(leverages, [1, 1, 1, 1, 1, 1e-6, 1e-6 / 9], rtol=1e-9)
    expected = inner.copy()
    for i in (5, 6):
        size = norms[i] / limit
        if size > HUGE:
            expected[i] /= size / HUGE
    np.testing.assert_allclose(hessians, expected, rtol=1e-6)
    # a client without an answer, and one with a negative Hessian, have the Hessian I and count whole
    inner[2] = -ONE
    hessians, leverages, *_ = _in_coordinates(np.array([0, 1, 3, 4, 5, 6, 7]), held(inner), ONE, 9)
    assert leverages[[0, 2, 3, 8]].tolist() == [1, 1, 1, 1]
    for i in (2, 3, 8):
        np.testing.assert_array_equal(hessians[i], ONE)
    np.testing.assert_allclose(hessians[1], inner[1], rtol=1e-6)


def test_which_matrices_are_positive() -> None:
    turned = np.array([[1.0, 2.0], [2.0, 1.0]])
    given = np.stack([ONE, 1e-30 * ONE, np.diag([1.0, 0.0]), -ONE, turned, 0 * ONE, np.diag([1.0, -1e-7])])
    assert _positive(given.astype(np.float32), np.arange(7)).tolist() == [True, True, True, False, False, False, True]


def test_a_typical_value_leaves_out_the_largest() -> None:
    values = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [100.0, 5.0]])
    assert _typical(values, 1).tolist() == [2.0, 5.0]  # 5: the others have nothing
    assert _typical(values, 0).tolist() == [26.5, 1.25]
    assert _typical(values, 9).tolist() == [1.0, 5.0]


def test_what_is_no_more_than_rounding_is_no_variation() -> None:
    """Along (1, −1) a Hessian of ones has nothing but rounding errors; along the second axis of a unit, nothing."""
    ones = np.ones((2, 2))
    basis = np.array([[1.0, 1.0], [-1.0, 1.0]]) / np.sqrt(2)
    matrices = np.stack([ones + np.array([[1e-15, 0], [0, 0]]), ones + np.diag([1e-6, 0.0])])
    inner = basis.T @ matrices @ basis
    found = _variation(np.einsum("crr->cr", inner), np.einsum("cdd->cd", matrices), np.ones(2), basis)
    assert found[0, 0] == 0
    assert found[1, 0] == pytest.approx(0.5e-6, rel=1e-3)
    np.testing.assert_allclose(found[:, 1], 2.0, rtol=1e-5)
    # one bound alone is not enough: the axes are known less exactly than the products
    tiny = 1e-9 * np.finfo(float).eps
    assert _variation(np.full((1, 1), tiny), np.ones((1, 2)), np.ones(2), basis[:, :1]).tolist() == [[0.0]]


def test_columns_without_features_take_no_axis_and_keep_their_unit() -> None:
    matrices = np.tile(np.diag([4.0, 0.0, 9.0]), (6, 1, 1))
    found = condition(held(matrices), np.arange(6), np.full(6, 10), 0)
    assert found is not None
    basis = found.coordinates.basis
    assert basis.shape == (3, 2)
    assert not basis[1].any()
    np.testing.assert_allclose(basis.T @ matrices[0] @ basis, ONE, atol=1e-9)
    assert found.specific == 0.0
    assert condition(held(0 * matrices), np.arange(6), np.full(6, 10), 0) is None


def test_the_share_of_differences_that_is_not_by_chance() -> None:
    """Between H = diag(1 ± s, 1): away = s², by chance (4 + 2)/n up to s²; nothing is specific to equal Hessians."""
    for spread, sizes in ((0.5, 10_000), (0.5, 100), (0.0, 100)):
        matrices = np.stack([np.diag([1 + sign * spread, 1.0]) for sign in (-1, 1)] * 5)
        found = condition(held(matrices), np.arange(10), np.full(10, sizes), 0)
        assert found is not None
        inner = found.hessians.astype(float)
        away = np.median(((inner - ONE) ** 2).sum(axis=(1, 2)))
        norms = (inner**2).sum(axis=(1, 2))
        chance = np.median((np.trace(inner, axis1=1, axis2=2) ** 2 + norms) / sizes)
        expected = 1 - chance / max(away, 1e-300)
        assert found.specific == pytest.approx(min(expected, 0.999) if expected > 0.5 else 0.0, abs=1e-4)


# --- negative Hessians --------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [1e-4, 1.0, 1e4])
def test_who_makes_the_mean_negative_is_left_out(unit: float) -> None:
    """In whatever unit the second column is; who is negative without making the mean so stays."""
    scale = np.diag([1.0, unit])
    good = [np.diag([1.0, 1.0]), np.array([[1.0, 0.5], [0.5, 1.0]]), np.diag([2.0, 1.0])]
    bad, mild = np.array([[1.0, 9.0], [9.0, 1.0]]), np.array([[1.0, 1.1], [1.1, 1.0]])
    given = np.stack([scale @ one @ scale for one in (good[0], bad, *good[1:])])
    clients, matrices = without_negative(np.array([5, 6, 7, 8]), held(given))
    assert clients.tolist() == [5, 7, 8]
    np.testing.assert_array_equal(matrices.rows, packed(given[[0, 2, 3]]))
    few = np.stack([scale @ one @ scale for one in (*good, mild)])
    assert without_negative(np.arange(4), held(few))[0].tolist() == [0, 1, 2, 3]
    assert len(without_negative(np.arange(2), held(np.stack([-ONE, -2 * ONE])))[0]) == 0
    # a negative diagonal is enough, whatever the mean
    some = np.stack([*few[:3], scale @ np.diag([1.0, -0.1]) @ scale])
    assert without_negative(np.arange(4), held(some))[0].tolist() == [0, 1, 2]


def test_weights_of_those_who_make_a_weighted_mean_negative_are_0() -> None:
    """Client 2 is outweighed in the plain mean, and not where the first counts less; client 3 counts nothing at all."""
    matrices = np.stack([np.diag([1.0, 9.0]), ONE, np.diag([1.0, -4.0]), np.diag([1.0, -99.0])])
    values, vectors, weights = _positive_mean(held(matrices), np.array([1.0, 1.0, 1.0, 0.0]), ONE)
    assert weights.tolist() == [1.0, 1.0, 1.0, 0.0]
    np.testing.assert_allclose(values, [1.0, 2.0])
    values, vectors, weights = _positive_mean(held(matrices), np.array([0.1, 1.0, 1.0, 0.0]), ONE)
    assert weights.tolist() == [0.1, 1.0, 0.0, 0.0]
    np.testing.assert_allclose(values, [1.0, 1.9 / 1.1])
    np.testing.assert_allclose(np.abs(vectors), ONE, atol=1e-12)
    # negative along one of two negative directions is enough
    both = np.stack([np.diag([-9.0, 1.0, 1.0]), np.diag([1.0, -9.0, 1.0]), *[np.eye(3)] * 3])
    assert _positive_mean(held(both), np.ones(5), np.eye(3))[2].tolist() == [0.0, 0.0, 1.0, 1.0, 1.0]


def test_a_mean_of_nothing_has_no_axes() -> None:
    basis, number = _whitening(held(np.zeros((3, 2, 2))), np.ones(3), ONE, 1e-10)
    assert basis.shape == (2, 0)
    assert number == 0.0
    basis, number = _whitening(held(np.tile(np.diag([4.0, 1.0]), (3, 1, 1))), np.ones(3), ONE, 1e-10)
    np.testing.assert_allclose(basis.T @ np.diag([4.0, 1.0]) @ basis, ONE, atol=1e-12)
    assert number == pytest.approx(4.0)
