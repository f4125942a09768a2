"""Sweeps: grids, the store, and what happens when processes are killed, disks are full and files are broken."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from coterie._src.experiments import database as database_module
from coterie._src.experiments.database import Database, key
from coterie._src.experiments.engines import local_engine
from coterie._src.experiments.results import aggregate, as_csv, full_name, select, varied, without_clock
from coterie._src.experiments.sweep import Grid, grid_toml, jobs_left, keep_grid, parse_grid, read_grid, sweep
from coterie._src.experiments.toml import parse_config

COTERIE = str(Path(sys.executable).with_name("coterie"))
GRID = """
[problem]
clusters = 2
clients = 16
samples = 8
dim = [3, 5]

[algorithm]
rounds = 6
step = [0.05, "auto"]

[run]
methods = ["brifca-median", "ifca"]
trials = 3
"""


def grid(**run: Any) -> Grid:
    return parse_grid(
        {
            "problem": {"clusters": 2, "clients": 16, "samples": 8, "dim": [3, 5]},
            "algorithm": {"rounds": 6, "step": [0.05, "auto"]},
            "run": {"methods": ["brifca-median", "ifca"], "trials": 3, **run},
        }
    )


def table(database: Database, of: Grid) -> str:
    return as_csv(without_clock(aggregate(database.rows(of.keys))))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    database = Database(folder, create=True)
    sweep(jobs_left(grid(), database), database, local_engine(1))
    database.close()
    return folder


# --- grids -----------------------------------------------------------------------------------------------


def test_a_grid_is_the_product_of_its_lists() -> None:
    found = {(c.problem.dim, c.algorithm.step) for c in grid().configs}
    assert found == {(3, 0.05), (3, "auto"), (5, 0.05), (5, "auto")}
    assert len(grid().keys) == 4 * 3 * 2
    assert len(set(grid().keys)) == 24


def test_settings_change_together_and_list_values_are_nested() -> None:
    coupled = parse_grid(
        {
            "problem": {"samples": [[5, 6], [7, 8]], "byzantine": 0.0},
            "settings": [{"problem": {"clusters": 1, "clients": 2}}, {"problem": {"clusters": 2, "clients": 2}}],
        }
    )
    found = [(c.problem.clusters, c.problem.samples) for c in coupled.configs]
    assert found == [(1, [5, 6]), (1, [7, 8]), (2, [5, 6]), (2, [7, 8])]
    assert parse_grid(tomllib.loads(grid_toml(coupled.raw))).configs == coupled.configs


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"run": {"trials": [1, 2]}}, "run.trials: must be one value"),
        ({"problem": {"dim": []}}, "problem.dim: must hold at least one value"),
        ({"problem": {"dim": [3, 0]}}, "problem.dim: must be"),
        ({"problem": {"dmi": [3]}}, "did you mean problem.dim?"),
        ({"settings": [{"run": {"trials": 1}}, {"run": {"trials": 2}}]}, "run.trials: must be the same"),
        ({"settings": {"problem": 3}}, "settings: must be tables"),
        ({"settings": [{"problem": 3}]}, "settings.problem: must be a table"),
    ],
)
def test_mistakes_in_a_grid(raw: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        parse_grid(raw)
    assert expected in str(caught.value)


# --- the store -------------------------------------------------------------------------------------------


def test_nothing_is_done_twice_and_the_table_does_not_depend_on_the_order(finished: Path, tmp_path: Path) -> None:
    whole = Database(finished)
    assert jobs_left(grid(), whole) == []
    other = Database(tmp_path, create=True)
    jobs = jobs_left(grid(), other)
    sweep(list(reversed(jobs))[:5], other, local_engine(1))
    left = jobs_left(grid(), other)
    assert len(left) == len(jobs) - 5
    sweep(left, other, local_engine(2))
    assert table(other, grid()) == table(whole, grid())


def test_more_trials_and_other_methods_build_on_what_is_there(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "results.sqlite").write_bytes((finished / "results.sqlite").read_bytes())
    database = Database(tmp_path, create=True)
    jobs = jobs_left(grid(trials=4, methods=["ifca", "global"]), database)
    assert sorted({(job.trial, tuple(job.config.run.methods)) for job in jobs}) == [
        (0, ("global",)), (1, ("global",)), (2, ("global",)), (3, ("ifca", "global")),
    ]  # fmt: skip
    assert len(jobs_left(grid(seed=1), database)) == 12


def test_a_trial_is_kept_with_all_its_methods_or_not_at_all(finished: Path) -> None:
    rows = Database(finished).rows()
    assert len(rows) == 24
    assert {row["method"] for row in rows} == {"brifca-median", "ifca"}
    assert {row["trial"] for row in rows} == {0, 1, 2}


ON_RAY = """
import logging, sys
import ray
from coterie._src.experiments.database import Database
from coterie._src.experiments.engines import ray_engine
from coterie._src.experiments.sweep import jobs_left, sweep
from test_sweep import grid, table

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
database = Database(sys.argv[2], create=True)
sweep(jobs_left(grid(), database), database, ray_engine())
assert table(database, grid()) == table(Database(sys.argv[1]), grid())
"""


def test_ray_gives_the_same_bits(finished: Path, tmp_path: Path) -> None:
    """In a process of its own: Ray leaves some of its own behind."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", ON_RAY, str(finished), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr


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


