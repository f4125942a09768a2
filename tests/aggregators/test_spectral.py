"""The spectral filter: costs nothing without Byzantine rows, and what they agree on does not count."""

from __future__ import annotations

import tracemalloc
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize
from scipy.stats import norm, ortho_group

from coterie._src.aggregators import Median, SpectralFilter, median, per_cluster, products, spectral
from coterie._src.aggregators.products import Dense, Tall, around
from coterie._src.aggregators.spectral import (
    DISPLACED,
    MANY,
    _beyond_white_noise,
    _capped,
    _filtered,
    _kept,
    _reweighted,
    displaced,
    outlier_direction,
)

HONEST = 38
Form = Literal["removal", "no-regret"]
FORMS: tuple[Form, ...] = ("removal", "no-regret")


def shifted(rng: np.random.Generator, byzantine: int, dim: int, shift: float, noisy: bool) -> np.ndarray:
    """Honest noise, and Byzantine rows that agree on a direction, each with noise of its own or all the same."""
    honest = rng.standard_normal((HONEST, dim))
    direction = rng.standard_normal(dim)
    forged = honest.mean(axis=0) + shift * direction / np.linalg.norm(direction)
    return np.concatenate([honest, forged + noisy * rng.standard_normal((byzantine, dim))])


def ratio(rows: np.ndarray, byzantine: int, form: Form = "removal") -> float:
    """The error relative to that of the honest mean."""
    return float(np.linalg.norm(SpectralFilter(byzantine, form)(rows)) / np.linalg.norm(rows[:HONEST].mean(axis=0)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dim", [20, 100, 500])
def test_without_byzantine_rows_nothing_is_lost(dim: int, form: Form) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((HONEST, dim)) for _ in range(40)]
    lost = [ratio(r, HONEST, form) for r in rows]
    # a false alarm takes a row or two, and comes in a few of a hundred tables
    assert abs(float(np.mean(lost)) - 1) < 0.01


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize(("byzantine", "dim", "most"), [(4, 20, 1.3), (10, 100, 1.4), (20, 500, 1.4), (30, 500, 1.5)])
def test_no_shift_does_much_damage(byzantine: int, dim: int, most: float, noisy: bool, form: Form) -> None:
    """Small shifts do little and large ones are seen; the worst lies between, far below a median's."""
    worst = worst_median = 0.0
    for shift in (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1e6):
        rng = np.random.default_rng(1)
        tables = [shifted(rng, byzantine, dim, shift, noisy) for _ in range(6)]
        norms = [np.linalg.norm(rows[:HONEST].mean(axis=0)) for rows in tables]
        worst = max(worst, float(np.mean([ratio(rows, byzantine, form) for rows in tables])))
        found = [np.linalg.norm(median(rows)) / norm for rows, norm in zip(tables, norms, strict=True)]
        worst_median = max(worst_median, float(np.mean(found)))
    assert worst < most
    assert worst < worst_median


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [2.0, 3.0, 10.0, 1e3, 1e6, 1e30])
@pytest.mark.parametrize(
    ("honest", "byzantine", "dim"), [(30, 10, 100), (33, 32, 100), (38, 30, 20), (15, 14, 20), (6, 2, 30)]
)
def test_byzantine_rows_with_nothing_in_common_do_not_move_the_mean(
    honest: int, byzantine: int, dim: int, scale: float, form: Form
) -> None:
    """Far out, each in a direction of its own, so many that the mean of all is nowhere near."""
    lost = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        rows = rng.standard_normal((honest, dim))
        for forged in (rng.standard_normal((byzantine, dim)), np.sqrt(dim) * np.eye(dim)[np.arange(byzantine) % dim]):
            found = SpectralFilter(byzantine, form)(np.concatenate([rows, scale * forged]))
            lost.append(np.linalg.norm(found) / np.linalg.norm(rows.mean(axis=0)))
    assert np.mean(lost) < (1.6 if scale < 10 else 1.05)


def test_where_half_of_the_rows_are_equal_that_row_is_returned() -> None:
    row = np.random.default_rng(12).standard_normal(20)
    for size in (1.0, 1e6, 1e150):
        forged = size * np.random.default_rng(13).standard_normal((5, 20))
        assert np.array_equal(SpectralFilter(5)(np.concatenate([np.tile(row, (30, 1)), forged])), row)


