"""Flower as transport: the same centres as in the simulation, and nothing that a site does ends a run."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from rich.console import Console
from sklearn.metrics import roc_auc_score

from coterie._src import attacks, tasks
from coterie._src.aggregators import median
from coterie._src.algorithms import ClusteredDescent, State
from coterie._src.algorithms.base import Exchange
from coterie._src.data import Federation, mixed_regression
from coterie._src.federation import ClusteredStrategy, FlowerNetwork, Members, Question, apps, client_app
from coterie._src.federation.audit import registered, suspicions
from coterie._src.federation.checkpoint import Checkpoint, Saved
from coterie._src.federation.client import respond_to
from coterie._src.federation.messages import read_answer, read_question
from coterie._src.federation.network import ENOUGH
from coterie._src.federation.progress import Progress, read_progress
from coterie._src.init import warm
from coterie._src.intake import admit
from coterie._src.report import federation_view
from coterie._src.server import Optimiser, Server
from coterie._src.simulation import SimulatedNetwork, play, stream
from in_process import FAULTS, Fault, InProcessGrid, failing

ROOT = Path(__file__).parent.parent
CLIENTS, LIARS = 12, 2


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Flower knows of a process in which an app runs; a message is made in its name."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture(scope="module")
def drawn() -> Federation:
    return mixed_regression(np.random.default_rng(0), clients=CLIENTS, clusters=2, samples=40, dim=6, byzantine=1 / 6)


@pytest.fixture(scope="module")
def start(drawn: Federation) -> np.ndarray:
    assert drawn.truth is not None
    return warm(drawn.truth, 0.2, np.random.default_rng(1)).astype(np.float32)


def app(drawn: Federation) -> ClientApp:
    """Every node is the client of its partition; the Byzantine ones do what the paper's do."""
    assert drawn.truth is not None
    byzantine = drawn.truth.byzantine

    def attack(context: Context) -> attacks.Attack | None:
        return attacks.Attack(attacks.paper) if byzantine[int(context.node_config["partition-id"])] else None

    def load(context: Context) -> Any:
        return tasks.linear_regression(drawn.clients.take([int(context.node_config["partition-id"])]))

    return client_app(load, attack)


def strategy(rounds: int = 6, **options: Any) -> ClusteredStrategy:
    settings = {"places": CLIENTS, "deadline": 0.3, **options}
    server = settings.pop("server", Server(median))
    return ClusteredStrategy(ClusteredDescent(server, rounds=rounds), **settings)


def centres_of(grid: Grid, start: np.ndarray, made: ClusteredStrategy) -> np.ndarray:
    found = made.start(grid, ArrayRecord({"centres": Array(start)}))
    assert found.arrays is not None
    return found.arrays["centres"].numpy()


def simulated(drawn: Federation, start: np.ndarray, rounds: int = 6, without: Iterable[int] = ()) -> np.ndarray:
    """What the simulation gives on the same clients, with some of them missing."""
    assert drawn.truth is not None
    kept = np.setdiff1d(np.arange(CLIENTS), list(without))
    task = tasks.linear_regression(drawn.clients.take(kept))
    attack = attacks.Attack(attacks.paper)
    network = SimulatedNetwork(task, drawn.truth.byzantine[kept], attack, np.random.default_rng(0), median)
    *_, last = play(ClusteredDescent(Server(median), rounds=rounds), network, start, stream(0, 0, "server"))
    centres: np.ndarray = last.state.centres
    return centres


