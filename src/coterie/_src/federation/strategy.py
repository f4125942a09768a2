"""An algorithm as a Flower strategy: it runs against the nodes of a grid, and every finished round is saved."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.random import Generator

from coterie._src.algorithms import Algorithm, ClusteredDescent, RoundInfo, State
from coterie._src.algorithms.descent import ask_weights
from coterie._src.arrays import Array as Centres
from coterie._src.diagnostics import excess, replies_left_out
from coterie._src.experiments.printable import printable
from coterie._src.federation.audit import Row, audit_rows, suspects
from coterie._src.federation.checkpoint import Checkpoint, Saved
from coterie._src.federation.folder_lock import locked
from coterie._src.federation.identity import differences
from coterie._src.federation.network import POLL_SECONDS, FlowerNetwork
from coterie._src.federation.numbering import ClientNumbers
from coterie._src.federation.progress import ProgressFile
from coterie._src.federation.renamed import takes_old_names
from coterie._src.federation.server_folder import Participants, server_of
from coterie._src.intake import Verdict
from coterie._src.simulation import Round, play, stream
from coterie._src.step_sizes import ask_curvatures

END_SECONDS = 15.0
"""How long a run that was stopped may take to its end, before the next one says that the folder is in use."""
JUDGED_ROUNDS = 3, 20
"""A run that is strict is judged from so many rounds on, by so many last ones at most; and at its end."""
MAX_PAUSE_SECONDS = 60.0
"""Between two attempts at a round that had too few replies, at most."""
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
        Seconds to wait for these nodes, or for enough replies to a round, at most.
    deadline
        Seconds that a client has for an answer.
    min_replies
        The accepted replies without which a round changes nothing. It is played again until `patience` is over; then
        the run ends with an error, and may be started again later.
    folder
        Where the state after every round, the audit and the progress are written. A strategy that finds a state there
        goes on after it.
    seed
        The seed of the server's random numbers.
    max_suspects
        The sites that may stand out in the audit by what they send (`audit.suspects`). With more the run ends with an
        error, and so without a model; None: any number of them.
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
        min_replies: int = 0,
        folder: str | Path | None = None,
        seed: int = 0,
        max_suspects: int | None = None,
        identity: str = "",
        on_round: Callable[[State, RoundInfo], None] = lambda state, info: None,
    ) -> None:
        if not 1 <= min_clients <= max_clients:
            raise ValueError(f"min_clients must be from 1 to max_clients ({max_clients}), got {min_clients}")
        if not 0 <= min_replies <= max_clients:
            raise ValueError(f"min_replies must be from 0 to max_clients ({max_clients}), got {min_replies}")
        if not deadline > 0:
            raise ValueError(f"deadline must be positive, got {deadline}")
        self.algorithm, self.max_clients, self.min_clients = algorithm, max_clients, min_clients
        self.patience, self.deadline, self.min_replies = patience, deadline, min_replies
        self.max_suspects = max_suspects
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
        if self.checkpoint is None:
            return self._start(grid, initial_arrays, None)
        with locked(self.checkpoint.folder, "run", END_SECONDS):
            return self._start(grid, initial_arrays, self.checkpoint.folder)

    def _start(self, grid: Grid, initial_arrays: ArrayRecord, folder: Path | None) -> Result:
        file = ProgressFile(folder, self.algorithm.rounds)
        try:
            return self._run(grid, initial_arrays, file)
        except Exception as error:
            file.update(file.progress._replace(error=printable(error, 500)))
            raise

    def _run(self, grid: Grid, initial_arrays: ArrayRecord, file: ProgressFile) -> Result:
        """Run the algorithm to its end, with the folder locked."""
        saved = self._load()
        clients = ClientNumbers(self.max_clients, () if saved is None else saved.nodes)
        participants = Participants(None if self.checkpoint is None else server_of(self.checkpoint.folder))
        network = FlowerNetwork(grid, clients, self.deadline, file.count_replies, participants)
        self._wait_for_clients(network, file)
        state, rng = None, stream(self.seed, 0, "server")
        if saved is not None:
            state, rng = _ask_again(saved.state, network), saved.rng
            log(INFO, "going on after round %s", state.round)
            file.update(file.progress._replace(round=state.round))
        result = Result(arrays=initial_arrays)
        recent: deque[list[Row]] = deque(maxlen=JUDGED_ROUNDS[1])
        began, first_round = time.monotonic(), 0 if state is None else state.round
        for finished in self._rounds(network, file, initial_arrays["centres"].numpy(), rng, state):
            state, info = finished
            rows = [] if info is None else audit_rows(info, network, state.round)
            if self.checkpoint is not None:
                self.checkpoint.save(Saved(state, rng, clients.nodes, self.identity), rows)
            if info is not None:
                seconds_per_round = (time.monotonic() - began) / (state.round - first_round)
                left = seconds_per_round * (self.algorithm.rounds - state.round)
                file.update(file.progress.after(state.round, info, rows, left, participants.name))
                self._log_round(file, network)
                recent.append(rows)
                self._check_suspects(recent, network, state)
                self.on_round(state, info)
                result.train_metrics_clientapp[state.round] = _metrics(info)
        assert state is not None
        self._check_suspects(recent, network, state, is_last=True)
        file.update(file.progress._replace(done=True))
        result.arrays = ArrayRecord({"centres": Array(np.ascontiguousarray(state.centres))})
        return result

    def _check_suspects(
        self, recent: Sequence[list[Row]], network: FlowerNetwork, state: State, is_last: bool = False
    ) -> None:
        """Raise a ValueError where more sites stand out than may."""
        if self.max_suspects is None or not (len(recent) >= JUDGED_ROUNDS[0] or (is_last and recent)):
            return
        found = suspects(row for rows in recent for row in rows)
        if len(found) > self.max_suspects:
            names = ", ".join(network.participants.name(int(one.node)) for one in found)
            raise ValueError(
                f"algorithm.strict: {len(found)} sites stand out ({names}), and the bound allows {self.max_suspects}; "
                "nothing is published. See coterie audit, and block those that are at fault (coterie federate block)"
            )
        if is_last and isinstance(self.algorithm, ClusteredDescent):
            count = replies_left_out(self.algorithm, network, state)[1]
            if excess(count, self.max_suspects, network.count):
                raise ValueError(
                    f"algorithm.strict: the replies of {count} sites stand out together, and the bound allows "
                    f"{self.max_suspects}; nothing is published"
                )

    def _load(self) -> Saved | None:
        saved = None if self.checkpoint is None else self.checkpoint.load()
        if self.checkpoint is not None and saved is not None and (names := differences(saved.identity, self.identity)):
            raise ValueError(
                f"{self.checkpoint.folder}: holds the rounds of another configuration ({', '.join(names)} differs); "
                "move it away to begin anew"
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

    def _rounds(
        self, network: FlowerNetwork, file: ProgressFile, centres: Centres, rng: Generator, state: State | None
    ) -> Iterator[Round]:
        """Yield the start and every finished round; where the nodes have changed, go on from the last state.

        A round with too few accepted replies changes nothing and is played again.
        """
        nodes, shortage = list(network.clients.nodes), Shortage(self.min_replies, self.patience)
        random_state = rng.bit_generator.state
        while True:
            for finished in play(self.algorithm, network, centres, rng, state):
                if finished.info is not None and shortage.concerns(finished.info):
                    rng.bit_generator.state = random_state
                    self._log_shortage(finished, network, file)
                    shortage.wait(finished)
                    break
                shortage.end()
                yield finished
                state, random_state = finished.state, rng.bit_generator.state
                if finished.info is not None and network.clients.nodes != nodes and not finished.info.converged:
                    nodes, state = list(network.clients.nodes), _ask_again(state, network)
                    break
            else:
                return

    def _log_shortage(self, short: Round, network: FlowerNetwork, file: ProgressFile) -> None:
        assert short.info is not None
        rows = audit_rows(short.info, network, short.state.round)
        accepted = _accepted(short.info)
        log(WARNING, "round %s: %s of at least %s replies; it is asked again", short.state.round, accepted,
            self.min_replies)  # fmt: skip
        for fault in file.progress.after(short.state.round, short.info, rows, 0.0, network.participants.name).faults:
            log(WARNING, fault)
        file.count_replies(accepted, self.min_replies, waiting=True)

    def _log_round(self, file: ProgressFile, network: FlowerNetwork) -> None:
        """Log one line for the round and one for each fault."""
        log(INFO, file.progress.line())
        if network.clients.without_number:
            sites = ", ".join(sorted(map(network.participants.name, network.clients.without_number)))
            log(WARNING, "max_clients: there are %s clients already; sites left out: %s", self.max_clients, sites)
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


def _accepted(info: RoundInfo) -> int:
    return int((info.verdicts == Verdict.ACCEPTED).sum())


class Shortage:
    """Too few accepted replies in one round after the other.

    Parameters
    ----------
    min_replies
        How many there must be.
    patience
        Seconds after which a round is not played again.
    """

    def __init__(self, min_replies: int, patience: float) -> None:
        self.min_replies, self.patience = min_replies, patience
        self.end()

    def concerns(self, info: RoundInfo) -> bool:
        """Whether a round has too few accepted replies."""
        return _accepted(info) < self.min_replies

    def end(self) -> None:
        """Begin anew: a round had enough."""
        self._began: float | None = None
        self._pause = POLL_SECONDS * 10

    def wait(self, short: Round) -> None:
        """Wait before the round is played again, each time longer, or raise a ValueError when patience is over."""
        assert short.info is not None
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        left = self._began + self.patience - now
        if left <= 0:
            raise ValueError(
                f"min_replies: round {short.state.round} had {_accepted(short.info)} accepted replies of at least "
                f"{self.min_replies}, and no more within {self.patience:g} s; start again to go on"
            )
        time.sleep(min(self._pause, left))
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)


def _metrics(info: RoundInfo) -> MetricRecord:
    return MetricRecord(
        {
            "replies": _accepted(info),
            "sizes": info.sizes.tolist(),
            "movement": float(info.movement),
        }
    )
