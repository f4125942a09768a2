"""Tables that are known by name: public ones, which are read from their published files, and a generated one.

Each has natural clients. No file of a public table is part of this package; `origin` says where it comes from.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie._src.data.raw_table import RawTable, as_text
from coterie._src.data.tables import by_client, read_table
from coterie._src.registry import Registry

Tables = dict[str, RawTable]


@dataclass(frozen=True)
class KnownTable:
    """The record of a table.

    Parameters
    ----------
    name, summary
        As the configuration and its help have them.
    origin
        Who published the table, and where.
    task, target
        The model of a client, and the column that it predicts.
    files
        The published files, below the folder that the user names; empty for a generated table.
    read
        From that folder to the table of every client by its name.
    """

    name: str
    summary: str
    origin: str
    task: str
    target: str
    files: tuple[str, ...]
    read: Callable[[Path], Tables]


def _one_file(file: str, client: str, columns: tuple[str, ...]) -> Callable[[Path], Tables]:
    """A reader of one file with a column of clients. columns: the features and the target."""
    return lambda folder: by_client(read_table(folder / file, [*columns, client]), client)


def _read_ilea(folder: Path) -> Tables:
    """The cells X and Y of a MATLAB file, one pair per school."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    file = folder / "ilea_school.mat"
    try:
        cells = loadmat(file)
        features, targets = cells["X"].ravel(), cells["Y"].ravel()
        tables = {}
        for school, (x, y) in enumerate(zip(features, targets, strict=True)):
            values = np.asarray(x, dtype=np.float64)
            columns = {f"x{j}": values[:, j] for j in range(values.shape[1])}
            columns["score"] = np.asarray(y, dtype=np.float64).reshape(len(values))
            tables[f"school {school + 1:03d}"] = RawTable(columns, np.arange(1, len(values) + 1), str(file))
    except (KeyError, ValueError, TypeError, IndexError, NotImplementedError, MatReadError) as error:
        raise ValueError(f"{file}: must hold cells X and Y, one per school ({error})") from None
    return tables


HEART_COLUMNS = (
    "age", "sex", "chest_pain", "pressure", "cholesterol", "sugar", "ecg", "heart_rate", "angina", "depression",
    "slope", "vessels", "thal", "disease",
)  # fmt: skip
"""The 14 columns of the processed files, in their order."""
HEART_LEVELS = ("chest_pain", "ecg", "slope", "thal")
"""The columns whose numbers are names of levels."""
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
AGE_BANDS = (50, 60)
"""A hospital's patients are split at these ages into sites."""


def _read_heart(folder: Path) -> Tables:
    """A site is the patients of one hospital in one age band. -9 and ? are missing; so is a value of 0 for cholesterol
    or blood pressure, which no living patient has.
    """
    tables: Tables = {}
    for hospital in HOSPITALS:
        file = folder / "heart" / f"processed.{hospital}.data"
        rows, lines = [], []
        for line, row in _csv_rows(file):
            if row[0].strip().lower() == "age":
                continue  # the header, which some copies have
            if len(row) != len(HEART_COLUMNS):
                raise ValueError(f"{file}: row {line} has {len(row)} cells, there are {len(HEART_COLUMNS)} columns")
            rows.append([_heart_cell(file, line, cell) for cell in row])
            lines.append(line)
        if not rows:
            raise ValueError(f"{file}: holds no sample")
        values, numbers = np.array(rows), np.array(lines, dtype=np.int64)
        for name in ("pressure", "cholesterol"):
            column = values[:, HEART_COLUMNS.index(name)]
            column[column == 0] = np.nan
        values[:, -1] = values[:, -1] > 0
        bands = np.searchsorted(AGE_BANDS, values[:, 0], side="right")
        for band in np.unique(bands):
            inside = bands == band
            columns = {name: _heart_column(name, values[inside, j]) for j, name in enumerate(HEART_COLUMNS)}
            ages = ("under 50", "50 to 59", "60 and over")[band]
            tables[f"{hospital} {ages}"] = RawTable(columns, numbers[inside], str(file))
    return tables


def _csv_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            reader = csv.reader(stream)
            for row in reader:
                if row:
                    yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file}: cannot be read ({error})") from None


def _heart_cell(file: Path, line: int, cell: str) -> float:
    text = cell.strip()
    if text in ("?", "", "-9", "-9.0"):
        return np.nan
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{file}: row {line}: must hold numbers, got {text[:20]!r}") from None


def _heart_column(name: str, values: NDArray[np.float64]) -> NDArray[Any]:
    if name not in HEART_LEVELS:
        return values
    return as_text(["" if np.isnan(value) else f"level {value:g}" for value in values.tolist()])