def test_the_transport_changes_nothing(drawn: Federation, start: np.ndarray, tmp_path: Path) -> None:
    grid = InProcessGrid(app(drawn), range(CLIENTS))
    found = centres_of(grid, start, strategy(folder=tmp_path))
    np.testing.assert_allclose(found, simulated(drawn, start), atol=1e-5)
    rows = Checkpoint(tmp_path).rows()
    assert len(rows) == 6 * CLIENTS
    assert {row["verdict"] for row in rows} == {"accepted"}
    ranked = suspicions(rows)
    assert {one.client for one in ranked[:LIARS]} == {CLIENTS - 1, CLIENTS - 2}
    assert all(one.reasons for one in ranked[:LIARS])


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_site_is_one_that_is_missing(name: str, drawn: Federation, start: np.ndarray, tmp_path: Path) -> None:
    """From the second round on, so that the server knows all sites: the run ends, and the others decide."""
    fault, verdict = FAULTS[name]
    grid = InProcessGrid(app(drawn), range(CLIENTS), {3: fault})
    fixed = ClusteredDescent(Server(median), rounds=4, size=0.1)
    made = ClusteredStrategy(fixed, places=CLIENTS, deadline=0.5, folder=tmp_path)
    found = centres_of(grid, start, made)
    assert drawn.truth is not None
    kept = np.delete(np.arange(CLIENTS), 3)
    network = SimulatedNetwork(
        tasks.linear_regression(drawn.clients.take(kept)),
        drawn.truth.byzantine[kept],
        attacks.Attack(attacks.paper),
        np.random.default_rng(0),
        median,
    )
    *_, last = play(fixed, network, start, stream(0, 0, "server"))
    np.testing.assert_allclose(found, last.state.centres, atol=1e-5)
    rows = [row for row in Checkpoint(tmp_path).rows() if row["client"] == 3]
    assert {row["verdict"] for row in rows} == {verdict}
    (suspect,) = [one for one in suspicions(Checkpoint(tmp_path).rows()) if one.client == 3]
    assert suspect.reasons


def test_a_reply_that_was_lost_is_asked_for_again(drawn: Federation, start: np.ndarray) -> None:
    lost: list[int] = []

    def once(question: Message, honest: Message) -> Message:
        if lost:
            return honest
        lost.append(1)
        return Message(Error(ErrorCode.MESSAGE_UNAVAILABLE, "gone"), reply_to=question)

    grid = InProcessGrid(app(drawn), range(CLIENTS), {4: once})
    network = FlowerNetwork(grid, Members(CLIENTS), deadline=1.0)
    assert len(network.gradients(start, 0).clients) == CLIENTS
    assert grid.asked.count(4) == 2


def test_nobody_waits_long_for_a_site_that_never_answers(drawn: Federation, start: np.ndarray) -> None:
    """It is asked all the same, and when it answers it is waited for again."""
    answers: list[bool] = [False]
    silent: Fault = lambda question, honest: honest if answers[0] else None  # noqa: E731
    network = FlowerNetwork(InProcessGrid(app(drawn), range(CLIENTS), {4: silent}), Members(CLIENTS), deadline=0.5)
    for round in range(ENOUGH):
        assert network.given_up == set()
        network.gradients(start, round)
    assert network.given_up == {4}
    network.deadline = 600.0  # it would be felt
    assert len(network.gradients(start, 8).clients) == CLIENTS - 1
    answers[0] = True
    assert len(network.gradients(start, 9).clients) == CLIENTS
    assert network.given_up == set()


def test_a_quorum_keeps_the_centre(drawn: Federation, start: np.ndarray) -> None:
    """With one cluster's sites silent but for one, that cluster stays where it is and the other moves on."""
    silent = dict.fromkeys(range(1, 5), FAULTS["silent"][0])
    grid = InProcessGrid(app(drawn), range(CLIENTS), silent)
    fixed = ClusteredDescent(Server(median, quorum=4), rounds=1, size=0.1)
    found = centres_of(grid, start, ClusteredStrategy(fixed, places=CLIENTS, deadline=0.5))
    moved = np.abs(found - start).max(axis=1) > 0
    assert moved.tolist() == [False, True]


def test_late_joiners_and_those_who_leave(drawn: Federation, start: np.ndarray, tmp_path: Path) -> None:
    grid = InProcessGrid(app(drawn), range(8))

    def change(state: State, exchange: Exchange) -> None:
        if state.round == 2:
            grid.nodes = [*range(1, 8), 8, 9]
        if state.round == 4:
            grid.nodes = [*range(1, 8), 8, 9, 110, 111, 100]  # node 100 has the data that node 0 had

    found = centres_of(grid, start, strategy(rounds=40, folder=tmp_path, on_round=change))
    assert drawn.truth is not None
    np.testing.assert_allclose(found, drawn.truth.centres, atol=0.2)
    rows = Checkpoint(tmp_path).rows()
    last = {row["client"]: row["node"] for row in rows if row["round"] == 40}
    # free places first, then that of node 0, which is gone
    assert last == {0: "111", **{i: str(i) for i in range(1, 10)}, 10: "100", 11: "110"}
    assert sum(row["verdict"] == "silent" for row in rows if row["node"] == "0") >= 1


