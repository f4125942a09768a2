"""The network: questions to the nodes of a grid, and the answers that come before the deadline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from coterie._src import attacks, tasks
from coterie._src.data import Federation
from coterie._src.federation import ClientNumbers, FlowerNetwork
from coterie._src.federation.network import MAX_UNANSWERED
from coterie._src.intake import admit
from coterie._src.simulation import SimulatedNetwork
from in_process import Fault, InProcessGrid
from small_federation import CLIENTS, app


def test_all_questions_have_the_answers_of_the_simulation(drawn: Federation, start: np.ndarray) -> None:
    assert drawn.truth is not None
    network = FlowerNetwork(
        InProcessGrid(app(drawn, guarded=False), range(CLIENTS)), ClientNumbers(CLIENTS), deadline=1.0
    )
    task = tasks.linear_regression(drawn.clients)
    same = SimulatedNetwork(task, drawn.truth.is_byzantine, attacks.Attack(attacks.paper), np.random.default_rng(0))
    honest = ~drawn.truth.is_byzantine
    for ask in (
        lambda net: net.gradients(start, 3),
        lambda net: net.gradients(start, 3, np.arange(CLIENTS) % 2),
        lambda net: net.gradients(start, 0, None, (0, 2)),
        lambda net: net.minimisers(start, 0.1),
        lambda net: net.losses(start),
        lambda net: net.losses(start, (0, 1), computing=True),
        lambda net: net.sizes(),
        lambda net: net.curvatures(),
    ):
        over_flower, here = ask(network), ask(same)
        assert over_flower.clients == list(range(CLIENTS))
        assert np.array(over_flower.labels)[honest].tolist() == np.asarray(here.labels)[honest].tolist()
        np.testing.assert_allclose(
            np.stack(over_flower.updates)[honest], np.asarray(here.updates)[honest], rtol=1e-4, atol=1e-5
        )
    asked = network.gradients(start, 0, asked=np.array([1, 5]))
    assert asked.clients == [1, 5]


def test_a_reply_that_was_lost_is_asked_for_again(drawn: Federation, start: np.ndarray) -> None:
    lost: list[int] = []

    def once(question: Message, honest: Message) -> Message:
        if lost:
            return honest
        lost.append(1)
        return Message(Error(ErrorCode.MESSAGE_UNAVAILABLE, "gone"), reply_to=question)

    grid = InProcessGrid(app(drawn), range(CLIENTS), {4: once})
    network = FlowerNetwork(grid, ClientNumbers(CLIENTS), deadline=1.0)
    assert len(network.gradients(start, 0).clients) == CLIENTS
    assert grid.asked.count(4) == 2


def test_nobody_waits_long_for_a_site_that_never_answers(drawn: Federation, start: np.ndarray) -> None:
    """It is asked all the same, and when it answers it is waited for again."""
    answers: list[bool] = [False]
    silent: Fault = lambda question, honest: honest if answers[0] else None  # noqa: E731
    network = FlowerNetwork(
        InProcessGrid(app(drawn), range(CLIENTS), {4: silent}), ClientNumbers(CLIENTS), deadline=0.5
    )
    for round in range(MAX_UNANSWERED):
        assert network.not_awaited == set()
        network.gradients(start, round)
    assert network.not_awaited == {4}
    network.deadline = 600.0  # it would be felt
    assert len(network.gradients(start, 8).clients) == CLIENTS - 1
    answers[0] = True
    assert len(network.gradients(start, 9).clients) == CLIENTS
    assert network.not_awaited == set()


def test_a_second_question_of_a_round_leaves_the_first_answers_alone(drawn: Federation, start: np.ndarray) -> None:
    network = FlowerNetwork(InProcessGrid(app(drawn), range(CLIENTS)), ClientNumbers(CLIENTS), deadline=1.0)
    options: dict[str, Any] = {"clients": CLIENTS, "clusters": 2, "like": start}
    first = admit(network.gradients(start, 0), round=0, **options)
    before = first.updates.copy()
    admit(network.gradients(start, 0, np.zeros(CLIENTS, dtype=np.int64)), round=0, **options)
    np.testing.assert_array_equal(first.updates, before)
    again = admit(network.gradients(2 * start, 1), round=1, **options)
    assert np.shares_memory(again.updates, first.updates)


def test_a_node_keeps_its_number() -> None:
    numbers = ClientNumbers(3)
    assert numbers.assign([7, 5]) == {5: 0, 7: 1}
    assert numbers.assign([7, 9]) == {7: 1, 9: 2}
    assert numbers.assign([7, 9, 5]) == {5: 0, 7: 1, 9: 2}
    assert numbers.assign([7, 9, 11]) == {7: 1, 9: 2, 11: 0}  # 5 is gone, and no other number is free
    assert numbers.assign([7, 9, 11, 5]) == {7: 1, 9: 2, 11: 0}
    assert numbers.without_number == {5}
    with pytest.raises(ValueError, match="max_clients"):
        ClientNumbers(0)
