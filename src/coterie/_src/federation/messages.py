"""The messages of a round: a question with the centres goes to every site, an answer with one update comes back.

Both are plain records of Flower. An answer is untrusted: reading one never raises, and a field that cannot be read is
None, which `intake` refuses and names.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from coterie._src.attacks.base import Question as Kind
from coterie._src.experiments.printable import printable
from coterie._src.federation.audit import DECLINED

TYPE = "train"
"""Flower's type of all questions."""
KINDS: tuple[Kind, ...] = ("gradient", "minimiser", "loss", "curvature", "size", "hessian")
OWN_CHOICE = -1
"""In place of a cluster: the client answers for the cluster that fits its data best."""


class Question(NamedTuple):
    """A question of the server; its kinds are the methods of `Network` in `algorithms`."""

    kind: Kind
    round: int
    centres: NDArray[Any]  # (k, d); where the question is not about centres, an array of their type
    label: int = OWN_CHOICE  # the cluster to answer for
    part: tuple[int, int] | None = None  # (i, n): the i-th of n parts of the samples
    computing: bool = False
    ridge: float = 0.0

    def record(self) -> RecordDict:
        """Return the records that Flower sends."""
        settings: dict[str, Any] = {
            "kind": self.kind,
            "round": self.round,
            "label": self.label,
            "part": list(self.part or ()),
            "computing": self.computing,
            "ridge": self.ridge,
        }
        centres = ArrayRecord({"centres": Array(np.ascontiguousarray(self.centres))})
        return RecordDict({"centres": centres, "question": ConfigRecord(settings)})


def read_question(content: RecordDict) -> Question:
    """Return the question of a message; an invalid one is a ValueError, as a site need not trust its server."""
    try:
        settings: dict[str, Any] = dict(content.config_records["question"])
        centres, part = content.array_records["centres"]["centres"].numpy(), settings["part"]
        found = Question(
            settings["kind"],
            int(settings["round"]),
            centres,
            int(settings["label"]),
            (int(part[0]), int(part[1])) if len(part) else None,
            bool(settings["computing"]),
            float(settings["ridge"]),
        )
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise ValueError(f"question: cannot be read ({type(error).__name__}: {error})") from None
    if found.kind not in KINDS:
        raise ValueError(f"question: unknown kind {found.kind!r}")
    finite_table("question: centres", found.centres)
    return found


def finite_table(name: str, values: NDArray[Any]) -> None:
    """Raise a ValueError unless the values are a table of finite numbers."""
    if values.ndim != 2 or values.dtype.kind != "f" or not np.isfinite(values).all():
        raise ValueError(f"{name} must be a table of finite numbers, got shape {values.shape}")


class Answer(NamedTuple):
    """The answer of a site.

    For the audit: `loss` at the best centre, and `margin`, by which the loss at the second best centre is larger.
    """

    round: Any
    label: Any
    update: Any  # (d,)
    samples: Any = None
    loss: Any = None
    margin: Any = None

    def record(self) -> RecordDict:
        """Return the records that Flower sends."""
        numbers = {"round": int(self.round), "label": int(self.label), "samples": int(self.samples or 0)}
        metrics = {"loss": float(self.loss), "margin": float(self.margin)} if self.loss is not None else {}
        row = ArrayRecord({"update": Array(np.ascontiguousarray(self.update))})
        return RecordDict({"update": row, "answer": MetricRecord({**numbers, **metrics})})


NUMBERS = ("round", "label", "samples", "loss", "margin")
FLOWER_ERROR = re.compile(r"^<class '(?:\w+\.)*(\w+)'>:<'(.*)'>$", re.DOTALL)
"""How Flower writes an exception that an app raised."""
CODE = re.compile(r"^[a-z_]{1,40}$")
"""The form of the code of a refusal."""


SITE_ERROR = "site_error"
"""The code of a refusal for no rule: the site could not compute an answer."""


def refusal_record(code: str) -> RecordDict:
    """Return the records of a site that refuses a question; the code is one of `site_policy.REFUSALS`."""
    return RecordDict({"refusal": ConfigRecord({"code": code})})


def read_refusal(reply: Message) -> str:
    """Return what the server is told about a refused question; empty for a reply that is none."""
    try:
        code = reply.content.config_records["refusal"]["code"]
    except Exception:  # a hostile record may raise anything
        return ""
    if code == SITE_ERROR:
        return "the site says: site error (its own log has the reason)"
    return DECLINED + (code.replace("_", " ") if isinstance(code, str) and CODE.match(code) else "for no known reason")


def read_answer(reply: Message) -> tuple[Answer, str]:
    """Return the answer of a reply as far as it can be read, and what was wrong with it (empty for nothing)."""
    if reply.has_error():
        return Answer(None, None, None), f"the site says: {first_line(reply.error.reason)}"
    answer, fault = Answer(None, None, None), read_refusal(reply)
    if fault:
        return answer, fault
    try:
        numbers = reply.content.metric_records["answer"]
        answer = Answer(update=None, **{name: numbers.get(name) for name in NUMBERS})
    except Exception as error:  # a hostile record may raise anything
        fault = f"no numbers ({type(error).__name__})"
    try:
        answer = answer._replace(update=reply.content.array_records["update"]["update"].numpy())
    except Exception as error:
        fault = fault or f"no update ({type(error).__name__})"
    return answer, fault


def first_line(text: Any) -> str:
    """Return the first line of what a site says, without the form in which Flower sends it."""
    lines = FLOWER_ERROR.sub(r"\1: \2", str(text or "unknown reason").strip()).splitlines()
    return printable(lines[0]) if lines else "unknown reason"
