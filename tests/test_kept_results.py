"""Results that are kept in compressed form: nothing is lost, and a damaged file gets one clear line."""

from __future__ import annotations

import lzma
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from coterie._src.experiments.database import ARCHIVE, FILE, Database
from coterie._src.experiments.engines import local_engine
from coterie._src.experiments.sweep import Grid, jobs_left, parse_grid, sweep

ROOT = Path(__file__).parent.parent
RESULTS = [sys.executable, "-m", "coterie", "results", "--raw", "--format", "csv"]
PACK = ROOT / "docs" / "results" / "pack.py"


def grid() -> Grid:
    return parse_grid(
        {
            "problem": {"clients": 8, "clusters": 2, "samples": 4, "dim": [2, 3]},
            "algorithm": {"rounds": 2},
            "run": {"methods": ["ifca", "brifca-median"], "trials": 2},
        }
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same sweep as it was written, and packed."""
    written, packed = tmp_path_factory.mktemp("written"), tmp_path_factory.mktemp("packed")
    database = Database(written, create=True)
    sweep(jobs_left(grid(), database), database, local_engine(1))
    database.close()
    shutil.copy(written / FILE, packed / FILE)
    subprocess.run([sys.executable, PACK, packed], check=True, capture_output=True)
    return written, packed


def test_a_packed_file_holds_every_number(folders: tuple[Path, Path]) -> None:
    written, packed = folders
    assert [file.name for file in packed.iterdir()] == [ARCHIVE]
    rows = Database(packed).rows()
    assert len(rows) == 8
    assert repr(rows) == repr(Database(written).rows())  # repr: a NaN is not equal to itself
    shown = [
        subprocess.run([*RESULTS, folder], capture_output=True, text=True, check=True).stdout for folder in folders
    ]
    assert shown[0] == shown[1]


def test_a_file_that_is_written_to_is_preferred(folders: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copy(folders[1] / ARCHIVE, tmp_path)
    database = Database(tmp_path, create=True)
    assert len(jobs_left(grid(), database)) == 4  # a new sweep begins from nothing
    assert Database(tmp_path).rows() == []


def test_an_unpacked_file_is_not_continued(folders: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(lzma.decompress((folders[1] / ARCHIVE).read_bytes()))
    assert len(Database(tmp_path).rows()) == 8
    with pytest.raises(ValueError, match="comes from an archive"):
        Database(tmp_path, create=True)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "cut short"),
        (b"not compressed at all", "is not a file of results"),
        (lzma.compress(b"not a database at all" * 100), "is not a file of results"),
        (lzma.compress(b"")[:-4], "cut short"),
    ],
)
def test_a_damaged_archive_gets_one_line(content: bytes, rule: str, tmp_path: Path) -> None:
    (tmp_path / ARCHIVE).write_bytes(content)
    with pytest.raises(ValueError, match=rf"^[^\n]*{ARCHIVE}[^\n]*{rule}[^\n]*$"):
        Database(tmp_path)


def test_an_archive_may_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ARCHIVE).write_bytes(lzma.compress(bytes(100_000)))
    monkeypatch.setattr("coterie._src.experiments.database.MAX_ARCHIVE_BYTES", 1000)
    with pytest.raises(ValueError, match="holds more than 1000 bytes"):
        Database(tmp_path)


def test_a_store_that_is_gone_leaves_no_open_file(tmp_path: Path) -> None:
    """From Python 3.13 on, a connection that is never closed is a warning."""
    database = Database(tmp_path, create=True)
    connection = database.connection
    del database
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def test_the_kept_results_are_packed() -> None:
    kept = ROOT / "docs" / "results"
    assert list(kept.rglob(ARCHIVE))
    assert not list(kept.rglob(FILE))
    assert sum(file.stat().st_size for file in kept.rglob("*") if file.is_file()) <= 4_000_000
