"""Payloads that lie about Hessians: what they send, and that the recommended method withstands them."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from coterie._src.attacks import PAYLOADS, noisy_alie
from coterie._src.attacks.base import View
from coterie._src.packed import packed, unpacked
from coterie._src.tasks import linear_regression

BY_NAME = {payload.name: payload for payload in PAYLOADS if payload.name.startswith("hessian")}


def view(question: str, seed: int = 0) -> View:
    """What an adversary with the last two of eight clients sees."""
    task = linear_regression(ct.mixed_regression(1, clients=8, clusters=1, samples=20, dim=4, byzantine=0.25).clients)
    labels, byzantine = np.zeros(8, dtype=np.int64), np.arange(8) >= 6
    rows = (
        task.hessians(np.zeros((1, 4)), labels)
        if question == "hessian"
        else np.random.default_rng(2).normal(size=(8, 4))
    )
    few = task.on(task.clients.take([6, 7]))
    centres = None if question == "hessian" else np.zeros((1, 4))
    return View(0, centres, labels, rows, byzantine, few, None, np.random.default_rng(seed), question=question)  # type: ignore[arg-type]


def sent(name: str, scale: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The honest Hessians of the Byzantine clients, and those that they send, (2, 4, 4) both."""
    seen = view("hessian")
    return unpacked(seen.updates[6:], 4), unpacked(np.asarray(BY_NAME[name](seen, scale).updates), 4)


def test_one_huge_matrix_for_all() -> None:
    honest, forged = sent("hessian-identical")
    assert np.array_equal(forged[0], forged[1])
    assert np.linalg.eigvalsh(forged[0]).min() > -1e-6 * np.abs(forged).max()
    assert np.abs(forged).max() > 1e4 * np.abs(honest).max()


def test_a_spike_is_of_rank_one() -> None:
    honest, forged = sent("hessian-spike")
    values = np.linalg.eigvalsh(forged[0] - honest[0])
    assert values[-1] == pytest.approx(1e6 * np.abs(packed(honest)).max(), rel=1e-6)
    assert np.abs(values[:-1]).max() < 1e-6 * values[-1]


def test_scaled_and_permuted() -> None:
    honest, forged = sent("hessian-scaled", 1e-6)
    assert forged == pytest.approx(1e-6 * honest)
    honest, forged = sent("hessian-permuted")
    assert np.linalg.eigvalsh(forged) == pytest.approx(np.linalg.eigvalsh(honest))
    assert not np.allclose(forged, honest)


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - {"hessian-leverage"}))
def test_in_the_rounds_they_send_noisy_alie(name: str) -> None:
    assert np.array_equal(BY_NAME[name](view("gradient")).updates, noisy_alie(view("gradient")).updates)


def test_leverage_claims_information_along_one_direction() -> None:
    honest, forged = sent("hessian-leverage")
    assert np.array_equal(forged[0], forged[1])
    typical = unpacked(view("hessian").updates[:6].mean(axis=0)[None], 4)[0]
    values = np.linalg.eigvalsh(forged[0] - typical)
    assert values[-1] == pytest.approx(40 * np.trace(typical) / 4)
    assert np.abs(values[:-1]).max() < 1e-9 * values[-1]
    assert len(honest) == 2


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - {"hessian-leverage"}))
@pytest.mark.parametrize("family", ["correlation", "client_means"])
def test_the_recommended_method_withstands_them(name: str, family: str) -> None:
    drawn = ct.tabular(3, clients=90, clusters=3, samples=60, dim=20, byzantine=0.1, **{family: 0.9})
    found = ct.fit(drawn, clusters=3, max_byzantine=0.1, attack=ct.attack(name, target="smallest"))
    assert found.metrics["ari"] == 1.0
    assert found.metrics["oracle_ratio"] < 1.2
    assert found.metrics["rounds"] <= 60


@pytest.mark.parametrize("family", ["correlation", "client_means", "client_covariances"])
@pytest.mark.parametrize("byzantine", [0.1, 0.2])
def test_leverage_gains_little_also_where_the_clients_have_covariances_of_their_own(
    family: str, byzantine: float
) -> None:
    drawn = ct.tabular(3, clients=90, clusters=3, samples=60, dim=20, byzantine=byzantine, **{family: 0.9})
    attack = ct.attack("hessian-leverage", target="smallest")
    found = ct.fit(drawn, clusters=3, max_byzantine=byzantine, attack=attack, rounds=100)
    assert found.metrics["ari"] == 1.0
    assert found.metrics["oracle_ratio"] < 1.2
