"""The filter: costs nothing where nobody lies, and what liars agree on does not count."""

from __future__ import annotations

import tracemalloc
from functools import partial
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from coterie._src.aggregators import filtered_mean, median, per_cluster, products
from coterie._src.aggregators.products import Dense, Tall, around
from coterie._src.aggregators.spectral import MANY, _below, _kept, _turned_down, standing_out

HONEST = 38
How = Literal["removal", "no-regret"]
HOW: tuple[How, ...] = ("removal", "no-regret")


def shifted(rng: np.random.Generator, liars: int, dim: int, shift: float, dressed: bool) -> np.ndarray:
    """Noise, and liars who agree on a direction; `dressed` in noise of their own, or all the same."""
    honest = rng.standard_normal((HONEST, dim))
    direction = rng.standard_normal(dim)
    lies = honest.mean(axis=0) + shift * direction / np.linalg.norm(direction)
    return np.concatenate([honest, lies + dressed * rng.standard_normal((liars, dim))])


def ratio(rows: np.ndarray, liars: int, how: How = "removal") -> float:
    """The error relative to that of the honest mean."""
    return float(np.linalg.norm(filtered_mean(rows, liars, how=how)) / np.linalg.norm(rows[:HONEST].mean(axis=0)))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dim", [20, 100, 500])
def test_where_nobody_lies_nothing_is_lost(dim: int, how: How) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((HONEST, dim)) for _ in range(40)]
    lost = [ratio(r, HONEST, how) for r in rows]
    # a false alarm takes a row or two, and comes in a few of a hundred tables
    assert abs(float(np.mean(lost)) - 1) < 0.01


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dressed", [False, True])
@pytest.mark.parametrize(("liars", "dim", "most"), [(4, 20, 1.3), (10, 100, 1.4), (20, 500, 1.4), (30, 500, 1.5)])
def test_no_shift_does_much_damage(liars: int, dim: int, most: float, dressed: bool, how: How) -> None:
    """Small ones do little, and large ones are seen; in between lies the worst, far below a median's."""
    worst = worst_median = 0.0
    for shift in (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1e6):
        rng = np.random.default_rng(1)
        tables = [shifted(rng, liars, dim, shift, dressed) for _ in range(6)]
        norms = [np.linalg.norm(rows[:HONEST].mean(axis=0)) for rows in tables]
        worst = max(worst, float(np.mean([ratio(rows, liars, how) for rows in tables])))
        found = [np.linalg.norm(median(rows)) / norm for rows, norm in zip(tables, norms, strict=True)]
        worst_median = max(worst_median, float(np.mean(found)))
    assert worst < most
    assert worst < worst_median


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("scale", [2.0, 3.0, 10.0, 1e3, 1e6, 1e30])
@pytest.mark.parametrize(
    ("honest", "liars", "dim"), [(30, 10, 100), (33, 32, 100), (38, 30, 20), (15, 14, 20), (6, 2, 30)]
)
def test_lies_that_have_nothing_in_common_do_not_drag_the_mean_along(
    honest: int, liars: int, dim: int, scale: float, how: How
) -> None:
    """Far out, each in a direction of its own, so many that the mean of all is nowhere near."""
    lost = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        rows = rng.standard_normal((honest, dim))
        for lies in (rng.standard_normal((liars, dim)), np.sqrt(dim) * np.eye(dim)[np.arange(liars) % dim]):
            found = filtered_mean(np.concatenate([rows, scale * lies]), liars, how=how)
            lost.append(np.linalg.norm(found) / np.linalg.norm(rows.mean(axis=0)))
    assert np.mean(lost) < (1.6 if scale < 10 else 1.05)


def test_where_half_of_the_rows_are_one_the_rest_has_no_say() -> None:
    row = np.random.default_rng(12).standard_normal(20)
    for size in (1.0, 1e6, 1e150):
        lies = size * np.random.default_rng(13).standard_normal((5, 20))
        assert np.array_equal(filtered_mean(np.concatenate([np.tile(row, (30, 1)), lies]), liars=5), row)


@pytest.mark.parametrize("light", [0.05, 0.5])
def test_light_rows_do_not_make_room_for_heavy_lies(light: float) -> None:
    rng = np.random.default_rng(14)
    weights = np.concatenate([np.ones(11), np.full(19, light), np.ones(10)])
    rows = rng.standard_normal((40, 30)) / np.sqrt(weights)[:, None]
    expected = np.average(rows[:30], axis=0, weights=weights[:30])
    rows[30:] += 2.5 * rng.standard_normal(30)
    for how in HOW:
        found = filtered_mean(rows, 10, weights, how)
        assert np.linalg.norm(found - expected) < np.linalg.norm(expected)


