"""The strategy: the same centres as in the simulation, whatever some sites do."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from flwr.app import Context, Message

import coterie as ct
from coterie._src import attacks, tasks
from coterie._src.aggregators import as_aggregator, median
from coterie._src.algorithms import ClusteredDescent, LocalMinimisers, State
from coterie._src.algorithms.base import RoundInfo
from coterie._src.data import Federation, tabular
from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.setup import setting_of
from coterie._src.experiments.toml import parse_config
from coterie._src.federation import ClusteredStrategy, client_app
from coterie._src.federation.audit import audit_clients
from coterie._src.federation.checkpoint import Checkpoint
from coterie._src.metrics import adjusted_rand_index
from coterie._src.server import Server
from coterie._src.simulation import SimulatedNetwork, play, stream
from coterie._src.tasks import assign
from in_process import FAULTS, InProcessGrid, sending
from small_federation import BYZANTINE, CLIENTS, app, centres_of, simulated, strategy


def test_the_transport_changes_nothing(drawn: Federation, start: np.ndarray, tmp_path: Path) -> None:
    grid = InProcessGrid(app(drawn), range(CLIENTS))
    found = centres_of(grid, start, strategy(folder=tmp_path))
    np.testing.assert_allclose(found, simulated(drawn, start), atol=1e-5)
    rows = Checkpoint(tmp_path).rows()
    assert len(rows) == 6 * CLIENTS
    assert {row["verdict"] for row in rows} == {"accepted"}
    ranked = audit_clients(rows)
    assert {one.client for one in ranked[:BYZANTINE]} == {CLIENTS - 1, CLIENTS - 2}
    assert all(one.reasons for one in ranked[:BYZANTINE])


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_site_is_one_that_is_missing(name: str, drawn: Federation, start: np.ndarray, tmp_path: Path) -> None:
    """From the second round on, so that the server knows all sites: the run ends, and the others decide."""
    fault, verdict = FAULTS[name]
    grid = InProcessGrid(app(drawn), range(CLIENTS), {3: fault})
    fixed = ClusteredDescent(Server(median), rounds=4, step_size=0.1)
    made = ClusteredStrategy(fixed, max_clients=CLIENTS, deadline=0.5, folder=tmp_path)
    found = centres_of(grid, start, made)
    assert drawn.truth is not None
    kept = np.delete(np.arange(CLIENTS), 3)
    network = SimulatedNetwork(
        tasks.linear_regression(drawn.clients.take(kept)),
        drawn.truth.is_byzantine[kept],
        attacks.Attack(attacks.paper),
        np.random.default_rng(0),
        median,
    )
    *_, last = play(fixed, network, start, stream(0, 0, "server"))
    np.testing.assert_allclose(found, last.state.centres, atol=1e-5)
    rows = [row for row in Checkpoint(tmp_path).rows() if row["client"] == 3]
    assert {row["verdict"] for row in rows} == {verdict}
    (suspect,) = [one for one in audit_clients(Checkpoint(tmp_path).rows()) if one.client == 3]
    assert suspect.reasons


def test_a_quorum_keeps_the_centre(drawn: Federation, start: np.ndarray) -> None:
    """With one cluster's sites silent but for one, that cluster stays where it is and the other moves on."""
    silent = dict.fromkeys(range(1, 5), FAULTS["silent"][0])
    grid = InProcessGrid(app(drawn), range(CLIENTS), silent)
    fixed = ClusteredDescent(Server(median, quorum=4), rounds=1, step_size=0.1)
    found = centres_of(grid, start, ClusteredStrategy(fixed, max_clients=CLIENTS, deadline=0.5))
    moved = np.abs(found - start).max(axis=1) > 0
    assert moved.tolist() == [False, True]


