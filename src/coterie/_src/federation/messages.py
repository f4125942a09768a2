"""What goes over the wire: a question with the centres to every site, an answer with one row back.

Both are plain records of Flower. Whatever comes back is untrusted: reading an answer never raises, and what cannot be
read is left as None, for `intake` to refuse by name.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from coterie._src.attacks.base import Question as Kind

TYPE = "train"
"""Flower's type of all messages; a site must not need to know more kinds of them than one."""
KINDS: tuple[Kind, ...] = ("gradient", "minimiser", "loss", "curvature", "size")
NOTHING = -1


class Question(NamedTuple):
    """What the server asks, see `coterie.algorithms.Network`; the methods there are the kinds here."""

    kind: Kind
    round: int
    centres: NDArray[Any]  # (k, d); where none are asked about, an example of their kind
    label: int = NOTHING  # the cluster to answer for; NOTHING: the client's own choice
    part: tuple[int, int] | None = None
    computing: bool = False
    ridge: float = 0.0

    def record(self) -> RecordDict:
        """As Flower sends it."""
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
    """The question of a message; a ValueError says what is wrong with it (a site need not trust its server)."""
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
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"question: cannot be read ({type(error).__name__}: {error})") from None
    if found.kind not in KINDS:
        raise ValueError(f"question: unknown kind {found.kind!r}")
    if found.centres.ndim != 2 or found.centres.dtype.kind != "f" or not np.isfinite(found.centres).all():
        raise ValueError(f"question: centres must be a table of finite numbers, got shape {found.centres.shape}")
    return found


class Answer(NamedTuple):
    """What a site sends back. loss, margin: at the best centre, and how much worse the second is; for the audit."""

    round: Any
    label: Any
    update: Any  # (d,)
    samples: Any = None
    loss: Any = None
    margin: Any = None

    def record(self) -> RecordDict:
        """As Flower sends it."""
        numbers = {"round": int(self.round), "label": int(self.label), "samples": int(self.samples or 0)}
        metrics = {"loss": float(self.loss), "margin": float(self.margin)} if self.loss is not None else {}
        row = ArrayRecord({"update": Array(np.ascontiguousarray(self.update))})
        return RecordDict({"update": row, "answer": MetricRecord({**numbers, **metrics})})


FLOWER_ERROR = re.compile(r"^<class '(?:\w+\.)*(\w+)'>:<'(.*)'>$", re.DOTALL)
"""How Flower tells what an app has raised."""


def read_answer(reply: Message) -> tuple[Answer, str]:
    """The answer of a reply as far as it can be read, and what was wrong with it ("" for nothing)."""
    if reply.has_error():
        return Answer(None, None, None), f"the site says: {_first_line(reply.error.reason)}"
    round, label, samples, loss, margin = None, None, None, None, None
    fault = ""
    try:
        numbers = reply.content.metric_records["answer"]
        round, label, samples, loss, margin = (
            numbers.get(name) for name in ("round", "label", "samples", "loss", "margin")
        )
    except Exception as error:  # a record that was made to raise
        fault = f"no numbers ({type(error).__name__})"
    update = None
    try:
        update = reply.content.array_records["update"]["update"].numpy()
    except Exception as error:
        fault = fault or f"no update ({type(error).__name__})"
    return Answer(round, label, update, samples, loss, margin), fault


def _first_line(text: Any) -> str:
    told = FLOWER_ERROR.sub(r"\1: \2", str(text or "unknown reason").strip())
    lines = told.splitlines()
    # it ends up in terminals and logs, and a site may send what those obey
    return "".join(c if c.isprintable() else "?" for c in lines[0][:200]) if lines else "unknown reason"
