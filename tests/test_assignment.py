"""Clients who remember their last round: the same labels and the same bits, with fewer looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie._src import client as assignment
from coterie._src.aggregators import median
from coterie._src.algorithms import ClusteredDescent
from coterie._src.attacks import Attack, paper
from coterie._src.client import (
    HEIGHT,
    LEAST,
    UNIT,
    WAY,
    Asking,
    Memory,
    Planes,
    assign,
    look_ahead,
    respond,
)
from coterie._src.data import Clients, mixed_regression
from coterie._src.init import bernoulli
from coterie._src.server import Server
from coterie._src.simulation import SimulatedNetwork
from coterie._src.tasks import (
    LinearModel,
    Quadratic,
    Task,
    linear_regression,
    logistic_regression,
    mean_estimation,
    square_kernel,
)

TASKS: dict[str, Callable[[Clients], LinearModel | Quadratic]] = {
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


def no_planes(task: LinearModel | Quadratic, centres: np.ndarray) -> Planes:
    local = task.kernel_data(centres)
    assert local is not None
    return Planes.none(local, centres)


@pytest.mark.parametrize("name", TASKS)
@given(
    st.integers(0, 2**31),
    st.lists(st.sampled_from([0.0, 1e-6, 1e-3, 0.03, 0.3, 3.0, 1e20, np.nan, -1.0, -2.0]), min_size=2, max_size=6),
    st.booleans(),
    st.sampled_from([np.float32, np.float64]),
)
def test_the_labels_and_the_updates_are_those_of_everybody_looking_at_everything(
    name: str, seed: int, steps: list[float], ragged: bool, dtype: Any
) -> None:
    rng = np.random.default_rng(seed)
    sizes = range(1, 12) if ragged else 7
    drawn = mixed_regression(rng, clients=20, clusters=3, samples=sizes, dim=9, dtype=np.dtype(dtype).name)
    task, memory = TASKS[name](drawn.clients), Memory()
    assert drawn.truth is not None
    start = (drawn.truth.centres + 0.3 * rng.standard_normal((3, 9))).astype(dtype)
    with np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "ROOM", np.inf)
        for centres in walk(rng, start, steps):
            found, expected = respond(task, centres, memory=memory), task.respond(centres, assign)
            assert np.array_equal(found.labels, expected.labels)
            assert np.array_equal(found.updates, expected.updates, equal_nan=True)


@pytest.mark.parametrize("dim", [7, 33, 100, 500])
@pytest.mark.parametrize("form", ["direct", "gram"])
def test_a_client_finds_the_same_bits_however_it_is_asked(rng: np.random.Generator, form: Any, dim: int) -> None:
    """Alone and in a shared pass, at its own centre and at a rival: long rows, which SIMD adds up in parts."""
    drawn = mixed_regression(rng, clients=12, clusters=3, samples=range(1, 60), dim=dim)
    task = linear_regression(drawn.clients, form)
    everybody, memory, start = np.arange(12), Memory(), bernoulli(3, dim, rng).astype(np.float32)
    planes, local = no_planes(task, start), task.kernel_data(start)
    assert local is not None
    for centres in walk(rng, start, [0.0, 0.01, 0.3, -1.0]):
        labels, updates = planes.follow(centres)
        shared = square_kernel.visit(local, centres, np.stack([labels, labels, 0 * labels]), everybody)[1]
        assert np.array_equal(shared[0], updates)
        assert np.array_equal(shared[1], updates)
        assert np.array_equal(shared[2], task.gradients(centres, 0 * labels))
        assert np.array_equal(memory.respond(task, centres).updates, updates)


def test_most_clients_look_at_one_centre_alone() -> None:
    """A whole descent, with everybody's looks counted, and another one in which nobody remembers."""
    drawn = mixed_regression(np.random.default_rng(0), clients=60, clusters=6, samples=40, dim=50, byzantine=0.05)
    assert drawn.truth is not None
    start = bernoulli(6, 50, np.random.default_rng(1)).astype(np.float32)
    ends = []
    for remembering in (True, False):
        looks = 0
        network = SimulatedNetwork(
            linear_regression(drawn.clients), drawn.truth.byzantine, Attack(paper), np.random.default_rng(2)
        )
        algorithm = ClusteredDescent(Server(median, audit=False), rounds=100, size=0.05)
        state = algorithm.init(network, start, np.random.default_rng(3))
        for _ in range(100):
            state, _ = algorithm.step(state, network, np.random.default_rng(4))
            for memory in (network.memory, network._liars_memory):
                assert memory is not None
                assert memory.planes is not None
                # the own centre, and those that a plane begins at anew
                looks += len(memory.planes.labels) + np.count_nonzero(memory.planes.bounds[:, WAY] == 0)
                if not remembering:
                    memory.planes = None
        ends.append(state.centres)
        assert (looks < 1.5 * 100 * 63) == remembering  # and not six times
    assert np.array_equal(*ends)