@pytest.mark.parametrize("light", [0.05, 0.5])
def test_light_rows_do_not_make_room_for_heavy_byzantine_rows(light: float) -> None:
    rng = np.random.default_rng(14)
    weights = np.concatenate([np.ones(11), np.full(19, light), np.ones(10)])
    rows = rng.standard_normal((40, 30)) / np.sqrt(weights)[:, None]
    expected = np.average(rows[:30], axis=0, weights=weights[:30])
    rows[30:] += 2.5 * rng.standard_normal(30)
    for form in FORMS:
        found = SpectralFilter(10, form)(rows, weights)
        assert np.linalg.norm(found - expected) < np.linalg.norm(expected)


def test_copies_count_once() -> None:
    rng = np.random.default_rng(9)
    honest = rng.standard_normal((HONEST, 20))
    forged = honest.mean(axis=0) + 2.0 / np.sqrt(20)
    copied = SpectralFilter(30)(np.concatenate([honest, np.tile(forged, (30, 1))]))
    # as one row it moves the mean by 2/39, as thirty by 0.88; a false alarm may take a row or two
    assert np.linalg.norm(copied - honest.mean(axis=0)) < 0.3


def test_precise_clients_are_no_copies_of_each_other() -> None:
    rng = np.random.default_rng(10)
    rows = rng.standard_normal((60, 50)) * np.where(np.arange(60) < 20, 1 / 30, 1.0)[:, None]
    lost = np.linalg.norm(SpectralFilter(3)(rows)) / np.linalg.norm(rows.mean(axis=0))
    assert lost < 1.1


@pytest.mark.parametrize("form", FORMS)
def test_a_small_attack_does_not_hide_behind_a_large_one(form: Form) -> None:
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((HONEST, 60))
    forged = 8 * np.eye(60)[:12] * np.array([1e6, 1, 1e3, 1, 1, 1e5, 1, 1, 1, 1e4, 1, 1])[:, None]
    found = SpectralFilter(24, form)(np.concatenate([rows, forged, forged * 0.9]))
    assert np.linalg.norm(found) < 1.3 * np.linalg.norm(rows.mean(axis=0))


@given(st.integers(0, 2**31), st.sampled_from([1e30, 3e38, np.inf, -np.inf, np.nan, 0.0]), st.sampled_from(FORMS))
def test_arbitrary_rows_leave_the_result_finite_and_near(seed: int, size: float, form: Form) -> None:
    rng = np.random.default_rng(seed)
    honest = rng.standard_normal((20, 12)).astype(np.float32)
    with np.errstate(all="ignore"):
        forged = (size * rng.standard_normal((6, 12))).astype(np.float32)
        found = SpectralFilter(6, form)(np.concatenate([honest, forged]))
    if np.isnan(size):
        return  # the intake accepts none; nothing is promised but that the rule returns
    assert np.isfinite(found).all()
    assert np.linalg.norm(found) < 2.5


def test_weights_are_those_of_a_weighted_mean() -> None:
    rng = np.random.default_rng(3)
    weights = rng.uniform(0.2, 1.0, size=40)
    rows = rng.standard_normal((40, 30)) / np.sqrt(weights)[:, None]
    expected = (weights[:, None] * rows).sum(axis=0) / weights.sum()
    for form in FORMS:
        np.testing.assert_allclose(SpectralFilter(10, form)(rows, weights), expected, atol=1e-12)
    table, counts, _ = per_cluster(SpectralFilter(5), rows, np.arange(40) % 2, 2, weights)
    even = weights[::2, None] * rows[::2]
    np.testing.assert_allclose(table[0], even.sum(axis=0) / weights[::2].sum(), atol=1e-12)
    assert counts.tolist() == [20, 20]


@pytest.mark.parametrize("form", FORMS)
def test_kinds_precisions_and_the_order_of_the_rows(form: Form) -> None:
    rows = shifted(np.random.default_rng(4), 10, 50, 9.0, noisy=True)
    rule = SpectralFilter(10, form)
    exact = rule(rows)
    np.testing.assert_allclose(rule(np.random.default_rng(5).permutation(rows)), exact, atol=1e-12)
    np.testing.assert_allclose(rule(3 * rows + 7), 3 * exact + 7, atol=1e-9)
    single = rule(rows.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, exact, atol=1e-5)
    tensor = rule(torch.from_numpy(rows))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_allclose(tensor.numpy(), exact, atol=1e-12)


