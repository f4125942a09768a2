"""Rounds of few clients out of very many: the work is that of those who are asked, and a third of them may drop out."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie._src.algorithms import ClusteredDescent, State
from coterie._src.data import Clients
from coterie._src.experiments import method_setting
from coterie._src.experiments.recorder import Recorder
from coterie._src.init import sampling
from coterie._src.intake import Replies, Verdict, admit_asked
from coterie._src.server import Server
from coterie._src.simulation import Round, SimulatedNetwork
from coterie._src.tasks import LinearModel, linear_regression

PARTICIPANTS = 50


def peak_of_a_round(count: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """The most memory, in bytes, that a round and its record take, and the clients that compute something in it."""
    rng = np.random.default_rng(0)
    clients = Clients(rng.standard_normal((2 * count, 3)), rng.standard_normal(2 * count), np.full(count, 2))
    task, is_byzantine = linear_regression(clients), rng.random(count) < 0.05
    network = SimulatedNetwork(task, is_byzantine, ct.attack("paper"), rng)
    truth = ct.Truth(np.zeros((2, 3)), np.where(is_byzantine, -1, np.arange(count) % 2))
    recorder = Recorder(task, truth, is_byzantine)
    rule = ct.SpectralFilter(0.05)
    algorithm = ClusteredDescent(Server(rule), rounds=9, step_size=0.1, participation=PARTICIPANTS / count)
    state, computed = State(0, np.eye(2, 3)), []
    respond = LinearModel.respond

    def counting(self: LinearModel, *arguments: Any) -> Any:
        computed.append(self.clients.count)
        return respond(self, *arguments)

    for _ in range(2):  # once before, for what is compiled or computed only once
        with monkeypatch.context() as counts:
            counts.setattr(LinearModel, "respond", counting)
            computed.clear()
            tracemalloc.start()
            try:
                state, info = algorithm.step(state, network, rng)
                recorder.add(Round(state, info))
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
        assert len(info.labels) == PARTICIPANTS
    return peak, sum(computed)


def test_a_round_costs_what_its_participants_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a byte per client of 100,000, where 1000 clients would have shown what is common."""
    few, computed = peak_of_a_round(1_000, monkeypatch)
    many, as_many = peak_of_a_round(100_000, monkeypatch)
    assert max(computed, as_many) <= 2 * PARTICIPANTS
    assert many < few + 50_000


def test_a_reply_of_a_client_that_was_not_asked_is_one_of_an_unknown_sender() -> None:
    replies = Replies([9, 4, 5, "9", 9], [0] * 5, [0, 1, 0, 0, 1], [np.full(2, float(i)) for i in range(5)])
    found = admit_asked(replies, np.array([4, 7, 9]), clusters=2, round=0, like=np.zeros((2, 2)))
    assert found.clients.tolist() == [4, 9]
    assert found.labels.tolist() == [1, 0]
    assert found.updates.tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert found.verdicts.tolist() == [Verdict.ACCEPTED, Verdict.SILENT, Verdict.DUPLICATE]
    assert found.unknown_senders == 2
    assert found.by_client(np.array([7, 8]), -1).tolist() == [7, -1, 8]


def lossy(share: float) -> Any:
    """`SimulatedNetwork._send`, after which a share of the replies is lost."""
    send, rng = SimulatedNetwork._send, np.random.default_rng(7)

    def losing(self: SimulatedNetwork, *arguments: Any, **named: Any) -> Replies:
        replies = send(self, *arguments, **named)
        kept = np.flatnonzero(rng.random(len(replies.clients)) >= share)
        columns = {name: getattr(replies, name)[kept] for name in ("clients", "rounds", "labels", "updates")}
        return replace(replies, **columns)

    return losing


@pytest.mark.parametrize("lost", [0.0, 1 / 3])
def test_rounds_of_few_clients_end_near_the_truth_though_a_third_drops_out(
    lost: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 clients a round, of 3000; the error is at most a little above that of one round's replies together.

    Coordinates and the start come from a sample, and no other client is asked before it takes part.
    """
    monkeypatch.setattr(SimulatedNetwork, "_send", lossy(lost))
    for module in (sampling, method_setting):
        monkeypatch.setattr(module, "SAMPLE", 600)
    federation = ct.mixed_regression(2, clients=3000, clusters=3, samples=20, dim=8, byzantine=0.05)
    found = ct.fit(
        federation, clusters=3, max_byzantine=0.05, attack=ct.attack("sign-flip"), participation=0.2, rounds=30
    )
    replies = 0.2 * (1 - lost)
    assert found.metrics["oracle_ratio"] < 1.2 / np.sqrt(replies)
    assert found.metrics["ari"] > 0.9
    assert all(int(row["silent"]) >= 2400 for row in found.rounds)