@pytest.mark.parametrize(("samples", "remembering"), [(10, False), (20, True)])
def test_clients_remember_no_more_than_a_share_of_their_samples(samples: int, remembering: bool) -> None:
    drawn = mixed_regression(np.random.default_rng(0), clients=8, clusters=3, samples=samples, dim=20)
    task, memory = linear_regression(drawn.clients), Memory()
    centres = bernoulli(3, 20, np.random.default_rng(1)).astype(np.float32)
    for _ in range(2):
        memory.respond(task, centres)
    assert (memory.planes is not None) == remembering
    if memory.planes is not None:
        kept = sum(array.nbytes for array in (memory.planes.bounds, memory.planes.planes, memory.planes.steps))
        assert kept == Planes.bytes_of(memory.planes.local, centres) <= assignment.ROOM * drawn.clients.features.nbytes


def walked(planes: Planes, task: LinearModel | Quadratic, centres: np.ndarray, looking: Sequence[int] = ()) -> None:
    """The centres move; some clients look at all of them but their own, the others at none, and nobody changes."""
    labels = planes.labels
    losses = np.full(len(labels), -np.inf, dtype=centres.dtype)
    losses[list(looking)] = np.inf
    planes.follow(centres, (losses, np.zeros((len(labels), task.dim), dtype=centres.dtype)))
    planes.labels = labels


def looked_up(planes: Planes, centres: np.ndarray) -> np.ndarray:
    """(m, k): what the losses cannot lie below, by their planes."""
    bounds = planes.bounds.copy()
    for i, j in np.ndindex(planes.steps.shape[:2]):
        assignment._look_up(bounds[i], j, planes.planes[i, j], planes.steps[i, j], centres[j])
    return bounds[:, LEAST]


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
    planes = no_planes(task, start)
    walked(planes, task, start, range(10))
    assert not np.isnan(planes.bounds[:, :, 1:]).any()
    exactly = task.on(replace(drawn.clients, features=drawn.clients.features.astype(np.float64)))
    x, centres = drawn.clients.features[:4].astype(np.float64), start.copy()
    null = np.eye(30) - np.linalg.pinv(x) @ x
    for step in steps:
        if step == -1.0:
            centres = start.copy()
        elif step == -2.0:  # the way in which what the kept slope leaves out counts
            slope = planes.planes[0, 1, UNIT] * planes.steps[0, 1].astype(np.float64)
            along = null @ slope
            centres[1] += (along / (np.linalg.norm(along) + 1e-300)).astype(np.float32)
        else:
            centres = centres + (step * rng.standard_normal(centres.shape)).astype(np.float32)
        exact = exactly.losses(centres.astype(np.float64))[:, 1:] * (1 + 1e-6) + 1e-30
        walked(planes, task, centres)
        assert (exact >= planes.bounds[:, LEAST, 1:]).all()  # by steepness alone
        assert (exact >= looked_up(planes, centres)[:, 1:]).all()
        if abs(centres).max() < 1e6:
            walked(planes, task, centres, [1, 2])


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
    planes, centres = no_planes(task, start), start
    assert planes.steps.size == planes.planes.size == 0
    walked(planes, task, start, range(10))
    exactly = replace(task, **{name: getattr(task, name).astype(np.float64) for name in ("minima", "floors", "grams")})
    for step in steps:
        centres = start if step == -1.0 else centres + (step * rng.standard_normal((3, 9))).astype(np.float32)
        walked(planes, task, centres)
        assert (exactly.losses(centres.astype(np.float64))[:, 1:] * (1 + 1e-6) >= planes.bounds[:, LEAST, 1:]).all()
        if abs(centres).max() < 1e6:
            walked(planes, task, centres, [1, 2])