def test_late_joiners_and_those_who_leave(drawn: Federation, start: np.ndarray, tmp_path: Path) -> None:
    grid = InProcessGrid(app(drawn), range(8))

    def change(state: State, info: RoundInfo) -> None:
        if state.round == 2:
            grid.nodes = [*range(1, 8), 8, 9]
        if state.round == 4:
            grid.nodes = [*range(1, 8), 8, 9, 110, 111, 100]  # node 100 has the data that node 0 had

    found = centres_of(grid, start, strategy(rounds=40, folder=tmp_path, on_round=change))
    assert drawn.truth is not None
    np.testing.assert_allclose(found, drawn.truth.centres, atol=0.2)
    rows = Checkpoint(tmp_path).rows()
    last = {row["client"]: row["node"] for row in rows if row["round"] == 40}
    # free numbers first, then that of node 0, which is gone
    assert last == {0: "111", **{i: str(i) for i in range(1, 10)}, 10: "100", 11: "110"}
    assert sum(row["verdict"] == "silent" for row in rows if row["node"] == "0") >= 1


def test_too_few_nodes_are_named(drawn: Federation, start: np.ndarray) -> None:
    made = strategy(min_clients=3, patience=0.1)
    with pytest.raises(ValueError, match="only 2 of 3 nodes answered"):
        centres_of(InProcessGrid(app(drawn), range(2)), start, made)
    with pytest.raises(ValueError, match="min_clients"):
        strategy(min_clients=99)
    with pytest.raises(ValueError, match="deadline"):
        strategy(deadline=0)


def test_a_cluster_of_machines_is_for_what_works_by_columns() -> None:
    def made(descent: object) -> None:
        ClusteredStrategy(descent, max_clients=3, engine="ray")  # type: ignore[arg-type]

    made(ClusteredDescent(Server(median)))
    with pytest.raises(ValueError, match="engine must be local or ray, got dask"):
        strategy(engine="dask")
    with pytest.raises(ValueError, match="engine: ray is for Algorithm 1, not for LocalMinimisers"):
        made(LocalMinimisers(None))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs a rule that aggregates by columns, not FunctionAggregator"):
        made(ClusteredDescent(Server(as_aggregator(lambda rows: rows[0]))))
    for changes in ({"precision": 0.1}, {"conditioned": "constant"}):
        with pytest.raises(ValueError, match="engine: ray works without Hessians"):
            made(ClusteredDescent(Server(median), **changes))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shared coordinates"):
        made(ClusteredDescent(Server(median, shared=1)))


def test_the_parameters_of_version_0_1_warn() -> None:
    descent = ClusteredDescent(Server(median), rounds=1)
    with pytest.warns(DeprecationWarning, match="is now called m.._clients") as warned:
        made = ClusteredStrategy(descent, places=5, least=2)  # type: ignore[call-arg]
    assert (made.max_clients, made.min_clients) == (5, 2)
    assert {warning.filename for warning in warned} == {__file__}


def test_a_node_that_is_only_listed_is_waited_for(drawn: Federation, start: np.ndarray, tmp_path: Path) -> None:
    """As after a restart of the server: it knows its nodes, and they have not come back yet."""
    kept: list[Message] = []

    class Returning(InProcessGrid):
        """Node 4 gets its first message, and answers, when somebody has looked for replies some times."""

        looks = 0

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            self.looks += 1
            if self.looks == 5:
                self.replies |= {reply.metadata.reply_to_message_id: reply for reply in kept}
            return super().pull_messages(message_ids)

    def away(question: Message, honest: Message) -> Message | None:
        kept.append(honest)
        return None if len(kept) == 1 else honest

    made = strategy(min_clients=CLIENTS, deadline=0.5, folder=tmp_path)
    centres_of(Returning(app(drawn), range(CLIENTS), {4: away}), start, made)
    assert {row["verdict"] for row in Checkpoint(tmp_path).rows()} == {"accepted"}
    never = InProcessGrid(app(drawn), range(CLIENTS), {4: lambda question, honest: None})
    with pytest.raises(ValueError, match=f"only {CLIENTS - 1} of {CLIENTS} nodes answered"):
        centres_of(never, start, strategy(min_clients=CLIENTS, deadline=0.1, patience=0.1))

    def replaced(question: Message, honest: Message) -> None:
        grid.nodes = [node for node in range(CLIENTS) if node != 4] + [104]  # with the data that node 4 had

    grid = InProcessGrid(app(drawn), range(CLIENTS), {4: replaced})
    centres_of(grid, start, strategy(min_clients=CLIENTS, deadline=600.0, patience=5.0))  # the deadline would be felt


