"""The audit of a federation: a row per client and round, and what the rows say about a client. Evidence, no verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie._src.aggregators import median
from coterie._src.algorithms import RoundInfo
from coterie._src.arrays import Floats
from coterie._src.federation.server_folder import names_of_nodes, server_of
from coterie._src.intake import Verdict

if TYPE_CHECKING:
    from coterie._src.federation.network import FlowerNetwork

DECLINED = "the site declines: "
"""How the fault of a refusal by a rule of the site begins."""
MAX_COORDINATES = 1 << 16
"""About how many coordinates of an update a distance is computed from."""
FAR = 2.0
"""A distance from the cluster's median, in median distances, that an honest client rarely has round after round."""
MIN_COMPARED = 3
"""Clients that a cluster must have for one of them to stand out."""
OFTEN = 0.2
"""A fraction of the rounds that is no accident."""

NO_FAULT = ("accepted", "silent", "declined", "blocked")
"""Verdicts that say nothing against a client; one that declines has rules of its own (`site_policy`), one that is
blocked was not asked."""

Row = dict[str, Any]


class ClientAudit(NamedTuple):
    """What the audit says about one client over all rounds."""

    client: int
    node: str
    rounds: int
    distance: float  # its median distance to the cluster's median update, in median distances; NaN: never accepted
    trimmed_fraction: float  # of its coordinates, those among the outermost of its cluster, on average
    refused_fraction: float  # of the rounds, those in which it answered and was refused
    silent_fraction: float  # of the rounds, those without an answer
    cluster_changes: int
    cluster: int  # in which it was last; -1: none yet
    reasons: tuple[str, ...]  # why it stands out; empty: it does not

    @property
    def score(self) -> float:
        """How much the client stands out: its distance, with refused clients before all others."""
        return (0.0 if np.isnan(self.distance) else self.distance) + 100.0 * self.refused_fraction


def audit_clients(rows: Iterable[Row]) -> list[ClientAudit]:
    """Return what the rows say about every client, those first that stand out most.

    >>> usual = {"node": "n", "verdict": "accepted", "label": 0, "trimmed": 0.1, "fault": ""}
    >>> rows = [{**usual, "client": c, "distance": 9.0 if c == 2 else 1.0} for _ in range(3) for c in range(4)]
    >>> [(found.client, found.reasons) for found in audit_clients(rows)][:2]
    [(2, ("its update is 9.0 times as far from its cluster's median as that of the median client",)), (0, ())]
    """
    rows_of: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        rows_of[row["client"]].append(row)
    return sorted((_audit_client(own) for own in rows_of.values()), key=lambda one: (-one.score, one.client))


def suspects(rows: Iterable[Row]) -> list[ClientAudit]:
    """Return the clients that stand out by what they have sent, and are not blocked.

    That is, whose replies are refused in more than OFTEN of the rounds, or are FAR from their cluster's.
    """
    rows = list(rows)
    last = {row["client"]: row["verdict"] for row in rows}
    return [
        one
        for one in audit_clients(rows)
        if (one.refused_fraction > OFTEN or one.distance > FAR) and last[one.client] != "blocked"
    ]


def _audit_client(own: Sequence[Row]) -> ClientAudit:
    rounds = len(own)
    distances = [row["distance"] for row in own if row["distance"] is not None]
    trimmed = [row["trimmed"] for row in own if row["trimmed"] is not None]
    labels = [row["label"] for row in own if row["label"] is not None and row["label"] >= 0]
    found = ClientAudit(
        client=own[0]["client"],
        node=own[-1]["node"],
        rounds=rounds,
        distance=float(np.median(distances)) if distances else float("nan"),
        trimmed_fraction=float(np.mean(trimmed)) if trimmed else 0.0,
        refused_fraction=sum(row["verdict"] not in NO_FAULT for row in own) / rounds,
        silent_fraction=sum(row["verdict"] == "silent" for row in own) / rounds,
        cluster_changes=sum(a != b for a, b in pairwise(labels)),
        cluster=labels[-1] if labels else -1,
        reasons=(),
    )
    return found._replace(reasons=tuple(_reasons(found, own)))