@pytest.mark.parametrize("form", ["direct", "gram"])
def test_a_bound_falls_in_steps_that_are_smaller_than_its_rounding(form: Any) -> None:
    """The loss falls from 1000² to 999.7² while a centre goes from 0 to 0.3, by 0.02 in a round: float32 has 0.06."""
    clients = Clients(np.ones((2, 1), dtype=np.float32), np.full(2, 1000, dtype=np.float32), np.array([2]))
    task, centres = linear_regression(clients, form), np.zeros((2, 1), dtype=np.float32)
    planes = no_planes(task, centres)
    walked(planes, task, centres, [0])
    first = planes.bounds[0, LEAST, 1]
    for _ in range(30_000):
        centres = centres + np.array([[0.0], [1e-5]], dtype=np.float32)
        walked(planes, task, centres)
    assert task.losses(centres)[0, 1] < first  # so a bound that stood still would be wrong
    assert 0 < planes.bounds[0, LEAST, 1] < task.losses(centres)[0, 1]
    assert planes.bounds[0, WAY, 1] >= centres[1, 0]


@pytest.mark.parametrize("form", ["direct", "gram"])
@pytest.mark.parametrize(("feature", "target"), [(1.0, 3e-21), (1e-30, 1e-15)])
def test_losses_and_slopes_too_small_for_bounds_are_looked_at(feature: float, target: float, form: Any) -> None:
    """Down to 0 while the rival comes nearer, and losses, or gradients, are denormal all the way."""
    x, y = np.full((2, 1), feature, dtype=np.float32), np.full(2, target, dtype=np.float32)
    task, memory = linear_regression(Clients(x, y, np.array([2])), form), Memory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "ROOM", np.inf)
        for share in np.linspace(0, 1, 2000):
            centres = np.array([[0.9], [share]], dtype=np.float32) * np.float32(target / feature)
            assert respond(task, centres, memory=memory).labels == task.respond(centres, assign).labels


def test_what_a_kept_slope_leaves_out_lowers_its_plane(rng: np.random.Generator) -> None:
    """A centre goes far away and back, and then where only the kept slope rises, not the loss."""
    drawn = mixed_regression(rng, clients=1, clusters=1, samples=5, dim=30, byzantine=0.0)
    task = linear_regression(drawn.clients, "direct")
    start = np.ones((2, 30), dtype=np.float32)
    planes = no_planes(task, start)
    walked(planes, task, start, [0])
    walked(planes, task, start + np.float32(1e16))
    walked(planes, task, start)
    walked(planes, task, start, [0])
    x = drawn.clients.features.astype(np.float64)
    along = (np.eye(30) - np.linalg.pinv(x) @ x) @ planes.steps[0, 1].astype(np.float64)
    for _ in range(400):
        start = start + (0.5 * along / np.linalg.norm(along)).astype(np.float32) * np.array(
            [[0], [1]], dtype=np.float32
        )
        walked(planes, task, start)
        assert looked_up(planes, start)[0, 1] <= task.losses(start)[0, 1]
    slope = planes.planes[0, 1, UNIT] * planes.steps[0, 1].astype(np.float64)
    risen = planes.planes[0, 1, HEIGHT] + slope @ start[1].astype(np.float64)
    assert risen > task.losses(start)[0, 1]  # so it would lie too high


