"""A site under its policy: every question is judged, written down, and answered or refused. Nothing raises."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.random import Generator, default_rng

from coterie._src.federation.flower import log
from coterie._src.federation.messages import OWN_CHOICE, SITE_ERROR, Answer, Question, refusal_record
from coterie._src.federation.privacy import released
from coterie._src.federation.site import Site
from coterie._src.federation.site_log import ANSWERED, SiteLog
from coterie._src.federation.site_policy import REFUSALS, SiteFacts, SitePolicy, judge
from coterie._src.federation.site_reports import Report, Request

Reply = tuple[RecordDict, int, float]
"""What leaves: the records, how many numbers they have, and the norm of these."""


@dataclass(frozen=True)
class Guard:
    """A policy and the log that it is judged by.

    Parameters
    ----------
    policy
        The site's rules.
    log
        Where the questions are written down.
    """

    policy: SitePolicy
    log: SiteLog

    def reply(
        self,
        read: Callable[[], Question | Request],
        load: Callable[[], Site],
        respond: Callable[[Question | Request, Site], Reply],
        run: str,
    ) -> RecordDict:
        """Return the answer to a question, or the refusal, in which the server is told a code and nothing else.

        Parameters
        ----------
        read
            Returns the question.
        load
            Returns the site's data.
        respond
            Computes the answer.
        run
            The run of the server.
        """
        question: Question | Request | None = None
        number, now, code, detail = 0, time.time(), "malformed", ""
        try:
            question = read()
            code = SITE_ERROR
            site = load()
            facts = facts_of(site)
            with self.log.locked() as connection:
                history = self.log.history(connection, run, facts.rows, now)
                refusal = judge(self.policy, question, facts, history)
                number = self.log.add(
                    connection, question, facts, run=run, now=now, code=refusal or ANSWERED,
                    cost=0.0 if refusal else self.policy.cost(question),
                )  # fmt: skip
            if refusal is not None:
                log(WARNING, "refused a question of the server: %s", REFUSALS[refusal])
                return refusal_record(refusal)
            record, numbers, norm = respond(question, site)
            self.log.update(number, numbers=numbers, norm=norm if math.isfinite(norm) else None)
            return record
        except Exception as error:  # whatever it is, its text may quote the data, and stays at the site
            detail = f"{type(error).__name__}: {error}"
        self._note_failure(question, number, run, now, code, detail)
        return refusal_record(code)

    def _note_failure(
        self, question: Question | Request | None, number: int, run: str, now: float, code: str, detail: str
    ) -> None:
        """Write an error down; nothing has left, but an answer that was begun counts as one."""
        log(WARNING, "refused a question of the server: %s (%s)", REFUSALS[code], detail)
        try:
            if number:
                self.log.update(number, detail=f"failed: {detail}"[:500])
                return
            with self.log.locked() as connection:
                self.log.add(connection, question, None, run=run, now=now, code=code, detail=detail)
        except Exception as error:  # the log itself may be what fails
            log(WARNING, "the site's log cannot be written: %s", error)


def facts_of(site: Site) -> SiteFacts:
    """Return what the rules need to know about a site's data."""
    clients = site.task.clients
    return SiteFacts(int(clients.sizes[0]), site.fingerprint, site.task.dim)


def private_answer(
    policy: SitePolicy, question: Question, respond: Callable[[Question], Answer], rng: Generator | None = None
) -> Answer:
    """Return an answer as the policy lets it leave: with a clipped norm, and with noise on all of it.

    With noise the client chooses its cluster by noisy losses, and neither its loss nor its margin leaves. The number of
    samples is told as it is.

    Parameters
    ----------
    policy
        The site's rules.
    question
        The question.
    respond
        The honest answer.
    rng
        The source of the noise; None: from the operating system, so that nobody can repeat it.
    """
    rng = default_rng() if rng is None else rng
    if policy.clip is None or question.kind == "size":
        return respond(question)
    if policy.noise is None:
        answer = respond(question)
    else:
        if question.kind == "gradient" and question.label == OWN_CHOICE:
            label = 0
            if len(question.centres) > 1:
                losses = respond(question._replace(kind="loss", computing=False)).update
                label = int(np.argmin(released(losses, policy.clip, policy.noise, rng)))
            question = question._replace(label=label)
        answer = respond(question)._replace(loss=None, margin=None)
    update = released(answer.update, policy.clip, policy.noise, rng).astype(answer.update.dtype)
    return answer._replace(update=update)


def answer_reply(answer: Answer) -> Reply:
    """Return what leaves with an answer."""
    return answer.record(), int(np.size(answer.update)), _norm(answer.update)


def report_reply(report: Report) -> Reply:
    """Return what leaves with a report."""
    numbers = np.array(list(report.numbers().values()), dtype=np.float64)
    return report.record(), len(numbers), _norm(numbers)


def _norm(values: Any) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.linalg.norm(np.asarray(values, dtype=np.float64)))
