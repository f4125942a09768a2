"""A resident site beside Flower's own SuperLink: it runs no code of the server, tells it no text, and survives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from coterie._src.experiments import read_config
from coterie._src.federation import ClientNumbers, FlowerNetwork, Question, certificates, fleet, flower
from coterie._src.federation.deployment import write_deployment
from coterie._src.federation.fleet import FleetConnection, FleetError, Identity
from coterie._src.federation.installed import MAX_QUESTION_BYTES, installed_app
from coterie._src.federation.messages import read_refusal
from coterie._src.federation.resident import STUCK, Resident, read_status
from real_processes import ENVIRONMENT, coterie, wait_until
from superlink import SuperLink

CONFIG = ["problem.clusters=2", "problem.clients=8", "problem.dim=5", "problem.samples=40", "algorithm.max_byzantine=0"]
SECRET = "age 47, response 0.25"
CENTRES = np.zeros((2, 5), dtype=np.float32)


@pytest.fixture
def link() -> Iterator[SuperLink]:
    found = SuperLink()
    yield found
    found.stop()


def deployed(place: Path, port: int = 9093, *, insecure: bool = True) -> Path:
    """A deployment of two sites of a rehearsal."""
    write_deployment(place, read_config(None, CONFIG), ["oslo", "rome"], host="127.0.0.1", port=port, insecure=insecure)
    return place


def begun(
    processes: list[subprocess.Popen[bytes]], address: str, folder: Path, *words: str
) -> tuple[subprocess.Popen[bytes], Path]:
    """A site as a process, and its log."""
    log = folder / "log"
    with log.open("ab") as stream:
        command = [sys.executable, "-m", "coterie", "site", "serve", "--server", address, "--folder", str(folder)]
        environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([*sys.path, str(folder)])}
        process = subprocess.Popen(
            [*command, *words], stdout=stream, stderr=stream, env=environment, start_new_session=True
        )
    processes.append(process)
    return process, log


def exchanged(
    grid: Grid, *contents: RecordDict, kinds: tuple[str, ...] = (), node: int = 0, site: Resident | None = None
) -> list[Message]:
    """The replies of a node, by default the first, to these contents.

    kinds: Flower's types of the messages. site: one in this process, which answers here.
    """
    node = node or next(iter(grid.get_node_ids()))
    typed = zip(contents, kinds or ("train",) * len(contents), strict=True)
    ids = set(grid.push_messages([Message(content, node, kind) for content, kind in typed]))
    found: list[Message] = []

    def all_came() -> bool:
        if site is not None:
            site.answer_next()
        found.extend(grid.pull_messages(ids - {reply.metadata.reply_to_message_id for reply in found}))
        return len(found) == len(ids)

    wait_until(all_came, 60)
    return found


@pytest.fixture
def connected() -> Iterator[Callable[..., FleetConnection]]:
    """Make connections to a SuperLink, and close them."""
    made: list[FleetConnection] = []

    def connect(
        link: SuperLink, certificates: Path | None = None, key: Path | None = None, max_bytes: int = MAX_QUESTION_BYTES
    ) -> FleetConnection:
        made.append(FleetConnection(Identity(link.address, certificates, key), max_bytes))
        return made[-1]

    yield connect
    for connection in made:
        connection.close()


def in_process(connection: FleetConnection, folder: Path, app: ClientApp | None = None) -> Resident:
    """A site that is connected and answers when it is told to."""
    installed = installed_app(folder, None, 0)
    connection.admit()
    return Resident(connection, app or installed.app, installed.node_config, installed.run_config, folder)


# --- no code from the server -------------------------------------------------------------------------


def test_sites_run_what_is_installed_and_fetch_no_app(
    tmp_path: Path, link: SuperLink, processes: list[subprocess.Popen[bytes]]
) -> None:
    """Two sites as processes: a hostile run gets refusals from both, an honest one answers, and SIGTERM ends them."""
    place, grid = deployed(tmp_path / "deployment"), link.run()
    sites = [
        begun(processes, link.address, place / name, "--client", client, "--insecure")
        for name, client in (("oslo", "0"), ("rome", "1"))
    ]
    wait_until(lambda: len(list(grid.get_node_ids())) == 2, 60)
    network = FlowerNetwork(grid, ClientNumbers(2), deadline=30.0)
    hostile = RecordDict({"question": ConfigRecord({"code": "os.listdir('/')", "kind": "print rows and key"})})
    kinds = ("train", "query", "evaluate", "query.rows", "train.key")
    for node in grid.get_node_ids():
        replies = exchanged(grid, *[hostile] * len(kinds), kinds=kinds, node=node)
        assert all(read_refusal(reply) for reply in replies)
    answers = network.gradients(CENTRES, 0)
    assert len(answers.clients) == 2
    assert np.isfinite(answers.updates[0]).all()
    assert np.abs(answers.updates[0]).max() > 0
    assert not {"get-fab", "get-run"} & set(link.requests)
    assert {file.name for file in (place / "oslo").iterdir()} == {
        "start.sh", "config.toml", ".lock", "status.json", "log",
    }  # fmt: skip
    assert read_status(place / "oslo") == ("connected, 6 questions answered", True)
    for process, log in sites:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0, log.read_text()
    assert not list(grid.get_node_ids())  # both took leave
    assert not read_status(place / "oslo")[1]


def test_a_site_answers_with_an_app_of_its_own(
    tmp_path: Path, link: SuperLink, connected: Callable[..., FleetConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, grid = deployed(tmp_path / "deployment") / "oslo", link.run()
    (tmp_path / "own_site.py").write_text(
        "import numpy as np\n"
        "from coterie._src.data import Clients\n"
        "from coterie._src.tasks import mean_estimation\n"
        "loaded = []\n"
        "def load(context):\n"
        "    loaded.append(context)\n"
        "    return mean_estimation(Clients(np.ones((30, 5), np.float32), None, np.array([30])))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (place / "site.toml").write_text('app = "own_site:load"\n')
    site = in_process(connected(link), place)
    questions = [Question("gradient", i, CENTRES).record() for i in range(2)]
    for reply in exchanged(grid, *questions, site=site):
        np.testing.assert_array_equal(reply.content.array_records["update"]["update"].numpy(), -2 * np.ones(5))
    assert len(sys.modules["own_site"].loaded) == 1  # once, and not for every question
    (place / "site.toml").write_text('app = "own_site:load"\nmin_samples = 31\n')  # the policy holds for it, too
    (reply,) = exchanged(grid, Question("gradient", 2, CENTRES).record(), site=site)
    assert read_refusal(reply) == "the site declines: too few samples"
    for wrong, named in (
        ("own_site", "import path"),
        ("own_site:absent", "not installed"),
        ("own_site:loaded", "a list"),
    ):
        (place / "site.toml").write_text(f'app = "{wrong}"\n')
        with pytest.raises(ValueError, match=f"app: .*{named}"):
            installed_app(place, None, 0)


# --- what a site tells --------------------------------------------------------------------------------


def raising(message: Message, context: Context) -> Message:
    raise RuntimeError(f"column 'age' of /home/oslo/patients.csv: {SECRET}\x1b[2J")


def unsendable(message: Message, context: Context) -> Message:
    return Message(RecordDict({"answer": MetricRecord({"samples": 2**64})}), reply_to=message)


@pytest.mark.parametrize("misbehaving", [raising, unsendable])
def test_errors_stay_at_the_site(
    misbehaving: Callable[[Message, Context], Message],
    tmp_path: Path,
    link: SuperLink,
    connected: Callable[..., FleetConnection],
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = ClientApp()
    app.train()(misbehaving)
    grid = link.run()
    site = in_process(connected(link), deployed(tmp_path / "deployment") / "oslo", app)
    for reply in exchanged(grid, RecordDict({}), RecordDict({}), site=site):
        assert read_refusal(reply) == "the site says: site error (its own log has the reason)"
        assert set(reply.content) == {"refusal"}
        assert dict(reply.content.config_records["refusal"]) == {"code": "site_error"}
    assert (SECRET in caplog.text) == (misbehaving is raising)
    assert "\x1b[2J" not in caplog.text


def test_a_question_is_taken_no_larger_than_it_may_be(
    tmp_path: Path, link: SuperLink, connected: Callable[..., FleetConnection]
) -> None:
    grid = link.run()
    site = in_process(connected(link, max_bytes=100_000), deployed(tmp_path / "deployment") / "oslo")
    large = RecordDict({"centres": ArrayRecord([np.zeros(20_000)])})
    honest = Question("gradient", 0, CENTRES).record()
    replies = exchanged(grid, large, honest, site=site)
    assert sorted(read_refusal(reply) for reply in replies) == ["", "the site declines: malformed"]
    assert installed_app(tmp_path / "deployment" / "oslo", None, 0).max_question_bytes < MAX_QUESTION_BYTES


# --- what a site survives -----------------------------------------------------------------------------


def test_a_site_waits_for_its_key_and_for_its_server(tmp_path: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    """With TLS and keys: refused until its key is registered; then the server goes and comes, and the site answers."""
    place = deployed(tmp_path / "deployment", insecure=False)
    link = SuperLink(place, key_checked=True)
    try:
        grid, folder = link.run(), place / "oslo"
        process, log = begun(processes, link.address, folder, "--client", "0")
        wait_until(lambda: "key is not registered" in log.read_text(), 60)
        assert read_status(folder)[0].startswith("waiting (127.0.0.1:")
        node = link.register(folder / "node.key")
        wait_until(lambda: list(grid.get_node_ids()) == [node], 60)
        assert len(exchanged(grid, Question("gradient", 0, CENTRES).record())) == 1
        second, told = begun(processes, link.address, folder, "--client", "0")
        assert second.wait(timeout=60) == 2
        assert "another process of this site works here" in told.read_text()
        process.kill()  # it cannot take leave, and the server counts on it for another minute
        process.wait()
        process, log = begun(processes, link.address, folder, "--client", "0")
        assert len(exchanged(grid, Question("gradient", 1, CENTRES).record())) == 1
        link.stop()
        wait_until(lambda: "cannot be reached" in log.read_text(), 60)
        assert process.poll() is None
        link.start()
        assert len(exchanged(grid, Question("gradient", 2, CENTRES).record())) == 1
        assert log.read_text().count("trying again") == 2  # a line for each fault, whatever how often it was tried
    finally:
        link.stop()


@pytest.mark.parametrize(
    ("ahead", "named"),
    [(10, "clock is (9|10|11) s ahead of"), (-400, "clock is (399|400|401) s behind"), (3, ""), (-290, "")],
)
def test_a_clock_that_is_wrong_is_named(
    ahead: float,
    named: str,
    link: SuperLink,
    connected: Callable[..., FleetConnection],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, clock = flower.now, time.time
    monkeypatch.setattr(flower, "now", lambda: now() + timedelta(seconds=ahead))
    monkeypatch.setattr(fleet.time, "time", lambda: clock() + ahead)
    connection = connected(link)
    if not named:
        connection.admit()
        assert connection.skew == pytest.approx(ahead, abs=2.0)
        return
    with pytest.raises(FleetError, match=named) as refused:
        connection.admit()
    assert "\n" not in str(refused.value)
    monkeypatch.undo()  # the clock is set
    connection.admit()
    assert connection.node_id


@pytest.mark.parametrize(
    ("backdated", "other", "named"),
    [
        (10 * 24 * 60, False, "has expired"),
        (-24 * 60, False, "is not yet valid; this machine's clock says"),
        (5, True, "is not signed by the authority of"),
    ],
)
def test_a_certificate_that_is_wrong_is_named(
    backdated: int,
    other: bool,
    named: str,
    tmp_path: Path,
    connected: Callable[..., FleetConnection],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = deployed(tmp_path / "deployment", insecure=False)
    key = serialization.load_pem_private_key((place / "offline" / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    monkeypatch.setattr(certificates, "BACKDATED_MINUTES", backdated)
    private, certificate = certificates.CertificateAuthority(key).server_certificate("127.0.0.1", days=1)
    (place / "server" / "server.key").write_bytes(private)
    (place / "server" / "server.pem").write_bytes(certificate)
    authority = deployed(tmp_path / "other", insecure=False) if other else place
    link = SuperLink(place)
    try:
        connection = connected(link, authority / "oslo" / "ca.pem", place / "oslo" / "node.key")
        with pytest.raises(FleetError, match=named) as refused:
            connection.admit()
        assert "\n" not in str(refused.value)
    finally:
        link.stop()


def test_a_process_that_is_stuck_ends_so_that_it_is_started_again(
    tmp_path: Path, link: SuperLink, processes: list[subprocess.Popen[bytes]]
) -> None:
    place, grid = deployed(tmp_path / "deployment") / "oslo", link.run()
    (place / "hanging_site.py").write_text(
        "import time\nfrom flwr.clientapp import ClientApp\nclient = ClientApp()\n"
        "@client.train()\ndef answer(message, context):\n    time.sleep(600)\n"
    )
    (place / "site.toml").write_text('app = "hanging_site:client"\n')
    process, log = begun(processes, link.address, place, "--insecure", "--longest-answer", "1")
    wait_until(lambda: bool(list(grid.get_node_ids())), 60)
    (node,) = grid.get_node_ids()
    grid.push_messages([Message(RecordDict({}), node, "train")])
    assert process.wait(timeout=60) == STUCK, log.read_text()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--server", "127.0.0.1"], "server: must be HOST:PORT"),
        (["--server", "127.0.0.1:1", "--folder", "nowhere"], "folder: nowhere is no folder"),
        (["--server", "127.0.0.1:1", "--folder", "."], "config.toml"),
        (["absent.csv", "--server", "127.0.0.1:1", "--folder", "oslo"], "absent.csv: no such file"),
        (["--server", "127.0.0.1:1", "--folder", "oslo", "--client", "0"], "ca.pem: cannot be read as certificates"),
    ],
)
def test_a_file_that_is_wrong_ends_the_command_at_once(words: list[str], named: str, tmp_path: Path) -> None:
    done = coterie("site", "serve", *words, cwd=deployed(tmp_path / "deployment"))
    assert done.returncode == 2
    assert named in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_status_of_a_site_is_of_its_process(tmp_path: Path) -> None:
    assert read_status(tmp_path) == (f"{tmp_path}: no site has been started here", False)
    for text in ("", "[]", '{"time": "x"}', '{"time": 1}'):
        (tmp_path / "status.json").write_text(text)
        assert not read_status(tmp_path)[1]
    old = (datetime.now(UTC) - timedelta(seconds=40)).timestamp()
    (tmp_path / "status.json").write_text(f'{{"time": {old}, "state": "connected", "line": "", "answered": 3}}')
    line, alive = read_status(tmp_path)
    assert not alive
    assert line.startswith("not running; 40 s ago: connected, 3 questions")
