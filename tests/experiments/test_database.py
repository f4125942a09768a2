"""The SQLite file of a sweep: by what a result is known, who may open it, and files that are no such file."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from coterie._src.experiments import database as database_module
from coterie._src.experiments.database import Database, key
from coterie._src.experiments.engines import local_engine
from coterie._src.experiments.results import aggregate, varied
from coterie._src.experiments.sweep import Grid, jobs_left, keep_grid, parse_grid, read_grid, sweep
from coterie._src.experiments.toml import parse_config
from small_sweep import grid

KINDS = [
    parse_config(raw)
    for raw in (
        {},
        {"problem": {"kind": "gaussian-means"}},
        {"problem": {"kind": "poisson-means"}},
        {"problem": {"dim": 7}},
        {"algorithm": {"trim": 0.1}},
        {"attack": {"scale": 2.0}},
        {"three_stage": {"starts": 3}},
        {"run": {"device": "cuda"}},
        {"run": {"seed": 1}},
    )
]


def test_a_trial_is_kept_with_all_its_methods_or_not_at_all(finished: Path) -> None:
    rows = Database(finished).rows()
    assert len(rows) == 24
    assert {row["method"] for row in rows} == {"brifca-median", "ifca"}
    assert {row["trial"] for row in rows} == {0, 1, 2}


def test_results_of_other_files_and_other_numerics_are_other_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def folder_grid() -> Grid:
        database_module._fingerprint.cache_clear()  # as in a new process
        return parse_grid(
            {"problem": {"kind": "folder", "clusters": 1}, "algorithm": {"rounds": 2}, "run": {"trials": 1}}
        )

    for place, value in (("a", 1.0), ("b", 2.0)):
        (tmp_path / place / "clients").mkdir(parents=True)
        (tmp_path / place / "clients" / "one.csv").write_text(f"x,y\n1,{value}\n")
    monkeypatch.chdir(tmp_path / "a")
    first = folder_grid()
    keys = set(first.keys)
    keep_grid(first, tmp_path / "out")
    monkeypatch.chdir(tmp_path / "b")
    assert not keys & set(folder_grid().keys)
    database_module._fingerprint.cache_clear()
    assert set(read_grid(tmp_path / "out" / "grid.toml", []).keys) == keys  # the folder of a, from anywhere
    (tmp_path / "a" / "clients" / "one.csv").write_text("x,y\n1,3\n")
    database_module._fingerprint.cache_clear()
    assert not keys & set(read_grid(tmp_path / "out" / "grid.toml", []).keys)

    database = Database(tmp_path / "numerics", create=True)
    jobs = jobs_left(grid(), database)[:1]
    sweep(jobs, database, local_engine(1))
    assert len(database.rows()) == 2
    monkeypatch.setattr(database_module, "NUMERICS", database_module.NUMERICS + 1)
    assert database.rows(grid().keys) == []
    with pytest.raises(ValueError, match="its 2 results are of another version of the numerics"):
        database.rows()
    assert len(jobs_left(grid(), database)) == 12


def test_a_start_counts_by_what_is_in_its_file(tmp_path: Path) -> None:
    keys = []
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "start.csv").write_text("1,2\n3,4\n")
        chosen = {"problem": {"clusters": 2, "dim": 2}, "algorithm": {"init": str(tmp_path / place / "start.csv")}}
        keys.append(key(parse_config(chosen), "ifca", 0))
    assert keys[0] == keys[1] != key(parse_config({"problem": {"clusters": 2, "dim": 2}}), "ifca", 0)


def test_a_result_is_named_by_what_was_chosen_and_survives_a_key_that_a_later_version_adds(tmp_path: Path) -> None:
    names = {key(config, "ifca", 0) for config in KINDS}
    assert len(names) == len(KINDS)
    database = Database(tmp_path, create=True)
    sweep(jobs_left(grid(), database)[:1], database, local_engine(1))
    (text,) = database.connection.execute("SELECT content FROM configurations").fetchone()
    older = json.loads(text)
    del older["algorithm"]["ridge"]  # as if written before there was a ridge
    database.connection.execute("UPDATE configurations SET content = ?", [json.dumps(older)])
    assert {row["algorithm.ridge"] for row in database.rows()} == {0.0}
    assert len(jobs_left(grid(), database)) == 11


OPENED_BY_FOUR = """
import os, sys
from coterie._src.experiments.database import Database

begin, go = os.pipe()
children = []
for _ in range(4):
    if not (child := os.fork()):
        os.close(go)
        os.read(begin, 1)  # returns in all of them at once, when the parent closes its end
        Database(sys.argv[1], create=True)
        os._exit(0)
    children.append(child)
os.close(go)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


def test_many_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OPENED_BY_FOUR, str(tmp_path / "new")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.stdout, done.stderr) == ("[0, 0, 0, 0]\n", "")
    assert Database(tmp_path / "new").rows() == []


def test_a_run_is_no_sweep(tmp_path: Path) -> None:
    (tmp_path / "trials.csv").write_text("")
    with pytest.raises(ValueError, match=r"results\.sqlite: no such file; this is the folder of a run"):
        Database(tmp_path)


def test_results_are_read_where_nobody_can_write(finished: Path) -> None:
    """As another user, if this one is the superuser, who can write everywhere."""
    expected = len(Database(finished).rows())
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with closing(sqlite3.connect(finished / "results.sqlite")) as source:
            source.execute("VACUUM INTO ?", [str(folder / "results.sqlite")])
        with closing(sqlite3.connect(folder / "results.sqlite")) as copy:
            copy.execute("PRAGMA journal_mode = WAL")
        folder.chmod(0o555)
        child = os.fork()
        if not child:  # nothing of pytest's may run here
            status = 1
            try:
                if os.getuid() == 0:
                    os.setuid(65534)
                status = 0 if len(Database(folder).rows()) == expected else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        folder.chmod(0o755)


def test_a_file_of_an_earlier_version_is_read_and_goes_on(tmp_path: Path) -> None:
    """It lacks metrics that came later, and names the paper's attack by its number."""
    database = Database(tmp_path, create=True)
    small = parse_grid({"problem": {"clients": 8, "clusters": 2, "samples": 4, "dim": 2},
                        "algorithm": {"rounds": 2}, "run": {"methods": ["ifca"], "trials": 2}})  # fmt: skip
    jobs = jobs_left(small, database)
    sweep(jobs[:1], database, local_engine(1))
    database.close()
    with closing(sqlite3.connect(tmp_path / "results.sqlite", isolation_level=None)) as old:
        for column in ("worst_ratio", "clusters"):
            old.execute(f"ALTER TABLE results DROP COLUMN {column}")
        (text,) = old.execute("SELECT content FROM configurations").fetchone()
        content = json.loads(text)
        content["attack"] = {"kind": "paper", "target": "own", "scale": 3.0}
        del content["algorithm"]["max_clusters"]
        content["algorithm"]["most_byzantine"] = content["algorithm"].pop("max_byzantine")
        old.execute("UPDATE configurations SET content = ?", [json.dumps(content)])
    (row,) = Database(tmp_path).rows()
    assert row["attack.scale"] == "auto"
    assert row["algorithm.max_clusters"] == 20
    assert row["algorithm.max_byzantine"] == 0.05
    assert row["clusters"] != row["clusters"]  # not a number
    again = Database(tmp_path, create=True)
    assert len(jobs_left(small, again)) == 1
    sweep(jobs_left(small, again), again, local_engine(1))
    assert {found["trials"] for found in aggregate(again.rows())} == {2}
    assert varied(again.rows()) == []
