"""Who takes part: sites that the operator blocks, sites with two keys, and runs that stop where too many stand out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coterie._src.algorithms import RoundInfo, State
from coterie._src.data import Federation
from coterie._src.experiments import read_config
from coterie._src.federation.apps import FOR_ALL, RunSettings, apps, run_server
from coterie._src.federation.audit import audit_clients, site_names
from coterie._src.federation.checkpoint import Checkpoint
from coterie._src.federation.numbering import ClientNumbers
from coterie._src.federation.page import federation_page
from coterie._src.federation.server_folder import (
    Participants,
    ServerSettings,
    allow_site,
    block_site,
    blocked_sites,
    settings_toml,
)
from in_process import InProcessGrid, sending
from real_processes import coterie
from small_federation import CLIENTS, app, centres_of, simulated, strategy


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """The folder of a server that knows the nodes 0 to 11 by name."""
    (tmp_path / "nodes").mkdir()
    for node in range(CLIENTS):
        (tmp_path / "nodes" / f"site{node}.json").write_text(f'{{"node-id": {node}}}')
    (tmp_path / "server.toml").write_text(settings_toml(ServerSettings(host="h", port=1, inner_port=2)))
    return tmp_path


def test_a_block_takes_effect_in_the_next_round_of_a_run(
    server: Path, drawn: Federation, start: np.ndarray, tmp_path: Path
) -> None:
    """Blocked after the second round and let in after the fourth: the audit says so, and why."""

    def operate(state: State, info: RoundInfo) -> None:
        words = ("--folder", str(server))
        if state.round == 2:
            done = coterie("federate", "block", "site3", "--reason", "pump\x1b[2J broken\n", *words, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
        if state.round == 4:
            assert coterie("federate", "allow", "site3", *words, cwd=tmp_path).returncode == 0

    folder = server / "federation"
    grid = InProcessGrid(app(drawn), range(CLIENTS))
    centres_of(grid, start, strategy(rounds=6, folder=folder, on_round=operate))
    rows = [row for row in Checkpoint(folder).rows() if row["client"] == 3]
    assert [row["verdict"] for row in rows] == ["accepted"] * 2 + ["blocked"] * 2 + ["accepted"] * 2
    assert {row["fault"] for row in rows} == {"", "pump?[2J broken?"}
    [found] = [one for one in audit_clients(Checkpoint(folder).rows()) if one.client == 3]
    assert any("blocked by the operator in 33% of the rounds" in reason for reason in found.reasons)
    assert (found.refused_fraction, found.silent_fraction) == (0.0, 0.0)
    assert blocked_sites(server) == {}
    shown = coterie("audit", str(folder), cwd=tmp_path)
    assert "blocked by the operator" in " ".join(shown.stdout.split())
    assert "blocked by the operator in 33% of the rounds (pump?[2J broken?)" in federation_page(folder)
    twice = coterie("federate", "allow", "site3", "--folder", str(server), cwd=tmp_path)
    assert "is not blocked" in twice.stderr
    unknown = coterie("federate", "block", "site99", "--folder", str(server), cwd=tmp_path)
    assert "site: 'site99' is not known" in unknown.stderr


def test_a_blocked_site_is_as_if_it_were_missing(server: Path, drawn: Federation, start: np.ndarray) -> None:
    block_site(server, "site5", "unusual")
    made = strategy(rounds=4, folder=server / "federation")
    found = centres_of(InProcessGrid(app(drawn), range(CLIENTS)), start, made)
    np.testing.assert_allclose(found, simulated(drawn, start, rounds=4, without=[5]), atol=1e-5)
    allow_site(server, "site5")


def test_a_blocked_site_takes_no_part_in_the_model_for_all_either(
    server: Path, drawn: Federation, start: np.ndarray
) -> None:
    """Whose state lies in a folder of its own in that of the run."""
    block_site(server, "site5", "unusual")
    folder = server / "federation" / FOR_ALL
    centres_of(InProcessGrid(app(drawn), range(CLIENTS)), start, strategy(rounds=1, folder=folder))
    assert {row["node"] for row in Checkpoint(folder).rows()} == {str(node) for node in range(CLIENTS) if node != 5}
    assert site_names(folder)["7"] == "site7"


def test_of_two_keys_of_a_site_the_newer_takes_part_and_is_the_same_client(server: Path) -> None:
    """A site with two keys is one client, whichever it connects with; else it would vote twice."""
    (server / "nodes" / "site4.2.json").write_text('{"node-id": 400}')
    who, clients = Participants(server), ClientNumbers(CLIENTS)
    for present, expected in (
        (list(range(CLIENTS)), list(range(CLIENTS))),
        ([*range(CLIENTS), 400], [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 400]),
        ([0, 4], [0, 4]),
        ([777], [777]),  # without a name
    ):
        assert who.of(present) == expected
    assert clients.assign(who.of(range(CLIENTS)), who.name)[4] == 4
    assert clients.assign(who.of([*range(CLIENTS), 400]), who.name)[400] == 4


def test_a_list_of_blocked_sites_that_cannot_be_read_stops_a_run(server: Path) -> None:
    """Whom the operator keeps out is not known then."""
    (server / "blocked.json").write_text("[]")
    with pytest.raises(ValueError, match=r"blocked\.json: cannot be read as the list of blocked sites"):
        Participants(server).of([1])


@pytest.mark.parametrize("blocked", [False, True])
def test_a_strict_federation_stops_where_more_sites_stand_out_than_the_bound_allows(
    server: Path, blocked: bool, tmp_path: Path
) -> None:
    """Nothing is published; with the sites blocked that stand out, it goes on to its end."""
    (tmp_path / "config.toml").write_text(
        "[problem]\nclusters = 2\nclients = 12\ndim = 4\nsamples = 40\nbyzantine = 0.0\n"
        "[algorithm]\nrounds = 6\nstep = 0.1\ninit = 'gaussian'\nmax_byzantine = 0.08\nstrict = true\n"
    )
    config, client = read_config(tmp_path / "config.toml"), apps(tmp_path / "config.toml")[1]
    faults = {node: sending(lambda row: row * np.float32(np.nan)) for node in (1, 2, 7)}
    if blocked:
        for node in (1, 2, 7):
            block_site(server, f"site{node}", "nonsense")
    folder = server / "federation"
    settings = RunSettings("brifca-median", 12, 8, 5.0, 0.3, folder=str(folder), min_replies=1)
    grid = InProcessGrid(client, range(12), faults)
    if blocked:
        run_server(config, settings, grid)
        assert (folder / "centres.safetensors").exists()
        return
    with pytest.raises(ValueError, match=r"strict: 3 sites stand out \(site1, site2, site7\), and the bound allows 1"):
        run_server(config, settings, grid)
    assert not (folder / "centres.safetensors").exists()
    assert not (folder / "clients.csv").exists()
    assert max(row["round"] for row in Checkpoint(folder).rows()) == 3
