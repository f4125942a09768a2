"""The user's own clients, and what can be wrong with them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

from coterie._src.data import read_folder


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_three_formats_give_the_same_clients(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", "age,bmi,y\n1,2,3\n4,5,6\n")
    parquet.write_table(arrow.table({"y": [9.0], "age": [7], "bmi": [8]}), tmp_path / "b.parquet")
    np.savez(tmp_path / "c.npz", age=np.array([10]), bmi=np.array([11.0]), y=np.array([12.0]))
    write(tmp_path, "notes.txt", "not a client")
    clients = read_folder(tmp_path, "y")
    assert clients.names == ("a", "b", "c")
    assert clients.sizes.tolist() == [2, 1, 1]
    assert clients.features.tolist() == [[1, 2], [4, 5], [7, 8], [10, 11]]  # by name, not by place
    assert clients.targets is not None
    assert clients.targets.tolist() == [3, 6, 9, 12]
    assert clients.features.dtype == np.float32


def test_intercept_mean_estimation_and_wide_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([[1.0, 2.0], [3.0, 4.0]]), y=np.array([5.0, 6.0]))
    assert read_folder(tmp_path, "y", intercept=True).features.tolist() == [[1, 2, 1], [3, 4, 1]]
    assert read_folder(tmp_path, None).features.tolist() == [[1, 2, 5], [3, 4, 6]]
    assert read_folder(tmp_path, None).targets is None


def test_named_columns_in_their_order_and_nothing_else_is_read(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", "name,age,y,bmi\nAda,1,3,2\n")
    write(tmp_path, "b.csv", "bmi,age,y\n5,4,6\n")
    parquet.write_table(arrow.table({"y": [9.0], "age": [7], "name": ["Bo"], "bmi": [8]}), tmp_path / "c.parquet")
    np.savez(tmp_path / "d.npz", age=np.array([10]), bmi=np.array([11.0]), y=np.array([12.0]), name=np.array(["Cy"]))
    clients = read_folder(tmp_path, "y", columns=["bmi", "age"])
    assert clients.features.tolist() == [[2, 1], [5, 4], [8, 7], [11, 10]]
    assert clients.targets is not None
    assert clients.targets.tolist() == [3, 6, 9, 12]
    assert read_folder(tmp_path, None, columns=["age"]).features.tolist() == [[1], [4], [7], [10]]
    with pytest.raises(ValueError, match=r"a\.csv: no column 'height'"):
        read_folder(tmp_path, "y", columns=["age", "height"])
    for wrong in (["age", "age"], ["age", "y"]):
        with pytest.raises(ValueError, match="columns: each feature once, and the target is none of them"):
            read_folder(tmp_path, "y", columns=wrong)
    other = tmp_path / "groups"
    other.mkdir()
    np.savez(other / "a.npz", x=np.array([[1.0, 2.0, 3.0]]), y=np.array([5.0]))
    assert read_folder(other, "y", columns=["x[2]", "x[0]"]).features.tolist() == [[3, 1]]


def test_offsets_and_scales(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", "age,bmi,y\n50,20,3\n35,26,6\n")
    clients = read_folder(tmp_path, "y", offset=[35, 20], scale=[15, 3], intercept=True)
    assert clients.features.tolist() == [[1, 0, 1], [0, 2, 1]]
    with pytest.raises(ValueError, match=r"problem\.scale: must hold a number for each of the 2 features, got 3"):
        read_folder(tmp_path, "y", scale=[1, 2, 3])


def test_a_byte_order_mark_and_spaces_are_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfx, y\r\n 1 , 2\r\n")
    assert read_folder(tmp_path, "y").features.tolist() == [[1]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x,y\n1,2\n3,four\n", "column 'y', row 3: 'four' is not a number"),
        ("x,y\n1,2\n\n3,four\n", "column 'y', row 4: 'four' is not a number"),
        ('x,y\n1,2\n"3\n",four\n', "column 'y', row 3: 'four' is not a number"),
        ("x,y\n1,2\n3,\n", "column 'y', row 3: is missing, and every sample needs a target"),
        ("x,y\n1,nan\n", "column 'y', row 2: is missing"),
        ("x,y\n1,2\n3,1e999\n", "column 'y', row 3: inf is not a finite number"),
        ("x,y\n1,2\n1e999,2\n", "column 'x', row 3: inf is not a finite number"),
        ("x,y\n1,2\n3,1e30\n", "column 'y', row 3: 1e+30 is too large: rescale it"),
        ("x,y\n1,2\n3\n", "row 3 has 1 cells, the header names 2 columns"),
        ("x;y\n3,5;2\n", "column 'x', row 2: '3,5' has a comma; write numbers with a decimal point"),
        ("x,y\n2020-01-31,2\n", "column 'x' holds dates or times; turn it into a number"),
        ("x,y\n", "holds no sample"),
        ("", "is empty"),
        ("x\n1\n", "no column 'y', which a.csv has"),
        ("x,y,z\n1,2,3\n", "column 'z' is not in a.csv"),
        ("x,x,y\n1,2,3\n", "column 'x' appears twice"),
    ],
)
def test_a_broken_csv_names_file_column_and_row(tmp_path: Path, text: str, expected: str) -> None:
    write(tmp_path, "a.csv", "x,y\n1,2\n")
    write(tmp_path, "b.csv", text)
    with pytest.raises(ValueError, match=r"b\.csv") as caught:
        read_folder(tmp_path, "y")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_target_names_the_columns_there_are(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", "x,y\n1,2\n")
    with pytest.raises(ValueError, match=r"a\.csv: no column 'label'; it has x, y"):
        read_folder(tmp_path, "label")


def test_only_a_target(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", "y\n1\n")
    with pytest.raises(ValueError, match="no feature column"):
        read_folder(tmp_path, "y")


def test_parquet_faults(tmp_path: Path) -> None:
    parquet.write_table(arrow.table({"x": [1.0, None], "y": [1.0, 2.0]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet: column 'x', row 2: is missing"):
        read_folder(tmp_path, "x")
    parquet.write_table(arrow.table({"x": ["one"], "y": [1.0]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet: column 'x', row 1: 'one' is not a number"):
        read_folder(tmp_path, "x")
    parquet.write_table(arrow.table({"x": [[1.0]], "y": [1.0]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet: column 'x': holds List.*, not numbers or text"):
        read_folder(tmp_path, "y")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(ValueError, match=r"a\.parquet: cannot be read as Parquet"):
        read_folder(tmp_path, "y")


def test_npz_faults_and_no_pickle(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez(file, x=np.array([object()], dtype=object), y=np.array([1.0]))
    with pytest.raises(ValueError, match=r"a\.npz: cannot be read as .npz"):
        read_folder(tmp_path, "y")
    np.savez(file, x=np.array([["text"]]), y=np.array([1.0]))
    with pytest.raises(ValueError, match="array 'x' must hold numbers"):
        read_folder(tmp_path, "y")
    np.savez(file, x=np.zeros(2), y=np.zeros(3))
    with pytest.raises(ValueError, match="differ in their number of rows"):
        read_folder(tmp_path, "y")
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("readme.txt", "no array")
    with pytest.raises(ValueError, match=r"array 'readme\.txt' must hold numbers"):
        read_folder(tmp_path, "y")
    np.save(tmp_path / "plain.npy", np.zeros(3))
    file.write_bytes((tmp_path / "plain.npy").read_bytes())
    with pytest.raises(ValueError, match="not a zip archive"):
        read_folder(tmp_path, "y")
    file.write_bytes(b"PK\x03\x04 nonsense")
    with pytest.raises(ValueError, match=r"a\.npz: cannot be read as .npz"):
        read_folder(tmp_path, "y")


def test_no_folder_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such folder"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no client file"):
        read_folder(tmp_path)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    np.savez(tmp_path / "a.npz", x=np.ones(2), y=np.ones(2))
    with pytest.raises(ValueError, match=r"a\.csv: another file of the folder has the name a, too"):
        read_folder(tmp_path, "y")
