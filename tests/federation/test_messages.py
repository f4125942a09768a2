"""Questions and answers as messages, and the app of a site that reads and writes them."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from coterie._src import tasks
from coterie._src.data import Federation
from coterie._src.federation import Question, client_app
from coterie._src.federation.client import respond_to
from coterie._src.federation.messages import read_answer, read_question
from in_process import failing


def test_a_site_refuses_questions_that_make_no_sense(drawn: Federation) -> None:
    task = tasks.linear_regression(drawn.clients.take([0]))
    with pytest.raises(ValueError, match="have 3 parameters, this model has 6"):
        respond_to(Question("gradient", 0, np.zeros((2, 3), np.float32)), task)
    good = Question("gradient", 0, np.zeros((2, 6), np.float32), part=(0, 2))
    assert read_question(good.record())._replace(centres=0) == good._replace(centres=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be read"):
        read_question(RecordDict({}))
    with pytest.raises(ValueError, match="unknown kind"):
        read_question(good._replace(kind="secret").record())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="finite"):
        read_question(good._replace(centres=np.full((2, 6), np.nan)).record())
    several = client_app(lambda context: tasks.linear_regression(drawn.clients))
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