def test_members_keep_their_places() -> None:
    members = Members(3)
    assert members.update([7, 5]) == {5: 0, 7: 1}
    assert members.update([7, 9]) == {7: 1, 9: 2}
    assert members.update([7, 9, 5]) == {5: 0, 7: 1, 9: 2}
    assert members.update([7, 9, 11]) == {7: 1, 9: 2, 11: 0}  # 5 is gone, and there is no other place
    assert members.update([7, 9, 11, 5]) == {7: 1, 9: 2, 11: 0}
    assert members.turned_away == {5}
    with pytest.raises(ValueError, match="places"):
        Members(0)


class Killed(BaseException):
    """The server's process ends here."""


@pytest.mark.parametrize("kind", ["plain", "momentum"])
def test_a_killed_server_goes_on(kind: Any, drawn: Federation, start: np.ndarray, tmp_path: Path) -> None:
    """After any round, with the same answers: the same bits as a server that was never killed."""
    server = Server(median, optimiser=Optimiser(kind))
    algorithm = ClusteredDescent(server, rounds=6, participation=0.7)

    def run(folder: Path, **options: Any) -> np.ndarray:
        grid = InProcessGrid(app(drawn), range(CLIENTS))
        return centres_of(
            grid, start, ClusteredStrategy(algorithm, places=CLIENTS, deadline=0.3, folder=folder, **options)
        )

    whole = run(tmp_path / "whole")

    def kill(state: State, exchange: Exchange) -> None:
        if state.round in (1, 4):
            raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            run(tmp_path / "torn", on_round=kill)
    assert np.array_equal(run(tmp_path / "torn"), whole)
    run(tmp_path / "named", identity="age, dose")
    with pytest.raises(ValueError, match="named: holds the rounds of another configuration; move it away"):
        run(tmp_path / "named", identity="dose, age")
    rows = Checkpoint(tmp_path / "torn").rows()
    assert len(rows) == 6 * CLIENTS

    def without_clock(folder: str) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in Checkpoint(tmp_path / folder).rows()]

    assert without_clock("torn") == without_clock("whole")


def test_the_audit_knows_sites_and_clusters(tmp_path: Path) -> None:
    usual = {"node": "17", "verdict": "accepted", "trimmed": 0.1, "distance": 1.0, "fault": "", "round": 1}
    rows = [{**usual, "client": c, "node": str(17 + c), "label": label} for c, label in enumerate((1, 0, 1, -1))]
    found = suspicions(rows)
    assert {one.client: one.cluster for one in found} == {0: 1, 1: 0, 2: 1, 3: -1}
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "oslo.json").write_text('{"success": true, "node-id": 17}')
    (tmp_path / "nodes" / "rome.json").write_text('{"node-id": "19"}')
    (tmp_path / "nodes" / "torn.json").write_text('{"node-id"')
    (tmp_path / "federation").mkdir()
    names = registered(tmp_path / "federation")
    assert names == {"17": "oslo", "19": "rome"}


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.load() is None
    state = State(3, np.ones((2, 4), np.float32), curvatures=np.full((5, 2), np.nan), calm=(0.5, 2))
    checkpoint.save(Saved(state, np.random.default_rng(7), [3, None, 2**64 - 1]))
    found = checkpoint.load()
    assert found is not None
    assert (found.state.round, found.state.calm, found.nodes) == (3, (0.5, 2), [3, None, 2**64 - 1])
    assert found.rng.integers(2**60) == np.random.default_rng(7).integers(2**60)
    (tmp_path / "state.safetensors").write_bytes(b"not a state")
    with pytest.raises(ValueError, match="is not the state of a federation"):
        checkpoint.load()


def test_a_site_refuses_questions_that_make_no_sense(drawn: Federation) -> None:
    task = tasks.linear_regression(drawn.clients.take([0]))
    with pytest.raises(ValueError, match="have 3 parameters, this model has 6"):
        respond_to(Question("gradient", 0, np.zeros((2, 3), np.float32)), task)
    good = Question("gradient", 0, np.zeros((2, 6), np.float32), part=(0, 2))
    assert read_question(good.record())._replace(centres=0) == good._replace(centres=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be read"):
        read_question(RecordDict({}))
    with pytest.raises(ValueError, match="unknown kind"):
        read_question(good._replace(kind="secret").record())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="finite"):
        read_question(good._replace(centres=np.full((2, 6), np.nan)).record())
    several = client_app(lambda context: tasks.linear_regression(drawn.clients))
    message = Message(good.record(), dst_node_id=1, message_type="train")
    with pytest.raises(ValueError, match="a site is one client"):
        several(message, Context(1, 1, {}, RecordDict(), {}))


