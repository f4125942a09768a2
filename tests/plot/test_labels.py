"""Names at the ends of lines: beside their line, in its colour, and never one over another."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from coterie._src.experiments.methods import METHODS
from coterie._src.plot import label_ends, lines, method_colour, new_figure
from coterie._src.plot.labels import spread
from coterie._src.plot.style import MAX_TICKS, MIN_TICKS, plain_numbers

HEIGHTS = arrays(np.float64, st.integers(1, 12), elements=st.floats(-1e3, 1e3, allow_subnormal=False))


@given(HEIGHTS, st.floats(0.1, 100))
def test_spread_positions_keep_their_order_and_their_distance(heights: np.ndarray, gap: float) -> None:
    moved = spread(heights, gap)
    order = np.argsort(heights, kind="stable")
    assert (np.diff(moved[order]) >= gap - 1e-6).all()
    assert moved.mean() == pytest.approx(heights.mean(), abs=1e-6)  # nothing is pushed to one side


def test_positions_that_are_apart_stay() -> None:
    np.testing.assert_allclose(spread(np.array([30.0, 0.0, 10.0]), 10.0), [30.0, 0.0, 10.0])
    np.testing.assert_allclose(spread(np.array([0.0, 0.0, 50.0]), 10.0), [-5.0, 5.0, 50.0])


def drawn(curves: dict[str, Any], log: bool = False) -> tuple[Figure, Axes, dict[str, Annotation]]:
    """A figure with these curves from x = 0 on, and the labels by their text."""
    figure = new_figure(6, 4)
    axes = figure.add_subplot()
    for name, curve in curves.items():
        axes.plot(np.arange(len(curve)), curve, label=name)
    if log:
        axes.set_yscale("log")
    axes.set_xlabel("x")
    axes.set_ylim(0.5 if log else 0, 10)
    label_ends(axes)
    figure.draw_without_rendering()
    return figure, axes, {text.get_text(): text for text in axes.texts if isinstance(text, Annotation)}


@pytest.mark.parametrize("log", [False, True])
def test_labels_are_beside_the_ends_in_the_colours_of_their_lines(log: bool) -> None:
    ends = {"one": 5.0, "two": 5.01, "three": 4.99, "four": 9.0, "five": 1.0}
    figure, axes, labels = drawn({name: [2.0, 3.0, end] for name, end in ends.items()}, log)
    assert set(labels) == set(ends)
    boxes = {name: label.get_window_extent() for name, label in labels.items()}
    for line in axes.get_lines():
        name = str(line.get_label())
        assert labels[name].get_color() == line.get_color()
        assert boxes[name].x0 > line.get_transform().transform(line.get_xydata())[-1, 0]
        assert boxes[name].x1 <= figure.bbox.x1  # the layout has made room
    by_height = sorted(boxes.values(), key=lambda box: box.y0)
    assert all(below.y1 <= above.y0 for below, above in pairwise(by_height))
    assert sorted(ends, key=lambda name: boxes[name].y0) == sorted(ends, key=lambda name: ends[name])


def test_a_line_that_ends_early_has_its_label_there_and_one_that_is_not_seen_is_named() -> None:
    _, axes, labels = drawn({"long": [2.0] * 11, "short": [3.0, 2.0], "lost": [1e9] * 11, "leaves": [8.0, 1e9]})
    assert set(labels) == {"long", "short", "leaves"}
    middle = axes.transData.transform([5.0, 0.0])[0]
    assert labels["short"].get_window_extent().x1 < middle < labels["long"].get_window_extent().x0
    assert labels["leaves"].get_window_extent().x1 < middle  # where it leaves the axes
    assert [text.get_text() for text in axes.texts if text not in labels.values()] == ["off the chart: lost"]
    height = axes.transData.transform([0.0, 2.0])[1]
    long, short = (labels[name].get_window_extent() for name in ("long", "short"))
    assert (long.y0 + long.y1) / 2 == pytest.approx(height, abs=2)  # at its line, since the other label is far away
    assert short.y0 > height  # above the line that goes on there


def test_dashed_lines_across_the_axes_are_labelled_at_the_right() -> None:
    figure = new_figure(6, 4)
    axes = figure.add_subplot()
    axes.axhline(0.3, label="oracle")
    axes.axhline(0.5)
    label_ends(axes)
    figure.draw_without_rendering()
    (label,) = axes.texts
    assert label.get_text() == "oracle"
    assert label.get_window_extent().x0 >= axes.bbox.x1


@pytest.mark.parametrize(("low", "high", "expected"), [(0.011, 0.06, ["0.02", "0.05"]), (0.9, 12.0, ["1", "10"])])
def test_a_logarithmic_axis_has_plain_numbers(low: float, high: float, expected: list[str]) -> None:
    axes = new_figure(6, 4).add_subplot()
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    plain_numbers(axes)
    assert [text.get_text() for text in axes.get_yticklabels()] == expected
    axes.set_ylim(1.05, 1.4)  # no such number within
    plain_numbers(axes)
    axes.set_ylim(1e-12, 1e12)
    plain_numbers(axes)
    assert MIN_TICKS <= len(axes.get_yticks()) <= MAX_TICKS


def rows(*methods: str) -> list[dict[str, Any]]:
    return [{"method": name, "d": d, "dist": 0.1 * d, "seed": 0, "trial": 0} for name in methods for d in (1, 2)]


def test_a_method_has_the_same_colour_whatever_stands_beside_it(tmp_path: Path) -> None:
    for names in (["coterie"], ["ifca", "coterie"], ["oracle", "local", "coterie"]):
        lines(rows(*names), "d", "method", "dist", path=tmp_path / "figure.svg")
        picture = (tmp_path / "figure.svg").read_text()
        assert all(str(method_colour(name)) in picture for name in names)
        assert str(method_colour("brifca-median")) not in picture
    assert method_colour("coterie") == METHODS["coterie"].colour == method_colour("coterie+own")


def test_pictures_do_not_depend_on_the_settings_of_the_user_nor_change_them(tmp_path: Path) -> None:
    lines(rows("coterie"), "d", "method", "dist", path=tmp_path / "default.png")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black", "xtick.direction": "in"}):
        lines(rows("coterie"), "d", "method", "dist", path=tmp_path / "other.png")
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / "default.png").read_bytes() == (tmp_path / "other.png").read_bytes()
