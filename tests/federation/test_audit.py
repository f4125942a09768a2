"""The audit: who stands out, by the names of the sites."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from coterie._src.aggregators import median
from coterie._src.algorithms import ClusteredDescent
from coterie._src.data import mixed_regression
from coterie._src.federation import ClusteredStrategy
from coterie._src.federation.audit import audit_clients, site_names
from coterie._src.federation.checkpoint import Checkpoint
from coterie._src.init import warm
from coterie._src.server import Server
from in_process import InProcessGrid
from small_federation import app, centres_of


def test_the_audit_knows_sites_and_clusters(tmp_path: Path) -> None:
    usual = {"node": "17", "verdict": "accepted", "trimmed": 0.1, "distance": 1.0, "fault": "", "round": 1}
    rows = [{**usual, "client": c, "node": str(17 + c), "label": label} for c, label in enumerate((1, 0, 1, -1))]
    found = audit_clients(rows)
    assert {one.client: one.cluster for one in found} == {0: 1, 1: 0, 2: 1, 3: -1}
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "oslo.json").write_text('{"success": true, "node-id": 17}')
    (tmp_path / "nodes" / "rome.json").write_text('{"node-id": "19"}')
    (tmp_path / "nodes" / "torn.json").write_text('{"node-id"')
    (tmp_path / "federation").mkdir()
    names = site_names(tmp_path / "federation")
    assert names == {"17": "oslo", "19": "rome"}


@pytest.mark.parametrize("attacked", [True, False])
def test_the_audit_puts_byzantine_clients_first(attacked: bool, tmp_path: Path) -> None:
    """The paper's attack at 5 %: an AUC of at least 0.99; and with no attack nobody stands out."""
    clients = 60
    drawn = mixed_regression(
        np.random.default_rng(3), clients=clients, clusters=2, samples=60, dim=20, byzantine=0.05 if attacked else 0.0
    )
    assert drawn.truth is not None
    start = warm(drawn.truth, 0.2, np.random.default_rng(1)).astype(np.float32)
    grid = InProcessGrid(app(drawn), range(clients))
    made = ClusteredStrategy(
        ClusteredDescent(Server(median), rounds=10), max_clients=clients, deadline=5, folder=tmp_path
    )
    centres_of(grid, start, made)
    rows = Checkpoint(tmp_path).rows()
    assert all(80 <= row["bytes"] < 1000 for row in rows)  # 20 numbers in float32, and those about them
    found = audit_clients(rows)
    if attacked:
        scores = {one.client: one.score for one in found}
        assert roc_auc_score(drawn.truth.is_byzantine, [scores[i] for i in range(clients)]) >= 0.99
    else:
        assert not any(one.reasons for one in found)
