"""Who is worth a look, from the audit of a federation: evidence, not a verdict."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FAR = 2.0
"""Median distances from the cluster's median that an honest client rarely stands away, round after round."""
OFTEN = 0.2
"""A share of the rounds that is no accident."""


class Suspicion(NamedTuple):
    """What the audit says about one client over all rounds."""

    client: int
    node: str
    rounds: int
    distance: float  # its median distance to the cluster's median update, in median distances; NaN: never accepted
    trimmed: float  # its mean share of coordinates among the outermost of its cluster
    refused: float  # the share of the rounds in which it answered and was refused
    silent: float  # the share of the rounds without an answer
    changed: int  # how often it went to another cluster
    cluster: int  # where it was counted last; -1: nowhere yet
    reasons: tuple[str, ...]  # empty: nothing stands out

    @property
    def score(self) -> float:
        """For an order: how far out it stands, beyond all others where it was refused."""
        return (0.0 if np.isnan(self.distance) else self.distance) + 100.0 * self.refused


def suspicions(rows: Sequence[dict[str, Any]]) -> list[Suspicion]:
    """All clients, those first that stand out most.

    >>> usual = {"node": "n", "verdict": "accepted", "label": 0, "trimmed": 0.1, "fault": ""}
    >>> rows = [{**usual, "client": c, "distance": 9.0 if c == 2 else 1.0} for _ in range(3) for c in range(4)]
    >>> [(found.client, found.reasons) for found in suspicions(rows)][:2]
    [(2, ('stands 9.0 times as far out as the median client of its cluster',)), (0, ())]
    """
    found = [_judged([row for row in rows if row["client"] == client]) for client in {row["client"] for row in rows}]
    return sorted(found, key=lambda one: (-one.score, one.client))


def _judged(own: Sequence[dict[str, Any]]) -> Suspicion:
    rounds = len(own)
    away = [row["distance"] for row in own if row["distance"] is not None]
    trimmed = [row["trimmed"] for row in own if row["trimmed"] is not None]
    silent = sum(row["verdict"] == "silent" for row in own) / rounds
    refused = sum(row["verdict"] not in ("silent", "accepted") for row in own) / rounds
    labels = [row["label"] for row in own if row["label"] is not None and row["label"] >= 0]
    changed = sum(a != b for a, b in pairwise(labels))
    distance = float(np.median(away)) if away else float("nan")
    reasons = []
    if refused:
        kinds = sorted({row["verdict"].replace("_", " ") for row in own} - {"silent", "accepted"})
        faults = sorted({row["fault"] for row in own if row["fault"]})
        reasons.append(f"refused in {refused:.0%} of the rounds ({', '.join(kinds + faults)})")
    if distance > FAR:
        reasons.append(f"stands {distance:.1f} times as far out as the median client of its cluster")
    if silent > OFTEN:
        reasons.append(f"silent in {silent:.0%} of the rounds")
    if rounds >= 5 and changed > OFTEN * rounds:
        reasons.append(f"went to another cluster {changed} times")
    share = float(np.mean(trimmed)) if trimmed else 0.0
    return Suspicion(
        *(own[0]["client"], own[-1]["node"], rounds, distance, share, refused, silent, changed),
        labels[-1] if labels else -1,
        tuple(reasons),
    )


def registered(folder: Path) -> dict[str, str]:
    """The sites' names by their nodes, from what the server of a kit noted when it took their keys (`nodes/*.json`)."""
    names = {}
    for note in sorted((folder.resolve().parent / "nodes").glob("*.json")):
        try:
            names[str(json.loads(note.read_text(encoding="utf-8"))["node-id"])] = note.stem
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a note that cannot be read costs a name, no more
    return names
