"""Replies over Flower's HTTP grid: what a hostile site uploads neither blocks a round nor fills the memory."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie._src.data import Federation
from coterie._src.federation import ClientNumbers, FlowerNetwork
from coterie._src.federation.checkpoint import Checkpoint
from coterie._src.federation.flower import MAX_OBJECTS
from coterie._src.federation.network import MESSAGE_BYTES
from http_grid import Upload, broken_off, http_grid, naming_its_chunk, with_chunk_of, with_many_objects, withheld
from small_federation import CLIENTS, app, centres_of, simulated, strategy


def test_a_federation_over_http_has_the_centres_of_the_simulation(drawn: Federation, start: np.ndarray) -> None:
    found = centres_of(http_grid(app(drawn), range(CLIENTS)), start, strategy(rounds=3))
    np.testing.assert_allclose(found, simulated(drawn, start, rounds=3), atol=1e-5)


def test_a_site_that_withholds_its_reply_costs_nobody_else_the_round(
    drawn: Federation, start: np.ndarray, tmp_path: Path
) -> None:
    """The first node is looked at first, so whoever waited for its objects would never come to the others."""
    grid = http_grid(app(drawn), range(CLIENTS), {0: withheld, 5: withheld})
    made = strategy(rounds=2, folder=tmp_path, deadline=1.0)
    began = time.monotonic()
    found = centres_of(grid, start, made)
    assert time.monotonic() - began < 60.0  # Flower's own way of pulling would take hours
    np.testing.assert_allclose(found, simulated(drawn, start, rounds=2, without=[0, 5]), atol=1e-5)
    rows = Checkpoint(tmp_path).rows()
    assert {row["client"] for row in rows if row["verdict"] == "silent"} == {0, 5}
    assert {row["verdict"] for row in rows if row["client"] not in (0, 5)} == {"accepted"}


@pytest.mark.parametrize(
    ("upload", "why"),
    [
        (naming_its_chunk(5000, 40_000), "bytes taken apart"),
        (with_chunk_of(MESSAGE_BYTES + 8 * 6), "bytes"),
        (with_many_objects(MAX_OBJECTS), "objects"),
    ],
)
def test_a_reply_that_is_larger_than_was_asked_for_is_refused(
    upload: Upload, why: str, drawn: Federation, start: np.ndarray
) -> None:
    """Before it is taken apart: an array of 5,000 times its chunk of 40,000 bytes would take 200 MB."""
    grid = http_grid(app(drawn), range(CLIENTS), {3: upload})
    network = FlowerNetwork(grid, ClientNumbers(CLIENTS), deadline=5.0)
    tracemalloc.start()
    try:
        replies = network.gradients(start, 0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50e6
    assert network.received[3].fault.startswith("cannot be taken apart (more than ")
    assert why in network.received[3].fault
    assert sum(update is not None for update in replies.updates) == CLIENTS - 1


def test_what_a_reply_says_of_its_sender_is_not_believed(drawn: Federation, start: np.ndarray) -> None:
    """Node 4 uploads the reply of node 3, which names node 3 and its question: it counts as an answer of node 4."""
    uploaded: list[Any] = []

    def keep(*reply: Any) -> Any:
        uploaded.extend(reply)
        return reply

    def copy(*reply: Any) -> Any:
        return tuple(uploaded)

    grid = http_grid(app(drawn), range(CLIENTS), {3: keep, 4: copy})
    network = FlowerNetwork(grid, ClientNumbers(CLIENTS), deadline=5.0)
    replies = network.gradients(start, 0)
    assert replies.clients == list(range(CLIENTS))
    np.testing.assert_array_equal(replies.updates[4], replies.updates[3])


def test_a_reply_whose_upload_was_broken_off_is_asked_for_again(drawn: Federation, start: np.ndarray) -> None:
    uploads = [broken_off]

    def once(*reply: Any) -> Any:
        return uploads.pop()(*reply) if uploads else reply

    network = FlowerNetwork(http_grid(app(drawn), range(CLIENTS), {4: once}), ClientNumbers(CLIENTS), deadline=5.0)
    assert network.gradients(start, 0).clients == list(range(CLIENTS))


def test_what_nobody_waits_for_any_more_is_let_go(drawn: Federation, start: np.ndarray) -> None:
    """Flower's server is told to delete a reply that was withheld, and those that were read."""
    grid = http_grid(app(drawn), range(CLIENTS), {4: withheld})
    FlowerNetwork(grid, ClientNumbers(CLIENTS), deadline=0.5).gradients(start, 0)
    store: Any = grid._client
    assert len(set(store.confirmed)) == CLIENTS
