"""Payloads that are crafted from the honest updates, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from coterie._src.attacks import Payload, View, alie, noisy_alie, paper
from coterie._src.attacks.crafted import (
    cross_mimic,
    merge,
    mimic,
    min_max,
    min_sum,
    seed_capture,
    trimmed_mean_attack,
)


def crafted(view: View, payload: Payload, **options: float) -> tuple[np.ndarray, np.ndarray]:
    """What all send when they claim cluster 0, and the honest rows there, in float64."""
    honest = ~view.is_byzantine & (view.labels == 0)
    labels = np.where(view.is_byzantine, 0, view.labels)
    reply = payload(view._replace(labels=labels), **options)
    assert np.array_equal(reply.labels, np.zeros(view.byzantine_count))
    return np.asarray(reply.updates, dtype=np.float64), view.updates[honest].astype(np.float64)


def test_a_little_is_enough(view: View) -> None:
    forged, rows = crafted(view, alie, scale=1.5)
    np.testing.assert_allclose(forged[0], rows.mean(axis=0) - 1.5 * rows.std(axis=0), rtol=1e-5, atol=1e-6)
    # by default: Byzantine rows and the honest ones beyond z standard deviations are together a majority
    default, _ = crafted(view, alie)
    z = ((rows.mean(axis=0) - default[0]) / rows.std(axis=0)).mean()
    needed = (len(rows) + view.byzantine_count) // 2 + 1 - view.byzantine_count
    assert norm.sf(z) * len(rows) == pytest.approx(max(needed, 0.001 * len(rows)), rel=1e-3)


def test_noisy_alie_has_the_honest_noise_around_the_shift(view: View) -> None:
    many = view._replace(updates=np.random.default_rng(0).standard_normal((20, 4000)).astype(np.float32))
    forged, rows = crafted(many, noisy_alie, scale=2.0)
    shift = (forged - rows.mean(axis=0)) / rows.std(axis=0)
    assert len({row.tobytes() for row in forged}) == len(forged)
    # 16 000 standard normals: standard errors 0.008 of the mean and 0.006 of the deviation
    assert shift.mean() == pytest.approx(-2.0, abs=0.04)
    assert shift.std() == pytest.approx(1.0, abs=0.03)


def test_min_max_and_min_sum_stay_as_near_as_the_honest_do(view: View) -> None:
    forged, rows = crafted(view, min_max)
    farthest = max(np.linalg.norm(a - b) for a in rows for b in rows)
    assert np.linalg.norm(rows - forged[0], axis=1).max() == pytest.approx(farthest, rel=1e-4)
    forged, rows = crafted(view, min_sum)
    most = max(sum(np.sum((a - b) ** 2) for b in rows) for a in rows)
    assert np.sum((rows - forged[0]) ** 2) == pytest.approx(most, rel=1e-4)


def test_mimic_and_cross_mimic_send_what_somebody_sends(view: View) -> None:
    forged, rows = crafted(view, mimic)
    assert np.isclose(rows, forged[0], rtol=1e-5, atol=1e-6).all(axis=1).any()
    assert np.all(forged == forged[0])
    forged, _ = crafted(view, cross_mimic)
    elsewhere = view.updates[~view.is_byzantine & (view.labels != 0)]
    assert all((elsewhere == row.astype(np.float32)).all(axis=1).any() for row in forged)


def test_the_trimmed_mean_attack_stands_just_outside(view: View) -> None:
    forged, rows = crafted(view, trimmed_mean_attack)
    up = rows.mean(axis=0) > 0
    assert np.all(forged[:, up] <= rows.min(axis=0)[up] + 1e-6)
    assert np.all(forged[:, ~up] >= rows.max(axis=0)[~up] - 1e-6)


def test_the_trimmed_mean_attack_on_one_sign_stays_within_the_published_interval(view: View) -> None:
    away = view._replace(updates=view.updates * 0.01 + 5.0)
    forged, rows = crafted(away, trimmed_mean_attack)
    assert np.all(forged >= rows.min(axis=0) / 2 - 1e-6)
    assert np.all(forged <= rows.min(axis=0) + 1e-6)


def test_merging_one_centre_drives_it_away_from_zero(view: View) -> None:
    alone = view._replace(centres=view.centres[:1] + 1.0, labels=np.zeros(20, dtype=np.int64))
    forged, rows = crafted(alone, merge)
    assert (forged[0] - rows.mean(axis=0)) @ np.asarray(alone.centres[0], dtype=np.float64) < 0


def test_merging_drags_a_centre_towards_its_neighbour(view: View) -> None:
    forged, rows = crafted(view, merge, scale=2.0)
    centres = np.asarray(view.centres, dtype=np.float64)
    gaps = [gap for gap in centres[0] - centres if gap.any()]
    nearest = min(gaps, key=np.linalg.norm)
    pushed = forged[0] - rows.mean(axis=0)
    assert pushed @ nearest == pytest.approx(np.linalg.norm(pushed) * np.linalg.norm(nearest), rel=1e-5)
    spread = np.sqrt(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean())
    assert np.linalg.norm(pushed) == pytest.approx(2 * spread, rel=1e-5)


def test_seed_capture_is_one_point_before_the_first_round(view: View) -> None:
    asked = view._replace(round=-1, centres=np.zeros((1, 4), np.float32), labels=np.zeros(20, dtype=np.int64))
    start = seed_capture(asked).updates
    assert np.all(start == start[0])
    later = seed_capture(view).updates
    assert np.array_equal(later, paper(view).updates)
