"""Lower bounds on losses: none lies above its loss, however the centres move. They exist in the compiled form alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie._src.client import AssignmentCache, respond
from coterie._src.data import Clients, mixed_regression
from coterie._src.kernels import squared_loss
from coterie._src.kernels.elkan import HEIGHT, LOWER, PATH, UNIT, LowerBounds
from coterie._src.kernels.squared_loss_numba import _bound_by_plane
from coterie._src.kernels.squared_loss_numba import respond as compiled_respond
from coterie._src.tasks import LinearModel, Quadratic, linear_regression


def unknown_bounds(task: LinearModel | Quadratic, centres: np.ndarray) -> LowerBounds:
    return LowerBounds.unknown(task.clients.count, centres, isinstance(task, Quadratic))


def moved(
    state: LowerBounds, task: LinearModel | Quadratic, centres: np.ndarray, evaluating: Sequence[int] = ()
) -> None:
    """The centres move. All clients are at centre 0 and stay there; some evaluate all others, the rest none.

    By the kernel itself: a loss of −∞ at the own centre excludes every other one, and one that is NaN excludes none.
    """
    data = task._kernel_data(centres)
    assert data is not None
    m, d = task.clients.count, task.dim

    def ask(centres: np.ndarray, floor: float, i: slice) -> None:
        own = data._replace(floors=np.full(len(range(m)[i]), floor, centres.dtype), offsets=data.offsets[i.start :])
        count = len(own.floors)
        results = np.zeros(count, np.int64), np.empty(count, centres.dtype), np.empty((count, d), centres.dtype)
        tables = state.bounds[i], state.planes[i], state.steps[i]
        compiled_respond(*own, centres, *results, True, state.previous, *tables)

    ask(centres, -np.inf, slice(0, m))
    diverged = centres.copy()
    diverged[0] = np.nan
    for client in evaluating:
        ask(diverged, 0.0, slice(client, client + 1))
    state.previous[0] = centres[0]


def bounds_by_planes(state: LowerBounds, centres: np.ndarray) -> np.ndarray:
    """(m, k): what the losses cannot lie below, by their planes."""
    bounds = state.bounds.copy()
    for i, j in np.ndindex(state.steps.shape[:2]):
        _bound_by_plane(bounds[i], j, state.planes[i, j], state.steps[i, j], centres[j])
    return bounds[:, LOWER]


@given(
    st.integers(0, 2**31),
    st.lists(st.sampled_from([0.0, 1e-3, 0.03, 0.3, 3.0, 1e16, 1e20, -1.0, -2.0]), min_size=1, max_size=8),
)
def test_no_loss_lies_below_its_plane(seed: int, steps: list[float]) -> None:
    """-1 comes back to the start, -2 is a step within the null space of client 0, where its loss does not change."""
    rng = np.random.default_rng(seed)
    drawn = mixed_regression(rng, clients=10, clusters=3, samples=4, dim=30)
    task = linear_regression(drawn.clients, "direct")
    start = rng.standard_normal((3, 30)).astype(np.float32)
    state = unknown_bounds(task, start)
    moved(state, task, start, range(10))
    assert not np.isnan(state.bounds[:, :, 1:]).any()
    exactly = task.on(replace(drawn.clients, features=drawn.clients.features.astype(np.float64)))
    x, centres = drawn.clients.features[:4].astype(np.float64), start.copy()
    null = np.eye(30) - np.linalg.pinv(x) @ x
    for step in steps:
        if step == -1.0:
            centres = start.copy()
        elif step == -2.0:  # the direction in which what the kept slope leaves out counts
            slope = state.planes[0, 1, UNIT] * state.steps[0, 1].astype(np.float64)
            along = null @ slope
            centres[1] += (along / (np.linalg.norm(along) + 1e-300)).astype(np.float32)
        else:
            centres = centres + (step * rng.standard_normal(centres.shape)).astype(np.float32)
        exact = exactly.losses(centres.astype(np.float64))[:, 1:] * (1 + 1e-6) + 1e-30
        moved(state, task, centres)
        assert (exact >= state.bounds[:, LOWER, 1:]).all()  # by steepness alone
        assert (exact >= bounds_by_planes(state, centres)[:, 1:]).all()
        if abs(centres).max() < 1e6:
            moved(state, task, centres, [1, 2])


@given(
    st.integers(0, 2**31),
    st.lists(st.sampled_from([0.0, 1e-3, 0.03, 0.3, 3.0, 1e16, -1.0]), min_size=1, max_size=8),
)
def test_no_loss_of_statistics_lies_below_its_bound(seed: int, steps: list[float]) -> None:
    """In Gram form there is no plane; -1 comes back to the start."""
    rng = np.random.default_rng(seed)
    drawn = mixed_regression(rng, clients=10, clusters=3, samples=12, dim=9)
    task = linear_regression(drawn.clients, "gram")
    assert isinstance(task, Quadratic)
    assert task.grams is not None
    start = rng.standard_normal((3, 9)).astype(np.float32)
    state, centres = unknown_bounds(task, start), start
    assert state.steps.size == state.planes.size == 0
    moved(state, task, start, range(10))
    assert not np.isnan(state.bounds[:, :, 1:]).any()
    exactly = replace(task, **{name: getattr(task, name).astype(np.float64) for name in ("minima", "floors", "grams")})
    floors = task.floors.astype(np.float64)[:, None]  # which the driver of this test leaves out
    for step in steps:
        centres = start if step == -1.0 else centres + (step * rng.standard_normal((3, 9))).astype(np.float32)
        moved(state, task, centres)
        exact = exactly.losses(centres.astype(np.float64))[:, 1:] - floors
        assert (exact * (1 + 1e-6) >= state.bounds[:, LOWER, 1:]).all()
        if abs(centres).max() < 1e6:
            moved(state, task, centres, [1, 2])


@pytest.mark.parametrize("form", ["direct", "gram"])
def test_a_bound_falls_in_steps_that_are_smaller_than_its_rounding(form: Any) -> None:
    """The loss falls from 1000² to 999.7² while a centre goes from 0 to 0.3, by 0.02 in a round: float32 has 0.06."""
    clients = Clients(np.ones((2, 1), dtype=np.float32), np.full(2, 1000, dtype=np.float32), np.array([2]))
    task, centres = linear_regression(clients, form), np.zeros((2, 1), dtype=np.float32)
    state = unknown_bounds(task, centres)
    moved(state, task, centres, [0])
    first = state.bounds[0, LOWER, 1]
    for _ in range(30_000):
        centres = centres + np.array([[0.0], [1e-5]], dtype=np.float32)
        moved(state, task, centres)
    assert task.losses(centres)[0, 1] < first  # so a bound that stood still would be wrong
    assert 0 < state.bounds[0, LOWER, 1] < task.losses(centres)[0, 1]
    assert state.bounds[0, PATH, 1] >= centres[1, 0]


@pytest.mark.parametrize("form", ["direct", "gram"])
@pytest.mark.parametrize(("feature", "target", "own"), [(1.0, 3e-21, 0.9), (1e-30, 1e-15, 0.9), (1.0, 1e-22, 0.5)])
def test_losses_and_slopes_too_small_for_bounds_are_evaluated(
    feature: float, target: float, own: float, form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down to 0 while the rival comes nearer, and losses, or gradients, are denormal all the way."""
    x, y = np.full((2, 1), feature, dtype=np.float32), np.full(2, target, dtype=np.float32)
    task, cache = linear_regression(Clients(x, y, np.array([2])), form), AssignmentCache()
    monkeypatch.setattr(squared_loss, "MEMORY_SHARE", np.inf)
    for share in np.linspace(0, 1, 2000):
        centres = np.array([[own], [share]], dtype=np.float32) * np.float32(target / feature)
        assert respond(task, centres, cache=cache).labels == task.respond(centres).labels