@pytest.mark.parametrize("shift", [0.0, 3.0, 5.0, 9.0])
@pytest.mark.parametrize("dim", [20, 300])
def test_what_runs_on_a_gpu_keeps_the_same_rows(dim: int, shift: float) -> None:
    """The path of tensors, by another iteration, on a CPU."""
    for seed in range(5):
        rows = shifted(np.random.default_rng(seed), 12, dim, shift, noisy=bool(seed % 2))
        gram, counts = Dense(rows @ rows.T), np.random.default_rng(seed).uniform(0.5, 1.0, len(rows))
        directions = min(len(rows) - 1, dim) // 4
        tensors = Dense(torch.from_numpy(gram.gram))
        kept = _kept(gram, counts, 12, directions)
        assert _kept(tensors, counts, 12, directions).tolist() == kept.tolist()
        turned = _reweighted(tensors, counts, 12, directions)
        np.testing.assert_allclose(turned, _reweighted(gram, counts, 12, directions), atol=1e-6)
        along = outlier_direction(gram.centred(counts), 1)
        other = outlier_direction(tensors.centred(counts), 1)
        assert (along is None) == (other is None)
        if along is not None and other is not None:
            np.testing.assert_allclose(abs(float(other @ torch.from_numpy(along))), 1.0, atol=1e-6)


@pytest.mark.parametrize("shift", [0.0, 3.0, 5.0, 9.0])
def test_many_rows_of_few_columns_are_judged_as_by_their_products(shift: float) -> None:
    for seed in range(5):
        rows = shifted(np.random.default_rng(seed), 12, 15, shift, noisy=bool(seed % 2))
        counts = np.random.default_rng(seed).uniform(0.5, 1.0, len(rows))
        tall, dense = around(rows, np.zeros(15)), Dense(rows @ rows.T)
        assert isinstance(tall, Tall)
        np.testing.assert_allclose(tall.squares, dense.squares)
        assert tall.copies(13).tolist() == dense.copies(13).tolist()
        assert _kept(tall, counts, 12, 3).tolist() == _kept(dense, counts, 12, 3).tolist()
        np.testing.assert_allclose(_reweighted(tall, counts, 12, 3), _reweighted(dense, counts, 12, 3), atol=1e-6)
        mean = tall.centred(counts)
        for one, other in (
            (mean, dense.centred(counts)),
            (mean.among(np.arange(9)), dense.centred(counts).among(np.arange(9))),
        ):
            np.testing.assert_allclose(one.times(np.eye(len(one))), other.gram, atol=1e-9)
        values, vectors = mean.leading(3)
        exactly, directions = dense.centred(counts).leading(3)
        np.testing.assert_allclose(values, exactly)
        np.testing.assert_allclose(np.abs(np.sum(vectors * directions, axis=0)), 1.0)
        left = dense.centred(counts).without(exactly, directions).gram
        np.testing.assert_allclose(mean.without(values, vectors).times(np.eye(len(rows))), left, atol=1e-9)


