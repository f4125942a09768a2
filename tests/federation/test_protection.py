"""Too few replies: no model changes on them, and the run stops instead of ending with such a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st

from coterie._src.data import Federation
from coterie._src.experiments import read_config
from coterie._src.federation.apps import RunSettings, apps, run_server
from coterie._src.federation.checkpoint import Checkpoint
from coterie._src.federation.progress import read_progress
from coterie._src.federation.protection import Protection, protection
from in_process import InProcessGrid, sending
from real_processes import coterie
from small_federation import CLIENTS, app, centres_of, simulated, strategy


@given(st.integers(1, 200), st.integers(1, 12), st.integers(0, 99))
def test_as_many_byzantine_sites_can_be_stood_as_leave_each_cluster_a_quorum(m: int, k: int, b: int) -> None:
    """Of equal clusters the smallest has ⌊(m − b)/k⌋ honest sites, and with all b it has an honest majority."""
    found = Protection(m, k, b, m)
    enough = (m - b) // k >= 2 * b + 1
    assert enough == (b <= found.tolerable) or (b == 0 and m < k)
    assert (m >= found.sites_needed) == enough
    assert found.quorum - b > b


def test_the_bound_of_a_federation_follows_from_its_configuration() -> None:
    found = protection(read_config(None, ["problem.clusters=2", "algorithm.max_byzantine=0.1"]), 20)
    assert (found.allowed, found.quorum, found.min_replies, found.tolerable) == (2, 5, 10, 3)
    assert protection(read_config(None, ["problem.clusters=2", "algorithm.participation=0.3"]), 20).min_replies == 6
    assert protection(read_config(None, ["algorithm.max_byzantine=0", "problem.clusters=3"]), 20)[1:3] == (3, 0)
    assert protection(read_config(None, ["problem.clusters=3"]), 20, "global").clusters == 1
    words = " ".join(found.lines(0.1))
    assert "Can stand 3 Byzantine sites of 20" in words
    assert "changes only on 5 replies" in words
    assert "18 % of it, by which a trimmed-mean or a mean CAN BE MOVED ANYWHERE" in words  # 2/(2 + 9)


def test_a_federation_that_is_too_small_for_its_bound_is_not_written(tmp_path: Path) -> None:
    words = ["--set", "problem.clusters=2", "--insecure", *(word for i in range(3) for word in ("--site", f"s{i}"))]
    refused = coterie("federate", "up", "small", *words, cwd=tmp_path)
    assert refused.returncode == 2
    assert "sites: 3 in 2 clusters can stand no Byzantine site" in refused.stderr
    assert "name at least 7" in refused.stderr
    assert not (tmp_path / "small").exists()
    trusted = coterie("federate", "up", "small", *words, "--set", "algorithm.max_byzantine=0", cwd=tmp_path)
    assert trusted.returncode == 0, trusted.stderr
    assert "Can stand no Byzantine site" in trusted.stdout
    more = [word for i in range(3, 7) for word in ("--site", f"s{i}")]
    enough = coterie("federate", "up", "enough", *words, *more, cwd=tmp_path)
    assert enough.returncode == 0, enough.stderr
    assert "Can stand 1 Byzantine site of 7" in enough.stdout


def test_a_round_with_too_few_replies_is_played_again(drawn: Federation, start: np.ndarray, tmp_path: Path) -> None:
    """Six of twelve sites are silent when they are asked for the first and for the second time."""
    asked = dict.fromkeys(range(6), 0)

    def late(question: Message, honest: Message) -> Message | None:
        node = question.metadata.dst_node_id
        asked[node] += 1
        return honest if asked[node] > 3 else None  # whether they are there, the curvature, and a round

    grid = InProcessGrid(app(drawn), range(CLIENTS), dict.fromkeys(asked, late))
    made = strategy(rounds=3, folder=tmp_path, deadline=0.2, min_clients=6, min_replies=10, patience=60.0)
    centres = centres_of(grid, start, made)
    assert {row["verdict"] for row in Checkpoint(tmp_path).rows()} == {"accepted"}
    assert len(Checkpoint(tmp_path).rows()) == 3 * CLIENTS
    assert centres.shape == simulated(drawn, start, rounds=3).shape


def test_a_run_that_stays_below_its_least_replies_stops_without_a_model(
    drawn: Federation, start: np.ndarray, tmp_path: Path
) -> None:
    """Its state is that of the last round that counted, and it goes on from there."""
    centres_of(InProcessGrid(app(drawn), range(CLIENTS)), start, strategy(rounds=2, folder=tmp_path))
    before = Checkpoint(tmp_path).load()
    gone = {node: (lambda question, honest: None) for node in range(3, CLIENTS)}
    few = strategy(rounds=4, folder=tmp_path, deadline=0.05, min_replies=10, patience=0.5)
    with pytest.raises(ValueError, match="min_replies: round 3 had 3 accepted replies of at least 10"):
        centres_of(InProcessGrid(app(drawn), range(CLIENTS), gone), start, few)
    after = Checkpoint(tmp_path).load()
    assert before is not None
    assert after is not None
    np.testing.assert_array_equal(after.state.centres, before.state.centres)
    assert max(row["round"] for row in Checkpoint(tmp_path).rows()) == 2
    progress = read_progress(tmp_path)
    assert progress is not None
    assert not progress[0].done
    again = centres_of(InProcessGrid(app(drawn), range(CLIENTS)), start, strategy(rounds=4, folder=tmp_path))
    np.testing.assert_allclose(again, simulated(drawn, start, rounds=4), atol=1e-5)


def test_two_byzantine_sites_of_three_replies_move_nothing(tmp_path: Path) -> None:
    """By default: 12 sites in two clusters, of which all but three fall silent, and two of the three are Byzantine."""
    (tmp_path / "config.toml").write_text(
        "[problem]\nclusters = 2\nclients = 12\ndim = 4\nsamples = 40\nbyzantine = 0.0\n[algorithm]\nrounds = 6\n"
        "max_byzantine = 0.1\n"
    )
    config = read_config(tmp_path / "config.toml")
    client = apps(tmp_path / "config.toml")[1]
    asked = dict.fromkeys(range(12), 0)

    def fading(question: Message, honest: Message) -> Message | None:
        asked[question.metadata.dst_node_id] += 1
        return honest if asked[question.metadata.dst_node_id] < 4 else None

    hostile = sending(lambda row: row + np.float32(1e3))
    faults = dict.fromkeys(range(3, 12), fading) | dict.fromkeys(range(2), hostile)
    settings = RunSettings("coterie", 12, 12, 0.5, 0.2, folder=str(tmp_path / "out"))
    with pytest.raises(ValueError, match="of at least 10"):
        run_server(config, settings, InProcessGrid(client, range(12), faults))
    assert not (tmp_path / "out" / "centres.safetensors").exists()
