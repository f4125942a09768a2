"""The automatic step by hand: the edge of Marchenko and Pastur, medians per cluster, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coterie._src.attacks import Attack
from coterie._src.attacks.payloads import garbage
from coterie._src.data import Clients
from coterie._src.simulation import SimulatedNetwork
from coterie._src.step_sizes import ask_curvatures, automatic_steps, curvature_roots
from coterie._src.tasks import linear_regression


def shrink(clients: float) -> float:
    """1 − 1/√(2c/π): the share of the excess that c clients remove, π/2 of which count for one in a median."""
    return 1 - 1 / math.sqrt(max(1.0, 2 * clients / math.pi))


def test_the_root_of_the_curvature_of_a_cluster() -> None:
    counts = np.array([0, 1, 2, 3, 10, 10**6])
    found = curvature_roots(np.full(6, 2.0), np.full(6, 0.5), counts)
    np.testing.assert_allclose(found, [2.0, 2.0, *(2 - 0.5 * shrink(c) for c in (2, 3, 10, 10**6))], rtol=1e-14)
    # never less than a thousandth of a client's own
    assert curvature_roots(np.array([2.0]), np.array([2.0]), np.array([10**9])).tolist() == [0.002]


def step(root: float) -> float:
    return 1 / (3 * root**2)


def test_every_cluster_has_the_medians_of_its_members() -> None:
    """Two clusters with even and odd numbers of members, one with a single, one with none; the labels in no order."""
    roots = {
        0: [(2.0, 0.4), (3.0, 0.8), (2.4, 0.2), (2.2, 0.6)],
        2: [(5.0, 1.0), (4.0, 2.0), (4.5, 0.5)],
        3: [(1.5, 1.5)],
    }
    pairs = [(label, pair) for label, members in roots.items() for pair in members]
    order = np.random.default_rng(0).permutation(len(pairs))
    labels = np.array([pairs[i][0] for i in order])
    curvatures = np.array([pairs[i][1] for i in order]) ** 2
    every = [pair for _, pair in pairs]
    expected = []
    for j in range(4):
        members = np.array(roots.get(j, every))
        expected.append(step(np.median(members[:, 0]) - np.median(members[:, 1]) * shrink(len(roots.get(j, ())))))
    np.testing.assert_allclose(automatic_steps(curvatures, labels, 4), expected, rtol=1e-12)


def test_the_medians_of_different_clients_do_not_make_a_long_step() -> None:
    """(1, 0), (2, 2), (3, 2): the medians 2 and 2 leave nothing, but two of three clients say 1 or more."""
    roots = np.repeat([[1.0, 0.0], [2.0, 2.0], [3.0, 2.0]], 10, axis=0)
    excess = 2 - 2 * shrink(30)
    assert excess < 0.5
    found = automatic_steps(roots**2, np.zeros(30, np.int64), 1)
    np.testing.assert_allclose(found, step(max(excess, 1.0 / 2)), rtol=1e-12)


@pytest.mark.parametrize(
    ("pair", "counts"),
    [((4.0, 4.0), True), ((4.0, 4.003), True), ((4.0, 4.005), False), ((4.0, -1e-9), False), ((4.0, 0.0), True),
     ((1e-9, 0.0), True), ((0.0, 0.0), False), ((-4.0, 0.0), False), ((math.nan, 0.0), False),
     ((4.0, math.nan), False)],
)  # fmt: skip
def test_which_pairs_count(pair: tuple[float, float], counts: bool) -> None:
    found = automatic_steps(np.array([[9.0, 1.0], pair, pair]), np.zeros(3, np.int64), 1)[0]
    alone = automatic_steps(np.array([[9.0, 1.0], [math.nan] * 2, [math.nan] * 2]), np.zeros(3, np.int64), 1)[0]
    assert (found != alone) == counts
    # a client whose pair is refused still belongs to its cluster
    assert alone == pytest.approx(step(3 - shrink(3)))


def test_a_refused_report_is_not_a_number(rng: np.random.Generator) -> None:
    clients = Clients(rng.standard_normal((12, 2)), rng.standard_normal(12), np.full(4, 3))
    task = linear_regression(clients)
    false = np.array([False, True, False, False])
    network = SimulatedNetwork(task, false, Attack(garbage), rng)
    found = ask_curvatures(network)
    np.testing.assert_array_equal(found[~false], task.curvatures()[~false])
    assert np.isnan(found[1]).all()
