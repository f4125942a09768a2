"""An app of sites that misbehave in some rounds, as a broken or hostile site might; `test_processes` runs it."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from coterie._src.federation.messages import read_question
from coterie.federation import apps

PLAN: dict[int, dict[int, tuple[str, str]]] = {
    2: {0: ("raise", "failed"), 1: ("shape", "wrong_shape"), 2: ("type", "wrong_type"), 3: ("nan", "not_finite")},
    3: {
        0: ("cluster", "wrong_label"),
        1: ("no record", "failed"),
        2: ("garbage", "wrong_type"),
        3: ("pickle", "wrong_type"),
    },
    4: {2: ("unsendable", "failed")},
    5: {2: ("hang", "silent")},
}
"""By site and round: what it does, and what the audit must say."""


def with_update(content: RecordDict, update: Array) -> RecordDict:
    """Return the records with another update."""
    return RecordDict({**content, "update": ArrayRecord({"update": update})})


def with_numbers(content: RecordDict, **numbers: int) -> RecordDict:
    """Return the records with other numbers."""
    return RecordDict({**content, "answer": MetricRecord({**content.metric_records["answer"], **numbers})})


FAULTS: dict[str, Callable[[RecordDict, np.ndarray], RecordDict]] = {
    "shape": lambda content, row: with_update(content, Array(row[:-1])),
    "type": lambda content, row: with_update(content, Array(row.astype(np.int64))),
    "nan": lambda content, row: with_update(content, Array(row * np.nan)),
    "garbage": lambda content, row: with_update(
        content, Array("float32", row.shape, "numpy.ndarray", b"\x93NUMPY garbage")
    ),
    "pickle": lambda content, row: with_update(content, Array("object", (1,), "numpy.ndarray", b"\x80\x04K\x01.")),
    "cluster": lambda content, row: with_numbers(content, label=2),
    "unsendable": lambda content, row: with_numbers(content, samples=2**64),
    "no record": lambda content, row: RecordDict({}),
}

client = ClientApp()


@client.train()
def answer(message: Message, context: Context) -> Message:
    """The honest answer, or what the plan says."""
    honest = apps(Path(str(context.node_config["models"])).with_name("config.toml"))[1]
    reply = honest(message, context)
    round = read_question(message.content).round
    fault, _ = PLAN.get(int(context.node_config["partition-id"]), {}).get(round, ("", ""))
    if fault == "raise":
        raise RuntimeError("no data today")
    if fault == "hang":
        Path(os.environ["HANGING"]).touch()
        time.sleep(600)
    if fault:
        row = reply.content.array_records["update"]["update"].numpy()
        return Message(FAULTS[fault](reply.content, row), reply_to=message)
    return reply
