"""Federations of a dozen clients: no worse than the oracle, with one Byzantine client hardly worse, and k is found."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct


def ratios(trials: int, attack: str | None, **options: object) -> list[float]:
    found = []
    for seed in range(trials):
        drawn = ct.tabular(
            seed, clients=12, clusters=3, samples=100, dim=10, separation=0.5, byzantine=1 / 12 if attack else 0.0
        )
        forged = ct.attack(attack, target="smallest") if attack else None
        fitted = ct.fit(drawn, max_byzantine=1 / 12, attack=forged, **options)  # type: ignore[arg-type]
        assert fitted.metrics["clusters"] == 3
        found.append(fitted.metrics["oracle_ratio"])
    return found


@pytest.mark.parametrize(("attack", "most"), [(None, 1.05), ("sign-flip", 1.1), ("alie", 1.1)])
def test_three_clusters_of_four(attack: str | None, most: float) -> None:
    found = ratios(6, attack, clusters="auto" if attack != "alie" else 3)
    assert np.mean(found) < most + np.std(found) / np.sqrt(6)
