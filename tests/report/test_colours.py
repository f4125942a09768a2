"""The colours of pages: readable on both backgrounds, and told apart with any kind of colour vision."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from coterie._src.experiments.methods import METHODS, Method
from coterie._src.report.html import colours
from coterie._src.report.html.colours import CLUSTERS, DARK_PAPER, GREY, LIGHT_PAPER, contrast, method_hex, on_dark

# Machado, Oliveira and Fernandes (2009), severity 1, for linear RGB
VISION = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def lab(colour: str, vision: str) -> np.ndarray:
    """CIE L*a*b* of a colour as somebody with this vision sees it."""
    values = np.array(colours.rgb(colour)) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(VISION[vision]) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ seen / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("variant", [str, on_dark])
def test_compared_methods_are_told_apart(vision: str, variant: Callable[[str], str]) -> None:
    """A difference of 2.3 is just noticeable."""
    seen = {method.name: lab(variant(method.colour), vision) for method in METHODS if method.compared}
    nearest = min((float(np.linalg.norm(seen[a] - seen[b])), a, b) for a, b in combinations(seen, 2))
    assert nearest[0] > 8.0, nearest


@pytest.mark.parametrize("colour", sorted({*(method_hex(m.name) for m in METHODS), *CLUSTERS, GREY}))
def test_marks_stand_out_from_both_backgrounds(colour: str) -> None:
    """3:1 is what the Web Content Accessibility Guidelines ask of marks."""
    assert contrast(colour, LIGHT_PAPER) >= 3.0
    assert contrast(on_dark(colour), DARK_PAPER) >= 3.0


def test_clusters_and_methods_share_no_colour() -> None:
    assert not {*CLUSTERS} & {method.colour for method in METHODS}


def test_text_is_readable_on_every_shade_and_background() -> None:
    """4.5:1 is what the guidelines ask of text."""
    rules = colours.shade_rules().split("}")[:-1]
    assert len(rules) == colours.SHADES
    for rule in rules:
        paper, _, ink = (part.split("(")[1].rstrip(")").split(",") for part in rule.split(";"))
        assert contrast(paper[0], ink[0]) >= 4.5, rule
        assert contrast(paper[1], ink[1]) >= 4.5, rule
    style = (Path(colours.__file__).parent / "template" / "style.css").read_text()
    variables = dict(line.strip()[2:].split(": light-dark(") for line in style.splitlines() if "light-dark(" in line)
    pairs = {name: value.rstrip(");").split(", ") for name, value in variables.items()}
    assert pairs["paper"] == [LIGHT_PAPER, DARK_PAPER]
    for ink, paper in (("ink", "paper"), ("soft", "paper"), ("link", "paper"), ("alert", "paper"), ("ink", "panel"),
                       ("soft", "panel"), ("ink", "alert-paper"), ("alert", "alert-paper")):  # fmt: skip
        for variant in (0, 1):
            assert contrast(pairs[ink][variant], pairs[paper][variant]) >= 4.5, (ink, paper, variant)


@pytest.mark.parametrize(("given", "used"), [("tab:red", "#d62728"), ("red}</style>", GREY), ("#12345", GREY)])
def test_a_method_of_another_package_may_name_any_colour(
    given: str, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS._records, "foreign", Method("foreign", "", colour=given))
    assert method_hex("foreign") == method_hex("foreign+own") == used
    assert "</style" not in colours.method_rules(["foreign"])
