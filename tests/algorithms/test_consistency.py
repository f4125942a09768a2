"""A client's updates over the rounds must fit one quadratic loss; where they do not, its first one counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie._src.algorithms.consistency import NEGLIGIBLE, TYPICAL, FirstUpdates, held_to_first
from coterie._src.attacks import Attack, Forgery, View, data_poisoning
from coterie._src.coordinates import Coordinates
from coterie._src.experiments import read_config
from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.setup import draw_trial
from coterie._src.init.conditioning import Conditioning
from coterie._src.intake import Replies, Verdict
from coterie._src.network import Network
from coterie._src.simulation import Round, SimulatedNetwork

CLIENTS, DIM = 24, 5
LABELS = np.arange(CLIENTS) % 2


def quadratics(seed: int = 0) -> tuple[Conditioning, FirstUpdates, np.ndarray, np.ndarray]:
    """Coordinates, the first updates at 0, two centres, and what the clients of two clusters answer there."""
    rng = np.random.default_rng(seed)
    factors = rng.standard_normal((CLIENTS, 40, DIM))
    hessians = (factors.transpose(0, 2, 1) @ factors / 40).astype(np.float32)
    optima = 3.0 * LABELS[:, None] + 0.3 * rng.standard_normal((CLIENTS, DIM))
    first = -np.einsum("crs,cs->cr", hessians.astype(float), optima)
    coordinates = Coordinates(np.eye(DIM), np.eye(DIM))
    conditioning = Conditioning(coordinates, hessians, np.ones(CLIENTS), 0.0, 40.0)
    centres = np.array([np.full(DIM, 0.1), np.full(DIM, 2.9)])
    updates = np.einsum("crs,cs->cr", hessians.astype(float), centres[LABELS] - optima)
    return conditioning, FirstUpdates(np.zeros((CLIENTS, DIM)), first), centres, updates


def held(updates: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    conditioning, first, centres, _ = quadratics(seed)
    return held_to_first(conditioning, first, np.arange(CLIENTS), LABELS, centres, updates)


def test_what_one_quadratic_loss_says_passes_to_the_bit() -> None:
    *_, updates = quadratics()
    found, which = held(updates)
    assert found is updates
    assert not which.any()


@settings(max_examples=40, deadline=None)
@given(size=st.floats(1.0, 1e30), liars=st.integers(1, 9), seed=st.integers(0, 99))
def test_whatever_is_sent_instead_does_not_count(size: float, liars: int, seed: int) -> None:
    """Also what overflows when it is squared."""
    *_, updates = quadratics(seed)
    rng, sent = np.random.default_rng(seed), updates.copy()
    sent[:liars] += size * rng.standard_normal((liars, DIM))
    sent[0] = rng.choice([1e300, -1e200, 0.5 * np.finfo(float).max])
    found, which = held(sent, seed)
    assert np.flatnonzero(which).tolist() == list(range(liars))
    np.testing.assert_allclose(found, updates, atol=1e-5)


def test_small_differences_count_only_together() -> None:
    """Below the first limit a client is never held, whatever the others send."""
    *_, updates = quadratics()
    distances = np.concatenate([np.linalg.norm(rows - np.median(rows, axis=0), axis=1)
                                for rows in (updates[LABELS == 0], updates[LABELS == 1])])  # fmt: skip
    limit, along = NEGLIGIBLE * np.median(distances), np.eye(DIM)[0]
    for factor, expected in ((0.9, 0), (1.3, 3)):
        sent = updates.copy()
        sent[:3] += factor * limit * along
        assert held(sent)[1].sum() == expected


def test_where_all_add_noise_nobody_is_held() -> None:
    """The median client is as inconsistent as the others."""
    rng, found = np.random.default_rng(0), []
    for seed in range(20):
        *_, updates = quadratics(seed)
        found.append(held(updates + 0.2 * rng.standard_normal(updates.shape), seed)[1].sum())
        liar = updates + 0.2 * rng.standard_normal(updates.shape)
        liar[0] += 3 * TYPICAL * 0.2 * np.sqrt(DIM)
        assert np.flatnonzero(held(liar, seed)[1]).tolist() == [0]
    assert sum(found) == 0


def test_only_the_first_update_of_a_client_is_kept() -> None:
    none = FirstUpdates.none(4, 2)
    once = none.after(np.array([1, 3]), np.ones((2, 2)), np.full((2, 2), 5.0))
    again = once.after(np.array([0, 1]), np.zeros((2, 2)), np.full((2, 2), 7.0))
    assert again.updates[:, 0].tolist()[:2] == [7.0, 5.0]
    assert again.points[3].tolist() == [1.0, 1.0]
    assert np.isnan(again.updates[2]).all()
    assert np.isnan(once.updates[0]).all()  # values, not places
    assert again.after(np.array([1]), np.zeros((1, 2)), np.zeros((1, 2))) is again


# --- in a descent ---------------------------------------------------------------------------------------

CELL = ["problem.clusters=2", "problem.clients=40", "problem.dim=12", "problem.samples=60", "problem.byzantine=0.2",
        "algorithm.max_byzantine=0.2", "run.trials=1", "run.methods=['coterie']"]  # fmt: skip


def rounds(attack: Attack | None, *changes: str, wrap: Any = lambda clients: clients) -> list[Round]:
    """The start and five rounds, also after convergence."""
    setup = draw_trial(read_config(None, [*CELL, *changes]), 0)
    algorithm = METHODS["coterie"].algorithm(setup.setting(setup.stream("buckets")))
    byzantine = setup.is_byzantine if attack is not None else np.zeros(40, np.bool_)
    clients: Network = wrap(
        SimulatedNetwork(setup.task, byzantine, attack, np.random.default_rng(0), truth=setup.truth)
    )
    rng = setup.stream("server")
    found = [Round(algorithm.initial_state(clients, setup.start, rng), None)]
    for _ in range(5):
        found.append(Round(*algorithm.step(found[-1].state, clients, rng)))
    return found


def inconsistent(played: list[Round]) -> np.ndarray:
    """(m,): the rounds in which a client's reply was not what its first update says."""
    found: np.ndarray = np.sum(
        [one.info.whole(40).verdicts == Verdict.INCONSISTENT for one in played if one.info], axis=0
    )
    return found