def test_the_memory_of_many_rows_of_few_columns_is_no_square(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, rows = np.random.default_rng(12), 3000
    honest, forged = rng.standard_normal((rows - 300, 10)), rng.standard_normal((300, 10)) + 3 * np.eye(10)[0]
    table = np.concatenate([honest, forged, np.tile(forged[:1], (1200, 1))])  # whose pairs are a quarter of the square
    for block in ("PAIRS", "SAMPLE"):
        monkeypatch.setattr(products, block, 1 << 16)
    SpectralFilter(1500)(table)
    tracemalloc.start()
    try:
        found = SpectralFilter(1500)(table)
        assert tracemalloc.get_traced_memory()[1] < 8 * rows**2 / 10
    finally:
        tracemalloc.stop()
    assert np.linalg.norm(found) < 0.5 * np.linalg.norm(table.mean(axis=0))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dim", [20, 60])
def test_where_clients_agree_the_order_of_the_rows_does_not_matter(dim: int, form: Form) -> None:
    """More rows than can be Byzantine copies agree closely: they are honest, wherever they stand."""
    rng = np.random.default_rng(13)
    precise, noisy = 1e-3 * rng.standard_normal((12, dim)), rng.standard_normal((30, dim))
    forged = rng.standard_normal((10, dim)) + 3.0
    found = [
        SpectralFilter(10, form)(np.concatenate(rows)) for rows in ((noisy, forged, precise), (precise, noisy, forged))
    ]
    np.testing.assert_allclose(found[0], found[1], atol=1e-9)
    assert np.linalg.norm(found[0]) < 0.5 * np.linalg.norm(np.concatenate([precise, noisy, forged]).mean(axis=0))


def test_columns_without_any_noise_cost_no_row() -> None:
    rows = np.zeros((200, 40))
    rows[:, :2] = np.random.default_rng(15).standard_normal((200, 2))
    for products_of_rows in (Tall(rows), Dense(rows @ rows.T)):
        assert len(_kept(products_of_rows, np.ones(200), 40, 10)) == 200


def test_of_many_rows_more_go_at_a_time() -> None:
    rng = np.random.default_rng(11)
    honest = rng.standard_normal((MANY, 40))
    for byzantine, shift in [(0, 0.0), (30, 6.0), (200, 6.0), (200, 2.0)]:
        forged = rng.standard_normal((byzantine, 40)) + shift * np.eye(40)[0]
        lost = np.linalg.norm(SpectralFilter(200)(np.concatenate([honest, forged])))
        # a mean of 512 rows is off by √(40/512) = 0.28; a shift of 2 is hard to tell from noise
        assert lost < (1.2 if shift > 2 or not byzantine else 2.0) * np.linalg.norm(honest.mean(axis=0))


def test_few_rows_or_columns_and_equal_rows() -> None:
    few = np.array([[1.0], [2.0], [99.0]])
    assert SpectralFilter(1)(few).tolist() == [2.0]
    row = np.random.default_rng(6).standard_normal(20).astype(np.float32)
    assert np.array_equal(SpectralFilter(3)(np.tile(row, (12, 1))), row)
    assert np.array_equal(SpectralFilter(3)(np.zeros((150, 20))), np.zeros(20))
    noise = np.random.default_rng(7).standard_normal((30, 20))
    assert np.allclose(SpectralFilter(30)(np.concatenate([np.tile(row, (120, 1)), noise])), row, atol=1.0)


def test_no_more_rows_are_removed_than_may_be_byzantine() -> None:
    rows = shifted(np.random.default_rng(7), 10, 50, 50.0, noisy=True)
    assert np.allclose(SpectralFilter(0)(rows), rows.mean(axis=0))
    assert np.linalg.norm(SpectralFilter(5)(rows)) > np.linalg.norm(SpectralFilter(10)(rows))
    assert np.allclose(SpectralFilter(0, "no-regret")(rows), rows.mean(axis=0))
    weights = _reweighted(Dense(rows @ rows.T), np.ones(len(rows)), 5, 12)
    assert weights.max() / weights.sum() <= 1 / (len(rows) - 5) * (1 + 1e-9)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12), st.floats(1.01, 4.0), st.integers(0, 2**31))
def test_weights_come_back_to_the_capped_simplex(weights: list[float], most: float, seed: int) -> None:
    """min(most, s·w) with the s that bisection finds."""
    keeping, counts = np.array(weights), np.random.default_rng(seed).uniform(0.1, 1.0, len(weights))
    if most * counts[keeping > 1e-6].sum() <= 1.001 * counts.sum():
        return  # too few are left to carry the whole weight
    found = _capped(keeping, most, counts)

    def excess(factor: float) -> float:
        return float((counts * np.minimum(most, factor * keeping)).sum() - counts.sum())

    factor = brentq(excess, 0.0, 1e8, xtol=1e-14, rtol=1e-14, maxiter=500)
    np.testing.assert_allclose(found, np.minimum(most, factor * keeping), rtol=1e-6, atol=1e-9)


