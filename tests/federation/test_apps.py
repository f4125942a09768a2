"""Both apps of a federation from one configuration."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

import coterie.federation
from coterie._src.federation import Question
from coterie._src.federation.apps import apps, read_settings
from coterie._src.federation.messages import read_answer


def test_named_columns_mean_the_same_at_every_site(tmp_path: Path) -> None:
    """Two sites with the same samples, whose files have their columns in another order."""
    (tmp_path / "oslo.csv").write_text("dose,age,y\n1,2,3\n4,6,5\n")
    (tmp_path / "bern.csv").write_text("site,age,y,dose\nbern,2,3,1\nbern,6,5,4\n")
    (tmp_path / "config.toml").write_text(
        '[problem]\nkind = "folder"\nclusters = 1\ncolumns = ["age", "dose"]\nintercept = false\n'
        "[algorithm]\nstep = 0.1\n"
    )
    client = apps(tmp_path / "config.toml")[1]
    asked = Question("gradient", 0, np.array([[1.0, -1.0]], np.float32))
    found = []
    for site in ("oslo", "bern"):
        message = Message(asked.record(), dst_node_id=1, message_type="train")
        (tmp_path / site).mkdir()
        (tmp_path / site / "site.toml").write_text("min_samples = 1\n")
        node = {"data": str(tmp_path / f"{site}.csv"), "policy": str(tmp_path / site / "site.toml")}
        context = Context(1, 1, node, RecordDict(), {})
        found.append(read_answer(client(message, context))[0].update)
    # errors 2 − 1 − 3 and 6 − 4 − 5: the gradient is (2/2)·(−2·(2, 1) − 3·(6, 4))
    np.testing.assert_allclose(found, [[-22.0, -14.0]] * 2)


def test_a_run_understands_the_settings_of_version_0_1(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    try:
        found = read_settings({"places": 20, "least": 6, "deadline": 10, "fab-id": "of Flower"})
    finally:
        logger.removeHandler(caplog.handler)
    assert (found.max_clients, found.min_clients, found.deadline) == (20, 6, 10.0)
    assert "places is now called max_clients" in caplog.text
    assert "least is now called min_clients" in caplog.text
    assert read_settings({"max_clients": 9}).max_clients == 9


def test_the_public_module_has_documented_names() -> None:
    assert coterie.federation.apps is apps
    for name in coterie.federation.__all__:
        assert "Parameters\n" in (getattr(coterie.federation, name).__doc__ or ""), name


def test_a_federation_needs_a_number_as_the_bound(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[algorithm]\nmax_byzantine = "auto"\n[run]\nmethods = ["coterie"]\n')
    with pytest.raises(ValueError, match=r"^algorithm\.max_byzantine: .* a federation"):
        coterie.federation.apps(tmp_path / "config.toml")
