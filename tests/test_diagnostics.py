"""Diagnostics: what a user should know before trusting a result."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import coterie as ct
from coterie._src.diagnostics import Diagnostics, separations, too_small
from coterie._src.init.asking import agreement_of


def test_the_separation_of_two_clusters_by_hand() -> None:
    """Gaps of 2, 3 and 4 have the median 3 and the median absolute deviation 1; the other cluster has wider ones."""
    losses = np.array([[0.0, 2.0], [0.0, 3.0], [0.0, 4.0], [40.0, 0.0], [60.0, 0.0], [50.0, 0.0]])
    smallest, closest, clear = separations(losses, np.array([0, 0, 0, 1, 1, 1]))
    assert smallest == pytest.approx(3 / 1.4826)
    assert closest == (0, 1)
    assert clear.all()


def test_a_client_between_two_clusters_is_uncertain() -> None:
    rng = np.random.default_rng(0)
    gaps = 4 + rng.standard_normal(41)
    gaps[7] = 0.1
    losses = np.concatenate([np.column_stack([np.zeros(41), gaps]), np.column_stack([gaps[::-1], np.zeros(41)])])
    labels = np.repeat([0, 1], 41)
    clear = separations(losses, labels)[2]
    assert np.flatnonzero(~clear).tolist() == [7, 41 + 33]


def test_one_cluster_and_copies_have_no_separation() -> None:
    assert separations(np.ones((3, 1)), np.zeros(3, dtype=np.int64))[:2] == (math.inf, ())
    assert separations(np.array([[0.0, 1.0]] * 3), np.zeros(3, dtype=np.int64))[:2] == (math.inf, ())


def test_agreement_does_not_depend_on_the_numbers_of_the_clusters() -> None:
    labels = np.array([0, 0, 1, 2, 2, -1])
    assert agreement_of(labels, (labels + 1) % 3 - 3 * (labels < 0)) == 1.0
    assert agreement_of(labels, np.zeros(6, dtype=np.int64)) == pytest.approx(2 / 5)


def fitted(separation: float, **options: float) -> ct.Result:
    drawn = ct.tabular(0, clients=60, clusters=2, samples=50, dim=10, correlation=0.5, separation=separation, **options)
    return ct.fit(drawn, clusters=2, attack=ct.attack("constant"))


def test_clusters_that_are_near_each_other_are_reported_as_such() -> None:
    apart, near = fitted(2.0).diagnostics, fitted(0.12).diagnostics
    assert apart is not None
    assert near is not None
    assert apart.separation > 3 > near.separation
    assert len(near.uncertain) > 10 > len(apart.uncertain)
    assert "well apart" in apart.lines([str(i) for i in range(60)])[0]
    assert "too near" in near.lines([str(i) for i in range(60)])[0]


def test_the_bound_is_reached_where_more_clients_are_byzantine_than_it_allows() -> None:
    found = Diagnostics(math.inf, (), (), (), math.nan, 0, math.nan, 3, 3)
    assert found.bound_reached
    assert found.lines(range(60))[-1].endswith("the bound is reached, so there may be more")
    honest = fitted(2.0, byzantine=0.0).diagnostics
    assert honest is not None
    assert not honest.bound_reached


def test_clusters_of_which_half_may_be_byzantine_are_too_small() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1, 1, 3])
    assert too_small(labels, 4, 0) == ()
    assert too_small(labels, 4, 1) == (3,)  # of 3 clients two would be honest
    assert too_small(labels, 4, 2) == (0, 1, 3)
    found = Diagnostics(4.0, (0, 1), (), (), 2.0, 0, 0.5, 0, 2, too_small=(0, 1, 3))
    assert (
        "too small: half of the clients of cluster 0, 1, 3 may be Byzantine, as 2 are allowed for" in found.lines([])[1]
    )
    earlier = {name: value for name, value in found.as_dict().items() if name != "too_small"}
    assert Diagnostics.from_dict(earlier).too_small == ()
    assert Diagnostics.from_dict(found.as_dict()).too_small == (0, 1, 3)


def test_a_fit_of_five_clients_says_that_they_are_too_few() -> None:
    drawn = ct.tabular(0, clients=5, clusters=2, samples=60, dim=4, byzantine=0.0)
    found = ct.fit(drawn, clusters=2, max_byzantine=0.2, rounds=30).diagnostics
    assert found is not None
    assert len(found.too_small) == 1
    assert any(line.startswith("too small: half of the clients of cluster") for line in found.lines(range(5)))


def test_directions_without_variation_are_counted() -> None:
    rng = np.random.default_rng(1)
    clients = {}
    for i in range(12):
        x = rng.standard_normal((30, 3))
        clients[str(i)] = np.column_stack([x, x[:, 0] - x[:, 1], np.zeros(30)]), (1 - 2 * (i % 2)) * x[:, 0]
    found = ct.fit(clients, clusters=2, max_byzantine=0.0).diagnostics
    assert found is not None
    assert found.left_out == 2
    assert found.start_agreement == 1.0


def test_lines_and_values_are_short_and_plain() -> None:
    found = Diagnostics(1.0, (0, 1), tuple(range(20)), (), 1e4, 1, 0.5, 9, 5)
    lines = found.lines([f"site {i}" for i in range(20)])
    assert len(lines) == 5
    assert all(len(line) < 160 for line in lines)
    json.dumps(Diagnostics(math.inf, (), (), (2,), math.nan, 0, math.nan, -1, 0).as_dict(), allow_nan=False)


def test_values_come_back_and_names_may_be_numbers() -> None:
    for values in (
        Diagnostics(1.5, (0, 1), (1, 2), (), 2e3, 1, 0.9, 2, 3),
        Diagnostics(math.inf, (), (), (0,), math.nan, 0, math.nan, -1, 0),
    ):
        assert repr(Diagnostics.from_dict(json.loads(json.dumps(values.as_dict())))) == repr(values)
    lines = Diagnostics(1.5, (0, 1), (1, 2), (), 2e3, 1, 0.9, 2, 3).lines(np.array([10, 11, 12]))
    assert lines[1].endswith("nearly as well: 11, 12")


def test_the_oracle_has_no_diagnostics() -> None:
    drawn = ct.mixed_regression(0, clients=20, clusters=2, dim=5)
    assert ct.fit(drawn, clusters=2, method="oracle").diagnostics is None
