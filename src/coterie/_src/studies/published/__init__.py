"""The numbers of the paper's authors: what their published code gives, and how long it takes.

README.md in this folder says how `grid.csv` and `timing.csv` were measured.
"""

from __future__ import annotations

import csv
import io
from importlib.resources import files

from coterie._src.studies.study import Preset

COMPARED_WITH: dict[Preset, dict[str, str]] = {
    "as-published": {
        "brifca-median": "brifca_median", "brifca-trimmed": "brifca_trimmed", "ifca": "ifca_mean_over_m",
        "three-stage": "three_stage_published",
    },
    "fair": {},
}  # fmt: skip
"""Which method of grid.csv a method of a preset is to be compared with."""


def published_distances(method: str) -> dict[tuple[int, int], tuple[float, float]]:
    """(k, d) -> mean and standard error of `dist` that the authors' code gives for a method of grid.csv."""
    return {
        (int(row["k"]), int(row["d"])): (float(row["dist_mean"]), float(row["dist_se"]))
        for row in _rows("grid.csv")
        if row["method"] == method
    }


def seconds_per_round() -> dict[tuple[int, int, str], float]:
    """(k, d, method of timing.csv) -> seconds of a round of the authors' code."""
    return {(int(r["k"]), int(r["d"]), r["method"]): float(r["seconds_per_round"]) for r in _rows("timing.csv")}


def seconds_per_trial() -> dict[tuple[int, int, str], float]:
    """(k, d, method of timing.csv) -> seconds of a trial of the authors' code: the set-up and 300 rounds."""
    return {
        (int(r["k"]), int(r["d"]), r["method"]): float(r["setup_seconds"]) + 300 * float(r["seconds_per_round"])
        for r in _rows("timing.csv")
    }


def _rows(name: str) -> list[dict[str, str]]:
    text = (files(__package__) / name).read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))