def test_named_columns_mean_the_same_at_every_site(tmp_path: Path) -> None:
    """Two sites with the same samples, whose files have their columns in another order."""
    (tmp_path / "oslo.csv").write_text("dose,age,y\n1,2,3\n4,6,5\n")
    (tmp_path / "bern.csv").write_text("site,age,y,dose\nbern,2,3,1\nbern,6,5,4\n")
    (tmp_path / "config.toml").write_text(
        '[problem]\nkind = "folder"\nclusters = 1\ncolumns = ["age", "dose"]\n[algorithm]\nstep = 0.1\n'
    )
    client = apps(tmp_path / "config.toml")[1]
    asked = Question("gradient", 0, np.array([[1.0, -1.0]], np.float32))
    found = []
    for site in ("oslo", "bern"):
        message = Message(asked.record(), dst_node_id=1, message_type="train")
        context = Context(1, 1, {"data": str(tmp_path / f"{site}.csv")}, RecordDict(), {})
        found.append(read_answer(client(message, context))[0].update)
    # errors 2 − 1 − 3 and 6 − 4 − 5: the gradient is (2/2)·(−2·(2, 1) − 3·(6, 4))
    np.testing.assert_allclose(found, [[-22.0, -14.0]] * 2)


def test_all_questions_have_the_answers_of_the_simulation(drawn: Federation, start: np.ndarray) -> None:
    assert drawn.truth is not None
    network = FlowerNetwork(InProcessGrid(app(drawn), range(CLIENTS)), Members(CLIENTS), deadline=1.0)
    task = tasks.linear_regression(drawn.clients)
    same = SimulatedNetwork(task, drawn.truth.byzantine, attacks.Attack(attacks.paper), np.random.default_rng(0))
    honest = ~drawn.truth.byzantine
    for ask in (
        lambda net: net.gradients(start, 3),
        lambda net: net.gradients(start, 3, np.arange(CLIENTS) % 2),
        lambda net: net.gradients(start, 0, None, (0, 2)),
        lambda net: net.minimisers(start, 0.1),
        lambda net: net.losses(start),
        lambda net: net.losses(start, (0, 1), computing=True),
        lambda net: net.sizes(),
        lambda net: net.curvatures(),
    ):
        over_flower, here = ask(network), ask(same)
        assert over_flower.clients == list(range(CLIENTS))
        assert np.array(over_flower.labels)[honest].tolist() == np.asarray(here.labels)[honest].tolist()
        np.testing.assert_allclose(
            np.stack(over_flower.updates)[honest], np.asarray(here.updates)[honest], rtol=1e-4, atol=1e-5
        )
    asked = network.gradients(start, 0, asked=np.array([1, 5]))
    assert asked.clients == [1, 5]


@pytest.mark.parametrize("attacked", [True, False])
def test_the_audit_puts_liars_first(attacked: bool, tmp_path: Path) -> None:
    """The paper's attack at 5 %: an AUC of at least 0.99; and with no attack nobody stands out."""
    clients = 60
    drawn = mixed_regression(
        np.random.default_rng(3), clients=clients, clusters=2, samples=60, dim=20, byzantine=0.05 if attacked else 0.0
    )
    assert drawn.truth is not None
    start = warm(drawn.truth, 0.2, np.random.default_rng(1)).astype(np.float32)
    grid = InProcessGrid(app(drawn), range(clients))
    made = ClusteredStrategy(ClusteredDescent(Server(median), rounds=10), places=clients, deadline=5, folder=tmp_path)
    centres_of(grid, start, made)
    found = suspicions(Checkpoint(tmp_path).rows())
    if attacked:
        scores = {one.client: one.score for one in found}
        assert roc_auc_score(drawn.truth.byzantine, [scores[i] for i in range(clients)]) >= 0.99
    else:
        assert not any(one.reasons for one in found)


def test_an_error_reply_is_one_line() -> None:
    question = Message(Question("size", -1, np.zeros((1, 1))).record(), dst_node_id=1, message_type="train")
    question.metadata.__dict__["_message_id"] = "x"
    answer, fault = read_answer(failing(question, question))
    assert answer.update is None
    assert fault == "the site says: no data"
    raised = Message(
        Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "<class 'ValueError'>:<'rome.csv: no column 'age''>"),
        reply_to=question,
    )
    assert read_answer(raised)[1] == "the site says: ValueError: rome.csv: no column 'age'"
    coloured = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "\x1b[2Jnothing to see"), reply_to=question)
    assert read_answer(coloured)[1] == "the site says: ?[2Jnothing to see"


