"""The folder of a run as it lies on disk, read without running anything."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scipy.special import stdtrit

from coterie._src.experiments.config import Config
from coterie._src.experiments.methods import METHODS, OWN
from coterie._src.experiments.summary import Statistic
from coterie._src.experiments.toml import read_config

SUMMARY = "summary.json"
"""The file by which the folder of a run is known."""

COLUMNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "trials": (("method",), ("trial",)),
    "rounds": (("method",), ("trial", "round")),
    "audit": (("method", "client"), ("trial", "cluster")),
    "clients": (("client",), ("trial", "cluster")),
    "assignments": (("method", "client"), ("trial", "round", "cluster")),
    "directions": (("method", "client", "first", "second"), ("trial",)),
}
"""By file, the columns that a page needs, and those of them that hold whole numbers."""

LARGEST = 1e100
"""A larger number is that of a method that has diverged; it is not averaged."""

Row = dict[str, str]


class Part(BaseModel):
    """A part of summary.json; what another version has added is left out."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class Mean(Part):
    """The mean of a metric and its standard error."""

    mean: float | None = None
    se: float | None = None
    trials: int = 0

    @property
    def statistic(self) -> Statistic:
        """The same as the table for the terminal takes it."""
        return {"mean": self.mean, "se": self.se, "trials": self.trials}


class ChangedCluster(Part):
    """What became of a cluster."""

    cluster: int
    status: str
    moved_by: float | None = None


class MovedClient(Part):
    """A client whose cluster is another one."""

    client: str
    before: int = Field(alias="from")
    now: int = Field(alias="to")


class ChangesFound(Part):
    """The differences from an earlier run."""

    clusters: list[ChangedCluster] = []
    moved: list[MovedClient] = []
    joined: list[str] = []
    left: list[str] = []
    unfit: list[str] = []


class Summary(Part):
    """summary.json."""

    version: str = ""
    status: str = "unknown"
    seed: int | None = None
    trials_wanted: int | None = None
    trials_finished: list[int]
    methods: dict[str, dict[str, Mean]]
    notes: list[str] = []
    comparisons: dict[str, dict[str, str]] = {}
    changes: dict[str, ChangesFound] = {}
    diagnostics: dict[str, dict[str, dict[str, Any]]] = {}


@dataclass(frozen=True)
class RunRecord:
    """What a run left.

    path: of the folder. summary: summary.json. config: None where it cannot be read here, such as with a method of a
    package that is not installed; config_text: the file itself. The rest are the rows of the CSV files, with the texts
    that stand there.
    """

    path: Path
    summary: Summary
    config: Config | None
    config_text: str
    trials: list[Row] = field(default_factory=list)
    rounds: list[Row] = field(default_factory=list)
    audit: list[Row] = field(default_factory=list)
    clients: list[Row] = field(default_factory=list)
    assignments: list[Row] = field(default_factory=list)
    directions: list[Row] = field(default_factory=list)

    @property
    def methods(self) -> list[str]:
        """The methods, in the order of the table."""
        return list(self.summary.methods)

    @property
    def clustering(self) -> list[str]:
        """The methods whose assignments are shown: those that cluster the clients, without their personal variants."""
        return [
            name
            for name in self.methods
            if not name.endswith(OWN)
            and (METHODS[name].clusters_clients if name in METHODS else True)
            and any(int(row["cluster"]) >= 0 for row in self.audit_of(name))
        ]

    def audit_of(self, method: str) -> list[Row]:
        """A row per client of a method in the first trial."""
        return [row for row in self.audit if row["method"] == method and row["trial"] == self.first]

    @property
    def first(self) -> str:
        """The number of the first finished trial, as the files have it."""
        return str(min(self.summary.trials_finished, default=0))

    @property
    def has_truth(self) -> bool:
        """Whether the true clusters and the Byzantine clients are known."""
        return bool(self.audit) and "true_cluster" in self.audit[0]


def read_run(folder: Path) -> RunRecord:
    """The record of the folder; ValueError where it is not that of a run."""
    try:
        summary = Summary.model_validate_json((folder / SUMMARY).read_bytes())
        text = (folder / "config.toml").read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ValueError(f"{folder}: is not the folder of a run; {Path(error.filename).name} is missing") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{folder / SUMMARY}: is not the summary of a run ({place} {first['msg']})") from None
    try:
        config = read_config(folder / "config.toml")
    except ValueError:
        config = None
    return RunRecord(
        folder, summary, config, text, **{name: read_rows(folder / f"{name}.csv", *COLUMNS[name]) for name in COLUMNS}
    )


def read_rows(file: Path, texts: Sequence[str], whole: Sequence[str]) -> list[Row]:
    """The rows of a CSV file, none where it is missing; it must have these columns, in `whole` with whole numbers."""
    if not file.is_file():
        return []
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            rows = [{name: value or "" for name, value in row.items() if name is not None} for row in
                    csv.DictReader(stream)]  # fmt: skip
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: is not a table ({error})") from None
    for row in rows:
        for name in (*texts, *whole):
            if name not in row or (name in whole and not row[name].removeprefix("-").isdecimal()):
                raise ValueError(f"{file}: {name} must be a column{' of whole numbers' if name in whole else ''}")
    return rows


def as_number(text: str | None) -> float:
    """The number that a cell holds; NaN for none."""
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def curves(record: RunRecord, metric: str) -> dict[str, list[list[float]]]:
    """By method, a metric by round, one list per trial."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in record.methods}
    for row in record.rounds:
        if row["method"] in found:
            found[row["method"]].setdefault(row["trial"], []).append(as_number(row.get(metric)))
    return {name: list(own.values()) for name, own in found.items()}


def finals(record: RunRecord, metric: str) -> dict[str, list[float]]:
    """By method, a metric at the end, one number per trial."""
    return {
        name: [as_number(row.get(metric)) for row in record.trials if row["method"] == name] for name in record.methods
    }


def interval(values: Sequence[float]) -> tuple[float, float, float] | None:
    """The mean and its 95 % interval by Student's t; the mean thrice for one value; None if one has diverged.

    >>> [round(value, 3) for value in interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    if not values or not all(abs(value) <= LARGEST for value in values):
        return None
    count, mean = len(values), math.fsum(values) / len(values)
    if count == 1:
        return mean, mean, mean
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)
    half = float(stdtrit(count - 1, 0.975)) * error
    return mean, mean - half, mean + half
