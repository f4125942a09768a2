"""A database of MLflow with nothing in it, which takes seconds to make, and one tracked run."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command import Done, coterie

SMALL = [
    "--set", "problem.clusters=2", "--set", "problem.clients=24", "--set", "problem.samples=15",
    "--set", "problem.dim=6", "--set", "algorithm.rounds=12", "--trials", "2", "--set", "run.workers=1",
    "--method", "ifca", "--method", "coterie", "--method", "local", "--seed", "3",
]  # fmt: skip


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a database of MLflow."""
    pytest.importorskip("mlflow", reason="needs coterie[mlflow]")
    from mlflow import MlflowClient

    file = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{file}")
    return file


@pytest.fixture(scope="session")
def tracked(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """The place and the output of a tracked run; its numbers are in `run`."""
    place = tmp_path_factory.mktemp("tracked")
    shutil.copyfile(empty_database, place / "mlflow.db")
    return place, coterie("run", *SMALL, "--out", "run", "--track", "mlflow:sqlite:///mlflow.db", cwd=place)


Columns = Callable[[str, str], dict[str, list[float]]]


@pytest.fixture(scope="session")
def columns(tracked: tuple[Path, Done]) -> Columns:
    """By method, a column of a table of that run; of rounds.csv for trial 0."""

    def read(table: str, name: str) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        with (tracked[0] / "run" / table).open(newline="") as stream:
            rows: list[dict[str, Any]] = list(csv.DictReader(stream))
        for row in rows:
            if table == "trials.csv" or row["trial"] == "0":
                found.setdefault(row["method"], []).append(float(row[name]))
        return found

    return read