@given(
    st.integers(0, 2**31),
    st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=5),
    st.lists(st.sampled_from([0.0, 1e-3, 0.03, 0.3, 3.0, np.nan]), min_size=2, max_size=4),
    st.sampled_from([np.float32, np.float64]),
)
def test_a_pass_that_several_servers_share_gives_each_what_it_would_get_alone(
    seed: int, servers: list[tuple[int, bool]], steps: list[float], dtype: Any
) -> None:
    """With one to five servers, from one centre to four each, some of which have fixed the labels."""
    rng = np.random.default_rng(seed)
    drawn = mixed_regression(rng, clients=12, clusters=3, samples=range(1, 12), dim=9, dtype=np.dtype(dtype).name)
    task = linear_regression(drawn.clients, "direct")
    starts = [rng.standard_normal((k, 9)).astype(dtype) for k, _ in servers]
    fixed = [rng.integers(k, size=12) if told else None for k, told in servers]
    together, alone = [Memory() for _ in servers], [Memory() for _ in servers]
    with np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "ROOM", np.inf)
        for turn in zip(*(walk(rng, start, steps) for start in starts), strict=True):
            look_ahead([Asking(task, centres, memory) for centres, memory in zip(turn, together, strict=True)])
            known = [memory.first is not None for memory in together]
            for q, centres in enumerate(turn):
                ahead = together[q].ahead
                assert (ahead is not None) == (known[q] and sum(known) > 1)
                found, expected = (respond(task, centres, fixed[q], memory=m[q]) for m in (together, alone))
                assert np.array_equal(found.labels, expected.labels)
                assert np.array_equal(found.updates, expected.updates, equal_nan=True)
                assert ahead is None or np.isnan(centres).any() or found.updates is ahead.updates  # no second pass


@pytest.mark.parametrize("other", ["centres", "labels"])
def test_what_was_found_ahead_is_for_that_question_alone(
    other: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "ROOM", np.inf)
    drawn = mixed_regression(rng, clients=10, clusters=2, samples=20, dim=4)
    task, memories = linear_regression(drawn.clients, "direct"), [Memory(), Memory()]
    centres, labels = rng.standard_normal((2, 4)).astype(np.float32), rng.integers(2, size=10)
    for memory in memories:
        for _ in range(2):
            memory.respond(task, centres, labels)
    look_ahead([Asking(task, centres, memory) for memory in memories])
    assert memories[0].ahead is not None
    asked, told = (centres + 1, labels) if other == "centres" else (centres, 1 - labels)
    assert np.array_equal(memories[0].respond(task, asked, told).updates, task.gradients(asked, told))