def test_a_grid_may_grow_and_is_not_replaced(tmp_path: Path) -> None:
    keep_grid(grid(), tmp_path)
    before = (tmp_path / "grid.toml").read_text()
    other = grid(seed=5), parse_grid({**grid().raw, "problem": {**grid().raw["problem"], "dim": [3]}})
    for wrong in other:
        with pytest.raises(
            ValueError, match=r"grid.toml: has [24] of its 4 configurations that this grid does not have"
        ):
            keep_grid(wrong, tmp_path)
        assert (tmp_path / "grid.toml").read_text() == before
    keep_grid(parse_grid({**grid(trials=9).raw, "problem": {**grid().raw["problem"], "dim": [3, 5, 7]}}), tmp_path)
    assert "dim = [3, 5, 7]" in (tmp_path / "grid.toml").read_text()


def test_a_list_in_itself_is_one_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "one.csv").write_text("a,b,y\n1,2,3\n4,5,6\n")
    own: dict[str, Any] = {"kind": "folder", "path": "own", "clusters": 1}
    assert len(parse_grid({"problem": {**own, "columns": ["a", "b"], "scale": [1.0, 2.0]}}).configs) == 1
    assert len(parse_grid({"problem": {**own, "columns": [], "offset": []}}).configs) == 1
    two = parse_grid({"problem": {**own, "columns": [["a"], ["a", "b"]]}})
    assert [config.problem.columns for config in two.configs] == [["a"], ["a", "b"]]  # type: ignore[union-attr]
    base = {"problem": {"path": "own", "clusters": 1}, "settings": [{"problem": {"kind": "folder"}}]}
    keep_grid(parse_grid(base), tmp_path / "out")
    assert read_grid(tmp_path / "out" / "grid.toml", []).configs == parse_grid(base).configs


def test_trials_that_share_their_draw_count_once() -> None:
    """Two attacks on the same two draws: the error of their mean is that of two draws, not of four trials."""
    values = {("x", 0): 1.0, ("y", 0): 1.2, ("x", 1): 2.0, ("y", 1): 2.2}
    rows = [
        {"attack.kind": kind, "method": "ifca", "seed": 0, "trial": trial, "dist": value}
        for (kind, trial), value in values.items()
    ]
    (line,) = aggregate(rows, [])
    assert (line["trials"], line["dist"], line["dist_se"]) == (2, pytest.approx(1.6), pytest.approx(0.5))
    assert [line["trials"] for line in aggregate(rows)] == [2, 2]
    again = [{**row, "seed": 7} for row in rows]
    assert [line["trials"] for line in aggregate([*rows, *again], ["attack.kind"])] == [4, 4]
    assert len(aggregate([*rows, *again])) == 4  # a seed is a key, too


def test_a_key_goes_before_a_metric_of_the_same_name() -> None:
    rows = [{"problem.clusters": k, "method": "global", "seed": 0, "trial": 0, "clusters": 1.0} for k in (2, 4)]
    assert full_name("clusters", rows) == "problem.clusters"
    assert full_name("clusters", rows, metric=True) == "clusters"
    assert [row["problem.clusters"] for row in select(rows, ["clusters=4"])] == [4]
    assert full_name("trial", rows) == "trial"


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


# --- from rows to tables -----------------------------------------------------------------------------------


