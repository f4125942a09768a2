"""Coordinates where a direction is known to a few clients alone, as a rare level of a category is."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from coterie._src.init.conditioning import condition
from coterie._src.packed import PackedMatrices, packed

CLIENTS, SAMPLES, KNOWING, LEVELS = 60, 60, 6, 8


def features(seed: int) -> np.ndarray:
    """(m, n, columns): an intercept, two categories, of which the last clients alone have the last level, numbers."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(CLIENTS):
        shares = rng.dirichlet(np.ones(LEVELS))
        if i < CLIENTS - KNOWING:
            shares[-1] = 0
        level = rng.choice(LEVELS, SAMPLES, p=shares / shares.sum())
        group = rng.integers(0, 2, SAMPLES)
        numbers = rng.standard_normal((SAMPLES, 2)) + level[:, None] / 3
        found.append(np.column_stack([np.ones(SAMPLES), group, 1 - group, np.eye(LEVELS)[level], numbers]))
    return np.stack(found)


def held(matrices: np.ndarray) -> PackedMatrices:
    return PackedMatrices(packed(matrices), matrices.shape[-1])


def hessians(x: np.ndarray) -> np.ndarray:
    return 2 * np.einsum("mnd,mne->mde", x, x) / SAMPLES


@pytest.mark.parametrize("seed", range(8))
def test_a_direction_that_few_clients_know_is_an_axis_of_its_own(seed: int) -> None:
    """With an axis that is nearly that direction, in the scale of the others, the few would have 10⁵ and no weight."""
    found = condition(held(hessians(features(seed))), np.arange(CLIENTS), np.full(CLIENTS, SAMPLES), KNOWING)
    assert found is not None
    variation = np.einsum("mrr->mr", found.hessians)
    assert variation.shape[1] == 3 + LEVELS + 2 - 2  # both categories add up to the intercept
    (own,) = np.flatnonzero(np.abs(variation[:-KNOWING]).max(axis=0) < 1e-9)
    assert 0.1 < variation[-KNOWING:, own].mean() <= 1 + 1e-6
    assert variation.max() < 20
    assert found.leverages.min() > 0.1


@pytest.mark.parametrize("seed", [0, 2, 5])
def test_the_few_have_good_predictions(seed: int) -> None:
    """Also with the bound at their number; the noise of 1 is nearly all of the loss that remains."""
    x = features(seed)[:, :, 1:]
    rng = np.random.default_rng(seed)
    y = x @ rng.standard_normal(x.shape[2]) + rng.standard_normal((CLIENTS, SAMPLES))
    drawn = {f"client {i:02}": (x[i], y[i]) for i in range(CLIENTS)}
    result = ct.fit(drawn, task="linear", clusters=1, max_byzantine=KNOWING / CLIENTS, holdout=0)
    for i in range(CLIENTS - KNOWING, CLIENTS):
        errors = y[i] - result.predict(x[i], client=f"client {i:02}")
        assert (errors**2).mean() < 1 + 4 * np.sqrt(2 / SAMPLES)
    assert len(result.rounds) < 60


def test_claims_along_a_direction_that_the_others_know_separate_nothing() -> None:
    honest = hessians(features(0))[:-KNOWING]
    honest[:, 2 + LEVELS, 2 + LEVELS] += 1e-6
    false = honest[:KNOWING].copy()
    false[:, 2 + LEVELS, 2 + LEVELS] = 1e4
    found = condition(held(np.concatenate([honest, false])), np.arange(CLIENTS), np.full(CLIENTS, SAMPLES), KNOWING)
    assert found is not None
    typical = np.median(np.einsum("mrr->mr", found.hessians)[:-KNOWING], axis=0)
    assert (typical > 0.1).all()
    assert (found.leverages[-KNOWING:] < 1e-6).all()