def test_nothing_is_looked_up_ahead_where_it_is_not_known_who_will_be_asked_for_what(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = mixed_regression(rng, clients=10, clusters=2, samples=20, dim=4)
    task, centres = linear_regression(drawn.clients, "direct"), rng.standard_normal((2, 4)).astype(np.float32)
    memory = Memory()
    for turn in range(3):  # for empty clusters, another client in every round
        memory.respond(task, centres, np.arange(10) == turn)
        assert memory.first is None
    monkeypatch.setattr(assignment, "ROOM", 0.0)
    memory.respond(task, centres)
    assert memory.first is None


def test_what_was_found_ahead_is_for_those_clients_alone(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "ROOM", np.inf)
    one, other = (
        linear_regression(mixed_regression(rng, clients=10, clusters=2, samples=20, dim=4).clients, "direct")
        for _ in range(2)
    )
    centres, memories = rng.standard_normal((2, 4)).astype(np.float32), [Memory(), Memory()]
    for memory in memories:
        memory.respond(one, centres)
    look_ahead([Asking(one, centres, memory) for memory in memories])
    assert memories[0].ahead is not None
    found, expected = memories[0].respond(other, centres), other.respond(centres, assign)
    assert np.array_equal(found.labels, expected.labels)
    assert np.array_equal(found.updates, expected.updates)
    # nor is anything looked up for clusters that are no longer there
    memories = [Memory(first=np.ones(10, dtype=np.int64)) for _ in range(2)]
    look_ahead([Asking(one, centres[:1], memory) for memory in memories])
    assert memories[1].ahead is None


def test_labels_that_are_handed_out_may_be_written_to(rng: np.random.Generator) -> None:
    task = linear_regression(mixed_regression(rng, clients=10, clusters=2, samples=200, dim=4).clients)
    centres, memory = rng.standard_normal((2, 4)).astype(np.float32), Memory()
    for _ in range(3):
        found = memory.respond(task, centres)
        assert np.array_equal(found.labels, task.respond(centres, assign).labels)
        found.labels[:] = 10**9


@pytest.mark.parametrize("form", ["direct", "gram"])
@pytest.mark.parametrize("width", [3, 5])
def test_centres_of_another_width_are_an_error(rng: np.random.Generator, form: Any, width: int) -> None:
    task = linear_regression(mixed_regression(rng, clients=10, clusters=2, samples=20, dim=4).clients, form)
    with pytest.raises(ValueError):  # noqa: PT011 - the array library's own words
        Memory().respond(task, np.zeros((2, width), dtype=np.float32))


def test_clients_have_no_centre_that_is_not_there(rng: np.random.Generator) -> None:
    task = linear_regression(mixed_regression(rng, clients=10, clusters=2, samples=20, dim=4).clients)
    with pytest.raises(ValueError, match=r"labels must be whole numbers in \[0, 2\)"):
        task.gradients(np.zeros((2, 4), dtype=np.float32), np.full(10, 2))


def test_samples_in_a_file_are_read_as_they_are(rng: np.random.Generator, tmp_path: Path) -> None:
    features = rng.standard_normal((400, 30)).astype(np.float32)
    np.save(tmp_path / "features.npy", features)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    answers = []
    for array in (features, mapped):
        task = linear_regression(Clients(array, features[:, 0].copy(), np.full(8, 50)), "direct")
        centres = np.eye(2, 30, dtype=np.float32)
        assert task.kernel_data(centres) is not None
        answers.append(Memory().respond(task, centres).updates)
    assert np.array_equal(*answers)


def test_only_servers_with_the_same_clients_share_a_pass(rng: np.random.Generator) -> None:
    asking = []
    for _ in range(2):
        task = linear_regression(mixed_regression(rng, clients=4, clusters=2, dim=4).clients, "direct")
        asking.append(Asking(task, np.zeros((1, 4), dtype=np.float32), Memory(first=np.zeros(4, dtype=np.int64))))
    with pytest.raises(ValueError, match="the same clients"):
        look_ahead(asking)


@pytest.mark.parametrize(("dim", "dtype"), [(1, np.float32), (33, np.float32), (33, np.float64), (500, np.float32)])
def test_many_questions_in_one_pass_over_many_samples(rng: np.random.Generator, dim: int, dtype: Any) -> None:
    """In several blocks, with sums that are taken over, and rows left over: the bits of one question at a time."""
    sizes = np.array([1, 99, 3 * square_kernel.SUMMED + 7])
    features = rng.standard_normal((sizes.sum(), dim)).astype(dtype)
    task = linear_regression(Clients(features, features[:, 0].copy(), sizes), "direct")
    assert isinstance(task, LinearModel)
    centres, labels = rng.standard_normal((4, dim)).astype(dtype), rng.integers(4, size=(5, 3))
    local = task.kernel_data(centres)
    assert local is not None
    for questions in range(1, 6):
        losses, gradients = square_kernel.visit(local, centres, labels[:questions], np.arange(3))
        for q in range(questions):
            alone = square_kernel.visit(local, centres, labels[q : q + 1], np.arange(3))
            assert np.array_equal(losses[q], alone[0][0])
            assert np.array_equal(gradients[q], alone[1][0])
    client = features[-sizes[2] :].astype(np.float64)
    errors = client @ centres[labels[0, 2]].astype(np.float64) - client[:, 0]
    np.testing.assert_allclose(losses[0, 2], (errors**2).mean(), rtol=1e-5)
    np.testing.assert_allclose(gradients[0, 2], 2 * client.T @ errors / sizes[2], rtol=1e-3, atol=1e-3)


def test_other_losses_are_computed_as_ever(rng: np.random.Generator) -> None:
    features = rng.standard_normal((40, 4))
    task: Task = logistic_regression(Clients(features, (features[:, 0] > 0).astype(float), np.full(8, 5)))
    memory = Memory()
    for _ in range(3):
        centres = rng.standard_normal((2, 4))
        found, expected = memory.respond(task, centres), task.respond(centres, assign)
        assert found.losses is not None
        assert np.array_equal(found.labels, expected.labels)
        assert np.array_equal(found.updates, expected.updates)