def test_a_direction_that_is_noise_does_not_stand_out() -> None:
    rows = np.random.default_rng(8).standard_normal((30, 100))
    rows -= rows.mean(axis=0)
    assert outlier_direction(Dense(rows @ rows.T), 7) is None
    rows[:8] += 3.0
    rows -= rows.mean(axis=0)
    along = outlier_direction(Dense(rows @ rows.T), 7)
    assert along is not None
    assert len(set(np.sign(along[:8]))) == 1


@pytest.mark.parametrize("max_byzantine", [-1, 1.5, 0.5, -0.1, float("nan")])
def test_a_bound_out_of_range_is_named(max_byzantine: float) -> None:
    with pytest.raises(ValueError, match="max_byzantine must be"):
        SpectralFilter(max_byzantine)


def test_weights_and_forms_out_of_range_are_named() -> None:
    for weights in (np.zeros(10), np.full(10, np.inf), np.ones(9)):
        with pytest.raises(ValueError, match="weights must be 10 positive numbers"):
            SpectralFilter(1)(np.zeros((10, 10)), weights)
    with pytest.raises(ValueError, match="form must be"):
        SpectralFilter(1, "magic")  # type: ignore[arg-type]


def test_a_fraction_is_of_the_rows_and_rounds_up() -> None:
    rows = shifted(np.random.default_rng(7), 10, 50, 50.0, noisy=True)
    for fraction, count in [(0.2, 10), (0.1, 5), (10 / 48, 10), (0.01, 1), (0.0, 0)]:
        assert np.array_equal(SpectralFilter(fraction)(rows), SpectralFilter(count)(rows))