def test_copies_count_once() -> None:
    rng = np.random.default_rng(9)
    honest = rng.standard_normal((HONEST, 20))
    lie = honest.mean(axis=0) + 2.0 / np.sqrt(20)
    copied = filtered_mean(np.concatenate([honest, np.tile(lie, (30, 1))]), liars=30)
    # as one row it moves the mean by 2/39, as thirty by 0.88; a false alarm may take a row or two
    assert np.linalg.norm(copied - honest.mean(axis=0)) < 0.3


def test_precise_clients_are_no_copies_of_each_other() -> None:
    rng = np.random.default_rng(10)
    rows = rng.standard_normal((60, 50)) * np.where(np.arange(60) < 20, 1 / 30, 1.0)[:, None]
    lost = np.linalg.norm(filtered_mean(rows, 3)) / np.linalg.norm(rows.mean(axis=0))
    assert lost < 1.1


@pytest.mark.parametrize("how", HOW)
def test_one_lie_does_not_hide_behind_another(how: How) -> None:
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((HONEST, 60))
    lies = 8 * np.eye(60)[:12] * np.array([1e6, 1, 1e3, 1, 1, 1e5, 1, 1, 1, 1e4, 1, 1])[:, None]
    found = filtered_mean(np.concatenate([rows, lies, lies * 0.9]), liars=24, how=how)
    assert np.linalg.norm(found) < 1.3 * np.linalg.norm(rows.mean(axis=0))


@given(st.integers(0, 2**31), st.sampled_from([1e30, 3e38, np.inf, -np.inf, np.nan, 0.0]), st.sampled_from(HOW))
def test_arbitrary_rows_leave_it_finite_and_near(seed: int, size: float, how: How) -> None:
    rng = np.random.default_rng(seed)
    honest = rng.standard_normal((20, 12)).astype(np.float32)
    with np.errstate(all="ignore"):
        lies = (size * rng.standard_normal((6, 12))).astype(np.float32)
        found = filtered_mean(np.concatenate([honest, lies]), liars=6, how=how)
    if np.isnan(size):
        return  # the intake lets none in; nothing is promised, but that it comes back
    assert np.isfinite(found).all()
    assert np.linalg.norm(found) < 2.5


def test_weights_are_those_of_a_weighted_mean() -> None:
    rng = np.random.default_rng(3)
    weights = rng.uniform(0.2, 1.0, size=40)
    rows = rng.standard_normal((40, 30)) / np.sqrt(weights)[:, None]
    expected = (weights[:, None] * rows).sum(axis=0) / weights.sum()
    for how in HOW:
        np.testing.assert_allclose(filtered_mean(rows, 10, weights, how), expected, atol=1e-12)
    table, counts = per_cluster(partial(filtered_mean, liars=5), rows, np.arange(40) % 2, 2, weights)
    even = weights[::2, None] * rows[::2]
    np.testing.assert_allclose(table[0], even.sum(axis=0) / weights[::2].sum(), atol=1e-12)
    assert counts.tolist() == [20, 20]


@pytest.mark.parametrize("how", HOW)
def test_kinds_precisions_and_the_order_of_the_rows(how: How) -> None:
    rows = shifted(np.random.default_rng(4), 10, 50, 9.0, dressed=True)
    rule = partial(filtered_mean, liars=10, how=how)
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
        rows = shifted(np.random.default_rng(seed), 12, dim, shift, dressed=bool(seed % 2))
        gram, counts = Dense(rows @ rows.T), np.random.default_rng(seed).uniform(0.5, 1.0, len(rows))
        directions = min(len(rows) - 1, dim) // 4
        tensors = Dense(torch.from_numpy(gram.gram))
        kept = _kept(gram, counts, 12, directions)
        assert _kept(tensors, counts, 12, directions).tolist() == kept.tolist()
        turned = _turned_down(tensors, counts, 12, directions)
        np.testing.assert_allclose(turned, _turned_down(gram, counts, 12, directions), atol=1e-6)
        along = standing_out(gram.centred(counts), 1)
        other = standing_out(tensors.centred(counts), 1)
        assert (along is None) == (other is None)
        if along is not None and other is not None:
            np.testing.assert_allclose(abs(float(other @ torch.from_numpy(along))), 1.0, atol=1e-6)


