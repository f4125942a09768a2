"""What a site writes reaches no terminal, log, file or page but as one short line of characters that can be shown."""

from __future__ import annotations

import json
import logging
import tempfile
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from coterie._src.data import Federation
from coterie._src.federation.audit import audit_clients
from coterie._src.federation.checkpoint import Checkpoint
from coterie._src.federation.evaluation import evaluate_sites
from coterie._src.federation.page import federation_page
from coterie._src.federation.progress import read_progress
from coterie._src.federation.report import audit_table, evaluation_lines, federation_view
from coterie._src.watch.federated import FederationSource
from hostile import NAMES
from in_process import Fault, InProcessGrid
from small_federation import CLIENTS, app, centres_of, strategy

ANYTHING = st.one_of(
    st.text(max_size=3000),
    st.text(alphabet="\x00\x07\x08\x1b\x7f\x9b\n\r\u2028\u202e\ud800[]<>&\"'{}%31mAB;", max_size=300),
    st.sampled_from(
        [*NAMES, "\x1b]0;owned\x07\x1b[2J\x1b[31m", "x" * 100_000, "[red]x[/]\n" * 50, "\r\nround 9: fine"]
    ),
)
MAX_LENGTH = 320  # of a fault, with the words around what the site said


def saying(text: str, how: int) -> Fault:
    """A reply with a text of the site in one of the places where it may write."""

    def fault(question: Message, honest: Message) -> Message:
        plain = text.encode("utf-8", "replace").decode()  # what a message can carry
        content = {
            0: {"refusal": ConfigRecord({"code": plain})},
            1: {plain[:200] or "x": MetricRecord({"label": 1.0})},
            2: {"answer": MetricRecord({plain or "x": 1.0}), "report": MetricRecord({plain or "x": 1.0})},
            3: {"refusal": ConfigRecord({"code": [plain]})},
        }.get(how)
        if content is None:
            reason = text if how == 4 else f"<class '{text}'>:<'{text}'>"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=question)
        reply = Message(RecordDict(content), reply_to=question)  # type: ignore[arg-type]
        reply.metadata.__dict__["_src_node_id"] = question.metadata.dst_node_id
        return reply

    return fault


def showable(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="flwr")
    return caplog


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@example(texts=["x" * 100_000] * 6)
@example(texts=["\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"] * 6)
@example(texts=["<script>window.hacked = 1</script>[red]"] * 6)
@given(texts=st.lists(ANYTHING, min_size=6, max_size=6))
def test_hostile_text_is_shown_as_one_short_line(
    texts: list[str], drawn: Federation, start: np.ndarray, told: pytest.LogCaptureFixture
) -> None:
    told.clear()
    faults = {node: saying(text, node) for node, text in enumerate(texts)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "federation"
        grid = InProcessGrid(app(drawn), range(CLIENTS), faults)
        centres = centres_of(grid, start, strategy(rounds=1, folder=folder, deadline=5.0))
        evaluation = evaluate_sites(grid, centres, folder=folder, max_clients=CLIENTS, deadline=5.0)
        rows = Checkpoint(folder).rows()
        found = read_progress(folder)
        assert found is not None
        console = Console(width=200, no_color=True, force_terminal=False)
        with console.capture() as captured:
            console.print(audit_table(audit_clients(rows), {}))
            console.print(federation_view(*found))
        snapshot = FederationSource(folder).read()
        reasons = [one.reason for rounds in snapshot.rounds for one in rounds.refused]
        for line in [*found[0].faults, *evaluation.refused.values(), *reasons, *(row["fault"] for row in rows)]:
            assert showable(line)
            assert "\n" not in line
            assert len(line) <= MAX_LENGTH
        shown = [captured.get(), *evaluation_lines(evaluation), *(record.getMessage() for record in told.records)]
        assert all(map(showable, shown))
        assert all(showable(json.dumps(row, ensure_ascii=False)) for row in evaluation.rows())
        page = federation_page(folder)
        assert page.count("<script") == 1  # its own
        assert "\x1b" not in page


def test_an_untamed_text_would_be_noticed() -> None:
    assert not showable("\x1b[2J")
    assert not showable("\u202e")