@pytest.mark.parametrize("form", FORMS)
@given(st.integers(0, 2**31), st.sampled_from(["one-hot", "signs", "copies", "two groups"]), st.integers(2, 30))
def test_rows_that_are_no_noise_at_all_are_taken(form: Form, seed: int, kind: str, count: int) -> None:
    """Equal eigenvalues, of which LAPACK may find too few, and products that are all rounding."""
    rng = np.random.default_rng(seed)
    rows = {
        "one-hot": np.eye(40)[rng.integers(40, size=count)],
        "signs": rng.integers(-1, 2, (count, 12)).astype(np.float64),
        "copies": np.tile(rng.standard_normal(20), (count, 1)),
        "two groups": rng.standard_normal((2, 20))[rng.integers(2, size=count)],
    }[kind]
    for byzantine in (0, 1, (count - 1) // 2):
        found = SpectralFilter(byzantine, form)(rows)
        assert np.all((found >= rows.min(axis=0) - 1e-9) & (found <= rows.max(axis=0) + 1e-9))


def test_equal_eigenvalues_by_hand() -> None:
    np.testing.assert_allclose(SpectralFilter(1)(np.eye(8, 30))[:8], 1 / 8)


# --- shares -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("byzantine", "dim", "shift"), [(0, 20, 0.0), (10, 20, 30.0), (10, 100, 30.0), (10, 20, 1e9)])
def test_the_aggregate_is_the_mean_by_the_shares(
    byzantine: int, dim: int, shift: float, weighted: bool, form: Form
) -> None:
    rng = np.random.default_rng(4)
    rows = shifted(rng, byzantine, dim, shift, noisy=False)
    weights = rng.uniform(0.5, 1.0, size=len(rows)) if weighted else np.ones(len(rows))
    rule = SpectralFilter(byzantine, form)
    shares = rule.shares(rows, weights)
    assert shares is not None
    assert shares.shape == (len(rows),)
    assert (shares >= 0).all()
    assert shares.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(shares @ rows, rule.aggregate_weighted(rows, weights), rtol=1e-9, atol=1e-9)
    if byzantine:
        assert shares[HONEST:].sum() <= (0.0 if form == "removal" else 0.01)
        assert (shares[:HONEST] > 0).all()
    else:
        np.testing.assert_allclose(shares, weights / weights.sum(), rtol=1e-12)


@given(seed=st.integers(0, 2**32 - 1), byzantine=st.integers(0, 15), shift=st.floats(0, 100), noisy=st.booleans())
def test_shares_fit_the_aggregate_of_any_rows(seed: int, byzantine: int, shift: float, noisy: bool) -> None:
    rng = np.random.default_rng(seed)
    rows = shifted(rng, byzantine, 12, shift, noisy)
    weights = rng.uniform(0.1, 1.0, size=len(rows))
    rule = SpectralFilter(byzantine)
    shares = rule.shares(rows, weights)
    assert shares is not None
    assert shares.sum() == pytest.approx(1.0)
    assert (shares == 0).sum() <= byzantine
    np.testing.assert_allclose(shares @ rows, rule.aggregate_weighted(rows, weights), rtol=1e-8, atol=1e-8)


def test_there_are_no_shares_where_the_result_is_a_median() -> None:
    rng = np.random.default_rng(0)
    rule = SpectralFilter(2)
    for rows in (rng.standard_normal((7, 20)), rng.standard_normal((20, 7)), np.ones((20, 9))):
        assert rule.shares(rows, np.ones(len(rows))) is None
        assert np.array_equal(rule(rows), median(rows))
    assert Median().shares(rng.standard_normal((20, 9)), np.ones(20)) is None


def coloured(rng: np.random.Generator, rows: int, dim: int, shape: str) -> np.ndarray:
    """Honest noise whose covariance is not a multiple of the identity."""
    variances = {
        "1/i": 1 / np.arange(1, dim + 1),
        "1/i²": 1 / np.arange(1, dim + 1) ** 2,
        "one factor": np.concatenate([[50 * np.sqrt(1 + dim / 200)], np.ones(dim - 1)]),
        "five factors": np.concatenate([np.sqrt(1 + dim / 200) * np.array([100, 50, 30, 20, 10]), np.ones(dim - 5)]),
    }[shape]
    return rng.standard_normal((rows, dim)) * np.sqrt(variances)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dim", [20, 300])
@pytest.mark.parametrize("shape", ["1/i", "1/i²", "one factor", "five factors"])
def test_coloured_noise_costs_next_to_nothing(shape: str, dim: int, form: Form) -> None:
    tables = [coloured(np.random.default_rng(seed), 100, dim, shape) for seed in range(12)]
    shares = [SpectralFilter(20, form).shares(rows, np.ones(100)) for rows in tables]
    kept = [np.count_nonzero(found) for found in shares if found is not None]
    assert len(kept) == 12
    # a false alarm, of which one in twenty tables has one, takes two rows or a few; the bound for white noise takes 20
    assert np.mean(kept) > 98.5
    lost = [np.linalg.norm(SpectralFilter(20, form)(rows)) / np.linalg.norm(rows.mean(axis=0)) for rows in tables]
    assert np.mean(lost) < 1.03


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("direction", ["leading", "tenth", "random"])
@pytest.mark.parametrize(("byzantine", "shape"), [(10, "1/i"), (25, "1/i"), (25, "1/i²"), (25, "five factors")])
def test_outside_the_spread_of_coloured_noise_rows_are_removed(
    byzantine: int, shape: str, direction: str, form: Form
) -> None:
    lost, mean = [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        honest, forged = (coloured(rng, count, 200, shape) for count in (100 - byzantine, byzantine))
        along = rng.standard_normal(200) if direction == "random" else np.eye(200)[9 * (direction == "tenth")]
        forged += 8 * honest[:, 0].std() * along / np.linalg.norm(along)
        rows = np.concatenate([honest, forged])
        own = np.linalg.norm(honest.mean(axis=0))
        lost.append(np.linalg.norm(SpectralFilter(byzantine, form)(rows)) / own)
        mean.append(np.linalg.norm(rows.mean(axis=0)) / own)
    assert np.mean(mean) > 2
    assert np.mean(lost) < 1.1


@pytest.mark.parametrize("byzantine", [10, 20, 30])
def test_within_the_spread_of_coloured_noise_the_shift_is_a_share_of_it(byzantine: int) -> None:
    """At most (f/c)·3.5 standard deviations of 100 rows, whatever the displacement, plus what chance adds."""
    for displacement in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 7.0):
        found = []
        for seed in range(8):
            rows = coloured(np.random.default_rng(seed), 100, 100, "1/i")
            rows[:byzantine, 0] += displacement
            found.append(SpectralFilter(byzantine)(rows)[0] - rows[byzantine:, 0].mean())
        assert np.mean(found) < 3.5 * byzantine / 100 + 3 * np.std(found) / np.sqrt(8)


def test_an_attack_does_not_hide_in_the_plane_of_an_honest_direction() -> None:
    """With as much variance as the leading honest direction has, which both leading eigenvectors then mix."""
    lost = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        rows = rng.standard_normal((100, 40)) * np.sqrt(np.concatenate([[20.0, 9, 8, 7, 6, 5], np.ones(34)]))
        rows[:20, 10] += np.sqrt(20 / (0.2 * 0.8))  # 11 standard deviations of the noise there
        own = np.linalg.norm(rows[20:].mean(axis=0))
        lost.append(np.linalg.norm(SpectralFilter(20)(rows)) / own)
    assert np.mean(lost) < 1.1


@pytest.mark.parametrize(("byzantine", "dim"), [(4, 20), (10, 100), (20, 500), (12, 8)])
def test_with_white_noise_the_bound_for_white_noise_decides(byzantine: int, dim: int) -> None:
    """Paired with the first form alone: the same rows in nearly all tables, and no larger error on average."""
    same, more = [], []
    for shift in (0.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0):
        for seed in range(10):
            rows = shifted(np.random.default_rng(seed), byzantine, dim, shift, noisy=True)
            given, counts = around(rows, np.zeros(dim)), np.ones(len(rows))
            directions = min(len(rows) - 1, dim) // 4
            alone = _filtered(given, counts, byzantine, directions, _beyond_white_noise)[0]
            kept = _kept(given, counts, byzantine, directions)
            same.append(kept.tolist() == alone.tolist())
            errors = [np.linalg.norm(rows[chosen].mean(axis=0)) for chosen in (kept, alone)]
            more.append((errors[0] - errors[1]) / np.linalg.norm(rows[:HONEST].mean(axis=0)))
    assert np.mean(same) > 0.95
    assert np.mean(more) <= 2 * np.std(more) / np.sqrt(len(more))


def test_noise_is_white_if_the_removal_of_the_bound_is_enough() -> None:
    white, colour = [], []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        for rows, found in ((rng.standard_normal((80, 60)), white), (coloured(rng, 80, 60, "1/i"), colour)):
            rows[:12] += 30 * np.eye(60)[0]
            kept, settled = _filtered(around(rows, np.zeros(60)), np.ones(80), 12, 14, _beyond_white_noise)
            assert len(kept) == 68
            found.append(settled)
    assert sum(white) >= 4  # one false alarm
    assert not any(colour)


def test_mild_colour_is_no_reason_to_remove_rows_either() -> None:
    """Variances that fall like 1/√i: the removal of a fifth of the rows would make the noise pass for white."""
    kept = []
    for seed in range(10):
        rows = np.random.default_rng(seed).standard_normal((100, 50)) / np.arange(1, 51) ** 0.25
        given, counts = around(rows, np.zeros(50)), np.ones(100)
        alone = _filtered(given, counts, 40, 12, _beyond_white_noise)[0]
        assert len(alone) < 95
        kept.append(len(_kept(given, counts, 40, 12)))
    assert np.mean(kept) > 97


def test_without_a_direction_beyond_the_bound_all_rows_are_kept_and_nothing_else_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spectral, "displaced", None)
    rows = np.random.default_rng(16).standard_normal((60, 40))
    np.testing.assert_allclose(SpectralFilter(20)(rows), rows.mean(axis=0), atol=1e-14)


