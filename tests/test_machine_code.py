"""Generated programs against the compiled kernel, bit for bit, and against NumPy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from coterie._src.aggregators import machine_code, median, order_statistics
from coterie._src.kernels.order_statistics import network

SPECIAL = [0.0, -0.0, 1e-45, -1e-45, 1e38, -1e38, 1.0, 1.0, np.inf, -np.inf]


def both(rows: np.ndarray, members: np.ndarray, low: int, high: int, vector: int) -> tuple[np.ndarray, np.ndarray]:
    count, columns = len(members), rows.shape[1]
    pairs = network(count, low, high)
    ours, theirs = np.full(columns, 9.0, rows.dtype), np.full(columns, 9.0, rows.dtype)
    program = machine_code.compiled_program(pairs, count, low, high, rows.dtype.name, vector)
    machine_code.mean_of_columns(program, rows, members, (0, columns), ours)
    order_statistics._columns(rows, members, *order_statistics._moves_of(count, low, high), False, (0, columns), theirs)
    return ours, theirs


@pytest.mark.parametrize("vector", [16, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [2, 3, 20, 41])
def test_the_same_bits_as_the_compiled_kernel(count: int, dtype: type, vector: int) -> None:
    rng = np.random.default_rng(count)
    for columns in (17, 515):
        plain = rng.standard_normal((count + 5, columns)).astype(dtype)
        special = rng.choice(SPECIAL, size=plain.shape).astype(dtype)
        special[2, 3] = np.nan
        members = rng.permutation(count + 5)[:count]
        for low, high in {((count - 1) // 2, count // 2 + 1), (count // 10, count - count // 10 or 1), (0, 1)}:
            if high - low < count:
                with np.errstate(all="ignore"):
                    for rows in (plain, special):
                        ours, theirs = both(rows, members, low, high, vector)
                        bits = [(found + 0).view(f"u{found.itemsize}") for found in (ours, theirs)]  # no −0
                        np.testing.assert_array_equal(*bits)


def test_views_ranges_and_nothing_beside_them() -> None:
    rng = np.random.default_rng(0)
    wide = rng.standard_normal((60, 900)).astype(np.float32)
    for view in (wide[::2], wide[::-3, 7:801], wide[:, 3:]):
        members = np.arange(len(view))
        low, high = (len(view) - 1) // 2, len(view) // 2 + 1
        ours, theirs = both(view, members, low, high, 64)
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_allclose(ours, np.median(view, axis=0), rtol=1e-6)
    out = np.full(900, 7.0, np.float32)
    program = machine_code.compiled_program(network(60, 29, 31), 60, 29, 31, "float32")
    machine_code.mean_of_columns(program, wide, np.arange(60), (100, 333), out)
    np.testing.assert_allclose(out[100:333], np.median(wide[:, 100:333], axis=0), rtol=1e-6)
    assert np.all(out[:100] == 7)
    assert np.all(out[333:] == 7)


def test_a_program_is_compiled_when_it_would_have_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    large = rng.standard_normal((21, 100_003), dtype=np.float32)
    assert not machine_code.serves(large[:, :7], 21)
    assert not machine_code.serves(np.asfortranarray(large), 21)
    assert not machine_code.serves(large[:, ::2], 21)
    programs = machine_code.Programs()
    monkeypatch.setattr(order_statistics, "PROGRAMS", programs)
    needed = machine_code.REPAID_BY * len(network(21, 10, 11)) // large.size
    expected = np.median(large, axis=0)
    for _ in range(needed):
        np.testing.assert_array_equal(median(large), expected)
    assert not programs.known
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: median(large), range(8)):
            np.testing.assert_array_equal(found, expected)
    assert list(programs.known) == [(21, 10, 11, "float32")]
    np.testing.assert_array_equal(median(large[:, ::-1]), expected[::-1])  # by the other kernel, as before


def test_members_outside_are_refused() -> None:
    rows = np.arange(42.0).reshape(42, 1)
    for members in (np.arange(21) - 21, np.arange(30, 51)):
        with pytest.raises(ValueError, match="members must be rows from 0 to 41"):
            order_statistics.mean_between_ranks(rows, 10, 11, members)
