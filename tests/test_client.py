"""The client's half of a round: choice and update, with a cache that changes neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie._src.aggregators import median
from coterie._src.algorithms import ClusteredDescent
from coterie._src.attacks import Attack, paper
from coterie._src.client import AssignmentCache, assign, respond
from coterie._src.data import Clients, mixed_regression
from coterie._src.init import bernoulli
from coterie._src.kernels import squared_loss
from coterie._src.kernels.dispatch import CHOICE
from coterie._src.kernels.elkan import MEMORY_SHARE, PATH, LowerBounds
from coterie._src.server import Server
from coterie._src.simulation import SimulatedNetwork
from coterie._src.tasks import Task, linear_regression, logistic_regression, mean_estimation

TASKS: dict[str, Callable[[Clients], Task]] = {
    "direct": lambda clients: linear_regression(clients, "direct"),
    "gram": lambda clients: linear_regression(clients, "gram"),
    "mean": mean_estimation,
}


def walk(rng: np.random.Generator, start: np.ndarray, steps: list[float]) -> Iterator[np.ndarray]:
    """The same array with centres that move in all sizes of steps; -1 exchanges two of them, -2 makes two the same."""
    centres = start.copy()
    for step in steps:
        if step == -1.0:
            centres[[0, 1]] = centres[[1, 0]]
        elif step == -2.0:
            centres[0] = centres[1]
        else:
            centres += (step * rng.standard_normal(centres.shape)).astype(centres.dtype)
        yield centres


def test_the_lowest_loss_is_chosen() -> None:
    losses = np.array([[2.0, 1.0], [1.0, 1.0], [np.nan, 3.0], [3.0, np.nan], [np.nan, np.nan], [np.inf, np.nan]])
    assert assign(losses).tolist() == [1, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("name", TASKS)
@given(
    st.integers(0, 2**31),
    st.lists(st.sampled_from([0.0, 1e-6, 1e-3, 0.03, 0.3, 3.0, 1e20, np.nan, -1.0, -2.0]), min_size=2, max_size=6),
    st.booleans(),
    st.sampled_from([np.float32, np.float64]),
)
def test_the_labels_and_the_updates_are_those_without_a_cache(
    name: str, seed: int, steps: list[float], ragged: bool, dtype: Any
) -> None:
    rng = np.random.default_rng(seed)
    sizes = range(1, 12) if ragged else 7
    drawn = mixed_regression(rng, clients=20, clusters=3, samples=sizes, dim=9, dtype=np.dtype(dtype).name)
    task, cache = TASKS[name](drawn.clients), AssignmentCache()
    assert drawn.truth is not None
    start = (drawn.truth.centres + 0.3 * rng.standard_normal((3, 9))).astype(dtype)
    with np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(squared_loss, "MEMORY_SHARE", np.inf)
        for centres in walk(rng, start, steps):
            found, expected = respond(task, centres, cache=cache), respond(task, centres)
            assert np.array_equal(found.labels, expected.labels)
            assert np.array_equal(found.labels, assign(task.losses(centres)))
            assert np.array_equal(found.updates, expected.updates, equal_nan=True)


@pytest.mark.skipif(CHOICE == "reference", reason="the reference evaluates every centre in every round")
def test_most_clients_evaluate_one_centre_alone() -> None:
    """A whole descent, with all evaluations counted, and another one that begins with an empty cache in every round."""
    drawn = mixed_regression(np.random.default_rng(0), clients=60, clusters=6, samples=40, dim=50, byzantine=0.05)
    assert drawn.truth is not None
    start = bernoulli(6, 50, np.random.default_rng(1)).astype(np.float32)
    ends = []
    for remembering in (True, False):
        evaluations = 0
        task = linear_regression(drawn.clients)
        network = SimulatedNetwork(task, drawn.truth.is_byzantine, Attack(paper), np.random.default_rng(2))
        algorithm = ClusteredDescent(Server(median, audit=False), rounds=100, step_size=0.05)
        state = algorithm.initial_state(network, start, np.random.default_rng(3))
        for _ in range(100):
            state, _ = algorithm.step(state, network, np.random.default_rng(4))
            for cache in (network.cache, network._byzantine_cache):
                assert cache is not None
                assert cache.lower_bounds is not None
                # the own centre, and those whose path begins anew
                bounds = cache.lower_bounds
                evaluations += len(bounds.labels) + np.count_nonzero(bounds.bounds[:, PATH] == 0)
                if not remembering:
                    cache.lower_bounds = None
        ends.append(state.centres)
        assert (evaluations < 1.5 * 100 * 63) == remembering  # and not six times
    assert np.array_equal(*ends)


@pytest.mark.parametrize(("samples", "remembering"), [(10, False), (20, True)])
def test_a_cache_takes_no_more_than_a_share_of_the_samples(samples: int, remembering: bool) -> None:
    drawn = mixed_regression(np.random.default_rng(0), clients=8, clusters=3, samples=samples, dim=20)
    task, cache = linear_regression(drawn.clients), AssignmentCache()
    centres = bernoulli(3, 20, np.random.default_rng(1)).astype(np.float32)
    for _ in range(2):
        respond(task, centres, cache=cache)
    assert (cache.lower_bounds is not None) == remembering
    if cache.lower_bounds is not None:
        bounds = cache.lower_bounds
        kept = sum(array.nbytes for array in (bounds.bounds, bounds.planes, bounds.steps))
        assert kept == LowerBounds.nbytes(8, centres, cache.data.gram) <= MEMORY_SHARE * drawn.clients.features.nbytes


def test_a_cache_serves_other_clients_as_if_it_were_new(rng: np.random.Generator) -> None:
    one, other = (
        linear_regression(mixed_regression(rng, clients=10, clusters=2, samples=200, dim=4).clients) for _ in range(2)
    )
    centres, cache = rng.standard_normal((2, 4)).astype(np.float32), AssignmentCache()
    for task in (one, other, one):
        found, expected = respond(task, centres, cache=cache), respond(task, centres)
        assert np.array_equal(found.labels, expected.labels)
        assert np.array_equal(found.updates, expected.updates)
    fewer = respond(one, centres[:1], cache=cache)  # nor are bounds kept of clusters that no longer exist
    assert np.array_equal(fewer.updates, respond(one, centres[:1]).updates)


def test_fixed_labels_are_followed_and_not_those_of_the_cache(rng: np.random.Generator) -> None:
    task = linear_regression(mixed_regression(rng, clients=10, clusters=2, samples=200, dim=4).clients)
    centres, labels = rng.standard_normal((2, 4)).astype(np.float32), rng.integers(2, size=10)
    cache = AssignmentCache()
    respond(task, centres, cache=cache)
    for fixed in (labels, 1 - labels):
        found = respond(task, centres, fixed, cache=cache)
        assert np.array_equal(found.labels, fixed)
        assert np.array_equal(found.updates, task.gradients(centres, fixed))


def test_a_round_of_the_resampling_variant_uses_its_own_two_parts(rng: np.random.Generator) -> None:
    clients = mixed_regression(rng, clients=6, clusters=2, samples=16, dim=3).clients
    task, centres = linear_regression(clients, "direct"), rng.standard_normal((2, 3)).astype(np.float32)
    for t in range(4):
        found = respond(task, centres, part=(t, 4))
        choosing, computing = (task.on(clients.part(2 * t + half, 8)) for half in (0, 1))
        assert np.array_equal(found.labels, assign(choosing.losses(centres)))
        assert np.array_equal(found.updates, computing.gradients(centres, found.labels))
        fixed = respond(task, centres, np.ones(6, np.int64), part=(t, 4))
        assert np.array_equal(fixed.updates, computing.gradients(centres, np.ones(6, np.int64)))


def test_labels_that_are_returned_may_be_written_to(rng: np.random.Generator) -> None:
    task = linear_regression(mixed_regression(rng, clients=10, clusters=2, samples=200, dim=4).clients)
    centres, cache = rng.standard_normal((2, 4)).astype(np.float32), AssignmentCache()
    for _ in range(3):
        found = respond(task, centres, cache=cache)
        assert np.array_equal(found.labels, task.respond(centres).labels)
        assert cache.lower_bounds is not None
        assert not np.shares_memory(found.labels, cache.lower_bounds.labels)
        found.labels[:] = 10**9


@pytest.mark.parametrize("form", ["direct", "gram"])
@pytest.mark.parametrize("width", [3, 5])
def test_centres_of_another_width_are_an_error(rng: np.random.Generator, form: Any, width: int) -> None:
    task = linear_regression(mixed_regression(rng, clients=10, clusters=2, samples=20, dim=4).clients, form)
    with pytest.raises(ValueError):  # noqa: PT011 - the array library's own words
        respond(task, np.zeros((2, width), dtype=np.float32), cache=AssignmentCache())


def test_clients_have_no_centre_that_does_not_exist(rng: np.random.Generator) -> None:
    task = linear_regression(mixed_regression(rng, clients=10, clusters=2, samples=20, dim=4).clients)
    with pytest.raises(ValueError, match=r"labels must be whole numbers in \[0, 2\)"):
        respond(task, np.zeros((2, 4), dtype=np.float32), np.full(10, 2))


def test_a_task_may_ignore_the_cache(rng: np.random.Generator) -> None:
    features = rng.standard_normal((40, 4))
    task: Task = logistic_regression(Clients(features, (features[:, 0] > 0).astype(float), np.full(8, 5)))
    cache = AssignmentCache()
    for _ in range(3):
        centres = rng.standard_normal((2, 4))
        found, expected = respond(task, centres, cache=cache), task.respond(centres)
        assert np.array_equal(found.labels, assign(task.losses(centres)))
        assert np.array_equal(found.labels, expected.labels)
        assert np.array_equal(found.updates, expected.updates)
    assert cache.lower_bounds is None
