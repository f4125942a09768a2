"""One contract for all aggregators: values, kinds of arrays, invariances, weights, memory, and one per cluster."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import coterie
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
    ceil_count,
    floor_count,
    mean,
    median,
    per_cluster,
    trim_count,
    trimmed_share,
)
from coterie._src.algorithms import ClusteredDescent
from coterie._src.attacks import Attack, paper
from coterie._src.data import mixed_regression
from coterie._src.init import bernoulli
from coterie._src.intake import Accepted
from coterie._src.kernels.order_statistics import NETWORK_ROWS
from coterie._src.server import Server, ServerMemory, take_step
from coterie._src.simulation import SimulatedNetwork, play
from coterie._src.tasks import linear_regression

RULES: dict[str, Aggregator] = {
    "Mean()": Mean(),
    "Median()": Median(),
    "TrimmedMean(trim=0.2)": TrimmedMean(0.2),
    "GeometricMedian()": GeometricMedian(),
    "Krum(byzantine_fraction=0.2)": Krum(0.2),
    "Krum(byzantine_fraction=0.2, selected=0.5)": Krum(0.2, selected=0.5),
    "CentredClipping()": CentredClipping(),
    "CentredClipping(radius=0.7, iterations=5, history=True)": CentredClipping(0.7, 5, history=True),
    "NearestNeighbourMixing(rule=Median(), byzantine_fraction=0.2)": NearestNeighbourMixing(Median(), 0.2),
    "SpectralFilter(max_byzantine=2)": SpectralFilter(2),
    "SpectralFilter(max_byzantine=0.2, form='no-regret')": SpectralFilter(0.2, "no-regret"),
}
EXACT = ["Mean()", "Median()", "TrimmedMean(trim=0.2)", "GeometricMedian()"]
"""Rules that are continuous and whose NumPy and torch forms give the same bits."""
ROBUST = [name for name in RULES if name != "Mean()"]
rules = pytest.mark.parametrize("name", RULES)
exact_rules = pytest.mark.parametrize("name", EXACT)


def tables(limit: float = 100.0, rows: int = 30) -> st.SearchStrategy[np.ndarray]:
    shapes = st.tuples(st.integers(1, rows), st.integers(1, 6))
    return hnp.arrays(np.float32, shapes, elements=st.floats(-limit, limit, width=32))


def noise(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns))


# --- values -------------------------------------------------------------------------------------------


@rules
def test_rules_are_values_that_print_as_they_are_written(name: str) -> None:
    rule = RULES[name]
    again = eval(repr(rule), vars(coterie) | {kind.__name__: kind for kind in map(type, [*RULES.values()])})
    assert again == rule
    assert hash(again) == hash(rule)
    assert all((other == rule) == (other is rule) for other in RULES.values())
    assert len({*RULES.values(), again}) == len(RULES)
    with pytest.raises(FrozenInstanceError):
        rule.trim = 0.3  # type: ignore[attr-defined]


def test_rules_with_other_options_are_other_values() -> None:
    assert TrimmedMean(0.1) != TrimmedMean(0.2)
    assert Mean() == mean != Mean(divisor=3)
    assert NearestNeighbourMixing(TrimmedMean(0.1), 0.2) != NearestNeighbourMixing(TrimmedMean(0.2), 0.2)
    one, other = (Bucketing(Median(), 2, np.random.default_rng(seed)) for seed in (0, 1))
    assert one == other != Bucketing(Median(), 3, np.random.default_rng(0))  # a generator is no option
    assert repr(one) == "Bucketing(rule=Median(), size=2)"


def test_a_function_is_a_rule() -> None:
    rule = as_aggregator(lambda updates: updates[0])
    assert rule(np.array([[1.0], [2.0]])).tolist() == [1.0]
    assert as_aggregator(median) is median
    found = per_cluster(lambda updates: updates[-1], np.array([[1.0], [2.0], [3.0]]), np.array([0, 0, 1]), 2)
    assert found.updates.tolist() == [[2.0], [3.0]]
    with pytest.raises(ValueError, match="two axes"):
        rule(np.zeros(3))


# --- kinds of arrays ----------------------------------------------------------------------------------


@exact_rules
@given(rows=tables())
def test_numpy_equals_torch(name: str, rows: np.ndarray) -> None:
    for dtype in (np.float32, np.float64):
        typed = rows.astype(dtype)
        assert np.array_equal(RULES[name](torch.from_numpy(typed)).numpy(), RULES[name](typed))


@rules
@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (11, 20), (30, 9)])
def test_shape_dtype_and_kind_are_kept_and_the_input_is_never_changed(name: str, shape: tuple[int, int]) -> None:
    for dtype in (np.float32, np.float64):
        rows = noise(*shape).astype(dtype)
        before, tensors = rows.copy(), torch.from_numpy(rows)
        found, tensor = RULES[name](rows), RULES[name](tensors)
        assert isinstance(found, np.ndarray)
        assert found.dtype == dtype
        assert found.shape == rows.shape[1:]
        assert isinstance(tensor, torch.Tensor)
        assert tensor.dtype == tensors.dtype
        np.testing.assert_allclose(tensor.numpy(), found, rtol=0, atol=1e-5 if dtype is np.float32 else 1e-12)
        assert np.array_equal(rows, before)


@rules
def test_half_precision(name: str) -> None:
    rows = torch.from_numpy(noise(9, 8)).to(torch.bfloat16)
    found = RULES[name](rows)
    assert found.dtype == torch.bfloat16
    assert torch.isfinite(found).all()


@rules
def test_what_is_not_a_table_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="two axes"):
        RULES[name](np.zeros(3))
    with pytest.raises(ValueError, match="at least one row"):
        RULES[name](np.zeros((0, 3)))
    with pytest.raises(ValueError, match="two axes"):
        RULES[name].update(np.zeros(3), np.zeros(3))


# --- invariances --------------------------------------------------------------------------------------


@exact_rules
@given(rows=tables(), seed=st.integers(0, 99))
def test_the_order_of_the_rows_is_no_matter(name: str, rows: np.ndarray, seed: int) -> None:
    shuffled = np.random.default_rng(seed).permutation(rows)
    np.testing.assert_allclose(RULES[name](shuffled), RULES[name](rows), rtol=1e-5, atol=1e-4)


@rules
@pytest.mark.parametrize("shape", [(2, 1), (11, 20), (30, 9)])
def test_the_order_of_rows_without_ties_is_no_matter(name: str, shape: tuple[int, int]) -> None:
    rows = noise(*shape)
    shuffled = np.random.default_rng(1).permutation(rows)
    np.testing.assert_allclose(RULES[name](shuffled), RULES[name](rows), atol=1e-9)


@exact_rules
@given(rows=tables(), shift=st.floats(-50, 50, width=32), scale=st.floats(-4, 4, width=32))
def test_translation_and_scale_equivariance(name: str, rows: np.ndarray, shift: float, scale: float) -> None:
    rows = rows.astype(np.float64)
    geometric = name == "GeometricMedian()"
    assume(not geometric or len(rows) > 2)  # two rows: every point between them is one
    # Weiszfeld's iteration stops within a tolerance of the point, so it is equivariant up to that
    slack = (1e-2 if geometric else 1e-6) * (1 + np.abs(rows).max())
    expected = scale * RULES[name](rows) + shift
    np.testing.assert_allclose(RULES[name](scale * rows + shift), expected, atol=(1 + abs(scale)) * slack)


@rules
def test_a_shift_of_all_rows_shifts_the_result(name: str) -> None:
    rows = noise(11, 20)
    np.testing.assert_allclose(RULES[name](rows + 7), RULES[name](rows) + 7, atol=1e-6)


@exact_rules
@given(
    row=hnp.arrays(np.float32, st.integers(1, 6), elements=st.floats(-(2.0**120), 2.0**120, width=32)),
    count=st.integers(1, 9),
)
def test_equal_rows_give_that_row_exactly(name: str, row: np.ndarray, count: int) -> None:
    assert np.array_equal(RULES[name](np.tile(row, (count, 1))), row)


@rules
def test_one_two_and_equal_rows(name: str) -> None:
    row = np.array([[3.0, -4.0]], np.float32)
    assert np.array_equal(RULES[name](row), row[0])
    np.testing.assert_allclose(RULES[name](np.tile(row, (6, 1))), row[0], rtol=1e-6)
    np.testing.assert_allclose(RULES[name](np.array([[0.0], [2.0]])), [1.0])  # neither is better than the other
    whole = RULES[name](np.array([[0, 9], [1, 9], [2, 9], [3, 9], [4, 9]]))
    np.testing.assert_allclose(whole, [2.0, 9.0], atol=1.0)


@pytest.mark.parametrize("name", ROBUST)
@given(data=st.data(), size=st.sampled_from([1.0, 1e6, 1e19, 1e38, float(np.finfo(np.float32).max)]))
def test_arbitrary_rows_are_harmless(name: str, data: st.DataObject, size: float) -> None:
    """Two Byzantine of eleven rows: finite, and no farther from the honest mean than the honest rows are wide."""
    honest = noise(9, 4, data.draw(st.integers(0, 99))).astype(np.float32)
    forged = data.draw(hnp.arrays(np.float32, (2, 4), elements=st.sampled_from([-size, 0.0, size])))
    found = RULES[name](np.concatenate([forged, honest]))
    assert np.isfinite(found).all()
    centre = honest.mean(axis=0)
    assert np.linalg.norm(found - centre) <= 2 * np.linalg.norm(honest - centre, axis=1).max()


# --- fractions of rows --------------------------------------------------------------------------------


def test_counts_are_exact_where_floats_are_not() -> None:
    assert 0.29 * 100 < 29
    assert trim_count(100, 0.29) == 29
    for rows in range(1, 300):
        for percent in range(50):
            assert trim_count(rows, percent / 100) == floor_count(percent / 100, rows) == percent * rows // 100
            assert ceil_count(percent / 100, rows) == -(-percent * rows // 100)


def test_a_trimmed_mean_keeps_at_least_one_row() -> None:
    assert [trim_count(rows, 0.49) for rows in (1, 2, 3, 4, 5)] == [0, 0, 1, 1, 2]
    assert trim_count(2**30, np.nextafter(0.5, 0)) == 2**29 - 1


# --- weights ------------------------------------------------------------------------------------------


@rules
def test_a_rule_that_cannot_weigh_says_so(name: str) -> None:
    rule, rows, weights = RULES[name], noise(6, 3), np.ones(6)
    if rule.takes_weights:
        for wrong in (np.ones(5), np.zeros(6), -weights, np.full(6, np.nan), np.full(6, np.inf), np.ones((6, 1))):
            with pytest.raises(ValueError, match="weights must be 6 positive numbers"):
                rule(rows, wrong)
        np.testing.assert_allclose(rule(rows, weights), rule(rows), atol=1e-12)
        return
    calls = [
        lambda: rule(rows, weights),
        lambda: rule(torch.from_numpy(rows), weights),
        lambda: rule.update(np.zeros(3), rows, weights),
        lambda: per_cluster(rule, rows, np.zeros(6, int), 1, weights=weights),
        lambda: per_cluster(rule, torch.from_numpy(rows), np.zeros(6, int), 1, weights=weights),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"weights: .* cannot weigh its rows; use Mean or SpectralFilter"):
            call()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_mean_per_cluster_weighs_on_numpy_and_torch_alike(dtype: type, rng: np.random.Generator) -> None:
    rows, labels = rng.standard_normal((12, 5)).astype(dtype), np.arange(12) % 3
    weights = rng.uniform(0.1, 9.0, 12)
    for table in (rows, torch.from_numpy(rows)):
        found = per_cluster(Mean(), table, labels, 4, weights=weights)
        assert type(found.updates) is type(table)
        assert found.updates.dtype == table.dtype
        assert found.counts.tolist() == [4, 4, 4, 0]
        for j in range(3):
            expected = np.average(rows[labels == j].astype(np.float64), axis=0, weights=weights[labels == j])
            np.testing.assert_allclose(found.updates[j], expected, rtol=1e-5)
        assert not found.updates[3].any()


def test_a_step_weighs_the_replies() -> None:
    accepted = Accepted(np.arange(2), np.zeros(2, np.int64), np.array([[1.0], [5.0]]), np.zeros(2))
    step = take_step(Server(Mean()), np.zeros((1, 1)), accepted, np.ones(1), weights=np.array([3.0, 1.0]))
    assert step.centres.tolist() == [[-2.0]]
    with pytest.raises(ValueError, match=r"Median\(\) cannot weigh"):
        take_step(Server(Median()), np.zeros((1, 1)), accepted, np.ones(1), weights=np.array([3.0, 1.0]))


# --- memory -------------------------------------------------------------------------------------------

CLIPPING = CentredClipping(radius=1.0, iterations=1, history=True)


@rules
def test_only_rules_with_a_memory_remember(name: str) -> None:
    rule, rows = RULES[name], noise(11, 20)
    found, memory = rule.update(None, rows)
    assert np.array_equal(found, rule(rows))
    assert (memory is not None) == rule.has_memory == ("history=True" in name)
    aggregates = per_cluster(rule, rows, np.zeros(11, int), 1)
    assert (aggregates.memory is not None) == rule.has_memory


@pytest.mark.parametrize("torch_arrays", [False, True])
def test_every_cluster_remembers_its_own_last_aggregate(torch_arrays: bool) -> None:
    """One row per cluster; an aggregate moves by 1 per round from the last one towards the row."""

    def table(rows: list[list[float]]) -> object:
        return torch.tensor(rows, dtype=torch.float64) if torch_arrays else np.array(rows)

    first = per_cluster(CLIPPING, table([[0.0], [10.0]]), np.array([0, 1]), 3)
    assert first.memory is not None
    np.testing.assert_array_equal(first.memory, [[0.0], [10.0], [np.nan]])
    # nobody in cluster 0, which keeps its memory; the row of cluster 2 is its first
    second = per_cluster(CLIPPING, table([[4.0], [7.0]]), np.array([1, 2]), 3, memory=first.memory)
    np.testing.assert_array_equal(second.updates, [[0.0], [9.0], [7.0]])
    np.testing.assert_array_equal(second.memory, [[0.0], [9.0], [7.0]])  # type: ignore[arg-type]
    third = per_cluster(CLIPPING, table([[5.0], [4.0], [4.0]]), np.array([0, 1, 2]), 3, memory=second.memory)
    np.testing.assert_array_equal(third.updates, [[1.0], [8.0], [6.0]])


def test_the_server_carries_the_memory_from_step_to_step() -> None:
    def replies(value: float) -> Accepted:
        return Accepted(np.arange(1), np.zeros(1, np.int64), np.array([[value]]), np.zeros(1))

    server, centres, memory = Server(CLIPPING), np.zeros((2, 1)), ServerMemory()
    seen = []
    for value in (0.0, 5.0, 5.0):
        step = take_step(server, centres, replies(value), np.ones(2), memory=memory)
        centres, memory = step.centres, step.memory
        seen.append(centres[0, 0])
        assert memory.aggregator is not None
        assert np.isnan(memory.aggregator[1]).all()
    assert seen == [0.0, -1.0, -3.0]  # the aggregates are 0, 1 and 2
    forgetful = take_step(server, np.zeros((2, 1)), replies(5.0), np.ones(2))
    assert forgetful.centres[0, 0] == -5.0


def test_a_descent_carries_the_memory_from_round_to_round() -> None:
    drawn = mixed_regression(np.random.default_rng(0), clients=12, clusters=2, samples=20, dim=5, byzantine=0.1)
    assert drawn.truth is not None
    start = bernoulli(2, 5, np.random.default_rng(1)).astype(np.float32)
    seen = {}
    for rule in (CLIPPING, CentredClipping(radius=1.0, iterations=1)):
        task = linear_regression(drawn.clients)
        network = SimulatedNetwork(task, drawn.truth.is_byzantine, Attack(paper), np.random.default_rng(2))
        descent = ClusteredDescent(Server(rule, audit=False), rounds=4, step_size=0.1)
        states = [played.state for played in play(descent, network, start, np.random.default_rng(3))]
        seen[rule.history] = states
    for before, after in zip(seen[True][:-1], seen[True][1:], strict=True):
        assert after.memory.aggregator is not None
        np.testing.assert_allclose(before.centres - 0.1 * after.memory.aggregator, after.centres, atol=1e-6)
        if before.memory.aggregator is not None:  # one clipped step of radius 1 away from the last aggregate
            moves = np.linalg.norm(after.memory.aggregator - before.memory.aggregator, axis=1)
            assert (moves[~np.isnan(moves)] <= 1 + 1e-5).all()
    assert seen[False][-1].memory.aggregator is None
    assert np.array_equal(seen[True][1].centres, seen[False][1].centres)  # the first round has no history
    assert not np.array_equal(seen[True][-1].centres, seen[False][-1].centres)


# --- per cluster --------------------------------------------------------------------------------------


@exact_rules
@given(rows=tables(rows=20), seed=st.integers(0, 99), clusters=st.integers(1, 5))
def test_per_cluster_is_a_loop_over_clusters(name: str, rows: np.ndarray, seed: int, clusters: int) -> None:
    labels = np.random.default_rng(seed).integers(clusters, size=len(rows))
    found = per_cluster(RULES[name], rows, labels, clusters)
    tensors = per_cluster(RULES[name], torch.from_numpy(rows), labels, clusters)
    assert found.updates.dtype == rows.dtype
    assert np.array_equal(tensors.updates.numpy(), found.updates)
    assert np.array_equal(tensors.counts, found.counts)
    for j in range(clusters):
        members = rows[labels == j]
        assert found.counts[j] == len(members)
        expected = RULES[name](members) if len(members) else np.zeros(rows.shape[1], rows.dtype)
        assert np.array_equal(found.updates[j], expected)


@rules
def test_per_cluster_with_every_rule(name: str) -> None:
    rows, labels = noise(30, 9).astype(np.float32), np.arange(30) % 2
    found = per_cluster(RULES[name], rows, labels, 3)
    assert found.counts.tolist() == [15, 15, 0]
    for j in range(2):
        assert np.array_equal(found.updates[j], RULES[name](rows[labels == j]))
    assert not found.updates[2].any()


@pytest.mark.parametrize("divisor", [None, 8])
@pytest.mark.parametrize(("rows", "columns"), [(9, 0), (3 * NETWORK_ROWS, 3), (60, 5000), (399, 33)])
def test_per_cluster_of_many_rows_or_columns_or_none(
    rng: np.random.Generator, rows: int, columns: int, divisor: int | None
) -> None:
    """Two clusters, of a third of the rows and of the others, and an empty one."""
    table, labels = rng.standard_normal((rows, columns)).astype(np.float32), np.minimum(np.arange(rows) % 3, 1)
    for rule in (Mean(divisor),) if divisor else (mean, median, TrimmedMean(0.1)):
        found = per_cluster(rule, table, labels, 3)
        assert found.counts.tolist() == [rows // 3, rows - rows // 3, 0]
        for j in range(2):
            assert np.array_equal(found.updates[j], rule(table[labels == j]))
        assert not found.updates[2].any()
    assert per_cluster(mean, table[:0], labels[:0], 0).updates.shape == (0, columns)


def test_labels_that_do_not_fit_the_rows() -> None:
    rows = np.ones((2, 2))
    for labels in ([0, 5], [-1, 0], [0], [[0, 1]], [0.5, 0.5], ["0", "1"]):
        with pytest.raises(ValueError, match="labels must be 2 whole numbers"):
            per_cluster(mean, rows, np.array(labels), 2)
    with pytest.raises(ValueError, match="two axes"):
        per_cluster(mean, np.ones(2), np.array([0, 0]), 1)
    with pytest.raises(ValueError, match="real numbers"):
        median(rows.astype(complex))


def test_weights_that_do_not_fit_the_rows() -> None:
    for weights in (np.ones(3), np.ones(1), np.ones((2, 1))):
        with pytest.raises(ValueError, match="weights must be 2 positive numbers"):
            per_cluster(mean, np.ones((2, 2)), np.array([0, 1]), 2, weights=weights)


# --- the audit ----------------------------------------------------------------------------------------


def test_trimmed_share_names_who_stands_outside() -> None:
    updates = np.array([[0.0, 0.0], [1.0, 9.0], [2.0, 2.0], [99.0, 1.0], [3.0, 3.0], [7.0, 7.0]])
    labels = np.array([0, 0, 0, 0, 0, 1])
    assert trimmed_share(updates, labels, trim=0.2).tolist() == [1.0, 0.5, 0.0, 0.5, 0.0, 0.0]
    assert trimmed_share(updates, labels, trim=0.1).tolist() == [0.0] * 6


def test_trimmed_share_of_half_precision() -> None:
    rows = torch.from_numpy(noise(9, 4)).to(torch.bfloat16)
    shares = trimmed_share(rows, np.zeros(9, np.int64), 0.2)
    assert shares.shape == (9,)
    assert shares.sum() > 0
