"""Attacks rewrite Byzantine rows only; target and payload compose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie import attacks
from coterie.aggregators import mean
from coterie.attacks import Attack, View
from coterie.data import Clients, mixed_regression
from coterie.intake import Verdict, admit
from coterie.simulate import SimulatedNetwork
from coterie.tasks import linear_regression

PAYLOADS = [attacks.none, attacks.paper, attacks.sign_flip, attacks.gaussian, attacks.constant, attacks.garbage]
TARGETS = [attacks.own, attacks.smallest, attacks.random, attacks.hop]


@pytest.fixture
def view(rng: np.random.Generator) -> View:
    drawn = mixed_regression(rng, clients=20, clusters=3, samples=8, dim=4, byzantine=0.2)
    assert drawn.truth is not None
    task = linear_regression(drawn.clients, "direct")
    centres = drawn.truth.centres
    labels = task.losses(centres).argmin(axis=1)
    byzantine = drawn.truth.byzantine
    liars = task.on(drawn.clients.take(np.flatnonzero(byzantine)))
    return View(5, centres, labels, task.gradients(centres, labels), byzantine, liars, mean, rng)


def test_the_paper_s_gradient_is_taken_at_three_times_the_centre(view: View) -> None:
    forged = Attack(attacks.paper, attacks.smallest)(view)
    for row, (client, label) in enumerate(zip(np.flatnonzero(view.byzantine), forged.labels, strict=True)):
        x, y = view.liars.clients.samples(row)
        by_hand = 2 * x.T @ (x @ (3 * view.centres[label]) - y) / len(x)
        np.testing.assert_allclose(forged.updates[row], by_hand, rtol=1e-4)
        assert view.byzantine[client]


def test_sign_flip_gaussian_and_constant(view: View) -> None:
    honest = ~view.byzantine
    forged = Attack(attacks.sign_flip, attacks.smallest, scale=2.0)(view)
    members = honest & (view.labels == forged.labels[0])
    np.testing.assert_allclose(forged.updates, np.tile(-2 * view.updates[members].mean(axis=0), (4, 1)), rtol=1e-5)
    assert np.all(Attack(attacks.constant, scale=7.0)(view).updates == 7.0)
    noise = Attack(attacks.gaussian, scale=5.0)(replace(view, updates=np.zeros((20, 10_000), np.float32))).updates
    # standard error of the standard deviation of 40 000 normals: 5/√80 000 = 0.018
    assert noise.std() == pytest.approx(5.0, abs=5 * 0.018)


def test_targets(view: View) -> None:
    own_at_three = view.liars.losses(3 * view.centres).argmin(axis=1)
    labels = Attack(attacks.paper)(view).labels  # the paper's clients work on 3·θ throughout
    assert np.array_equal(labels, own_at_three)
    crowded = replace(view, labels=np.array([0] * 6 + [1] * 3 + [2] * 7 + [0] * 4))
    assert attacks.smallest(crowded).tolist() == [1] * 4
    assert np.array_equal(attacks.own(view), view.labels[view.byzantine])
    assert np.array_equal(attacks.own(view, scale=3.0), own_at_three)
    assert [attacks.hop(replace(view, round=t))[0] for t in range(4)] == [0, 1, 2, 0]
    drawn = [tuple(attacks.random(view)) for _ in range(20)]
    assert len(set(drawn)) > 5
    assert np.all((np.array(drawn) >= 0) & (np.array(drawn) < 3))


def test_a_claim_means_nothing_where_the_server_fixed_the_labels(view: View) -> None:
    fixed = replace(view, fixed=True)
    for target in TARGETS:
        assert np.array_equal(Attack(attacks.paper, target)(fixed).labels, view.labels[view.byzantine])


def test_the_smallest_cluster_is_one_that_honest_clients_are_in(view: View) -> None:
    labels = np.where(view.labels == 2, 0, view.labels)  # nobody is in cluster 2
    assert 2 not in attacks.smallest(replace(view, labels=labels))


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_only_byzantine_rows_are_rewritten(payload: attacks.Payload, target: attacks.Target, kind: str) -> None:
    drawn = mixed_regression(np.random.default_rng(1), clients=20, clusters=3, samples=8, dim=4, byzantine=0.4)
    assert drawn.truth is not None
    clients, centres = drawn.clients, drawn.truth.centres
    if kind == "torch":
        assert clients.targets is not None
        clients = Clients(torch.from_numpy(clients.features), torch.from_numpy(clients.targets), clients.sizes)
        centres = torch.from_numpy(centres)
    task = linear_regression(clients, "direct")
    byzantine = drawn.truth.byzantine
    honest = SimulatedNetwork(task, byzantine, None, np.random.default_rng(2)).gradients(centres, 3)
    attacked = SimulatedNetwork(task, byzantine, Attack(payload, target), np.random.default_rng(2)).gradients(
        centres, 3
    )
    for i in np.flatnonzero(~byzantine):
        assert attacked.labels[i] == honest.labels[i]
        assert np.array_equal(np.asarray(attacked.updates[i]), np.asarray(honest.updates[i]))
    accepted = admit(attacked, clients=20, clusters=3, round=3, like=centres)
    refused = accepted.verdicts[byzantine] != Verdict.ACCEPTED
    assert refused.all() if payload is attacks.garbage else not refused.any()
    assert np.array_equal(np.flatnonzero(accepted.verdicts != Verdict.ACCEPTED)[refused.sum() :], [])
