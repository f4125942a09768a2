"""Questions and answers as messages, and the app of a site that reads and writes them."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from coterie._src import tasks
from coterie._src.attacks import Attack, View
from coterie._src.attacks.base import Question as Kind
from coterie._src.attacks.base import as_payload
from coterie._src.data import Clients, Federation
from coterie._src.federation import Question, client_app
from coterie._src.federation.client import respond_to
from coterie._src.federation.messages import read_answer, read_question
from coterie._src.simulation import SimulatedNetwork
from in_process import failing


def test_a_site_refuses_questions_that_make_no_sense(drawn: Federation) -> None:
    task = tasks.linear_regression(drawn.clients.take([0]))
    kinds: tuple[Kind, ...] = ("gradient", "loss", "hessian")
    for kind in kinds:
        with pytest.raises(ValueError, match="have 3 parameters, this model has 6"):
            respond_to(Question(kind, 0, np.zeros((2, 3), np.float32)), task)
    good = Question("gradient", 0, np.zeros((2, 6), np.float32), part=(0, 2))
    assert read_question(good.record())._replace(centres=0) == good._replace(centres=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be read"):
        read_question(RecordDict({}))
    endless = good.record()
    endless["question"] = ConfigRecord({**endless.config_records["question"], "round": float("inf")})
    with pytest.raises(ValueError, match="cannot be read"):
        read_question(endless)
    with pytest.raises(ValueError, match="unknown kind"):
        read_question(good._replace(kind="secret").record())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="finite"):
        read_question(good._replace(centres=np.full((2, 6), np.nan)).record())
    several = client_app(lambda context: tasks.linear_regression(drawn.clients), guarded=False)
    message = Message(good.record(), dst_node_id=1, message_type="train")
    with pytest.raises(ValueError, match="a site is one client"):
        several(message, Context(1, 1, {}, RecordDict(), {}))


def test_an_error_reply_is_one_line() -> None:
    question = Message(Question("size", -1, np.zeros((1, 1))).record(), dst_node_id=1, message_type="train")
    question.metadata.__dict__["_message_id"] = "x"
    answer, fault = read_answer(failing(question, question))
    assert answer.update is None
    assert fault == "the site says: no data"
    raised = Message(
        Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "<class 'ValueError'>:<'rome.csv: no column 'age''>"),
        reply_to=question,
    )
    assert read_answer(raised)[1] == "the site says: ValueError: rome.csv: no column 'age'"
    coloured = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "\x1b[2Jnothing to see"), reply_to=question)
    assert read_answer(coloured)[1] == "the site says: ?[2Jnothing to see"


def test_a_site_answers_with_the_hessian_of_the_simulation(drawn: Federation, rng: np.random.Generator) -> None:
    """At the centre that the label names, in float64 whatever the precision of the data is."""
    assert drawn.clients.targets is not None
    clients = Clients(drawn.clients.features, (drawn.clients.targets > 0).astype(np.float32), drawn.clients.sizes)
    centres = rng.standard_normal((2, 6)).astype(np.float32)
    for build in (tasks.linear_regression, tasks.logistic_regression):
        network = SimulatedNetwork(build(clients), np.zeros(clients.count, np.bool_), None, rng)
        labels = np.arange(clients.count) % 2
        expected = network.hessians(centres, labels)
        for client in (0, 3, 8):
            question = Question("hessian", -1, centres, int(labels[client]))
            site = build(clients.take([client]))
            answer = respond_to(read_question(question.record()), site)
            assert answer.update.dtype == np.float64
            np.testing.assert_allclose(answer.update, expected.updates[client], rtol=1e-12)
            np.testing.assert_allclose(answer.update, site.hessians(centres, labels[[client]])[0], rtol=1e-12)
            assert (answer.round, answer.label, answer.samples) == (-1, 0, 40)
            assert answer.record().array_records["update"]["update"].numpy().shape == (21,)


def test_a_byzantine_site_answers_a_question_for_its_hessian_by_its_attack(drawn: Federation) -> None:
    site = tasks.linear_regression(drawn.clients.take([0]))
    question = Question("hessian", -1, np.zeros((1, 6), np.float32), 0)
    seen = []

    def forge(view: View) -> tuple[np.ndarray, np.ndarray]:
        seen.append(view.question)
        return view.claimed, -view.updates

    honest, false = respond_to(question, site), respond_to(question, site, Attack(as_payload(forge)))
    assert seen == ["hessian"]
    np.testing.assert_array_equal(false.update, -honest.update)
