"""A snapshot in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from coterie import __version__
from coterie._src.report.html.markup import NEVER
from coterie._src.watch.snapshot import STATES, Rounds, Snapshot

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = dict[str, str]


class Metric(NamedTuple):
    """A gauge with its samples. name: with its unit, without the prefix `coterie_`."""

    name: str
    help: str
    samples: Sequence[tuple[Labels, float]]


def metrics(snapshot: Snapshot) -> str:
    """The page that Prometheus reads; a metric without a sample is left out."""
    lines = []
    for name, meaning, samples in _metrics(snapshot):
        if samples:
            lines += [f"# HELP coterie_{name} {_escaped(meaning)}", f"# TYPE coterie_{name} gauge"]
            lines += [f"coterie_{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
    return "\n".join([*lines, ""])


def _metrics(snapshot: Snapshot) -> Iterable[Metric]:
    trials = [bar for bar in snapshot.bars if bar.name == "trials"]
    yield Metric(
        "info", "What is watched, and by which version.", [({"kind": snapshot.kind, "version": __version__}, 1.0)]
    )
    yield Metric("state", "1 for the state it is in.", [({"state": s}, float(s == snapshot.state)) for s in STATES])
    yield Metric(
        "last_update_timestamp_seconds",
        "When the last news was written, as a Unix time.",
        [] if snapshot.updated is None else [({}, snapshot.updated)],
    )
    yield Metric(
        "remaining_seconds",
        "The time left, by the rate so far.",
        [] if snapshot.left is None else [({}, snapshot.left)],
    )
    yield Metric("trials", "Trials in all.", [({}, float(bar.total)) for bar in trials])
    yield Metric("finished_trials", "Trials that are finished.", [({}, float(bar.done)) for bar in trials])
    each = [(_place(rounds), rounds) for rounds in snapshot.rounds]
    yield Metric("finished_rounds", "Finished rounds of a trial under way.", [(at, one.round) for at, one in each])
    yield Metric("max_rounds", "Rounds of a trial under way, at most.", [(at, one.rounds) for at, one in each])
    yield Metric(
        "replies",
        "Clients by what became of their reply in the last round.",
        [
            ({**at, "verdict": verdict}, float(count))
            for at, one in each
            for verdict, count in (one.replies or {}).items()
        ],
    )
    clusters = [({**at, "cluster": str(j)}, cluster) for at, one in each for j, cluster in enumerate(one.clusters)]
    yield Metric(
        "cluster_clients",
        "Accepted replies per cluster in the last round.",
        [(at, float(cluster.size)) for at, cluster in clusters],
    )
    yield Metric(
        "cluster_loss",
        "Median loss of the clients in a cluster in the last round.",
        [(at, cluster.loss) for at, cluster in clusters if cluster.loss is not None],
    )
    yield Metric(
        "centre_movement",
        "The largest move of a centre in the last round.",
        [(at, one.movement) for at, one in each if one.movement is not None],
    )
    for share in ("refused", "silent", "trimmed"):
        meaning = {
            "refused": "Share of the rounds in which a client's reply was refused",
            "silent": "Share of the rounds without a reply of a client",
            "trimmed": "Share of a client's coordinates that were among the outermost of its cluster",
        }[share]
        named = {_clean(one.client): float(getattr(one, share)) for one in reversed(snapshot.suspects)}
        yield Metric(
            f"client_{share}_ratio",
            f"{meaning}; of the clients that stand out most.",
            [({"client": client}, value) for client, value in named.items()],
        )


def _place(rounds: Rounds) -> Labels:
    """Of a trial: in a sweep several processes may run the same one of different configurations."""
    if rounds.trial is None:
        return {}
    return {"trial": str(rounds.trial), "method": rounds.method, "process": str(rounds.process)}


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    written = (f'{name}="{_escaped(value).replace(chr(34), chr(92) + chr(34))}"' for name, value in labels.items())
    return "{" + ",".join(written) + "}"


def _escaped(text: str) -> str:
    return _clean(text).replace("\\", "\\\\").replace("\n", "\\n")


def _clean(text: str) -> str:
    """A text without characters that control a terminal."""
    return NEVER.sub("\ufffd", text.replace("\t", "\ufffd").replace("\r", "\ufffd"))


def _number(value: float) -> str:
    """A number as Prometheus reads it.

    >>> _number(3.0), _number(0.5), _number(float("-inf")), _number(float("nan"))
    ('3', '0.5', '-Inf', 'NaN')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value)).removesuffix(".0")
