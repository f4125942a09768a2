"""The record of one method in one trial: a row per round, an audit per client, and the final metrics."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie._src.algorithms import RoundInfo
from coterie._src.arrays import Bools, Floats, Ints, as_numpy
from coterie._src.data import Truth
from coterie._src.experiments.outcome import MethodResult, Row
from coterie._src.intake import Verdict
from coterie._src.metrics import NOT_APPLICABLE, Metrics, agreement, cluster_accuracies, contamination, evaluate
from coterie._src.simulation import Round, choices
from coterie._src.tasks import Task

RENAMED_COLUMNS = {"strangers": "unknown_senders", "stuck": "rejected_steps"}
"""Columns of rounds.csv by their names in 0.1.0, which it has as well until 0.2."""


@dataclass
class Recorder:
    """Collects a row per round and the audit of one method."""

    task: Task
    truth: Truth | None
    is_byzantine: Bools
    record: bool = True
    local: bool = False  # one model per client
    rows: list[Row] = field(default_factory=list)
    assignments: list[Row] = field(default_factory=list)
    last: Round | None = None

    def __post_init__(self) -> None:
        m = self.task.clients.count
        self.refused = np.zeros(m, dtype=np.int64)
        self.heard = np.zeros(m, dtype=np.int64)  # the rounds in which the client was not silent
        self.changed = np.zeros(m, dtype=np.int64)
        self.trimmed = np.zeros(m)
        self.counted = np.zeros(m, dtype=np.int64)
        self.labels = np.full(m, -1)
        self.judged, self.agreement = np.zeros(0, dtype=np.int64), Metrics()
        test = None if self.truth is None else self.truth.test
        self.tests = [] if test is None else [self.task.on(test.take([j])) for j in range(test.count)]
        self.faults = np.zeros(m, dtype=np.int64)  # one bit per verdict

    def add(self, current: Round) -> Row:
        """Record one round, and return its row; it is empty for a start and where nothing is recorded."""
        self.last = current
        state, info = current
        if info is None or not self.record:
            return {}
        row: Row = {"round": state.round}
        task, truth, is_byzantine = self.task, self.truth, self.is_byzantine
        if info.asked is not None:  # the work of a round is that of the clients that it asks
            is_byzantine = is_byzantine[info.asked]
            truth = None if truth is None else replace(truth, labels=truth.labels[info.asked])
        if truth is not None:
            if info.asked is not None or not np.array_equal(info.labels, self.judged):  # most rounds change no label
                self.judged, self.agreement = info.labels, agreement(info.labels, truth)
            row |= evaluate(state.centres, info.labels, truth, known=self.agreement)
            share = contamination(info.labels, is_byzantine, state.centres.shape[0])
            row["contamination"] = " ".join(f"{part:.4f}" for part in share)
            if self.tests:
                each = self._accuracies(info.labels, truth)
                row["accuracy"] = self._accuracy(each)
                row["accuracies"] = " ".join(f"{part:.4f}" for part in each)
        elif self.task.has_curvatures and not self.local:  # of a network it would be another pass over all samples
            task = task if info.asked is None else task.on(task.clients.take(info.asked))
            row["loss"] = self._loss(info.labels, task, is_byzantine)
        row |= reply_columns(info, len(self.labels))
        self.rows.append(row | {old: row[name] for old, name in RENAMED_COLUMNS.items()})
        asked: Ints | slice = slice(None) if info.asked is None else info.asked
        self._note_moves(state.round, info.labels, asked)
        self._audit(info.labels, info.verdicts, info.trimmed, asked)
        return self.rows[-1]

    def _note_moves(self, round: int, labels: NDArray[Any], asked: Ints | slice) -> None:
        """A row for every client whose cluster is another one than before."""
        moved = np.flatnonzero((labels >= 0) & (labels != self.labels[asked]))
        clients = moved if isinstance(asked, slice) else asked[moved]
        for client, label in zip(clients.tolist(), labels[moved].tolist(), strict=True):
            self.assignments.append({"round": round, "client": self.task.clients.names[client], "cluster": label})

    def _audit(
        self, labels: NDArray[Any], verdicts: NDArray[Any], trimmed: NDArray[Any] | None, asked: Ints | slice
    ) -> None:
        refused, before = _refused(verdicts), self.labels[asked]
        self.refused[asked] += refused
        self.faults[asked] |= np.where(refused, 1 << verdicts, 0)
        self.heard[asked] += verdicts != Verdict.SILENT
        self.changed[asked] += (labels >= 0) & (before >= 0) & (labels != before)
        self.labels[asked] = np.where(labels >= 0, labels, before)
        if trimmed is not None:
            self.trimmed[asked] += np.where(np.isnan(trimmed), 0.0, trimmed)
        self.counted[asked] += labels >= 0

    def finish(self, seconds: float) -> MethodResult:
        """The result, with metrics for the labels that the clients choose under the final centres."""
        assert self.last is not None
        state = self.last.state
        labels = choices(self.task, state)
        metrics: Metrics = dict.fromkeys(
            (
                *("dist", "matched_dist", "ari", "misclustered", "oracle_ratio", "worst_ratio", "clusters"),
                *("accuracy", "worst_accuracy"),
            ),
            NOT_APPLICABLE,
        )
        if self.truth is not None:
            metrics |= evaluate(state.centres, labels, self.truth, self.local)
        elif not self.local:
            metrics["clusters"] = float(state.centres.shape[0])
        metrics["loss"] = self._loss(labels, self.task, self.is_byzantine)
        metrics["rounds"] = float(state.round)
        metrics["seconds"] = seconds
        audit = self._audit_rows(labels) if self.record else []
        clusters: list[Row] = []
        if self.tests and self.truth is not None:
            each = self._accuracies(labels, self.truth)
            metrics |= {"accuracy": self._accuracy(each), "worst_accuracy": float(each.min())}
            sizes = np.bincount(self.truth.labels[~self.is_byzantine], minlength=len(each))
            clusters = [{"cluster": j, "clients": int(sizes[j]), "accuracy": float(each[j])} for j in range(len(each))]
        centres = as_numpy(state.centres)
        return MethodResult(metrics, self.rows, audit, centres, clusters, labels, assignments=self.assignments)

    def _accuracies(self, labels: NDArray[Any], truth: Truth) -> Floats:
        """(k,): the accuracy per true cluster, see `cluster_accuracies`; truth: about the clients with these labels."""
        assert self.last is not None
        centres = self.last.state.centres
        right = np.full((len(self.tests), len(centres)), np.nan)
        for j, test in enumerate(self.tests):
            used = np.unique(labels[(truth.labels == j) & (labels >= 0)])
            network: Any = test
            right[j, used] = network.accuracies(centres[used])[0]
        return cluster_accuracies(right, labels, truth)

    def _accuracy(self, each: Floats) -> float:
        """The mean accuracy over the honest clients."""
        assert self.truth is not None
        return float(each[self.truth.labels[~self.is_byzantine]].mean())

    def _loss(self, labels: NDArray[Any], task: Task, is_byzantine: Bools) -> float:
        """The mean local loss of the honest clients at the centre of their cluster."""
        assert self.last is not None
        centres = self.last.state.centres
        if self.local:
            return NOT_APPLICABLE  # the training loss of a model of one client is not comparable
        judged = ~is_byzantine & (labels >= 0)
        losses = as_numpy(task.losses(centres))
        return float(losses[judged, labels[judged]].mean()) if judged.any() else NOT_APPLICABLE

    def _audit_rows(self, labels: NDArray[Any]) -> list[Row]:
        rounds = max(1, len(self.rows))
        columns: dict[str, Any] = {"client": self.task.clients.names}
        if self.truth is not None:
            columns["byzantine"] = self.is_byzantine.astype(np.int64).tolist()
            columns["true_cluster"] = self.truth.labels.tolist()
        columns["cluster"] = labels.tolist()
        columns["trimmed"] = [round(share, 6) for share in (self.trimmed / np.maximum(1, self.counted)).tolist()]
        columns["refused"] = [round(share, 6) for share in (self.refused / rounds).tolist()]
        columns["silent"] = [round(share, 6) for share in ((len(self.rows) - self.heard) / rounds).tolist()]
        columns["reasons"] = [_reasons(faults) for faults in self.faults.tolist()]
        columns["changed"] = self.changed.tolist()
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _reasons(faults: int) -> str:
    return " ".join(verdict.name.lower().replace("_", "-") for verdict in Verdict if faults >> verdict & 1)


def reply_columns(info: RoundInfo, clients: int) -> Row:
    """What a server knows of a round: the movement of the centres, and which replies of so many clients came."""
    return {
        "movement": info.movement,
        "unknown_senders": info.unknown_senders,
        "refused": int(np.count_nonzero(_refused(info.verdicts))),
        "silent": clients - int(np.count_nonzero(info.verdicts != Verdict.SILENT)),
        "empty": int(np.count_nonzero(info.sizes == 0)),
        "rejected_steps": info.rejected,
        "sizes": " ".join(map(str, info.sizes.tolist())),
    }


def _refused(verdicts: NDArray[Any]) -> NDArray[np.bool_]:
    """(m,): whether a reply was refused; a client without a reply is silent, not refused."""
    refused: NDArray[np.bool_] = (verdicts != Verdict.ACCEPTED) & (verdicts != Verdict.SILENT)
    return refused
