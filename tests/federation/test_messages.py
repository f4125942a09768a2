"""Questions and answers as messages, and the app of a site that reads and writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from in_process import failing

from coterie._src import tasks
from coterie._src.data import Federation
from coterie._src.federation import Question, apps, client_app
from coterie._src.federation.client import respond_to
from coterie._src.federation.messages import read_answer, read_question


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


def test_named_columns_mean_the_same_at_every_site(tmp_path: Path) -> None:
    """Two sites with the same samples, whose files have their columns in another order."""
    (tmp_path / "oslo.csv").write_text("dose,age,y\n1,2,3\n4,6,5\n")
    (tmp_path / "bern.csv").write_text("site,age,y,dose\nbern,2,3,1\nbern,6,5,4\n")
    (tmp_path / "config.toml").write_text(
        '[problem]\nkind = "folder"\nclusters = 1\ncolumns = ["age", "dose"]\n[algorithm]\nstep = 0.1\n'
    )
    client = apps(tmp_path / "config.toml")[1]
    asked = Question("gradient", 0, np.array([[1.0, -1.0]], np.float32))
    found = []
    for site in ("oslo", "bern"):
        message = Message(asked.record(), dst_node_id=1, message_type="train")
        context = Context(1, 1, {"data": str(tmp_path / f"{site}.csv")}, RecordDict(), {})
        found.append(read_answer(client(message, context))[0].update)
    # errors 2 − 1 − 3 and 6 − 4 − 5: the gradient is (2/2)·(−2·(2, 1) − 3·(6, 4))
    np.testing.assert_allclose(found, [[-22.0, -14.0]] * 2)


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
