"""The bound on what clients with much information along one direction do to their cluster together."""

from __future__ import annotations

import numpy as np
import pytest

from coterie._src.init.leverage import TOO_FAR, bounded_leverage

CLIENTS, DIM, BYZANTINE = 40, 20, 10
ONES = np.ones(CLIENTS)


def honest(seed: int, clients: int = CLIENTS, offset: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Hessians of clients with means of their own, and updates with noise of these covariances at a centre.

    offset: of the centre from the optimum, along every axis.
    """
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((clients, DIM))
    hessians = (np.eye(DIM) + means[:, :, None] * means[:, None, :]) / 2
    noise = (rng.standard_normal((clients, DIM)) + rng.standard_normal((clients, 1)) * means) / np.sqrt(2)
    return hessians.astype(np.float32), noise + hessians @ np.full(DIM, offset)


def attacked(
    seed: int, shift: float, leverage: float = 40.0, byzantine: int = BYZANTINE
) -> tuple[np.ndarray, np.ndarray]:
    """The last clients claim `leverage` along one direction, and a minimiser that is `shift` away along it."""
    hessians, updates = honest(seed)
    along = np.random.default_rng(99).standard_normal(DIM)
    along /= np.linalg.norm(along)
    hessians[-byzantine:] = np.eye(DIM) / 2 + leverage * np.outer(along, along)
    updates[-byzantine:] = shift * hessians[-byzantine:] @ along
    return hessians, updates


def test_honest_clients_stay_whatever_they_know() -> None:
    left_out = [np.flatnonzero(bounded_leverage(*honest(seed), ONES, 1.0, BYZANTINE) == 0) for seed in range(100)]
    assert sum(map(len, left_out)) <= 2


@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_a_common_offset_of_the_centre_is_no_deviation(offset: float) -> None:
    """Far from the end of a descent all updates are large, but the Hessians explain them."""
    found = bounded_leverage(*honest(0, offset=offset), ONES, 1.0, BYZANTINE)
    assert (found == 1).all()


def test_a_group_that_determines_a_direction_is_left_out() -> None:
    hessians, updates = attacked(1, shift=3.0)
    found = bounded_leverage(hessians, updates, ONES, 1.0, BYZANTINE)
    assert (found[-BYZANTINE:] == 0).sum() >= BYZANTINE - 1
    assert (found[:-BYZANTINE] == 0).sum() <= 1


def test_clients_that_were_left_out_no_longer_count() -> None:
    """With a bound that is not reached, the rest passes the same test."""
    for seed in range(5):
        hessians, updates = attacked(seed, shift=1.5)
        kept = np.flatnonzero(bounded_leverage(hessians, updates, ONES, 1.0, 15))
        assert CLIENTS - 15 < len(kept) < CLIENTS
        assert (bounded_leverage(hessians[kept], updates[kept], ONES[kept], 1.0, 15) == 1).all()


def test_no_more_than_the_bound_are_left_out() -> None:
    for bound in (0, 1, 4):
        found = bounded_leverage(*attacked(1, shift=5.0, byzantine=bound + 2), ONES, 1.0, bound)
        assert (found == 0).sum() <= bound
    assert (bounded_leverage(*attacked(1, shift=5.0, byzantine=4), ONES, 1.0, 4) == 0).sum() == 4


def test_the_shift_that_is_left_is_a_few_standard_errors_of_the_others() -> None:
    """The bound of the docstring, with the honest clients as those of R, over shifts and claims."""
    along = np.random.default_rng(99).standard_normal(DIM)
    along /= np.linalg.norm(along)
    for leverage in (40.0, 1e3):
        for shift in np.geomspace(0.1, 100, 13):
            hessians, updates = attacked(2, shift, leverage)
            kept = bounded_leverage(hessians, updates, ONES, 1.0, BYZANTINE)[:, None, None] * hessians
            scores = (kept.sum(axis=(1, 2)) != 0)[:, None] * updates
            step = np.linalg.solve(kept.sum(axis=0), scores.sum(axis=0))
            others = hessians[:-BYZANTINE].sum(axis=0)
            alone = np.linalg.solve(others, updates[:-BYZANTINE].sum(axis=0))
            error = np.sqrt(along @ np.linalg.solve(others, along))
            assert abs(along @ (step - alone)) <= 1.3 * TOO_FAR * error, (leverage, shift)


def test_noise_and_weights_scale() -> None:
    hessians, updates = attacked(1, shift=3.0)
    before = bounded_leverage(hessians, updates, ONES, 1.0, BYZANTINE)
    louder = bounded_leverage(hessians, 3 * updates, ONES, 9.0, BYZANTINE)
    assert np.array_equal(before == 0, louder == 0)
    lighter = bounded_leverage(hessians, updates, ONES / 40, 1 / 40, BYZANTINE)
    assert np.array_equal(before == 0, lighter == 0)
    assert (bounded_leverage(hessians, updates, ONES, 1e4, BYZANTINE) == 1).all()


def test_few_clients_are_not_tested() -> None:
    hessians, updates = attacked(1, shift=100.0)
    assert (bounded_leverage(hessians[-7:], updates[-7:], np.ones(7), 1.0, 3) == 1).all()
    assert (bounded_leverage(hessians[-18:], updates[-18:], np.ones(18), 1.0, 3) == 0).any()


@pytest.mark.parametrize("dim", [3, 50])
def test_hessians_that_are_negative_by_rounding_do_not_stop_the_server(dim: int, rng: np.random.Generator) -> None:
    """A Hessian counts as positive semidefinite down to −1e-5 of its trace: Byzantine clients may go that far, too."""
    axes = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    values = np.full((20, dim), 1e-7)
    values[:, 0], values[:, 1] = 1.0, -0.9e-5
    values[:3, 0] = 1.1  # the clients of most information
    matrices = ((axes * values[:, None, :]) @ axes.T).astype(np.float32)
    found = bounded_leverage(matrices, 1e-3 * rng.standard_normal((20, dim)), np.ones(20), 1.0, 3)
    assert np.isfinite(found).all()
    assert np.count_nonzero(found) >= 17


def test_what_is_left_after_large_clients_is_no_rounding_error(rng: np.random.Generator) -> None:
    """The Hessians of the others are summed anew, and are smaller than the rounding errors of the first sum."""
    x = rng.standard_normal((20, 60, 12))
    matrices = (x.transpose(0, 2, 1) @ x / 60).astype(np.float32)
    weights = np.where(np.arange(20) < 4, 1.0, 1e-9)
    updates = rng.standard_normal((20, 12)) * 1e-3
    updates[:4] += 50 * np.linalg.eigh(matrices[:4].sum(axis=0))[1][:, -1]
    found = bounded_leverage(matrices, updates, weights, 1e-12, 6)
    assert (found[:4] == 0).all()
    assert (found[4:] > 0).sum() >= 14