def test_too_few_nodes_are_named(drawn: Federation, start: np.ndarray) -> None:
    made = strategy(least=3, patience=0.1)
    with pytest.raises(ValueError, match="only 2 of 3 nodes came"):
        centres_of(InProcessGrid(app(drawn), range(2)), start, made)
    with pytest.raises(ValueError, match="least"):
        strategy(least=99)
    with pytest.raises(ValueError, match="deadline"):
        strategy(deadline=0)


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

    made = strategy(least=CLIENTS, deadline=0.5, folder=tmp_path)
    centres_of(Returning(app(drawn), range(CLIENTS), {4: away}), start, made)
    assert {row["verdict"] for row in Checkpoint(tmp_path).rows()} == {"accepted"}
    never = InProcessGrid(app(drawn), range(CLIENTS), {4: lambda question, honest: None})
    with pytest.raises(ValueError, match=f"only {CLIENTS - 1} of {CLIENTS} nodes came"):
        centres_of(never, start, strategy(least=CLIENTS, deadline=0.1, patience=0.1))

    def replaced(question: Message, honest: Message) -> None:
        grid.nodes = [node for node in range(CLIENTS) if node != 4] + [104]  # with the data that node 4 had

    grid = InProcessGrid(app(drawn), range(CLIENTS), {4: replaced})
    centres_of(grid, start, strategy(least=CLIENTS, deadline=600.0, patience=5.0))  # the deadline would be felt


def test_how_far_it_is_can_be_watched(drawn: Federation, start: np.ndarray, tmp_path: Path) -> None:
    """The note beside the state says what the last round was like, and the view shows it."""
    grid = InProcessGrid(app(drawn), range(CLIENTS), {3: FAULTS["nan"][0], 5: FAULTS["silent"][0]})
    seen: list[Progress] = []

    def note(state: State, exchange: Exchange) -> None:
        found = read_progress(tmp_path)
        assert found is not None
        seen.append(found[0])

    made = ClusteredStrategy(
        ClusteredDescent(Server(median), rounds=3, size=0.1),
        places=CLIENTS,
        deadline=0.1,
        folder=tmp_path,
        on_round=note,
    )
    assert read_progress(tmp_path) is None
    centres_of(grid, start, made)
    assert [(one.round, one.accepted, one.refused, one.silent) for one in seen] == [(r, 10, 1, 1) for r in (1, 2, 3)]
    assert all(sum(one.sizes) == 10 and None not in one.losses and not one.done for one in seen)
    assert seen[0].faults == ("client 3 (node 3): not finite", "client 5 (node 5): silent")
    last = read_progress(tmp_path)
    assert last is not None
    assert last[0] == seen[-1]._replace(done=True, left=last[0].left)
    console = Console(width=100, file=io.StringIO())
    console.print(federation_view(seen[-1]._replace(left=61.0), age=20.0))
    console.print(federation_view(Progress(9, waiting=True, replies=2, asked=4), age=0.0))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("3/3", "0:01:01 left", "no news for 0:00:20", "10 accepted, 1 refused, 1 silent", "not finite"):
        assert words in shown
    assert re.search(r"sites .* 2/4", shown)
    (tmp_path / "progress.json").write_text('{"rounds": 3, "unheard": 1}')
    with pytest.raises(ValueError, match="is not the progress of a federation"):
        read_progress(tmp_path)


def test_a_second_question_of_a_round_leaves_the_first_answers_alone(drawn: Federation, start: np.ndarray) -> None:
    network = FlowerNetwork(InProcessGrid(app(drawn), range(CLIENTS)), Members(CLIENTS), deadline=1.0)
    options: dict[str, Any] = {"clients": CLIENTS, "clusters": 2, "like": start}
    first = admit(network.gradients(start, 0), round=0, **options)
    before = first.updates.copy()
    admit(network.gradients(start, 0, np.zeros(CLIENTS, dtype=np.int64)), round=0, **options)
    np.testing.assert_array_equal(first.updates, before)
    again = admit(network.gradients(2 * start, 1), round=1, **options)
    assert np.shares_memory(again.updates, first.updates)