@pytest.mark.parametrize("form", FORMS)
def test_in_coloured_noise_order_rotation_shift_and_kind_do_not_matter(form: Form) -> None:
    rng = np.random.default_rng(17)
    rows = coloured(rng, 90, 60, "1/i")
    rows[:15] += 4.0 * np.eye(60)[3]
    rule = SpectralFilter(15, form)
    exact = rule(rows)
    assert np.linalg.norm(exact) < 0.6 * np.linalg.norm(rows.mean(axis=0))
    np.testing.assert_allclose(rule(rng.permutation(rows)), exact, atol=1e-12)
    turn = ortho_group.rvs(60, random_state=rng)
    np.testing.assert_allclose(rule(3 * rows @ turn + 7), 3 * exact @ turn + 7, atol=1e-9)
    np.testing.assert_allclose(rule(torch.from_numpy(rows)).numpy(), exact, atol=1e-12)
    gram, counts = Dense(rows @ rows.T), rng.uniform(0.5, 1.0, 90)
    assert _kept(Dense(torch.from_numpy(gram.gram)), counts, 15, 14).tolist() == _kept(gram, counts, 15, 14).tolist()


def test_skewed_honest_rows_are_no_minority() -> None:
    """Gamma variables of skewness 0.6 along the strong directions: of 300 rows, chance does not explain their gains."""
    kept, gains = [], []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        rows = (rng.gamma(11.0, size=(300, 40)) - 11) / np.arange(1, 41)
        gains.append(displaced(rows[:, :5], 60)[0].max())
        kept.append(len(_kept(around(rows, np.zeros(40)), np.ones(300), 60, 10)))
    assert np.mean(gains) > DISPLACED
    assert np.mean(kept) > 297


