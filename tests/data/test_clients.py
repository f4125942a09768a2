"""The ragged layout of clients, and the truth beside them."""

from __future__ import annotations

import numpy as np
import pytest

from coterie._src.data import Clients, Federation, Truth


def test_blocks_cover_all_clients_in_order(ragged: Clients) -> None:
    blocks = list(ragged.blocks())
    assert [(b.start, b.stop, b.features.shape[1]) for b in blocks] == [(0, 2, 7), (2, 3, 3), (3, 5, 12), (5, 6, 1)]
    rows = np.concatenate([block.features.reshape(-1, 4) for block in blocks])
    assert np.array_equal(rows, ragged.features)


def test_take_and_pool(ragged: Clients) -> None:
    taken = ragged.take([3, 0])
    assert taken.sizes.tolist() == [12, 7]
    assert taken.names == ("3", "0")
    assert np.array_equal(taken.samples(0)[0], ragged.samples(3)[0])
    assert not np.shares_memory(taken.features, ragged.features)
    neighbours = ragged.take([1, 2, 3])  # no copies
    assert np.shares_memory(neighbours.features, ragged.features)
    assert neighbours.names == ("1", "2", "3")
    for place, client in enumerate([1, 2, 3]):
        for found, expected in zip(neighbours.samples(place), ragged.samples(client), strict=True):
            assert np.array_equal(found, expected)
    pooled = ragged.pool([2, 5])
    assert pooled.sizes.tolist() == [4]
    assert np.array_equal(pooled.features[3:], ragged.samples(5)[0])


def test_parts_are_disjoint_and_complete() -> None:
    clients = Clients(np.arange(17.0)[:, None], None, np.array([10, 7]))
    seen = np.concatenate([clients.part(i, 4).features[:, 0] for i in range(4)])
    assert sorted(seen.tolist()) == list(range(17))
    assert all(clients.part(i, 4).sizes.min() >= 1 for i in range(4))
    with pytest.raises(ValueError, match="at least 8 samples"):
        clients.part(0, 8)
    with pytest.raises(ValueError, match="index"):
        clients.part(4, 4)


@pytest.mark.parametrize(
    ("features", "targets", "sizes", "named"),
    [
        (np.zeros(4), None, [4], "features"),
        (np.zeros((4, 1)), None, [3], "sizes add up to 3"),
        (np.zeros((4, 1)), None, [4, 0], "at least one sample"),
        (np.zeros((4, 1)), np.zeros(3), [4], "targets"),
    ],
)
def test_inconsistent_clients(features: np.ndarray, targets: np.ndarray | None, sizes: list[int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Clients(features, targets, np.array(sizes))


def test_names_are_one_per_client() -> None:
    assert Clients(np.zeros((3, 1)), None, np.array([1, 2])).names == ("0", "1")
    with pytest.raises(ValueError, match=r"names must hold one name per client \(2\), got 1"):
        Clients(np.zeros((3, 1)), None, np.array([1, 2]), ("a",))


def test_the_truth_says_who_is_byzantine_and_how_far_the_centres_are_apart() -> None:
    truth = Truth(np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]), np.array([0, 1, -1, 2]))
    assert truth.is_byzantine.tolist() == [False, False, True, False]
    assert truth.separation == 1.0
    assert Truth(np.zeros((1, 2)), np.zeros(3, np.int64)).separation == np.inf
    clients = Clients(np.zeros((4, 2)), None, np.ones(4, np.int64))
    assert Federation(clients, truth).is_byzantine.tolist() == truth.is_byzantine.tolist()
    assert Federation(clients).is_byzantine.tolist() == [False] * 4