@pytest.mark.parametrize("task", ["linear", "logistic"])
@pytest.mark.parametrize("attack", [None, "sign-flip"])
def test_coterie_asks_real_sites_for_hessians(task: Literal["linear", "logistic"], attack: str | None) -> None:
    """Correlated columns of unequal means: the same labels and centres as in the simulation, and no axis is lost.

    A Byzantine site sees only its own data, so that it attacks otherwise than in the simulation: the labels of the
    honest clients are compared.
    """
    count = 24
    table = tabular(
        3, clients=count, clusters=2, samples=80, dim=5, byzantine=0.125 if attack else 0.0, task=task,
        correlation=0.9, client_means=0.5, separation=2.0, dtype=np.float64,
    )  # fmt: skip
    assert table.truth is not None
    byzantine = table.truth.is_byzantine
    build = tasks.linear_regression if task == "linear" else tasks.logistic_regression
    known = None if attack is None else ct.attack(attack)

    def load(context: Context) -> tasks.Task:
        return build(table.clients.take([int(context.node_config["partition-id"])]))

    def attack_of(context: Context) -> attacks.Attack | None:
        return known if byzantine[int(context.node_config["partition-id"])] else None

    config = parse_config(
        {
            "problem": {"kind": "tabular", "clients": count, "clusters": 2, "dim": 5, "task": task, "dtype": "float64"},
            "algorithm": {"max_byzantine": 0.125, "rounds": 40},
        }
    )
    whole = build(table.clients)
    algorithm = METHODS["coterie"].algorithm(setting_of(config, whole, stream(0, 0, "buckets"), clients=count))
    assert isinstance(algorithm, ClusteredDescent)
    assert algorithm.conditioned == ("constant" if task == "linear" else "varying")
    grid, start = InProcessGrid(client_app(load, attack_of), range(count)), np.zeros((2, 5))
    found = centres_of(grid, start, ClusteredStrategy(algorithm, max_clients=count, deadline=20.0))
    network = SimulatedNetwork(whole, byzantine, known, np.random.default_rng(0), algorithm.server.aggregate)
    *_, last = play(algorithm, network, start, stream(0, 0, "server"))
    assert last.state.conditioning is not None
    assert last.state.conditioning.coordinates.dim == 5
    assert last.state.conditioning.number > 10
    labels, expected = (assign(whole.losses(centres))[~byzantine] for centres in (found, last.state.centres))
    assert adjusted_rand_index(labels, expected) == 1.0
    assert adjusted_rand_index(labels, table.truth.labels[~byzantine]) == 1.0
    if attack is None:
        np.testing.assert_allclose(found, last.state.centres, atol=1e-6)


@pytest.mark.parametrize("fault", ["silent", "short"])
def test_a_site_that_fails_the_question_for_hessians_is_audited_by_its_updates(fault: str, tmp_path: Path) -> None:
    """In a round that asks for Hessians again, the audit is about the updates of the round, and nothing is missing."""
    table = tabular(3, clients=12, clusters=2, samples=80, dim=5, byzantine=0.0, task="logistic", dtype=np.float64)
    assert table.truth is not None
    faults = {"silent": lambda question, honest: None, "short": sending(lambda row: row[:-1])}

    def load(context: Context) -> tasks.Task:
        return tasks.logistic_regression(table.clients.take([int(context.node_config["partition-id"])]))

    def faulty(question: Message, honest: Message) -> Message | None:
        asked = question.content.config_records["question"]["kind"]
        again = question.content.array_records["centres"]["centres"].numpy().any()
        return faults[fault](question, honest) if asked == "hessian" and again else honest

    grid = InProcessGrid(client_app(load), range(12), {3: faulty})
    algorithm = ClusteredDescent(Server(median), rounds=4, conditioned="varying")
    made = ClusteredStrategy(algorithm, max_clients=12, deadline=1.0, folder=tmp_path)
    centres_of(grid, np.asarray(table.truth.centres), made)
    rows = Checkpoint(tmp_path).rows()
    assert len(rows) == 4 * 12
    assert all(row["verdict"] == "accepted" and row["loss"] is not None for row in rows)
