"""An algorithm, played against the nodes of a Flower grid; every finished round is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from coterie._src.aggregators import median
from coterie._src.algorithms import Algorithm, Exchange, State
from coterie._src.algorithms.descent import ask_curvatures, ask_weights
from coterie._src.arrays import Floats
from coterie._src.federation.checkpoint import Checkpoint, Saved
from coterie._src.federation.network import POLL_SECONDS, FlowerNetwork, Members
from coterie._src.federation.progress import Notes, Progress
from coterie._src.intake import Verdict
from coterie._src.simulation import play, stream

ONLY_START = "a clustered round needs the state of the rounds before it: use start()"
COORDINATES = 1 << 16
"""Of an update that the audit looks at, about."""


class ClusteredStrategy(Strategy):
    """Any algorithm of Coterie as a Flower strategy.

    algorithm: what to play, such as a `ClusteredDescent`. places: the number of clients at most (see `Members`).
    least: it waits until so many nodes answer, for `patience` seconds at most. deadline: seconds for an answer.
    folder: where every finished round and the audit are kept, with a note of how far it is (`coterie federate watch`
    shows it); a strategy that finds a state there goes on after it.
    identity: of what is learnt; the state of another is not gone on with.
    seed: of the server's randomness. on_round: told of every finished round.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        places: int,
        least: int = 1,
        patience: float = 600.0,
        deadline: float = 60.0,
        folder: str | Path | None = None,
        seed: int = 0,
        identity: str = "",
        on_round: Callable[[State, Exchange], None] = lambda state, exchange: None,
    ) -> None:
        if not 1 <= least <= places:
            raise ValueError(f"least must be from 1 to places ({places}), got {least}")
        if not deadline > 0:
            raise ValueError(f"deadline must be positive, got {deadline}")
        self.algorithm, self.places, self.least, self.patience = algorithm, places, least, patience
        self.deadline, self.seed, self.identity, self.on_round = deadline, seed, identity, on_round
        self.checkpoint = None if folder is None else Checkpoint(folder)

    def start(  # type: ignore[override]
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int | None = None, **ignored: Any
    ) -> Result:
        """Play to the end; initial_arrays: the first (k, d) centres as `centres`. The rounds are the algorithm's."""
        start = initial_arrays["centres"].numpy()
        notes = Notes(None if self.checkpoint is None else self.checkpoint.folder, self.algorithm.rounds)
        notes(notes.now)  # in place of what another run may have left
        saved = None if self.checkpoint is None else self.checkpoint.load()
        if self.checkpoint is not None and saved is not None and saved.identity not in ("", self.identity):
            raise ValueError(
                f"{self.checkpoint.folder}: holds the rounds of another configuration; move it away to begin anew"
            )
        members = Members(self.places, () if saved is None else saved.nodes)
        network = FlowerNetwork(grid, members, self.deadline, notes.heard)
        self._wait(network, notes)
        rng = stream(self.seed, 0, "server") if saved is None else saved.rng
        state = None if saved is None else self._known(saved.state, network)
        if saved is not None:
            log(INFO, "going on after round %s", saved.state.round)
            notes(notes.now._replace(round=saved.state.round))
        result = Result(arrays=initial_arrays)
        began, first, again = time.monotonic(), 0 if state is None else state.round, True
        while again:
            asked, again = list(members.nodes), False
            for played in play(self.algorithm, network, start, rng, state):
                state, exchange = played
                rows = [] if exchange is None else audit_rows(exchange, network, state.round)
                if self.checkpoint is not None:
                    self.checkpoint.save(Saved(state, rng, members.nodes, self.identity), rows)
                if exchange is not None:
                    pace = (time.monotonic() - began) / (state.round - first)
                    left = pace * (self.algorithm.rounds - state.round)
                    notes(notes.now.after(state.round, exchange, rows, left))
                    self._tell(notes.now, members.turned_away)
                    self.on_round(state, exchange)
                    result.train_metrics_clientapp[state.round] = _metrics(exchange)
                if exchange is not None and members.nodes != asked:
                    again = not exchange.settled
                    break
            if again and state is not None:  # somebody is new: what is not known of them is asked
                state = self._known(state, network)
        assert state is not None
        notes(notes.now._replace(done=True))
        result.arrays = ArrayRecord({"centres": Array(np.ascontiguousarray(state.centres))})
        return result

    def _known(self, state: State, network: FlowerNetwork) -> State:
        """The state with what the nodes of now say about themselves: they may be others than before."""
        return state._replace(
            curvatures=None if state.curvatures is None else ask_curvatures(network),
            weights=None if state.weights is None else ask_weights(network),
        )

    def _wait(self, network: FlowerNetwork, notes: Notes) -> None:
        limit = time.monotonic() + self.patience
        while (present := network.present(self.patience)) < self.least:
            if time.monotonic() > limit:
                raise ValueError(f"least: only {present} of {self.least} nodes came within {self.patience:g} s")
            notes.heard(present, self.least, waiting=True)
            time.sleep(POLL_SECONDS * 10)

    def _tell(self, progress: Progress, turned_away: set[int]) -> None:
        """One line for each round, and one for each fault."""
        log(INFO, progress.line())
        if turned_away:
            log(WARNING, "places: %s are taken, so these nodes are not heard: %s", self.places, sorted(turned_away))
        for fault in progress.faults:
            log(WARNING, fault)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        raise NotImplementedError(ONLY_START)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        raise NotImplementedError(ONLY_START)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: the clients' losses come with their answers."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        log(INFO, "%s, at most %s clients, %s s for an answer", self.algorithm, self.places, self.deadline)


