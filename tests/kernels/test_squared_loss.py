"""The squared loss: losses and gradients against their definition, and the same bits however clients are asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie._src.data import Clients, mixed_regression
from coterie._src.init import bernoulli
from coterie._src.kernels.elkan import AssignmentCache
from coterie._src.kernels.squared_loss import RegressionData, best_centres, losses_and_gradients
from coterie._src.kernels.squared_loss_numba import SUMMED
from coterie._src.tasks import assign, linear_regression

MUCH = 1 << 60
"""Bytes of samples, of which lower bounds may take their share."""


def samples(rng: np.random.Generator, sizes: list[int], dim: int, dtype: Any) -> RegressionData:
    features = rng.standard_normal((sum(sizes), dim)).astype(dtype)
    data = RegressionData.of_samples(features, features[:, 0].copy(), np.concatenate([[0], np.cumsum(sizes)]))
    assert data is not None
    return data


def test_read_only_samples_are_read_in_place_without_a_second_compilation(rng: np.random.Generator) -> None:
    features, targets = rng.standard_normal((7, 3)), rng.standard_normal(7)
    features.flags.writeable = targets.flags.writeable = False
    data = RegressionData.of_samples(features, targets, np.array([0, 4, 7]))
    assert data is not None
    for used, given in ((data.rows, features), (data.column, targets)):
        assert used.flags.writeable  # the type that a kernel is compiled for says so
        assert used.ctypes.data == given.ctypes.data
        assert np.array_equal(used, given)
    expected = features.tobytes()
    del features, given  # the data keep the memory
    assert data.rows.tobytes() == expected


@pytest.mark.parametrize(("dim", "dtype"), [(1, np.float32), (33, np.float32), (33, np.float64), (500, np.float32)])
def test_losses_and_gradients_over_few_and_many_samples(rng: np.random.Generator, dim: int, dtype: Any) -> None:
    """In several blocks, with sums that are taken over, and rows left over."""
    sizes = [1, 99, 3 * SUMMED + 7]
    data = samples(rng, sizes, dim, dtype)
    centres = rng.standard_normal((4, dim)).astype(dtype)
    for labels in (np.array([0, 1, 2]), np.array([3, 3, 3])):
        losses, gradients = losses_and_gradients(data, centres, labels)
        assert losses.dtype == gradients.dtype == dtype
        for i, label in enumerate(labels):
            x = data.rows[data.offsets[i] : data.offsets[i + 1]].astype(np.float64)
            errors = x @ centres[label].astype(np.float64) - x[:, 0]
            np.testing.assert_allclose(losses[i], (errors**2).mean(), rtol=1e-5)
            np.testing.assert_allclose(gradients[i], 2 * x.T @ errors / sizes[i], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dim", [7, 33, 100, 500])
@pytest.mark.parametrize("form", ["direct", "gram"])
def test_a_client_finds_the_same_bits_however_it_is_asked(rng: np.random.Generator, form: Any, dim: int) -> None:
    """By its label and in a search, alone and among others: long rows, which SIMD adds up in parts."""
    drawn = mixed_regression(rng, clients=12, clusters=3, samples=range(1, 60), dim=dim)
    task = linear_regression(drawn.clients, form)
    start = bernoulli(3, dim, rng).astype(np.float32)
    data, cache = task._kernel_data(start), AssignmentCache()
    assert data is not None
    for step in (0.0, 0.01, 0.3, None):
        centres = start[[1, 0, 2]] if step is None else start + np.float32(step)
        found = best_centres(data, centres, cache, MUCH)
        assert found is not None
        labels, updates = found
        assert np.array_equal(labels, assign(task.losses(centres)))
        assert np.array_equal(losses_and_gradients(data, centres, labels)[1], updates)
        assert np.array_equal(task.gradients(centres, labels), updates)
        for i in (0, 7):
            alone = task.on(drawn.clients.take([i]))
            assert np.array_equal(alone.gradients(centres, labels[i : i + 1])[0], updates[i])


def test_a_search_that_would_take_too_much_memory_is_left_to_the_caller(rng: np.random.Generator) -> None:
    data, centres = samples(rng, [5, 5], 3, np.float32), np.zeros((2, 3), np.float32)
    cache = AssignmentCache()
    assert best_centres(data, centres, cache, data.rows.nbytes) is None
    assert cache.lower_bounds is None
    assert best_centres(data, centres, cache, MUCH) is not None


@pytest.mark.parametrize(
    "change",
    [
        lambda array: array.astype(np.float16),
        lambda array: array.astype(">f4"),
        lambda array: array.astype(np.int64),
        torch.from_numpy,
        lambda array: np.repeat(array, 2, axis=0)[::2],
    ],
)
def test_data_that_no_kernel_reads(change: Any) -> None:
    features, targets, offsets = np.ones((6, 2), np.float32), np.ones(6, np.float32), np.array([0, 3, 6])
    assert RegressionData.of_samples(features, targets, offsets) is not None
    assert RegressionData.of_samples(change(features), targets, offsets) is None
    assert RegressionData.of_samples(features, change(targets), offsets) is None
    assert RegressionData.of_samples(features.astype(np.float64), targets, offsets) is None
    minima, floors, grams = np.ones((2, 3), np.float32), np.ones(2, np.float32), np.ones((2, 3, 3), np.float32)
    assert RegressionData.of_statistics(minima, floors, grams) is not None
    assert RegressionData.of_statistics(minima, floors, change(grams)) is None
    assert RegressionData.of_statistics(minima, floors, None) is None


def test_centres_that_do_not_fit_the_data(rng: np.random.Generator) -> None:
    data = samples(rng, [4], 3, np.float32)
    assert data.fits(np.zeros((2, 3), np.float32))
    for centres in (
        np.zeros((2, 3)),
        np.zeros((2, 4), np.float32),
        np.zeros(3, np.float32),
        np.zeros((3, 2), np.float32).T,
        torch.zeros(2, 3),
    ):
        assert not data.fits(centres)


def test_labels_that_do_not_exist_are_refused(rng: np.random.Generator) -> None:
    data, centres = samples(rng, [4, 4], 3, np.float32), np.zeros((2, 3), np.float32)
    for labels in ([0, 2], [-1, 0]):
        with pytest.raises(ValueError, match=r"labels must be whole numbers in \[0, 2\)"):
            losses_and_gradients(data, centres, np.array(labels))
    with pytest.raises(ValueError, match=r"labels must have shape \(2,\), got \(3,\)"):
        losses_and_gradients(data, centres, np.zeros(3, np.int64))


def test_samples_in_a_file_are_read_as_they_are(rng: np.random.Generator, tmp_path: Path) -> None:
    features = rng.standard_normal((400, 30)).astype(np.float32)
    np.save(tmp_path / "features.npy", features)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    answers = []
    for array in (features, mapped):
        task = linear_regression(Clients(array, features[:, 0].copy(), np.full(8, 50)), "direct")
        centres = np.eye(2, 30, dtype=np.float32)
        assert task._kernel_data(centres) is not None
        answers.append(task.respond(centres, AssignmentCache()).updates)
    assert np.array_equal(*answers)
