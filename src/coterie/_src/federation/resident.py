"""A resident site: one process, installed at the site, that answers a server's questions until it is told to stop.

It runs the app that is installed at the site, on data that it has read once, under the site's own policy. Why it speaks
the server's Fleet API itself, rather than stand behind Flower's SuperNode with process isolation: a SuperNode downloads
the app that the server ships and reads it, asks for questions every 3 s, gives up for good on a refused key, and is a
second process to watch, with a port and tokens of its own. Both ways use interfaces that Flower does not document; this
one uses fewer (`flower`).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any, Literal

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from coterie._src.experiments.run_folder import write_atomically
from coterie._src.federation.fleet import (
    HEARTBEAT_SECONDS,
    FleetConnection,
    FleetError,
    NotAdmittedError,
    QuestionError,
    RunEndedError,
    UnsendableError,
)
from coterie._src.federation.flower import log
from coterie._src.federation.messages import SITE_ERROR, first_line, refusal_record

STATUS = "status.json"
"""The file by which a site shows that it lives, in its folder."""
STATUS_SECONDS, MAX_STATUS_AGE = 5.0, 30.0
"""How often the file is written, and how old it may be for a site that lives."""
MIN_PAUSE, MAX_PAUSE, PAUSE_GROWTH = 0.05, 3.0, 1.3
"""Seconds between two looks for questions: after a question, and at most, as Flower; each by this factor longer."""
SHARE = 0.25
"""Of the time a site may keep its server busy with looks for questions, so that a slow server has fewer of them."""
MIN_BACKOFF, MAX_BACKOFF = 1.0, 30.0
REPEAT_SECONDS = 600.0
"""After which a fault that lasts is told again."""
STUCK = 70
"""The exit code of a process that has not finished an answer in time; its supervisor starts it again."""

State = Literal["connected", "answering", "waiting", "stopped"]


class Stopped(BaseException):
    """SIGTERM or SIGINT came."""


class Resident:
    """A site that answers questions.

    Parameters
    ----------
    connection
        The connection to the server.
    app
        The app that answers.
    node_config, run_config
        What the app finds in its context. Nothing of it comes from the server.
    folder
        Where `status.json` is written.
    longest_answer
        Seconds after which an answer that is not finished ends the process, with exit code 70.
    """

    def __init__(
        self,
        connection: FleetConnection,
        app: ClientApp,
        node_config: dict[str, Any],
        run_config: dict[str, Any],
        folder: Path,
        longest_answer: float = 3600.0,
    ) -> None:
        self.connection, self.app, self.folder = connection, app, folder
        self.node_config, self.run_config, self.longest_answer = node_config, run_config, longest_answer
        self.answered = 0
        self._state: State = "waiting"
        self._line = ""
        self._told: tuple[str, float] = ("", 0.0)
        self._alive = time.monotonic()
        self._ended = threading.Event()

    def run(self) -> None:
        """Answer questions until SIGTERM or SIGINT, and take leave of the server."""
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        threads = [threading.Thread(target=work, daemon=True) for work in (self._keep_admission, self._watch)]
        try:
            self._show("waiting")
            for thread in threads:
                thread.start()
            self._answer_for_ever()
        except Stopped:
            log(INFO, "the site has stopped")
        finally:
            for number in before:
                signal.signal(number, signal.SIG_DFL)  # a second signal ends it at once
            self._ended.set()
            self.connection.close()
            self._show("stopped")

    def _stop(self, *_: object) -> None:
        raise Stopped

    def _answer_for_ever(self) -> None:
        pause, backoff = MIN_PAUSE, MIN_BACKOFF
        while True:
            began = time.monotonic()
            try:
                self.connection.admit()
                asked, backoff = self.answer_next(), MIN_BACKOFF
            except FleetError as error:
                self._tell(error)
                self._sleep(backoff * random.uniform(0.5, 1.0))
                backoff = min(2 * backoff, MAX_BACKOFF)
                continue
            if asked:
                pause = MIN_PAUSE
                continue
            self._sleep(max(pause, (time.monotonic() - began) / SHARE) * random.uniform(0.8, 1.2))
            pause = min(pause * PAUSE_GROWTH, MAX_PAUSE)

    def answer_next(self) -> bool:
        """Answer the next question, and return whether there was one."""
        try:
            question = self.connection.pull()
        except RunEndedError:
            return True
        except QuestionError as error:
            log(WARNING, "refused a question of the server: %s", error)
            with contextlib.suppress(RunEndedError):
                self.connection.push(Message(refusal_record("malformed"), reply_to=error.header))
            return True
        if self._state != "connected":
            self._tell_connected()
        if question is None:
            return False
        self._reply(question)
        return True

    def _reply(self, question: Message) -> None:
        self._show("answering")
        reply = self.answer(question)
        self.answered += 1
        try:
            self.connection.push(reply)
        except RunEndedError:
            pass
        except UnsendableError as error:
            log(WARNING, "the app's reply cannot be sent: %s", error)
            self.connection.push(Message(refusal_record(SITE_ERROR), reply_to=question))
        self._show("connected")

    def answer(self, question: Message) -> Message:
        """Return the installed app's reply. What it raises stays at the site: the server is told a code."""
        run, node = question.metadata.run_id, self.connection.node_id
        try:
            reply = self.app(question, Context(run, node, self.node_config, RecordDict(), self.run_config))
            if reply.has_content():
                return reply
            error: object = reply.error.reason
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        log(WARNING, "the app could not answer a question of the server: %s", first_line(error))
        return Message(refusal_record(SITE_ERROR), reply_to=question)

    def _sleep(self, seconds: float) -> None:
        self._alive = time.monotonic() + seconds
        time.sleep(seconds)  # a signal ends it

    def _tell(self, error: FleetError) -> None:
        """Log a fault, once until it is another one or a while has passed."""
        line, now = str(error), time.monotonic()
        self._show("waiting", line)
        kind = type(error).__name__ if isinstance(error, NotAdmittedError) else line
        if kind != self._told[0] or now > self._told[1] + REPEAT_SECONDS:
            self._told = kind, now
            log(ERROR, "%s; trying again", line)

    def _tell_connected(self) -> None:
        self._show("connected")
        server = self.connection.identity.server
        if self._told[0] != "connected":
            log(INFO, "connected to %s as node %s", server, self.connection.node_id)
            skew = self.connection.skew
            if skew is not None and not -60.0 < skew < 3.0:  # not refused yet
                log(WARNING, "this machine's clock and that of %s differ by %.0f s; set the clocks", server, abs(skew))
        self._told = "connected", time.monotonic()

    def _show(self, state: State, line: str = "") -> None:
        """Write the state down; nothing depends on it."""
        self._state, self._line, self._alive = state, line, time.monotonic()
        if state != "answering":
            self._write()

    def _write(self) -> None:
        node = 0 if self._state == "stopped" else self.connection.node_id
        found = {"time": time.time(), "state": self._state, "line": self._line, "answered": self.answered, "node": node}
        with contextlib.suppress(OSError):
            write_atomically(self.folder / STATUS, f"{json.dumps(found)}\n".encode(), durable=False)

    def _keep_admission(self) -> None:
        """Tell the server that the site is alive, also while it computes."""
        self.connection.tell_alive()
        while not self._ended.wait(HEARTBEAT_SECONDS * random.uniform(0.6, 0.8)):
            self.connection.tell_alive()

    def _watch(self) -> None:
        """Show that the site lives, and end a process that is stuck."""
        while not self._ended.wait(min(STATUS_SECONDS, self.longest_answer)):
            if time.monotonic() > self._alive + self.longest_answer:
                log(ERROR, "no answer in %.0f s; the process ends, to be started again", self.longest_answer)
                os._exit(STUCK)
            self._write()


def earlier_node(folder: Path) -> int:
    """Return the number by which the server knew the process before this one, which did not take leave; 0 for none."""
    try:
        found = json.loads((folder / STATUS).read_bytes())["node"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return found if isinstance(found, int) and 0 < found < 2**64 else 0


def read_status(folder: Path) -> tuple[str, bool]:
    """Return what a site's folder says about its process, in one line, and whether it lives."""
    try:
        found = json.loads((folder / STATUS).read_bytes())
        age, state = time.time() - float(found["time"]), str(found["state"])
        line, answered = str(found["line"]), int(found["answered"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"{folder}: no site has been started here", False
    said = f"{state}{f' ({line})' if line else ''}, {answered} questions answered"
    if state == "stopped" or not -MAX_STATUS_AGE < age < MAX_STATUS_AGE:
        return f"not running; {age:.0f} s ago: {said}", False
    return said, True
