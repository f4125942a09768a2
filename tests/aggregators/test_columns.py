"""Rules on updates whose columns are in shards give what they give on the whole array."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from coterie._src.aggregators import (
    Aggregator,
    Bucketing,
    CentredClipping,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    NearestNeighbourMixing,
    SpectralFilter,
    TrimmedMean,
    as_aggregator,
    per_cluster,
    trimmed_share,
)
from coterie._src.aggregators import columns as columns_module
from coterie._src.aggregators.columns import SHARD, Result, by_columns, new_vector, ranges, read_width, shards_of

RULES: list[Aggregator] = [
    Mean(),
    Mean(divisor=70),
    Median(),
    TrimmedMean(0.2),
    GeometricMedian(),
    Krum(0.2),
    Krum(0.2, selected=0.5),
    CentredClipping(),
    CentredClipping(radius=3.0, iterations=3),
    SpectralFilter(6),
    SpectralFilter(0.2, "no-regret"),
    NearestNeighbourMixing(Median(), 0.2),
    NearestNeighbourMixing(SpectralFilter(6), 0.2),
    NearestNeighbourMixing(CentredClipping(), 0.2),
]
rules = pytest.mark.parametrize("rule", RULES, ids=str)


def attacked(rows: int = 30, columns: int = 53, seed: int = 0) -> np.ndarray:
    """Normal rows; four share a displacement, one is far away."""
    updates = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    updates[-4:] += 2.0
    updates[1] = 1e8
    return updates


@rules
@pytest.mark.parametrize("width", [1, 7, 52])
def test_shards_give_what_the_whole_array_gives(rule: Aggregator, width: int) -> None:
    updates = attacked().astype(np.float64)
    assert rule.takes_shards
    np.testing.assert_allclose(rule(shards_of(updates, width)), rule(updates), rtol=1e-9, atol=1e-11)


@rules
def test_one_shard_gives_the_same_bits(rule: Aggregator) -> None:
    updates = attacked()
    found = rule(shards_of(updates))
    assert found.dtype == updates.dtype
    assert found.tobytes() == rule(updates).tobytes()


@rules
def test_an_array_of_many_columns_gives_the_same_bits_as_its_shards(rule: Aggregator) -> None:
    """Also where several shards are read at once, and for a choice of the rows."""
    updates = attacked(10, 2 * SHARD + 100)
    with threadpool_limits(1):  # as for shards: rounding depends on the number of threads
        whole, some = rule(updates), rule(updates[2:9])
    shards = replace(shards_of(updates), width=SHARD)
    assert rule(shards_of(updates)).tobytes() == rule(shards).tobytes() == whole.tobytes()
    assert rule(shards[np.arange(2, 9)]).tobytes() == some.tobytes()


@pytest.mark.parametrize("rule", [Mean(), Median(), TrimmedMean(0.2)], ids=str)
@settings(max_examples=20, deadline=None)
@given(width=st.integers(1, 60), seed=st.integers(0, 99))
def test_a_rule_by_coordinates_gives_the_same_bits_whatever_the_widths(rule: Aggregator, width: int, seed: int) -> None:
    updates = attacked(9, 40, seed)
    assert rule(shards_of(updates, width)).tobytes() == rule(updates).tobytes()


def test_the_rows_that_a_rule_selects_do_not_depend_on_the_widths() -> None:
    updates = attacked(30, 9000)
    chosen = Krum(0.2)(shards_of(updates, 2048))
    assert (chosen == updates).all(axis=1).sum() == 1
    assert chosen.tobytes() == Krum(0.2)(updates).tobytes()


@rules
def test_rows_too_far_for_a_number_are_treated_as_in_memory(rule: Aggregator) -> None:
    updates = attacked().astype(np.float64)
    updates[2] = 1e300
    np.testing.assert_allclose(rule(shards_of(updates, 20)), rule(updates), rtol=1e-9, atol=1e-9)


def test_many_rows_of_few_columns() -> None:
    """Products are then kept as the centred rows, of which shards give some columns each."""
    updates = attacked(200, 9).astype(np.float64)
    for rule in (SpectralFilter(10), GeometricMedian()):
        for width in (4, 5, 8):
            np.testing.assert_allclose(rule(shards_of(updates, width)), rule(updates), rtol=1e-9, atol=1e-11)
    narrow = np.concatenate([updates, np.zeros((200, 150))], axis=1)  # a shard of either form
    np.testing.assert_allclose(SpectralFilter(10)(shards_of(narrow, 155)), SpectralFilter(10)(narrow), atol=1e-11)


def test_bucketing_draws_once_for_all_shards() -> None:
    updates = attacked()
    whole, shards = (Bucketing(Median(), 3, np.random.default_rng(5)) for _ in range(2))
    assert shards(shards_of(updates, 10)).tobytes() == whole(updates).tobytes()


def test_weights() -> None:
    updates, weights = attacked().astype(np.float64), np.linspace(0.5, 1.0, 30)
    for rule in (Mean(), SpectralFilter(6)):
        np.testing.assert_allclose(rule(shards_of(updates, 10), weights), rule(updates, weights), rtol=1e-9, atol=1e-11)
        shares = rule.shares(updates, weights)
        if shares is not None:
            np.testing.assert_allclose(rule.shares(shards_of(updates, 10), weights), shares, atol=1e-12)


def test_memory() -> None:
    updates, rule = attacked().astype(np.float64), CentredClipping(1.0, 2, history=True)
    whole = shards = None
    for round_updates in (updates, updates + 1.0):
        found, whole = rule.update(whole, round_updates)
        again, shards = rule.update(shards, shards_of(round_updates, 10))
        np.testing.assert_allclose(again, found, rtol=1e-12, atol=1e-12)


@rules
def test_per_cluster_and_audit(rule: Aggregator) -> None:
    updates, labels = attacked(40, 33).astype(np.float64), np.arange(40) % 3
    whole, shards = (per_cluster(rule, each, labels, 4) for each in (updates, shards_of(updates, 10)))
    assert shards.counts.tolist() == whole.counts.tolist() == [14, 13, 13, 0]
    np.testing.assert_allclose(shards.updates, whole.updates, rtol=1e-9, atol=1e-10)
    assert trimmed_share(shards_of(updates, 10), labels, 0.2).tolist() == trimmed_share(updates, labels, 0.2).tolist()


def test_a_function_takes_no_shards() -> None:
    assert not as_aggregator(lambda updates: updates[0]).takes_shards
    assert not NearestNeighbourMixing(as_aggregator(lambda updates: updates[0]), 0.1).takes_shards


# --- the shards themselves ----------------------------------------------------------------------------


@by_columns
def _sum_and_first(updates: np.ndarray, vector: np.ndarray, factor: float) -> Result:
    return Result(np.array([updates.sum(), len(updates)]), factor * updates[0] + vector)


def test_totals_add_up_and_columns_are_put_in_order() -> None:
    updates, vector = np.arange(21.0).reshape(3, 7), np.arange(7.0)
    total, found = _sum_and_first(shards_of(updates, 2)[np.array([2, 0])], vector, factor=2.0)
    assert total.tolist() == [updates[[2, 0]].sum(), 4 * 2]
    assert found.tolist() == (2 * updates[2] + vector).tolist()


def test_an_error_in_a_shard_is_raised() -> None:
    def read(rows: np.ndarray, start: int, stop: int) -> np.ndarray:
        raise OSError(f"columns {start} to {stop}")

    shards = columns_module.ReadShards(read, np.arange(3), 100, np.dtype(np.float32), 10)
    with pytest.raises(OSError, match="columns 0 to 10"):
        Median()(shards)


def test_functions_by_columns_can_be_sent_to_other_processes() -> None:
    sent = pickle.loads(pickle.dumps(partial(_sum_and_first, factor=2.0)))
    assert sent(np.ones((2, 3)), np.zeros(3)).columns.tolist() == [2.0, 2.0, 2.0]


def test_widths() -> None:
    assert ranges(0, 4) == [(0, 0)]
    assert (read_width(1), read_width(10**5), read_width(10**9)) == (1 << 24, (1 << 24) // 10**5, 1)
    assert read_width(100) == 10 * SHARD
    assert read_width(1024) == SHARD
    assert Median()(shards_of(np.zeros((3, 0)), 4)).shape == (0,)
    for wrong in (np.zeros(3), np.zeros((3, 3), dtype=np.int64)):
        with pytest.raises(ValueError, match="updates must be"):
            shards_of(wrong)


def test_a_long_vector_is_kept_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "IN_MEMORY", 100)
    assert isinstance(new_vector(26, np.dtype(np.float32)), np.memmap)
    assert not isinstance(new_vector(25, np.dtype(np.float32)), np.memmap)
    updates = attacked()
    assert SpectralFilter(6)(shards_of(updates, 53)).tobytes() == SpectralFilter(6)(updates).tobytes()