@pytest.mark.parametrize("shift", [0.0, 3.0, 5.0, 9.0])
def test_many_rows_of_few_columns_are_judged_as_by_their_products(shift: float) -> None:
    for seed in range(5):
        rows = shifted(np.random.default_rng(seed), 12, 15, shift, dressed=bool(seed % 2))
        counts = np.random.default_rng(seed).uniform(0.5, 1.0, len(rows))
        tall, dense = around(rows, np.zeros(15)), Dense(rows @ rows.T)
        assert isinstance(tall, Tall)
        np.testing.assert_allclose(tall.squares, dense.squares)
        assert tall.copies(13).tolist() == dense.copies(13).tolist()
        assert _kept(tall, counts, 12, 3).tolist() == _kept(dense, counts, 12, 3).tolist()
        np.testing.assert_allclose(_turned_down(tall, counts, 12, 3), _turned_down(dense, counts, 12, 3), atol=1e-6)
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


def test_of_too_many_pairs_everybody_has_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    primes = np.array([2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31], dtype=np.float64)
    everybody = np.arange(len(primes))
    assert len(Tall(primes[:, None]).squared_pairs(everybody)) == 55
    monkeypatch.setattr(products, "SAMPLE", 33)
    found = np.sqrt(Tall(primes[:, None]).squared_pairs(everybody))
    assert len(set(found.tolist())) == len(found) == 33
    assert all((found % prime == 0).sum() == 6 for prime in primes)