def _metrics(exchange: Exchange) -> MetricRecord:
    return MetricRecord(
        {
            "replies": int((exchange.verdicts == Verdict.ACCEPTED).sum()),
            "sizes": exchange.sizes.tolist(),
            "movement": float(exchange.movement),
        }
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def audit_rows(exchange: Exchange, network: FlowerNetwork, round: int) -> list[dict[str, Any]]:
    """A row for every client that has a node: what it said, what became of it, and how far out it stood."""
    away = distances(exchange, network)
    rows = []
    for client, node in enumerate(network.members.nodes):
        if node is None:
            continue
        answer, fault, seconds = network.heard.get(client, (None, "", None))
        row: dict[str, Any] = {"round": round, "client": client, "seconds": seconds, "fault": fault}
        row["node"] = str(node)  # may be beyond SQLite's whole numbers
        row["verdict"] = Verdict(int(exchange.verdicts[client])).name.lower()
        row["label"] = int(exchange.labels[client])
        if answer is not None and answer.round is None and answer.update is None:
            row["verdict"] = "failed"  # there was nothing to judge
        if answer is not None:
            row |= {
                name: value if _is_number(value) and abs(value) < 2**63 else None
                for name, value in (("loss", answer.loss), ("margin", answer.margin), ("samples", answer.samples))
            }
        share = np.nan if exchange.trimmed is None else float(exchange.trimmed[client])
        row["trimmed"] = None if np.isnan(share) else share
        row["distance"] = None if np.isnan(away[client]) else float(away[client])
        rows.append({"loss": None, "margin": None, "samples": None, **row})
    return rows


def distances(exchange: Exchange, network: FlowerNetwork) -> Floats:
    """(m,): how far an accepted update lies from its cluster's median, in median distances; NaN for the rest.

    Of very long updates by every s-th coordinate, which tells as much.
    """
    found = np.full(len(exchange.labels), np.nan)
    for j in np.unique(exchange.labels[exchange.labels >= 0]).tolist():
        members = np.flatnonzero(exchange.labels == j)
        updates = [network.heard[client][0].update for client in members.tolist()]
        stride = max(1, len(updates[0]) // COORDINATES)
        rows = np.stack([update[::stride] for update in updates])
        away = np.linalg.norm(rows.astype(np.float64) - np.asarray(median(rows), dtype=np.float64), axis=1)
        found[members] = away / max(float(np.median(away)), 1e-300)
    return found
