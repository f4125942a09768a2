"""Figures show what they are given, in every case that a run can produce."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie._src.report.html.figures.clients import Placed, Scored, directions, strip
from coterie._src.report.html.figures.clusters import Member, Move, cluster_bars, flow
from coterie._src.report.html.figures.methods import convergence, intervals
from coterie._src.report.html.svg import Scale, spread

VALUES = st.floats(allow_nan=True, allow_infinity=True, width=64) | st.floats(0, 10)
NAMES = st.sampled_from(["coterie", "ifca", "local", "<b>", "oracle"])


def sound(drawn: str | None) -> None:
    """No coordinate is something else than a number, no length is negative."""
    for name, value in re.findall(r' (x|y|x1|y1|x2|y2|cx|cy|r|width|height|d)="([^"]*)"', drawn or ""):
        assert not re.search("nan|inf|e", value), (name, value)
        assert name not in ("width", "height", "r") or float(value) >= 0, (name, value)


@given(st.dictionaries(NAMES, st.lists(VALUES, min_size=1, max_size=4)), st.booleans())
def test_intervals_of_any_numbers(values: dict[str, list[float]], lower: bool) -> None:
    sound(intervals(values, "matched distance", lower))


@given(
    st.dictionaries(NAMES, st.lists(st.lists(VALUES, max_size=5), min_size=1, max_size=3)),
    st.dictionaries(NAMES, st.lists(VALUES, max_size=3)),
    st.booleans(),
)
def test_convergence_of_any_numbers(
    curves: dict[str, list[list[float]]], ends: dict[str, list[float]], log: bool
) -> None:
    names = dict.fromkeys([*curves, *ends])
    everyone = {name: curves.get(name, [[]]) for name in names}
    sound(convergence(everyone, ends, "matched distance", log) if everyone else None)


@given(st.lists(st.builds(Scored, st.text(max_size=3), st.integers(-1, 9), VALUES), max_size=30))
def test_strips_of_any_scores(clients: list[Scored]) -> None:
    sound(strip(clients, "held-out R²", "strip"))


@given(st.lists(st.builds(Placed, st.text(max_size=3), st.integers(-1, 9), VALUES, VALUES, st.none()), max_size=20))
def test_directions_of_any_places(clients: list[Placed]) -> None:
    sound(directions("ifca", clients))


@given(st.lists(st.builds(Move, st.integers(1, 30), st.text(max_size=2), st.integers(0, 40)), max_size=60))
def test_flows_of_any_moves(moves: list[Move]) -> None:
    sound(flow("ifca", moves, 30))


def test_methods_that_diverge_are_named_and_do_not_flatten_the_others() -> None:
    ends = {"coterie": [0.5, 0.6], "ifca": [1e90, 1e90], "three-stage": [math.inf, 1.0]}
    drawn = intervals(ends, "matched distance", True)
    assert drawn is not None
    assert "Beyond the right end of the axis: ifca." in drawn
    assert "Not known for three-stage." in drawn
    curves = {"coterie": [[0.9, 0.5]], "ifca": [[1.0, 1e90]], "three-stage": [[math.inf, math.inf]]}
    lines = convergence(curves, {name: [1.0] for name in curves}, "matched distance", True)
    assert lines is not None
    assert "Beyond the upper end of the axis: three-stage (diverged)." in lines  # ifca is seen at its beginning


def test_a_flow_counts_and_names_those_who_moved() -> None:
    first = [Move(1, name, 0) for name in "abcde"] + [Move(1, "f", 1)]
    drawn = flow("ifca", [*first, Move(4, "b", 1), Move(6, "c", 1), Move(9, "b", 0)], 12)
    assert drawn is not None
    assert "2 of 6 clients changed their cluster, 3 times in all" in drawn
    assert "1 from cluster 0 to cluster 1 between rounds 1 and 4: b" in drawn
    assert "<li>round 9: <bdi>b</bdi>, 1 to 0</li>" in drawn
    assert "cluster 0: 4<" in drawn
    assert "cluster 1: 2<" in drawn
    still = flow("ifca", first, 12)
    assert still is not None
    assert "no client changed its cluster" in still


def test_bars_are_as_long_as_their_clusters() -> None:
    members = [Member(str(i), int(i >= 6), i in (0, 6, 7)) for i in range(9)]
    drawn = cluster_bars(members, "Clients per cluster", "at the end", "bars")
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height="18"', drawn)]
    assert widths == pytest.approx([widths[0], widths[0] / 5, widths[0] / 5, 2 * widths[0] / 5], abs=0.2)
    assert "cluster 0 6 clients, 1 Byzantine (17%); cluster 1 3 clients, 2 Byzantine (67%)" in drawn


@given(st.lists(st.floats(0, 100), max_size=6))
def test_labels_keep_their_order_and_their_distance(places: list[float]) -> None:
    found = spread(places, 0, 100, 15)
    order = sorted(range(len(places)), key=places.__getitem__)
    assert all(found[b] - found[a] >= 15 - 1e-9 for a, b in pairwise(order))
    assert all(-1e-9 <= place <= 100 for place in found)


@given(st.floats(1e-9, 1e6), st.floats(1.1, 1e6), st.booleans())
def test_ticks_are_few_and_inside(low: float, factor: float, log: bool) -> None:
    scale = Scale(low, low * factor, 0, 100, log)
    ticks = scale.ticks()
    assert 1 <= len(ticks) <= 12
    assert all(low * (1 - 1e-5) <= tick <= low * factor * (1 + 1e-5) for tick in ticks)
    assert ticks == sorted(set(ticks))
    assert math.isclose(scale(low), 0) and math.isclose(scale(low * factor), 100)  # noqa: PT018