def test_the_memory_of_many_rows_of_few_columns_is_no_square(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, rows = np.random.default_rng(12), 3000
    honest, lies = rng.standard_normal((rows - 300, 10)), rng.standard_normal((300, 10)) + 3 * np.eye(10)[0]
    table = np.concatenate([honest, lies, np.tile(lies[:1], (1200, 1))])  # whose pairs are a quarter of the square
    for block in ("PAIRS", "SAMPLE"):
        monkeypatch.setattr(products, block, 1 << 16)
    filtered_mean(table, 1500)
    tracemalloc.start()
    try:
        found = filtered_mean(table, 1500)
        assert tracemalloc.get_traced_memory()[1] < 8 * rows**2 / 10
    finally:
        tracemalloc.stop()
    assert np.linalg.norm(found) < 0.5 * np.linalg.norm(table.mean(axis=0))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dim", [20, 60])
def test_where_clients_agree_the_order_of_the_rows_does_not_matter(dim: int, how: How) -> None:
    """More than liars and whom they copy are so precise that they agree; these are no copies, wherever they stand."""
    rng = np.random.default_rng(13)
    precise, noisy = 1e-3 * rng.standard_normal((12, dim)), rng.standard_normal((30, dim))
    lies = rng.standard_normal((10, dim)) + 3.0
    found = [
        filtered_mean(np.concatenate(rows), 10, how=how) for rows in ((noisy, lies, precise), (precise, noisy, lies))
    ]
    np.testing.assert_allclose(found[0], found[1], atol=1e-9)
    assert np.linalg.norm(found[0]) < 0.5 * np.linalg.norm(np.concatenate([precise, noisy, lies]).mean(axis=0))


@pytest.mark.parametrize(("rows", "columns"), [(60, 10), (200, 20), (40, 100)])
def test_twins_are_found_where_most_rows_have_one(rows: int, columns: int) -> None:
    """Liars who each copy another honest row: products say that these lie 1e-16 apart, not 0."""
    honest = np.random.default_rng(14).standard_normal((rows, columns)) + 5.0
    table = np.concatenate([honest, honest[: 2 * rows // 3]])
    groups = around(table, median(table)).copies(2 * rows // 3 + 1)
    assert groups.tolist() == [*range(rows), *range(2 * rows // 3)]


def test_columns_without_any_noise_cost_nobody_a_row() -> None:
    rows = np.zeros((200, 40))
    rows[:, :2] = np.random.default_rng(15).standard_normal((200, 2))
    for products_of_rows in (Tall(rows), Dense(rows @ rows.T)):
        assert len(_kept(products_of_rows, np.ones(200), 40, 10)) == 200


def test_of_many_rows_more_go_at_a_time() -> None:
    rng = np.random.default_rng(11)
    honest = rng.standard_normal((MANY, 40))
    for liars, shift in [(0, 0.0), (30, 6.0), (200, 6.0), (200, 2.0)]:
        lies = rng.standard_normal((liars, 40)) + shift * np.eye(40)[0]
        lost = np.linalg.norm(filtered_mean(np.concatenate([honest, lies]), liars=200))
        # a mean of 512 rows is off by √(40/512) = 0.28; a shift of 2 is hard to tell from noise
        assert lost < (1.2 if shift > 2 or not liars else 2.0) * np.linalg.norm(honest.mean(axis=0))


def test_few_rows_or_columns_and_equal_rows() -> None:
    few = np.array([[1.0], [2.0], [99.0]])
    assert filtered_mean(few, 1).tolist() == [2.0]
    row = np.random.default_rng(6).standard_normal(20).astype(np.float32)
    assert np.array_equal(filtered_mean(np.tile(row, (12, 1)), 3), row)
    assert np.array_equal(filtered_mean(np.zeros((150, 20)), 3), np.zeros(20))
    noise = np.random.default_rng(7).standard_normal((30, 20))
    assert np.allclose(filtered_mean(np.concatenate([np.tile(row, (120, 1)), noise]), 30), row, atol=1.0)


def test_no_more_rows_go_than_may_be_lies() -> None:
    rows = shifted(np.random.default_rng(7), 10, 50, 50.0, dressed=True)
    assert np.allclose(filtered_mean(rows, 0), rows.mean(axis=0))
    assert np.linalg.norm(filtered_mean(rows, 5)) > np.linalg.norm(filtered_mean(rows, 10))
    assert np.allclose(filtered_mean(rows, 0, how="no-regret"), rows.mean(axis=0))
    weights = _turned_down(Dense(rows @ rows.T), np.ones(len(rows)), 5, 12)
    assert weights.max() / weights.sum() <= 1 / (len(rows) - 5) * (1 + 1e-9)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12), st.floats(1.01, 4.0), st.integers(0, 2**31))
def test_weights_come_back_to_the_capped_simplex(weights: list[float], most: float, seed: int) -> None:
    """min(most, s·w) with the s that bisection finds."""
    keeping, counts = np.array(weights), np.random.default_rng(seed).uniform(0.1, 1.0, len(weights))
    if most * counts[keeping > 1e-6].sum() <= 1.001 * counts.sum():
        return  # too few are left to carry the whole weight
    found = _below(keeping, most, counts)

    def excess(factor: float) -> float:
        return float((counts * np.minimum(most, factor * keeping)).sum() - counts.sum())

    factor = brentq(excess, 0.0, 1e8, xtol=1e-14, rtol=1e-14, maxiter=500)
    np.testing.assert_allclose(found, np.minimum(most, factor * keeping), rtol=1e-6, atol=1e-9)


def test_a_direction_that_is_noise_stands_out_for_nobody() -> None:
    rows = np.random.default_rng(8).standard_normal((30, 100))
    rows -= rows.mean(axis=0)
    assert standing_out(Dense(rows @ rows.T), 7) is None
    rows[:8] += 3.0
    rows -= rows.mean(axis=0)
    along = standing_out(Dense(rows @ rows.T), 7)
    assert along is not None
    assert len(set(np.sign(along[:8]))) == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"liars": -1}, "liars"),
        ({"liars": 1.5}, "liars"),
        ({"liars": 1, "weights": np.zeros(10)}, "weights"),
        ({"liars": 1, "weights": np.full(10, np.inf)}, "weights"),
        ({"liars": 1, "how": "magic"}, "how must be"),
    ],
)
def test_settings_out_of_range_are_named(options: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        filtered_mean(np.zeros((10, 10)), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", HOW)
@given(st.integers(0, 2**31), st.sampled_from(["one-hot", "signs", "copies", "two groups"]), st.integers(2, 30))
def test_rows_that_are_no_noise_at_all_are_taken(how: How, seed: int, kind: str, count: int) -> None:
    """Equal eigenvalues, of which LAPACK may find too few, and products that are all rounding."""
    rng = np.random.default_rng(seed)
    rows = {
        "one-hot": np.eye(40)[rng.integers(40, size=count)],
        "signs": rng.integers(-1, 2, (count, 12)).astype(np.float64),
        "copies": np.tile(rng.standard_normal(20), (count, 1)),
        "two groups": rng.standard_normal((2, 20))[rng.integers(2, size=count)],
    }[kind]
    for liars in (0, 1, (count - 1) // 2):
        found = filtered_mean(rows, liars, how=how)
        assert np.all((found >= rows.min(axis=0) - 1e-9) & (found <= rows.max(axis=0) + 1e-9))


def test_equal_eigenvalues_by_hand() -> None:
    np.testing.assert_allclose(filtered_mean(np.eye(8, 30), 1)[:8], 1 / 8)
