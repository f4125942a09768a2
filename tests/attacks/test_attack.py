"""Attacks rewrite Byzantine rows only; payload, target, strength and sleep compose."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie._src.aggregators import TrimmedMean
from coterie._src.attacks import (
    PAYLOADS,
    TARGETS,
    Attack,
    Forgery,
    Payload,
    Target,
    View,
    alie,
    noisy_alie,
    own,
    paper,
    smallest,
)
from coterie._src.attacks.attack import COARSE, FINE
from coterie._src.attacks.payloads import constant, data_poisoning, garbage
from coterie._src.data import Clients, mixed_regression
from coterie._src.intake import Verdict, admit
from coterie._src.simulation import SimulatedNetwork
from coterie._src.tasks import linear_regression


def test_a_claim_means_nothing_where_the_server_fixed_the_labels(view: View) -> None:
    fixed = view._replace(fixed=True)
    for target in TARGETS:
        assert np.array_equal(Attack(paper, target)(fixed).labels, view.labels[view.is_byzantine])


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: payload.name)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_only_byzantine_rows_are_rewritten(payload: Payload, target: Target, library: str) -> None:
    drawn = mixed_regression(np.random.default_rng(1), clients=20, clusters=3, samples=8, dim=4, byzantine=0.4)
    assert drawn.truth is not None
    clients, centres = drawn.clients, drawn.truth.centres
    if library == "torch":
        assert clients.targets is not None
        clients = Clients(torch.from_numpy(clients.features), torch.from_numpy(clients.targets), clients.sizes)
        centres = torch.from_numpy(centres)
    task = linear_regression(clients, "direct")
    is_byzantine = drawn.truth.is_byzantine
    honest = SimulatedNetwork(task, is_byzantine, None, np.random.default_rng(2)).gradients(centres, 3)
    attacked = SimulatedNetwork(task, is_byzantine, Attack(payload, target), np.random.default_rng(2)).gradients(
        centres, 3
    )
    for i in np.flatnonzero(~is_byzantine):
        assert attacked.labels[i] == honest.labels[i]
        assert np.array_equal(np.asarray(attacked.updates[i]), np.asarray(honest.updates[i]))
    accepted = admit(attacked, clients=20, clusters=3, round=3, like=centres)
    refused = accepted.verdicts[is_byzantine] != Verdict.ACCEPTED
    assert refused.all() if payload is garbage else not refused.any()
    assert np.array_equal(np.flatnonzero(accepted.verdicts != Verdict.ACCEPTED)[refused.sum() :], [])


def test_a_search_sends_what_it_measured_and_other_rounds_other_noise(view: View) -> None:
    worst = Attack(noisy_alie, smallest, scale="worst")
    first, second = worst(view), worst(view)
    assert not np.array_equal(first.updates, second.updates)


def test_a_search_compares_strengths_on_the_same_noise(view: View) -> None:
    """What is sent is the forgery that was measured: that of one of the tried strengths, from the same random state."""
    attack = Attack(noisy_alie, own, scale="worst")
    sent = attack(view._replace(rng=np.random.default_rng(4))).updates
    rng = np.random.default_rng(4)
    noisy_alie(view._replace(rng=rng))  # at its published strength, to see of what kind it is
    state = rng.bit_generator.state

    def forged(scale: float) -> np.ndarray:
        rng.bit_generator.state = state
        return np.asarray(noisy_alie(view._replace(rng=rng), scale).updates)

    tried = [*COARSE, *(coarse * fine for coarse in COARSE for fine in FINE)]
    assert any(np.array_equal(sent, forged(scale)) for scale in tried)


def test_a_sleeper_answers_by_its_own_data_first(view: View) -> None:
    sleeper = Attack(constant, scale=9.0, sleep=6)
    own = Attack(data_poisoning)(view)
    assert np.array_equal(sleeper(view).updates, own.updates)
    assert np.all(sleeper(view._replace(round=6)).updates == 9.0)


def test_the_worst_strength_needs_the_rule(view: View) -> None:
    with pytest.raises(ValueError, match=r"SimulatedNetwork\(aggregate=...\)"):
        Attack(alie, own, scale="worst")(view._replace(aggregate=None))


@pytest.mark.parametrize(
    "payload", [payload for payload in PAYLOADS if payload.name != "garbage"], ids=lambda p: p.name
)
def test_where_only_byzantine_clients_are_asked_their_own_updates_stand_for_the_honest_ones(
    view: View, payload: Payload
) -> None:
    byzantine = np.flatnonzero(view.is_byzantine)
    alone = view._replace(
        labels=view.labels[byzantine], updates=view.updates[byzantine], is_byzantine=np.ones(len(byzantine), bool)
    )
    forged = Attack(payload)(alone)
    assert np.shape(forged.updates) == view.updates[byzantine].shape
    assert np.isfinite(np.asarray(forged.updates)).all()


def test_the_worst_strength_beats_every_other_one(view: View) -> None:
    """Against a trimmed mean the largest forgery is not the worst."""
    rule = TrimmedMean(0.2)
    seen = view._replace(aggregate=rule, labels=np.zeros(20, dtype=np.int64))
    honest = view.updates[~view.is_byzantine]

    def damage(attack: Attack) -> float:
        forged = attack(seen)
        return float(np.linalg.norm(rule(np.concatenate([honest, forged.updates])) - honest.mean(axis=0)))

    worst = damage(Attack(alie, own, scale="worst"))
    for scale in (0.03, 0.1, 0.5, 1.0, 2.0, 8.0, 30.0):
        assert worst >= damage(Attack(alie, own, scale=scale)) * (1 - 1e-6)
    assert Attack(garbage, scale="worst")(view).repeated


def test_functions_are_payloads_and_targets_too(view: View) -> None:
    def zeros(view: View, scale: float = 0.0) -> Forgery:
        return Forgery(view.claimed, np.full((view.byzantine_count, view.updates.shape[1]), scale))

    attack = Attack(zeros, lambda view: np.full(view.byzantine_count, 2))
    forged = attack(view)
    assert np.array_equal(forged.labels, [2] * 4)
    assert not np.asarray(forged.updates).any()
    assert np.all(Attack(zeros, scale=5.0)(view).updates == 5.0)
    assert isinstance(attack.payload, Payload)
    assert attack.payload.name == "zeros"
    assert repr(attack.payload) == "<payload zeros>"
    assert isinstance(attack.target, Target)


def test_attacks_are_values() -> None:
    assert Attack(alie, smallest, 2.0) == Attack(alie, smallest, 2.0)
    assert Attack(alie, smallest, 2.0) != Attack(alie, own, 2.0)
    assert len({payload.name for payload in PAYLOADS}) == len(PAYLOADS) == 29
    assert {target.name for target in TARGETS} == {"own", "smallest", "emptiest", "random", "rotating"}
    assert all(record.summary for record in (*PAYLOADS, *TARGETS))