def _reasons(found: ClientAudit, own: Sequence[Row]) -> Iterable[str]:
    if found.refused_fraction:
        refused = [row for row in own if row["verdict"] not in NO_FAULT]
        verdicts = sorted({row["verdict"].replace("_", " ") for row in refused})
        faults = sorted({row["fault"] for row in refused if row["fault"]})
        yield f"refused in {found.refused_fraction:.0%} of the rounds ({', '.join(verdicts + faults)})"
    if declined := [row["fault"] for row in own if row["verdict"] == "declined"]:
        yield f"declined to answer in {len(declined) / len(own):.0%} of the rounds ({', '.join(sorted(set(declined)))})"
    if blocked := [row["fault"] for row in own if row["verdict"] == "blocked"]:
        yield f"blocked by the operator in {len(blocked) / len(own):.0%} of the rounds ({blocked[-1]})"
    if found.distance > FAR:
        yield (
            f"its update is {found.distance:.1f} times as far from its cluster's median as that of the median client"
        )
    if found.silent_fraction > OFTEN:
        yield f"silent in {found.silent_fraction:.0%} of the rounds"
    if found.rounds >= 5 and found.cluster_changes > OFTEN * found.rounds:
        yield f"changed its cluster {found.cluster_changes} times"


def site_names(folder: Path) -> dict[str, str]:
    """Return the names of the sites by their nodes, which the server of a deployment writes to `nodes/*.json`.

    A file that cannot be read is left out.
    """
    return {str(node): site for node, (site, _) in names_of_nodes(server_of(folder)).items()}


def audit_rows(info: RoundInfo, network: FlowerNetwork, round: int) -> list[Row]:
    """Return a row for every client that has a node: its answer, the verdict, and its distance to the others."""
    info = info.whole(network.count)
    away = distances(info, network)
    rows = []
    for client, node in enumerate(network.clients.nodes):
        if node is None:
            continue
        received = network.received.get(client)
        answer = None if received is None else received.answer
        row: Row = {
            "round": round,
            "client": client,
            "node": str(node),  # SQLite has no integers of this size
            "verdict": Verdict(int(info.verdicts[client])).name.lower(),
            "label": int(info.labels[client]),
            "trimmed": None if info.trimmed is None else _none_if_nan(info.trimmed[client]),
            "distance": _none_if_nan(away[client]),
            "seconds": None if received is None else received.seconds,
            "bytes": None if received is None else received.bytes,
            "fault": "" if received is None else received.fault,
        }
        row |= {name: _storable(getattr(answer, name, None)) for name in ("loss", "margin", "samples")}
        if (block := network.participants.blocks.get(node)) is not None and received is None:
            row |= {"verdict": "blocked", "fault": block.reason}
        if answer is not None and answer.round is None and answer.update is None:
            row["verdict"] = "declined" if received is not None and received.fault.startswith(DECLINED) else "failed"
        rows.append(row)
    return rows


def _none_if_nan(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)


def _storable(value: Any) -> Any:
    """The value if it is a finite number that SQLite can store, else None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and np.isfinite(value) and abs(value) < 2**63 else None


def distances(info: RoundInfo, network: FlowerNetwork) -> Floats:
    """Return (m,): the distance of an accepted update to its cluster's median, in median distances; NaN for the rest.

    For very long updates the distance is computed from every s-th coordinate.
    """
    found = np.full(len(info.labels), np.nan)
    for j in np.unique(info.labels[info.labels >= 0]).tolist():
        members = np.flatnonzero(info.labels == j)
        updates = [network.received[client].answer.update for client in members.tolist()]
        stride = max(1, len(updates[0]) // MAX_COORDINATES)
        rows = np.stack([update[::stride] for update in updates])
        away = np.linalg.norm(rows.astype(np.float64) - np.asarray(median(rows), dtype=np.float64), axis=1)
        found[members] = away / max(float(np.median(away)), 1e-300)
    return found
