"""Mixing and bucketing: naive forms, results by hand, options out of range."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from coterie._src.aggregators import (
    Aggregator,
    Bucketing,
    CentredClipping,
    NearestNeighbourMixing,
    mean,
    median,
    per_cluster,
)


def test_mixing_a_row_that_is_not_finite_makes_it_no_neighbour() -> None:
    for rows in ([[0.0], [1.0], [2.0], [np.inf]], [[np.inf], [0.0], [1.0], [2.0]]):
        with np.errstate(invalid="ignore"):
            assert NearestNeighbourMixing(median, 0.25)(np.array(rows)).tolist() == [1.0]


def test_mixing_rows_far_from_zero_keeps_their_digits() -> None:
    rule, rows = NearestNeighbourMixing(median, 0.2), np.random.default_rng(0).standard_normal((7, 3))
    far = rule((rows + 1e6).astype(np.float32)).astype(np.float64)
    np.testing.assert_allclose(far - 1e6, rule(rows), atol=0.1)  # float32 has a spacing of 0.06 there


def test_buckets_hold_every_row_once() -> None:
    table = np.arange(7.0)[:, None]
    seen: list[np.ndarray] = []

    def keep(rows: np.ndarray) -> np.ndarray:
        seen.append(np.asarray(rows))
        return mean(rows)

    Bucketing(keep, 3, np.random.default_rng(1))(table)
    (means,) = seen
    assert means.shape == (3, 1)
    assert (means.ravel() * [3, 3, 1]).sum() == pytest.approx(21.0)
    assert np.array_equal(Bucketing(median, 1, np.random.default_rng(0))(table), [3.0])


def test_buckets_follow_the_generator() -> None:
    table = np.arange(12.0)[:, None] ** 2
    one, again, other = (Bucketing(median, 3, np.random.default_rng(seed))(table) for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_options_out_of_range_are_named() -> None:
    for fraction in (-0.1, 0.5, float("nan")):
        with pytest.raises(ValueError, match=r"byzantine_fraction must be in \[0, 0.5\)"):
            NearestNeighbourMixing(median, fraction)
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        Bucketing(median, 0, np.random.default_rng(0))


@pytest.mark.parametrize(
    "build", [lambda rule: NearestNeighbourMixing(rule, 0.2), lambda rule: Bucketing(rule, 2, np.random.default_rng(0))]
)
def test_the_memory_is_that_of_the_rule(build: Callable[[Aggregator], Aggregator]) -> None:
    """One clipped step of radius 1 from the last aggregate: from rows at 0 to rows at 5 the aggregate moves by 1."""
    rule = build(CentredClipping(radius=1.0, iterations=1, history=True))
    assert rule.has_memory
    assert not build(median).has_memory
    labels, memory = np.zeros(6, np.int64), None
    for value, expected in ((0.0, 0.0), (5.0, 1.0), (5.0, 2.0)):
        found = per_cluster(rule, np.full((6, 1), value), labels, 1, memory=memory)
        memory = found.memory
        np.testing.assert_allclose(found.updates, [[expected]], atol=1e-12)
    with pytest.raises(ValueError, match="cannot weigh"):
        rule(np.ones((6, 1)), np.ones(6))
