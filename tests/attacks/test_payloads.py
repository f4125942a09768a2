"""Payloads that need nothing of the honest clients but their mean, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from coterie._src.attacks import Attack, View, paper, sign_flip, smallest
from coterie._src.attacks.crafted import phantom
from coterie._src.attacks.payloads import constant, gaussian, label_flip


def test_the_paper_s_gradient_is_taken_at_three_times_the_centre(view: View) -> None:
    forged = Attack(paper, smallest)(view)
    for row, (client, label) in enumerate(zip(np.flatnonzero(view.is_byzantine), forged.labels, strict=True)):
        x, y = view.task.clients.samples(row)
        by_hand = 2 * x.T @ (x @ (3 * view.centres[label]) - y) / len(x)
        np.testing.assert_allclose(forged.updates[row], by_hand, rtol=1e-4)
        assert view.is_byzantine[client]


def test_sign_flip_gaussian_and_constant(view: View) -> None:
    honest = ~view.is_byzantine
    forged = Attack(sign_flip, smallest, scale=2.0)(view)
    members = honest & (view.labels == forged.labels[0])
    np.testing.assert_allclose(forged.updates, np.tile(-2 * view.updates[members].mean(axis=0), (4, 1)), rtol=1e-5)
    assert np.all(Attack(constant, scale=7.0)(view).updates == 7.0)
    noise = Attack(gaussian, scale=5.0)(view._replace(updates=np.zeros((20, 10_000), np.float32))).updates
    # standard error of the standard deviation of 40 000 normals: 5/√80 000 = 0.018
    assert noise.std() == pytest.approx(5.0, abs=5 * 0.018)


def test_flipped_labels_and_phantoms_answer_for_a_minimiser_too(view: View) -> None:
    asked = view._replace(round=-1, centres=None, labels=np.zeros(20, dtype=np.int64), question="minimiser")
    np.testing.assert_allclose(label_flip(asked).updates, view.task.flipped().minimisers(), rtol=1e-4, atol=1e-5)
    model = np.full(4, -0.5)
    np.testing.assert_allclose(phantom(asked).updates, np.tile(model, (4, 1)), rtol=1e-3, atol=1e-3)
    losses = asked._replace(question="loss")
    assert np.array_equal(phantom(losses).updates, view.updates[view.is_byzantine])


def test_flipped_labels_and_a_phantom_compute_honestly_on_other_data(view: View) -> None:
    flipped = label_flip(view).updates
    pretended = phantom(view, scale=2.0)
    for row, (label, chosen) in enumerate(zip(view.labels[view.is_byzantine], pretended.labels, strict=True)):
        x, y = view.task.clients.samples(row)
        np.testing.assert_allclose(flipped[row], 2 * x.T @ (x @ view.centres[label] + y) / len(x), rtol=1e-3, atol=1e-4)
        target = x @ np.full(4, -1.0)  # 2/√4 in every coordinate
        np.testing.assert_allclose(
            pretended.updates[row], 2 * x.T @ (x @ view.centres[chosen] - target) / len(x), rtol=1e-3, atol=1e-4
        )
        best = [np.mean((x @ centre - target) ** 2) for centre in view.centres]
        assert chosen == np.argmin(best)