def schools_like(_: Path | None = None, *, schools: int = 60, seed: int = 0) -> Tables:
    """Pupils of generated schools, of three kinds that nothing names: how much intake and poverty matter differs.

    The columns are what school data have: a test at intake and its missing cells, a share of poor pupils per school,
    text columns, and a school effect of its own; pupils per school from 20 to 100.

    >>> tables = schools_like(schools=3)
    >>> [*tables], [*tables["school 01"].columns]
    (['school 01', 'school 02', 'school 03'], ['intake', 'poverty', 'sex', 'language', 'hours', 'score'])
    """
    rng = np.random.default_rng(seed)
    slopes = np.array([[8.0, -2.0, 0.5], [3.0, -9.0, 2.0], [5.0, 3.0, -2.0]])  # of intake, poverty and hours, per kind
    tables = {}
    for school in range(schools):
        kind, pupils = school % 3, int(rng.integers(20, 101))
        own = slopes[kind] + rng.standard_normal(3) * 0.5
        poverty = np.clip(rng.beta(2, 3) + 0.15 * rng.standard_normal(pupils), 0, 1)
        intake = rng.standard_normal(pupils) - poverty + 0.5 * rng.standard_normal()
        girl, abroad = rng.random(pupils) < 0.5, rng.random(pupils) < 0.2
        hours = rng.poisson(4 + 2 * girl).astype(np.float64)
        level = 50 + 3 * rng.standard_normal()
        score = level + np.column_stack([intake, poverty, hours]) @ own + 1.5 * girl - 2 * abroad
        score += 4 * rng.standard_normal(pupils)
        columns: dict[str, NDArray[Any]] = {
            "intake": np.where(rng.random(pupils) < 0.05, np.nan, intake),
            "poverty": poverty,
            "sex": as_text(np.where(girl, "girl", "boy").tolist()),
            "language": as_text(np.where(abroad, "other language", "local language").tolist()),
            "hours": hours,
            "score": score,
        }
        name = f"school {school + 1:02d}"
        tables[name] = RawTable(columns, np.arange(pupils), f"schools-like, {name}")
    return tables


PARKINSONS_FEATURES = (
    "test_time", "Jitter(%)", "Jitter(Abs)", "Jitter:RAP", "Jitter:PPQ5", "Jitter:DDP", "Shimmer", "Shimmer(dB)",
    "Shimmer:APQ3", "Shimmer:APQ5", "Shimmer:APQ11", "Shimmer:DDA", "NHR", "HNR", "RPDE", "DFA", "PPE",
)  # fmt: skip

KNOWN_TABLES: Registry[KnownTable] = Registry(
    "table",
    [
        KnownTable(
            "schools-like", "pupils of 60 generated schools of three kinds: text and missing cells; no file needed",
            "Generated here; the coefficients and the noise are made up.",
            "linear", "score", (), schools_like,
        ),
        KnownTable(
            "ilea", "examination scores of pupils in 139 schools of London; path: the folder with ilea_school.mat",
            "Inner London Education Authority, 1985 to 1987; in the data folder of the MALSAR package.",
            "linear", "score", ("ilea_school.mat",), _read_ilea,
        ),
        KnownTable(
            "hsb82", "achievement in mathematics in 160 schools; path: the folder with Hsb82.csv",
            "High School and Beyond, 1982; table Hsb82 of the R package mlmRev, as CSV in Rdatasets.",
            "linear", "mAch", ("Hsb82.csv",),
            _one_file("Hsb82.csv", "school", ("ses", "minrty", "sx", "meanses", "mAch")),
        ),
        KnownTable(
            "exam", "examination scores of pupils in 65 schools of London; path: the folder with Exam.csv",
            "Goldstein et al., 1993; table Exam of the R package mlmRev, as CSV in Rdatasets.",
            "linear", "normexam", ("Exam.csv",),
            _one_file("Exam.csv", "school", ("standLRT", "sex", "vr", "intake", "type", "normexam")),
        ),
        KnownTable(
            "parkinsons", "voice recordings of 42 patients; path: the folder with parkinsons_updrs.tsv",
            "Tsanas et al., 2009; Parkinsons Telemonitoring of the UCI repository, tab-separated.",
            "linear", "motor_UPDRS", ("parkinsons_updrs.tsv",),
            _one_file("parkinsons_updrs.tsv", "subject#", (*PARKINSONS_FEATURES, "motor_UPDRS")),
        ),
        KnownTable(
            "heart", "heart disease at four hospitals, 12 sites by age; path: the folder with heart/processed.*.data",
            "Detrano et al., 1989; Heart Disease of the UCI repository, the processed files.",
            "logistic", "disease", tuple(f"heart/processed.{name}.data" for name in HOSPITALS), _read_heart,
        ),
    ],
)  # fmt: skip


def read_known(name: str, folder: str | Path) -> Tables:
    """The clients' tables of a known table; folder: that of its files."""
    known = KNOWN_TABLES[name]
    for file in known.files:
        if not (Path(folder) / file).is_file():
            raise ValueError(f"{Path(folder) / file}: no such file; {name} is published by: {known.origin}")
    return known.read(Path(folder))
