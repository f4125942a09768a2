"""The folder of a federation on its server, as snapshots; needs Flower."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

from coterie._src.experiments.printable import printable
from coterie._src.experiments.progress import MAX_LINES
from coterie._src.federation.audit import audit_clients, site_names
from coterie._src.federation.certificates import expiry_warnings
from coterie._src.federation.checkpoint import AUDIT, audit_of
from coterie._src.federation.progress import Progress, read_progress
from coterie._src.watch.snapshot import Bar, Cluster, Refused, Remembered, Rounds, Snapshot, State, Suspect, state_of

GO_ON = "Start the run again with the same folder; it goes on after the last round."


class FederationSource:
    """The folder that the server of a federation writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.suspects = Remembered(self._read_suspects, folder / AUDIT, folder / f"{AUDIT}-wal")

    def read(self) -> Snapshot:
        """What is known now."""
        sites, suspects = self.suspects()
        title = f"Federation of {sites} sites" if sites else "Federation"
        found = read_progress(self.folder)
        if found is None:
            return Snapshot("federation", title, "unknown", suspects=suspects)
        progress, age = found
        if (state := _state(progress, age)) in ("gone", "failed"):  # it may have noted its end in between
            progress, age = read_progress(self.folder) or found
            state = _state(progress, age)
        bars = [Bar("rounds", progress.round, progress.rounds)]
        if state in ("waiting", "running", "stale"):
            bars.append(Bar("sites present" if progress.waiting else "replies", progress.replies, progress.asked))
        return Snapshot(
            kind="federation",
            title=title,
            state=state,
            updated=time.time() - age,
            bars=bars,
            left=progress.left if state in ("running", "stale") else None,
            at_most=True,
            rounds=[_rounds(progress)],
            suspects=suspects,
            advice=" ".join(_advice(self.folder, progress, state)),
        )

    def _read_suspects(self) -> tuple[int, list[Suspect]]:
        """How many sites there are, and those that stand out most."""
        rows, names = audit_of(self.folder), site_names(self.folder)
        try:
            clients = audit_clients(rows)
        except TypeError as error:
            raise ValueError(f"{self.folder / AUDIT}: cannot be read as the audit of a federation ({error})") from None
        found = [
            Suspect(
                names.get(one.node, f"client {one.client}"),
                one.cluster,
                one.refused_fraction,
                one.silent_fraction,
                one.trimmed_fraction,
                None if math.isnan(one.distance) else one.distance,
                "; ".join(one.reasons),
            )
            for one in clients[:MAX_LINES]
        ]
        return len(clients), found


def _state(progress: Progress, age: float) -> State:
    if progress.done:
        return "complete"
    if progress.error:
        return "failed"
    state = "gone" if progress.has_died() else state_of(None, age)
    return "waiting" if progress.waiting and state == "running" else state


def _advice(folder: Path, progress: Progress, state: State) -> Iterator[str]:
    """What to do now: about a run that has ended too soon, and certificates that will."""
    if progress.error:
        yield f"The run has failed: {printable(progress.error, 500)}."
    if state in ("gone", "failed"):
        yield GO_ON
    for line in expiry_warnings(folder.resolve().parent):
        yield f"Note: {line}."


def _rounds(progress: Progress) -> Rounds:
    losses = (*progress.losses, *([None] * (len(progress.sizes) - len(progress.losses))))
    counts = {"accepted": progress.accepted, "refused": progress.refused, "silent": progress.silent}
    refused = [fault.partition(": ") for fault in map(str, progress.faults[:MAX_LINES])]
    return Rounds(
        "",
        None,
        progress.round,
        progress.rounds,
        tuple(Cluster(size, loss) for size, loss in zip(progress.sizes, losses, strict=False)),
        counts if progress.sizes else None,
        tuple(Refused(client, reason) for client, _, reason in refused),
        progress.movement,
    )