def test_select_vary_and_aggregate(finished: Path) -> None:
    rows = Database(finished).rows()
    assert varied(rows) == ["problem.dim", "algorithm.step"]
    chosen = select(rows, ["dim=3", "algorithm.step=auto", "method=ifca"])
    assert [row["trial"] for row in chosen] == [0, 1, 2]
    (line,) = aggregate(chosen)
    assert line["dist"] == pytest.approx(sum(row["dist"] for row in chosen) / 3)
    assert line["trials"] == 3
    lines = aggregate(rows)
    assert [(li["problem.dim"], li["algorithm.step"], li["method"]) for li in lines[:3]] == [
        (3, 0.05, "brifca-median"), (3, 0.05, "ifca"), (3, "auto", "brifca-median"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="kind: could be"):
        full_name("kind", rows)
    with pytest.raises(ValueError, match="colour: no such key"):
        select(rows, ["colour=red"])
    with pytest.raises(ValueError, match="must read key=value"):
        select(rows, ["dim"])


# --- real processes ----------------------------------------------------------------------------------------


def coterie(*arguments: str, cwd: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "dumb"}
    command = ["bash", "-c", f'{before} exec "$0" "$@"', COTERIE, *arguments] if before else [COTERIE, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False)


def kept(folder: Path) -> int:
    """How many results are on disk, while others write there."""
    file = folder / "results.sqlite"
    if not file.exists():
        return 0
    with closing(sqlite3.connect(file, timeout=60)) as connection:
        tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'results'").fetchone()[0]
        return int(connection.execute("SELECT count(*) FROM results").fetchone()[0]) if tables else 0


def test_kill_9_loses_only_what_was_in_flight(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID.replace("trials = 3", "trials = 40"))
    process = subprocess.Popen(
        [COTERIE, "sweep", "grid.toml", "--workers", "2", "--out", "killed"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        while process.poll() is None and kept(tmp_path / "killed") < 20:
            pass
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    survived = kept(tmp_path / "killed")
    assert survived >= 20
    assert survived % 2 == 0

    refused = coterie("sweep", "grid.toml", "--out", "killed", cwd=tmp_path)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--resume" in refused.stderr
    resumed = coterie("sweep", "--resume", "--out", "killed", cwd=tmp_path)  # the folder knows its grid
    assert resumed.returncode == 0, resumed.stderr
    whole = coterie("sweep", "grid.toml", "--workers", "1", "--out", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert (tmp_path / "killed" / "summary.csv").read_bytes() == (tmp_path / "whole" / "summary.csv").read_bytes()
    assert resumed.stdout == whole.stdout


def test_two_sweeps_may_write_to_one_file(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID)
    (tmp_path / "more.toml").write_text(GRID.replace("trials = 3", "trials = 9"))
    first = coterie("sweep", "grid.toml", "--set", "run.trials=1", "--workers", "1", "--out", "both", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    commands = [[COTERIE, "sweep", name, "--resume", "--workers", "1", "--out", "both"] for name in
                ("grid.toml", "more.toml")]  # fmt: skip
    running = [subprocess.Popen(c, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for c in commands]
    for process in running:
        _, stderr = process.communicate(timeout=240)
        assert process.returncode == 0, stderr
    assert len(Database(tmp_path / "both").rows()) == 4 * 9 * 2


def test_many_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    program = "import sys; from coterie._src.experiments.database import Database; Database(sys.argv[1], create=True)"
    command = [sys.executable, "-c", program, str(tmp_path / "new")]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate(timeout=120)[1] for process in running] == [""] * 4
    assert Database(tmp_path / "new").rows() == []


def test_resume_needs_something_to_resume(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID)
    for arguments in (["grid.toml", "--resume"], ["grid.toml", "--resume", "--out", "mistyped"], ["--resume"], []):
        done = coterie("sweep", *arguments, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert [file.name for file in tmp_path.iterdir()] == ["grid.toml"]


def test_a_killed_worker_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID.replace("trials = 3", "trials = 5000"))
    process = subprocess.Popen(
        [COTERIE, "sweep", "grid.toml", "--workers", "2", "--out", "run"], cwd=tmp_path, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        while process.poll() is None and kept(tmp_path / "run") < 8:  # all workers are at work
            pass
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        workers = [int(child) for child in children]  # the resource tracker, and two workers
        os.kill(workers[-1], signal.SIGKILL)
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "Traceback" not in stderr
    assert "worker processes: one was killed" in stderr


def test_ctrl_c_in_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID.replace("trials = 3", "trials = 5000"))
    process = subprocess.Popen(
        [COTERIE, "sweep", "grid.toml", "--out", "run"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        while process.poll() is None and not (tmp_path / "run" / "grid.toml").exists():
            pass
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert "--resume" in stderr
    assert "Traceback" not in stderr
    Database(tmp_path / "run").close()


def test_a_full_disk_a_broken_file_and_no_place(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID.replace("trials = 3", "trials = 400"))
    full = coterie("sweep", "grid.toml", "--workers", "1", "--out", "full", cwd=tmp_path, before="ulimit -f 60;")
    assert full.returncode == 1
    assert full.stderr.count("\n") == 1
    assert "results.sqlite" in full.stderr
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "results.sqlite").write_bytes(b"not a database at all" * 100)
    for command in (["sweep", "grid.toml", "--resume", "--out", "broken"], ["results", "broken"], ["plot", "broken"]):
        done = coterie(*command, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "is not a file of results" in done.stderr
    (tmp_path / "foreign").mkdir()
    with closing(sqlite3.connect(tmp_path / "foreign" / "results.sqlite")) as connection:
        connection.execute("CREATE TABLE results (name TEXT)")
    for command in (["sweep", "grid.toml", "--resume", "--out", "foreign"], ["results", "foreign"]):
        done = coterie(*command, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "is not a file of results" in done.stderr
    assert [file.name for file in (tmp_path / "foreign").iterdir()] == ["results.sqlite"]
    (tmp_path / "file").write_text("")
    nowhere = coterie("sweep", "grid.toml", "--out", "file/below", cwd=tmp_path)
    assert (nowhere.returncode, nowhere.stderr.count("\n")) == (1, 1)
    missing = coterie("results", "nothing-here", cwd=tmp_path)
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)


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


def test_results_and_plots_of_a_sweep(finished: Path, tmp_path: Path) -> None:
    done = coterie("results", str(finished), "--where", "dim=5", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {row["algorithm.step"] for row in json.loads(done.stdout)} == {0.05, "auto"}
    shown = coterie("results", str(finished), "--by", "dim", cwd=tmp_path).stdout
    assert "brifca-median" in shown
    assert "±" in shown
    raw = coterie("results", str(finished), "--raw", "--format", "csv", cwd=tmp_path).stdout
    assert len(raw.splitlines()) == 25
    assert coterie("results", str(finished), "--format", "parquet", "--out", "r.parquet", cwd=tmp_path).returncode == 0
    assert parquet.read_table(tmp_path / "r.parquet").num_rows == 8
    for arguments, named in (
        (["--where", "dim=99"], "no result"),
        (["--where", "colour=red"], "colour"),
        (["--format", "parquet"], "--out"),
        (["--by", "colour"], "colour"),
    ):
        wrong = coterie("results", str(finished), *arguments, cwd=tmp_path)
        assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
        assert named in wrong.stderr
    for arguments, named in (
        (["--y", "dim"], "y: must be a metric"),
        (["--y", "colour"], "colour: no such key"),
    ):
        wrong = coterie("plot", str(finished), *arguments, cwd=tmp_path)
        assert (wrong.returncode, named in wrong.stderr) == (2, True)
    mixed = coterie("plot", str(finished), "--x", "step", "--series", "dim", "--log", "--out", "m.png", cwd=tmp_path)
    assert mixed.returncode == 0, mixed.stderr
    pooled = coterie("plot", str(finished), "--x", "dim", "--out", "p.png", cwd=tmp_path)
    assert "algorithm.step vary, too" in pooled.stderr
    for name, magic in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        drawn = coterie("plot", str(finished), "--x", "dim", "--y", "dist", "--log", "--where", "step=auto",
                        "--out", name, cwd=tmp_path)  # fmt: skip
        assert drawn.returncode == 0, drawn.stderr
        assert (tmp_path / name).read_bytes().startswith(magic)


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
        del content["algorithm"]["most_clusters"]
        old.execute("UPDATE configurations SET content = ?", [json.dumps(content)])
    (row,) = Database(tmp_path).rows()
    assert row["attack.scale"] == "auto"
    assert row["algorithm.most_clusters"] == 20
    assert row["clusters"] != row["clusters"]  # not a number
    again = Database(tmp_path, create=True)
    assert len(jobs_left(small, again)) == 1
    sweep(jobs_left(small, again), again, local_engine(1))
    assert {found["trials"] for found in aggregate(again.rows())} == {2}
    assert varied(again.rows()) == []