TABLE = ("problem.kind=tabular", "problem.samples=80")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "changes",
    [
        ("problem.kind=mixed-regression",),
        ("problem.samples=10..400",),
        ("algorithm.participation=0.5",),
        (*TABLE, "problem.correlation=0.95", "problem.scales=2", "problem.mean=10"),
        (*TABLE, "problem.client_means=2", "problem.client_covariances=0.5"),
        (*TABLE, "problem.heavy=0.5", "problem.binary=0.3", "problem.counts=0.2", "problem.spread=0.3"),
        (*TABLE, "problem.factors=2", "problem.scales=3"),
        ("algorithm.step=1.0", "problem.samples=8"),
    ],
    ids=lambda changes: " ".join(changes)[-40:],
)
def test_no_honest_client_is_ever_held(changes: tuple[str, ...], dtype: str) -> None:
    for seed in (0, 1):
        played = rounds(None, *changes, f"problem.dtype={dtype}", f"run.seed={seed}")
        assert inconsistent(played).sum() == 0


def changes_its_mind(view: View) -> Forgery:
    """Honest in the first round, then whatever leads away."""
    if view.question != "gradient" or view.round < 1:
        return data_poisoning(view)
    return Forgery(view.claimed, view.updates[view.is_byzantine] * -5 + 3)


def test_clients_that_change_their_mind_are_held_to_what_they_said() -> None:
    honest, lied = rounds(Attack(data_poisoning)), rounds(Attack(changes_its_mind))
    np.testing.assert_allclose(lied[-1].state.centres, honest[-1].state.centres, atol=2e-4)
    assert np.array_equal(inconsistent(lied) == 4, draw_trial(read_config(None, CELL), 0).is_byzantine)
    assert inconsistent(honest).sum() == 0


class OneNoisySite:
    """A network in which client 39 adds noise to all updates, anew in every round."""

    def __init__(self, clients: SimulatedNetwork) -> None:
        self.clients, self.rng = clients, np.random.default_rng(3)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.clients, name)

    def gradients(self, *arguments: Any, **named: Any) -> Replies:
        replies = self.clients.gradients(*arguments, **named)
        updates = np.array(replies.updates)
        updates[39] += 0.1 * self.rng.standard_normal(updates.shape[1]).astype(updates.dtype)
        return replace(replies, updates=updates)


def test_a_site_that_adds_noise_counts_with_its_first_noise() -> None:
    """It is said to be inconsistent, but not left out, and the centres are as good."""
    exact, noisy = rounds(None), rounds(None, wrap=OneNoisySite)
    found = inconsistent(noisy)
    assert found[:39].sum() == 0
    assert found[39] >= 3  # of the four rounds after its first update
    assert noisy[-1].info is not None
    assert noisy[-1].info.labels[39] >= 0
    np.testing.assert_allclose(noisy[-1].state.centres, exact[-1].state.centres, atol=0.02)


def test_fresh_samples_in_every_round_are_not_compared() -> None:
    played = rounds(None, "algorithm.resample=true", "algorithm.rounds=5", "problem.samples=80")
    assert inconsistent(played).sum() == 0
    assert played[-1].state.first is None
