"""Tables that are known by name: what is read from the published files, and what is said of wrong ones.

The files are written here in the form in which they are published; the real ones are read where they are at hand
(`data/tables` in the folder `shared` beside the repository).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from coterie._src.data.known_tables import HOSPITALS, KNOWN_TABLES, read_known, schools_like
from coterie._src.experiments import read_config

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "data" / "tables"
SHAPES = {"ilea": (139, 15362), "hsb82": (160, 7185), "exam": (65, 4059), "parkinsons": (42, 5875), "heart": (12, 920)}
"""By table the numbers of clients and samples that its origin states."""


def heart_files(folder: Path, **rows: str) -> Path:
    (folder / "heart").mkdir()
    for name in HOSPITALS:
        row = rows.get(name, "63,1,1,145,233,1,2,150,0,2.3,3,0,6,0\n")
        (folder / "heart" / f"processed.{name}.data").write_text(row, encoding="utf-8")
    return folder


def test_heart_sites_are_hospitals_by_age_and_what_is_impossible_is_missing(tmp_path: Path) -> None:
    folder = heart_files(
        tmp_path,
        hungarian="28,1,2,130,132,0,2,185,0,0,?,?,?,0\n50,0,4,0,0,0,0,130,1,1,-9,-9,-9,3\n",
        va="age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num\n"
        "59.0,1,1,-9.0,200,1,0,150,0,2,3,0,6,1\n",
    )
    tables = read_known("heart", folder)
    assert [*tables] == [
        "cleveland 60 and over",
        "hungarian under 50",
        "hungarian 50 to 59",
        "switzerland 60 and over",
        "va 50 to 59",
    ]
    young, middle = tables["hungarian under 50"].columns, tables["hungarian 50 to 59"].columns
    assert young["chest_pain"].tolist() == ["level 2"]
    assert young["slope"].tolist() == [None]
    assert np.isnan(young["vessels"]).all()
    assert young["disease"].tolist() == [0.0]
    assert middle["disease"].tolist() == [1.0]  # 3 is a kind of disease
    assert np.isnan(middle["cholesterol"]).all()
    assert np.isnan(middle["pressure"]).all()
    assert np.isnan(tables["va 50 to 59"].columns["pressure"]).all()
    assert tables["va 50 to 59"].rows.tolist() == [2]  # as the file counts them, below its header


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,2,3\n", r"processed\.va\.data: row 1 has 3 cells, there are 14 columns"),
        ("63,1,1,145,tall,1,2,150,0,2.3,3,0,6,0\n", r"processed\.va\.data: row 1: must hold numbers, got 'tall'"),
        ("\n", r"processed\.va\.data: holds no sample"),
    ],
)
def test_wrong_files_of_the_heart_data(tmp_path: Path, row: str, message: str) -> None:
    folder = heart_files(tmp_path, va=row)
    with pytest.raises(ValueError, match=message):
        read_known("heart", folder)


def test_cells_of_the_ilea_file(tmp_path: Path) -> None:
    features, targets = np.empty((1, 2), dtype=object), np.empty((1, 2), dtype=object)
    features[0, 0], targets[0, 0] = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0], [6.0]])
    features[0, 1], targets[0, 1] = np.array([[7.0, 8.0]]), np.array([[9.0]])
    savemat(tmp_path / "ilea_school.mat", {"X": features, "Y": targets})
    tables = read_known("ilea", tmp_path)
    assert {name: len(table) for name, table in tables.items()} == {"school 001": 2, "school 002": 1}
    assert tables["school 001"].columns["x1"].tolist() == [2, 4]
    assert tables["school 002"].columns["score"].tolist() == [9]
    for wrong in ({"X": features}, {"X": features, "Y": targets[:, :1]}):
        savemat(tmp_path / "ilea_school.mat", wrong)
        with pytest.raises(ValueError, match=r"ilea_school\.mat: must hold cells X and Y, one per school"):
            read_known("ilea", tmp_path)
    (tmp_path / "ilea_school.mat").write_bytes(b"no MATLAB file")
    with pytest.raises(ValueError, match=r"ilea_school\.mat: must hold cells X and Y"):
        read_known("ilea", tmp_path)


def test_a_file_that_is_missing_is_named_with_its_origin(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Hsb82\.csv: no such file; hsb82 is published by: High School and Beyond"):
        read_known("hsb82", tmp_path)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_the_published_files(name: str) -> None:
    if not PUBLISHED.is_dir():
        pytest.skip(f"{PUBLISHED} is not there")
    tables = read_known(name, PUBLISHED)
    assert (len(tables), sum(map(len, tables.values()))) == SHAPES[name]
    problem = read_config(None, [f"problem.kind={name}", f"problem.path={PUBLISHED}"]).problem
    assert problem.draw(np.random.default_rng(0)).held_out is not None


def test_generated_schools_are_the_same_every_time_and_of_three_kinds() -> None:
    first, second = schools_like(schools=30), schools_like(schools=30)
    slopes = []
    for name, table in first.items():
        for column, values in table.columns.items():
            np.testing.assert_array_equal(values, second[name].columns[column])
        x = np.column_stack([np.nan_to_num(table.columns["intake"]), table.columns["poverty"], np.ones(len(table))])
        slopes.append(np.linalg.lstsq(x, table.columns["score"], rcond=None)[0][0])
    # the slope of intake is 8, 3 and 5 in the kinds, give or take 0.5 of a school and about 1 of its noise
    kinds = [np.mean(slopes[kind::3]) for kind in range(3)]
    np.testing.assert_allclose(kinds, [8, 3, 5], atol=3 * np.hypot(0.5, 1) / np.sqrt(10))


def test_the_task_and_the_target_are_those_of_the_table() -> None:
    problem = read_config(None, ["problem.kind=heart"]).problem
    assert (problem.task, problem.target) == ("logistic", "disease")  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="target of heart must be disease, got age"):
        read_config(None, ["problem.kind=heart", "problem.target=age"])
    assert [read_config(None, [f"problem.kind={name}"]).problem.kind for name in KNOWN_TABLES.names] == [
        *KNOWN_TABLES.names
    ]
