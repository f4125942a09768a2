"""An algorithm as a Flower strategy: it runs against the nodes of a grid, and every finished round is saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.random import Generator

from coterie._src.algorithms import Algorithm, RoundInfo, State
from coterie._src.algorithms.descent import ask_weights
from coterie._src.arrays import Array as Centres
from coterie._src.federation.audit import audit_rows
from coterie._src.federation.checkpoint import Checkpoint, Saved
from coterie._src.federation.network import POLL_SECONDS, FlowerNetwork
from coterie._src.federation.numbering import ClientNumbers
from coterie._src.federation.progress import ProgressFile
from coterie._src.federation.renamed import takes_old_names
from coterie._src.intake import Verdict
from coterie._src.simulation import Round, play, stream
from coterie._src.step_sizes import ask_curvatures

ONLY_START = "a clustered round needs the state of the rounds before it: use start()"


class ClusteredStrategy(Strategy):
    """A Flower strategy that runs any algorithm of Coterie.

    Parameters
    ----------
    algorithm
        The algorithm, such as a `ClusteredDescent`; it says how many rounds there are.
    max_clients
        The number of clients, at most.
    min_clients
        The number of nodes that must answer before the first round.
    patience
        Seconds to wait for these nodes, at most.
    deadline
        Seconds that a client has for an answer.
    folder
        Where the state after every round, the audit and the progress are written. A strategy that finds a state there
        goes on after it.
    seed
        The seed of the server's random numbers.
    identity
        Says what is learnt. A state that was saved with another identity is refused.
    on_round
        Called after every finished round.

    Examples
    --------
    In the main function of a Flower server app, with (k, d) first centres:

    >>> from coterie._src.aggregators import median
    >>> from coterie._src.algorithms import ClusteredDescent
    >>> from coterie._src.server import Server
    >>> def main(grid, context, centres):
    ...     descent = ClusteredDescent(Server(median), rounds=50)
    ...     strategy = ClusteredStrategy(descent, max_clients=20, min_clients=15, folder="federation")
    ...     return strategy.start(grid, ArrayRecord({"centres": Array(centres)})).arrays["centres"].numpy()
    """

    @takes_old_names
    def __init__(
        self,
        algorithm: Algorithm,
        *,
        max_clients: int,
        min_clients: int = 1,
        patience: float = 600.0,
        deadline: float = 60.0,
        folder: str | Path | None = None,
        seed: int = 0,
        identity: str = "",
        on_round: Callable[[State, RoundInfo], None] = lambda state, info: None,
    ) -> None:
        if not 1 <= min_clients <= max_clients:
            raise ValueError(f"min_clients must be from 1 to max_clients ({max_clients}), got {min_clients}")
        if not deadline > 0:
            raise ValueError(f"deadline must be positive, got {deadline}")
        self.algorithm, self.max_clients, self.min_clients = algorithm, max_clients, min_clients
        self.patience, self.deadline = patience, deadline
        self.seed, self.identity, self.on_round = seed, identity, on_round
        self.checkpoint = None if folder is None else Checkpoint(folder)

    def start(  # type: ignore[override]
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int | None = None, **ignored: Any
    ) -> Result:
        """Run the algorithm to its end.

        Parameters
        ----------
        grid
            Flower's grid, as a server app gets it.
        initial_arrays
            The first centres, (k, d), as `centres`.
        num_rounds, **ignored
            Not used: the algorithm says how many rounds there are.

        Returns
        -------
        Result
            The last centres as `arrays["centres"]`, and replies, cluster sizes and movement of every round.
        """
        file = ProgressFile(None if self.checkpoint is None else self.checkpoint.folder, self.algorithm.rounds)
        saved = self._load()
        clients = ClientNumbers(self.max_clients, () if saved is None else saved.nodes)
        network = FlowerNetwork(grid, clients, self.deadline, file.count_replies)
        self._wait_for_clients(network, file)
        state, rng = None, stream(self.seed, 0, "server")
        if saved is not None:
            state, rng = _ask_again(saved.state, network), saved.rng
            log(INFO, "going on after round %s", state.round)
            file.update(file.progress._replace(round=state.round))
        result = Result(arrays=initial_arrays)
        began, first_round = time.monotonic(), 0 if state is None else state.round
        for finished in self._rounds(network, initial_arrays["centres"].numpy(), rng, state):
            state, info = finished
            rows = [] if info is None else audit_rows(info, network, state.round)
            if self.checkpoint is not None:
                self.checkpoint.save(Saved(state, rng, clients.nodes, self.identity), rows)
            if info is not None:
                seconds_per_round = (time.monotonic() - began) / (state.round - first_round)
                left = seconds_per_round * (self.algorithm.rounds - state.round)
                file.update(file.progress.after(state.round, info, rows, left))
                self._log_round(file, clients.without_number)
                self.on_round(state, info)
                result.train_metrics_clientapp[state.round] = _metrics(info)
        assert state is not None
        file.update(file.progress._replace(done=True))
        result.arrays = ArrayRecord({"centres": Array(np.ascontiguousarray(state.centres))})
        return result

    def _load(self) -> Saved | None:
        saved = None if self.checkpoint is None else self.checkpoint.load()
        if self.checkpoint is not None and saved is not None and saved.identity not in ("", self.identity):
            raise ValueError(
                f"{self.checkpoint.folder}: holds the rounds of another configuration; move it away to begin anew"
            )
        return saved

    def _wait_for_clients(self, network: FlowerNetwork, file: ProgressFile) -> None:
        limit = time.monotonic() + self.patience
        while (present := network.count_present(self.patience)) < self.min_clients:
            if time.monotonic() > limit:
                raise ValueError(
                    f"min_clients: only {present} of {self.min_clients} nodes answered within {self.patience:g} s"
                )
            file.count_replies(present, self.min_clients, waiting=True)
            time.sleep(POLL_SECONDS * 10)

    def _rounds(self, network: FlowerNetwork, centres: Centres, rng: Generator, state: State | None) -> Iterator[Round]:
        """Yield the start and every finished round; where the nodes have changed, go on from the last state."""
        nodes_changed = True
        while nodes_changed:
            nodes, nodes_changed = list(network.clients.nodes), False
            for finished in play(self.algorithm, network, centres, rng, state):
                yield finished
                if finished.info is not None and network.clients.nodes != nodes:
                    nodes_changed = not finished.info.converged
                    state = _ask_again(finished.state, network) if nodes_changed else finished.state
                    break

    def _log_round(self, file: ProgressFile, without_number: set[int]) -> None:
        """Log one line for the round and one for each fault."""
        log(INFO, file.progress.line())
        if without_number:
            nodes = sorted(without_number)
            log(WARNING, "max_clients: there are %s clients already; nodes left out: %s", self.max_clients, nodes)
        for fault in file.progress.faults:
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
        """Return no messages: the clients' losses come with their answers."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        log(INFO, "%s, at most %s clients, %s s for an answer", self.algorithm, self.max_clients, self.deadline)


def _ask_again(state: State, network: FlowerNetwork) -> State:
    """Return the state with the curvatures and weights of the present nodes, where it has any.

    Coordinates and Hessians are asked for again in the next round.
    """
    return state._replace(
        conditioning=None,
        curvatures=None if state.curvatures is None else ask_curvatures(network),
        weights=None if state.weights is None else ask_weights(network),
    )


def _metrics(info: RoundInfo) -> MetricRecord:
    return MetricRecord(
        {
            "replies": int((info.verdicts == Verdict.ACCEPTED).sum()),
            "sizes": info.sizes.tolist(),
            "movement": float(info.movement),
        }
    )
