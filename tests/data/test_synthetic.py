"""Synthetic federations follow their models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie._src.data import Federation, gaussian_means, mixed_regression, poisson_means
from coterie._src.data.synthetic import draw_labels, draw_sizes, split_evenly, unit_bernoulli

GENERATORS: list[Callable[..., Federation]] = [mixed_regression, gaussian_means, poisson_means]


def test_bernoulli_vectors_have_norm_one_and_two_values(rng: np.random.Generator) -> None:
    vectors = unit_bernoulli(500, 1, rng)  # with d = 1 half of the draws are zero and must be redrawn
    assert np.array_equal(vectors, np.ones((500, 1)))
    vectors = unit_bernoulli(50, 30, rng)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0)
    assert all(len(np.unique(row)) <= 2 for row in vectors)


@given(total=st.integers(1, 400), weights=st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_a_split_is_complete_and_within_one_of_its_share(total: int, weights: list[int]) -> None:
    shares = [w / sum(weights) for w in weights]
    counts = split_evenly(total, shares)
    assert counts.sum() == total
    assert np.all(np.abs(counts - np.array(shares) * total) < 1)


@pytest.mark.parametrize("generate", GENERATORS)
def test_the_paper_s_layout(generate: Callable[..., Federation], rng: np.random.Generator) -> None:
    drawn = generate(rng, clients=43, clusters=4, samples=6, dim=5, byzantine=0.1)
    truth = drawn.truth
    assert truth is not None
    assert truth.is_byzantine.sum() == round(0.1 * 43)
    sizes = np.bincount(truth.labels[~truth.is_byzantine])
    assert sizes.sum() == 39
    assert sizes.max() - sizes.min() <= 1
    assert drawn.clients.features.shape == (43 * 6, 5)
    assert drawn.clients.features.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(truth.centres, axis=1), 1.0, rtol=1e-6)


def test_given_shares(rng: np.random.Generator) -> None:
    drawn = gaussian_means(rng, clients=100, clusters=3, samples=1, dim=2, byzantine=0.0, shares=[0.5, 0.3, 0.2])
    assert drawn.truth is not None
    assert np.bincount(drawn.truth.labels).tolist() == [50, 30, 20]


def test_sizes_as_a_number_a_range_and_a_list(rng: np.random.Generator) -> None:
    assert draw_sizes(3, 7, rng).tolist() == [7, 7, 7]
    assert draw_sizes(3, [1, 2, 3], rng).tolist() == [1, 2, 3]
    drawn = draw_sizes(500, range(4, 7), rng)
    assert set(drawn.tolist()) == {4, 5, 6}
    federation = mixed_regression(rng, clients=10, clusters=2, samples=range(2, 9), dim=3)
    assert federation.clients.sizes.sum() == len(federation.clients.features)


def test_regression_data_follow_the_model(rng: np.random.Generator) -> None:
    """The pooled residual of the honest clients at the truth has variance σ², the Byzantine ones are of norm 3."""
    drawn = mixed_regression(rng, clients=40, clusters=2, samples=400, dim=5, noise_variance=0.2, byzantine=0.1)
    truth = drawn.truth
    assert truth is not None
    for client in range(40):
        x, y = drawn.clients.samples(client)
        if truth.is_byzantine[client]:
            fitted = np.linalg.lstsq(x.astype(float), y.astype(float), rcond=None)[0]
            # each coordinate has standard error √(σ²/n) ≈ 0.022; the norm of the vector about the same
            assert abs(np.linalg.norm(fitted) - 3) < 0.15
        else:
            residual = y - x @ truth.centres[truth.labels[client]]
            # the variance of 400 squared normals: standard error 0.2·√(2/400) = 0.014
            assert abs(residual.var() - 0.2) < 5 * 0.0142


def test_means_follow_the_model(rng: np.random.Generator) -> None:
    for generate, variance in ((gaussian_means, 0.2), (poisson_means, None)):
        drawn = generate(rng, clients=20, clusters=2, samples=500, dim=4)
        assert drawn.truth is not None
        for client in np.flatnonzero(~drawn.truth.is_byzantine):
            x, _ = drawn.clients.samples(int(client))
            centre = drawn.truth.centres[drawn.truth.labels[client]]
            spread = np.full(4, variance) if variance else centre  # a Poisson variance is its mean
            assert np.all(np.abs(x.mean(axis=0) - centre) <= 5 * np.sqrt(spread / 500) + 1e-6)
            assert np.all(np.abs(x.var(axis=0) - spread) <= 0.35 * spread + 1e-6)


def test_same_seed_same_bits() -> None:
    first, second = (mixed_regression(np.random.default_rng(5), clients=9, clusters=2, dim=3) for _ in range(2))
    assert np.array_equal(first.clients.features, second.clients.features)
    assert np.array_equal(first.clients.targets, second.clients.targets)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"clusters": 0}, "clusters"),
        ({"clusters": 11}, "clusters"),
        ({"byzantine": 1.0}, "byzantine"),
        ({"byzantine": -0.1}, "byzantine"),
        ({"byzantine": 0.96}, "byzantine"),
        ({"byzantine": 0.5, "clusters": 6}, "every cluster needs an honest client"),
        ({"samples": 0}, "samples"),
        ({"samples": [3, 4]}, "samples"),
        ({"samples": range(3, 3)}, "samples"),
        ({"dim": 0}, "dim"),
        ({"noise_variance": -1.0}, "noise_variance"),
        ({"shares": [0.5, 0.6]}, "shares"),
        ({"shares": [1.0]}, "shares"),
    ],
)
def test_impossible_problems_name_the_parameter(wrong: dict[str, object], named: str) -> None:
    options = {"clients": 10, "clusters": 2, "samples": 3, "dim": 2, **wrong}
    with pytest.raises(ValueError, match=named):
        mixed_regression(np.random.default_rng(0), **options)


def test_labels_put_byzantine_clients_last() -> None:
    assert draw_labels(7, 2, 0.3, None).tolist() == [0, 0, 0, 1, 1, -1, -1]