def test_what_a_kept_slope_leaves_out_lowers_its_plane(rng: np.random.Generator) -> None:
    """A centre goes far away and back, and then where only the kept slope rises, not the loss."""
    drawn = mixed_regression(rng, clients=1, clusters=1, samples=5, dim=30, byzantine=0.0)
    task = linear_regression(drawn.clients, "direct")
    start = np.ones((2, 30), dtype=np.float32)
    state = unknown_bounds(task, start)
    moved(state, task, start, [0])
    moved(state, task, start + np.float32(1e16))
    moved(state, task, start)
    moved(state, task, start, [0])
    x = drawn.clients.features.astype(np.float64)
    along = (np.eye(30) - np.linalg.pinv(x) @ x) @ state.steps[0, 1].astype(np.float64)
    for _ in range(400):
        start = start + (0.5 * along / np.linalg.norm(along)).astype(np.float32) * np.array(
            [[0], [1]], dtype=np.float32
        )
        moved(state, task, start)
        assert bounds_by_planes(state, start)[0, 1] <= task.losses(start)[0, 1]
    slope = state.planes[0, 1, UNIT] * state.steps[0, 1].astype(np.float64)
    risen = state.planes[0, 1, HEIGHT] + slope @ start[1].astype(np.float64)
    assert risen > task.losses(start)[0, 1]  # so it would lie too high


def test_a_cache_begins_anew_for_other_data_and_other_centres() -> None:
    cache, data, other = AssignmentCache(), object(), object()
    two, three = np.zeros((2, 4), np.float32), np.zeros((3, 4), np.float32)
    assert cache.bounds_for(data, two) is None
    first = cache.reset(data, LowerBounds.unknown(5, two, gram=False))
    assert first.bounds.shape == (5, 3, 2)
    assert first.steps.shape == (5, 2, 4)
    assert cache.bounds_for(data, two + 1) is first
    assert cache.bounds_for(data, three) is None
    assert cache.bounds_for(other, two) is None
    statistics = LowerBounds.unknown(5, three, gram=True)
    assert statistics.planes.size == statistics.steps.size == 0
    assert "LowerBounds" not in repr(cache)


@pytest.mark.parametrize("gram", [False, True])
def test_the_memory_of_bounds_is_what_they_take(gram: bool) -> None:
    centres = np.zeros((3, 20), np.float32)
    state = LowerBounds.unknown(7, centres, gram)
    kept = sum(array.nbytes for array in (state.bounds, state.planes, state.steps))
    assert kept == LowerBounds.nbytes(7, centres, gram)