@pytest.mark.parametrize("rows", [20, 100, 300])
def test_of_normal_coordinates_one_in_a_hundred_has_a_displaced_minority(rows: int) -> None:
    gains = displaced(np.random.default_rng(18).standard_normal((rows, 3000)), int(0.3 * rows))[0]
    # 30 ± 5.4 expected; with 20 rows the tail is a little longer
    assert 30 - 4 * 5.4 < np.count_nonzero(gains > DISPLACED) < 30 + 6 * 5.4
    assert np.count_nonzero(gains > DISPLACED + 2 * np.log(10)) < 3 + 6 * np.sqrt(3)


@pytest.mark.parametrize(("rows", "displacement"), [(300, 2.5), (100, 3.2), (40, 4.2), (20, 6.0)])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.3])
def test_a_minority_is_found_on_its_side(rows: int, displacement: float, share: float) -> None:
    rng, count = np.random.default_rng(19), round(share * rows)
    along = rng.standard_normal((rows, 200))
    along[:count] -= displacement
    gain, shares, side = displaced(along, int(0.4 * rows))
    found = gain > DISPLACED
    assert found.mean() > 0.7
    assert (side[found] == -1).mean() > 0.97
    assert abs(np.median(shares[found]) - count / rows) < 0.05


@pytest.mark.parametrize("rows", [40, 300, 1200])
def test_a_tensor_has_the_same_displaced_minorities(rows: int) -> None:
    along = np.random.default_rng(20).standard_normal((rows, 30))
    along[: rows // 10, 3] += 4
    for found, expected in zip(displaced(torch.from_numpy(along), rows // 5), displaced(along, rows // 5), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_groups_of_coordinates_have_the_gains_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups cost a minority little of its gain, and none of its side."""
    along = np.random.default_rng(21).standard_normal((1200, 20))
    along[:150] += 3
    gain, _, side = displaced(along, 400)
    monkeypatch.setattr(spectral, "GROUPS", 1200)
    exact, _, exact_side = displaced(along, 400)
    assert (gain > 0.96 * exact).all()
    assert (side == exact_side).all()


@given(st.integers(0, 2**31), st.floats(1.5, 8.0))
def test_the_gain_is_that_of_the_largest_likelihood(seed: int, displacement: float) -> None:
    rng = np.random.default_rng(seed)
    along = rng.standard_normal(60)
    along[:12] += displacement
    along = (along - along.mean()) / along.std()

    def loss(parameters: np.ndarray) -> float:
        share = 0.4 / (1 + np.exp(-parameters[0]))
        density = share * norm.pdf(along, parameters[1], np.exp(parameters[3]))
        return -2 * float(np.log(density + (1 - share) * norm.pdf(along, parameters[2], np.exp(parameters[3]))).sum())

    best = minimize(loss, [0.0, 1.5, -0.4, -0.3], method="Nelder-Mead", options={"maxiter": 4000, "maxfev": 4000}).fun
    gain = displaced(along[:, None], 24)[0][0]
    assert gain > -2 * norm.logpdf(along).sum() - best - 0.3
    for same in (-along[::-1], 5 * along + 3):
        assert displaced(same[:, None], 24)[0][0] == pytest.approx(gain, abs=1e-6)
