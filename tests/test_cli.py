"""The command line, as a user meets it: real processes, their output, exit codes and folders."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file

from coterie import __version__, load
from coterie._src.cli.plan import plan
from coterie._src.experiments.config import compared_methods

COTERIE = str(Path(sys.executable).with_name("coterie"))
SMALL = [
    "--set", "problem.clusters=2", "--set", "problem.clients=24", "--set", "problem.samples=15",
    "--set", "problem.dim=6", "--set", "algorithm.rounds=12", "--trials", "2",
]  # fmt: skip
METRICS = {"dist", "matched_dist", "ari", "misclustered", "oracle_ratio", "rounds", "seconds"}


def coterie(*arguments: str, cwd: Path, columns: int = 120) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "dumb"}
    return subprocess.run(
        [COTERIE, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def numbers(stdout: str) -> dict[str, dict[str, dict[str, float]]]:
    """The methods of a --json answer without the one metric that is a clock."""
    methods: dict[str, dict[str, dict[str, float]]] = json.loads(stdout)["methods"]
    return {name: {m: v for m, v in found.items() if m != "seconds"} for name, found in methods.items()}


def test_a_run_leaves_a_complete_folder_that_runs_again(tmp_path: Path) -> None:
    done = coterie("run", *SMALL, "--seed", "7", "--out", "first", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("brifca-median", "brifca-trimmed", "ifca", "three-stage", "local", "global", "oracle", "±", "ARI"):
        assert name in done.stdout
    first = tmp_path / "first"
    names = {"config.toml", "summary.json", "trials.csv", "rounds.csv", "audit.csv", "centres", "convergence.png"}
    assert {file.name for file in first.iterdir()} == names
    assert (first / "convergence.png").read_bytes().startswith(b"\x89PNG")
    kept = json.loads((first / "summary.json").read_text())
    assert (kept["version"], kept["seed"], kept["status"]) == (__version__, 7, "complete")

    again = coterie("run", "first/config.toml", "--out", "second", "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stderr.endswith(f"Everything is in {Path('second')}/\n")
    assert numbers(again.stdout) == numbers(json.dumps(kept))
    for file in ("rounds.csv", "audit.csv"):
        assert (tmp_path / "second" / file).read_bytes() == (first / file).read_bytes()
    for trial in (0, 1):
        ours, theirs = (load_file(tmp_path / f / "centres" / f"{trial}.safetensors") for f in ("first", "second"))
        assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)


def test_json_is_one_object_and_nothing_else(tmp_path: Path) -> None:
    done = coterie("run", *SMALL, "--method", "ifca", "--method", "oracle", "--json", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""  # neither of them trims, so there is nothing to warn of
    assert list(tmp_path.iterdir()) == []
    methods = json.loads(done.stdout)["methods"]
    assert list(methods) == ["ifca", "oracle"]
    for found in methods.values():
        assert set(found) >= METRICS
        assert all(set(statistic) == {"mean", "se", "trials"} for statistic in found.values())
        assert all(statistic["trials"] == 2 for statistic in found.values())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--set", "problem.clusters=99"], "problem.clusters"),
        (["--set", "algorithm.trim=0.5"], "algorithm.trim"),
        (["--set", "problem.byzantine=0.99"], "problem.byzantine"),
        (["--set", "problem.samples=-3"], "problem.samples"),
        (["--set", "algorithm.rouns=3"], "algorithm.rounds"),
        (["--set", "algorithm.init=nowhere.npy"], "algorithm.init"),
        (["--set", "problem.kind=folder", "--set", "problem.path=nowhere"], "unknown key"),
        (["--method", "fedavg"], "run.methods"),
        (["--trials", "0"], "run.trials"),
        (["--set", "run.device=cuda"], "run.device"),
        (["nowhere.toml"], "nowhere.toml"),
    ],
)
def test_a_mistake_is_one_line_exit_2_and_nothing_written(arguments: list[str], named: str, tmp_path: Path) -> None:
    done = coterie("run", *SMALL, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert named in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_one_line_and_nothing_written(tmp_path: Path) -> None:
    done = coterie("reproduce", "figure1", "--quick", "--device", "cuda", cwd=tmp_path)
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_in_use_or_out_of_reach(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious.txt").write_text("precious")
    done = coterie("run", *SMALL, "--out", "mine", cwd=tmp_path)
    assert done.returncode == 2
    assert "not an empty folder" in done.stderr
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["precious.txt"]
    (tmp_path / "file").write_text("")
    done = coterie("run", *SMALL, "--out", "file/below", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def interrupted(workers: int, folder: Path, ready: Callable[[], bool]) -> tuple[int, str, str]:
    """Press Ctrl-C (which reaches the whole process group) in a long run once it is `ready`."""
    command = [COTERIE, "run", *SMALL[:-1], "5000", "--set", f"run.workers={workers}", "--out", "run"]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        while process.poll() is None and not ready():
            pass
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, stdout, stderr


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_before_the_first_trial(workers: int, tmp_path: Path) -> None:
    summary = tmp_path / "run" / "summary.json"
    code, stdout, stderr = interrupted(workers, tmp_path, summary.exists)
    assert code == 130, stderr
    assert "Traceback" not in stderr
    assert json.loads(summary.read_text())["status"] == "interrupted"
    assert stdout == "" or "brifca-median" in stdout


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_keeps_what_is_finished(workers: int, tmp_path: Path) -> None:
    summary = tmp_path / "run" / "summary.json"
    code, stdout, stderr = interrupted(
        workers, tmp_path, lambda: summary.exists() and bool(json.loads(summary.read_text())["trials_finished"])
    )
    assert code == 130, stderr
    assert "Traceback" not in stderr
    kept = json.loads(summary.read_text())
    assert kept["status"] == "interrupted"
    finished = kept["trials_finished"]
    assert 0 < len(finished) < 5000
    assert "brifca-median" in stdout
    assert {int(file.stem) for file in (tmp_path / "run" / "centres").iterdir()} == set(finished)
    assert (tmp_path / "run" / "convergence.png").exists()
    rows = (tmp_path / "run" / "trials.csv").read_text().splitlines()
    assert len(rows) == 1 + len(compared_methods()) * len(finished)


def test_no_worker_outlives_a_killed_parent(tmp_path: Path) -> None:
    command = [COTERIE, "run", *SMALL[:-1], "5000", "--set", "run.workers=2", "--out", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)

    def group() -> list[str]:
        listed = subprocess.run(
            ["ps", "-o", "pid=", "-g", str(process.pid)], capture_output=True, text=True, check=False
        )
        return listed.stdout.split()

    try:
        while process.poll() is None and not (tmp_path / "run" / "trials.csv").exists():
            pass
        assert len(group()) > 2
        process.kill()
        process.wait()
        limit = time.monotonic() + 60
        while group() and time.monotonic() < limit:
            pass
        assert group() == []
    finally:
        process.kill()


def test_config_prints_what_run_reads(tmp_path: Path) -> None:
    done = coterie("config", "--set", "problem.dim=6", cwd=tmp_path)
    assert done.returncode == 0
    assert "dim = 6" in done.stdout
    (tmp_path / "mine.toml").write_text(done.stdout)
    assert coterie("config", "mine.toml", cwd=tmp_path).stdout == done.stdout


def test_help_and_version(tmp_path: Path) -> None:
    assert coterie("--version", cwd=tmp_path).stdout == f"coterie {__version__}\n"
    for columns in (60, 120):
        overview = coterie("--help", cwd=tmp_path, columns=columns).stdout
        assert "run" in overview
        assert "config" in overview
        manual = coterie("run", "--help", cwd=tmp_path, columns=columns).stdout
        for option in ("--set", "--method", "--trials", "--seed", "--out", "--json"):
            assert option in manual


def test_own_data_from_a_folder(tmp_path: Path) -> None:
    clients = tmp_path / "clients"
    clients.mkdir()
    for i in range(12):
        slope = 2 if i % 2 else -2
        rows = "\n".join(f"{x},{slope * x + 0.1 * ((i + x) % 3)}" for x in range(-4, 5))
        (clients / f"site{i:02}.csv").write_text(f"dose,response\n{rows}\n")
    options = ["--set", "problem.kind=folder", "--set", "problem.path=clients", "--set", "problem.clusters=2"]
    done = coterie(
        "run", *options, "--set", "problem.target=response", "--method", "brifca-median", "--trials", "1", "--out", "o",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    centres = load_file(tmp_path / "o" / "centres" / "0.safetensors")["brifca-median"]
    assert sorted(round(float(c), 1) for c in centres[:, 0]) == [-2.0, 2.0]
    with safe_open(tmp_path / "o" / "centres" / "0.safetensors", "np") as opened:
        assert opened.metadata() == {"columns": '["dose"]'}
    audit = (tmp_path / "o" / "audit.csv").read_text()
    assert "site03" in audit
    assert "brifca-median, trial 0:\n" in done.stdout
    assert re.search(r"cluster \d: site00, site02, site04, site06, site08, site10\n", done.stdout)
    assert re.search(r"cluster \d: site01, site03, site05, site07, site09, site11\n", done.stdout)
    (tmp_path / "elsewhere").mkdir()
    again = coterie("run", "../o/config.toml", "--json", cwd=tmp_path / "elsewhere")  # its paths are whole
    assert (again.returncode, again.stderr) == (0, "")
    idle = coterie("run", "../o/config.toml", "--set", "attack.kind=alie", "--json", cwd=tmp_path / "elsewhere")
    assert idle.stderr == "note: attack: changes nothing, since no client of a folder is known to be Byzantine\n"
    (clients / "site05.csv").write_text("dose,response\n1,x\n")
    done = coterie("run", *options, "--set", "problem.target=response", cwd=tmp_path)
    assert done.returncode == 2
    assert "site05.csv: column 'response', row 1: 'x' is not a number" in done.stderr


def test_columns_of_other_scales_are_told_in_one_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for kind in ("raw", "standard"):
        (tmp_path / kind).mkdir()
        for site in range(8):
            dose, age = rng.uniform(0, 10, 60), rng.normal(50, 15, 60)
            y = (2 * dose + age if site % 2 else 3 * age - dose) + rng.standard_normal(60)
            columns = [dose, age, y] if kind == "raw" else [(dose - 5) / 3, (age - 50) / 15, y / 50]
            table = "\n".join(",".join(f"{value:.6g}" for value in row) for row in zip(*columns, strict=True))
            (tmp_path / kind / f"site{site}.csv").write_text(f"dose,age,y\n{table}\n")
    options = ["--set", "problem.kind=folder", "--set", "problem.clusters=2", "--set", "problem.intercept=true"]
    options += ["--method", "coterie", "--trials", "1", "--json"]
    raw = coterie("run", *options, "--set", "problem.path=raw", cwd=tmp_path)
    assert raw.returncode == 0
    assert raw.stderr.startswith("note: problem.columns: they differ in scale, or lie far from 0 (age: mean 49.6,")
    assert raw.stderr.count("\n") == 1
    proposed = re.findall(r"--set '([^']*)'", raw.stderr)
    assert [key.partition("=")[0] for key in proposed] == ["problem.offset", "problem.scale"]
    changes = [word for change in proposed for word in ("--set", change)]
    options.remove("--json")
    mended = coterie("run", *options, *changes, "--set", "problem.path=raw", "--out", "mended", cwd=tmp_path)
    assert (mended.returncode, "note" in mended.stderr) == (0, False)
    assert re.search(r"cluster \d: site0, site2, site4, site6\n", mended.stdout)
    models = load(tmp_path / "mended")
    x = np.array([[1.0, 30.0], [9.0, 70.0], [4.0, 55.0]])  # in years, as in the files
    models.assign(x, 3 * x[:, 1] - x[:, 0])
    np.testing.assert_allclose(models.predict(x), 3 * x[:, 1] - x[:, 0], atol=1.5)
    options.append("--json")
    standard = coterie("run", *options, "--set", "problem.path=standard", cwd=tmp_path)
    assert (standard.returncode, standard.stderr) == (0, "")


def test_numbers_that_are_proposed_for_columns_far_from_0_do_help(tmp_path: Path) -> None:
    """A pressure in pascal, 101325 ± 5: what the note proposes is followed to the letter; a model keeps its digits."""
    rng = np.random.default_rng(0)
    (tmp_path / "pa").mkdir()
    for site in range(6):
        x, z = rng.normal(101325, 5, 40), rng.standard_normal(40)
        y = (2 if site % 2 else -2) * (x - 101325) / 5 + z + 0.1 * rng.standard_normal(40)
        lines = "\n".join(f"{a:.6f},{b:.6f},{c:.6f}" for a, b, c in zip(x, z, y, strict=True))
        (tmp_path / "pa" / f"site{site}.csv").write_text(f"pressure,z,y\n{lines}\n")
    options = ["--set", "problem.kind=folder", "--set", "problem.clusters=2", "--set", "problem.path=pa"]
    options += ["--method", "coterie", "--trials", "1", "--set", "algorithm.max_byzantine=0.1"]
    told = coterie("run", *options, "--json", cwd=tmp_path).stderr
    proposed = shlex.split(told[told.index("--set") :])
    mended = coterie("run", *options, *proposed, "--out", "out", cwd=tmp_path)
    assert "note" not in mended.stderr
    models = load(tmp_path / "out")
    x = np.array([[101320.25, 0.0], [101325.5, 1.0], [101331.75, -1.0], [101319.0, 2.0]])
    wanted = 2 * (x[:, 0] - 101325) / 5 + x[:, 1]
    models.assign(x, wanted)
    np.testing.assert_allclose(models.predict(x), wanted, atol=0.1)


def test_what_cannot_be_learnt_from_is_told_before_a_folder_is_made(tmp_path: Path) -> None:
    (tmp_path / "lg").mkdir()
    (tmp_path / "lg" / "one.csv").write_text("x,y\n1,0\n2,2\n")
    options = ["--set", "problem.kind=folder", "--set", "problem.path=lg", "--set", "problem.clusters=1"]
    done = coterie("run", *options, "--set", "problem.task=logistic", "--out", "o", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "coterie: client one, row 2: target 2.0 is not a class from 0 to 1\n")
    assert not (tmp_path / "o").exists()


def test_who_was_not_asked_is_silent_and_not_refused(tmp_path: Path) -> None:
    small = [f"problem.{key}" for key in ("clients=10", "clusters=2", "dim=3", "samples=8", "byzantine=0")]
    options = [word for key in [*small, "algorithm.participation=0.5", "algorithm.rounds=4"] for word in ("--set", key)]
    done = coterie("run", *options, "--method", "ifca", "--trials", "1", "--out", "o", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rounds = list(csv.DictReader((tmp_path / "o" / "rounds.csv").read_text().splitlines()))
    assert [(row["refused"], row["silent"]) for row in rounds] == [("0", "5")] * 4
    audit = list(csv.DictReader((tmp_path / "o" / "audit.csv").read_text().splitlines()))
    assert sum(float(row["silent"]) for row in audit) == pytest.approx(5)
    assert {(row["refused"], row["reasons"]) for row in audit} == {("0.0", "")}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            ["problem.byzantine=0.05", "algorithm.max_byzantine=0.4"],
            "allows for 24 Byzantine clients, and the smallest cluster has 19",
        ),
        (
            ["algorithm.step=0.1", "algorithm.tolerance=0.5"],
            "algorithm.step, algorithm.tolerance: the method coterie does",
        ),
    ],
)
def test_options_that_are_hardly_meant_are_told(tmp_path: Path, changes: list[str], told: str) -> None:
    small = ["problem.clusters=3", "problem.clients=60", "problem.dim=3", "problem.samples=8", "algorithm.rounds=2"]
    options = [word for key in [*small, *changes] for word in ("--set", key)]
    done = coterie("run", *options, "--method", "coterie", "--trials", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert told in done.stderr


def test_plan_says_where_there_is_no_guarantee(tmp_path: Path) -> None:
    done = coterie("plan", "--clients", "80", "--clusters", "2", "--c1", "0", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    second = found["Theorem 2 (trimmed mean)"]
    assert (round(second["left"], 4), second["right"], second["holds"]) == (0.4211, 0.05, False)
    assert "NO GUARANTEE" in second["meaning"]
    assert round(found["worst contamination a/(a+p)"]["value"], 5) == 0.09524
    assert "NO GUARANTEE" in coterie("plan", cwd=tmp_path).stdout
    large = coterie("plan", "--clients", "100000", "--clusters", "2", "--byzantine", "0.01", "--samples", "100000",
                    "--dim", "5", "--trim", "0.2", cwd=tmp_path)  # fmt: skip
    assert "NO GUARANTEE" not in large.stdout
    for wrong in (["--clusters", "999"], ["--trim", "0.5"], ["--epsilon", "0.7"], ["--set", "problem.kind=folder"]):
        refused = coterie("plan", *wrong, cwd=tmp_path)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


def test_every_option_of_plan_sets_what_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    def planned(**options: Any) -> dict[str, Any]:
        plan(**options, as_json=True)
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    first, second = "Theorem 1 (median)", "Theorem 2 (trimmed mean)"
    usual, certain, far, half = planned(), planned(delta=0.2), planned(epsilon=0.3), planned(c1=64.0)
    liars = planned(c1=0.0)[second]["left"]
    for other in (certain, half):
        assert usual[second]["left"] - liars == pytest.approx(2 * (other[second]["left"] - liars))
    assert (usual[first]["right"], far[first]["right"]) == pytest.approx((0.4, 0.2))
    assert far[second]["left"] == usual[second]["left"]
    assert planned(bound=3.0)["bound of Theorem 2"]["value"] == pytest.approx(3 * usual["bound of Theorem 2"]["value"])
    assert "no trim above 1/2 - epsilon = 0.4" in planned(trim=0.45)[second]["meaning"]
    assert "unknown" in planned(changes=["algorithm.init=spectral"])["start within"]["meaning"]
    edge = planned(clients=1499, clusters=2, byzantine=0.33289, c1=0.0)["set algorithm.trim to"]
    assert (edge["value"], edge["meaning"]) == (None, "too many Byzantine clients")
    planned(changes=["problem.kind=gaussian-means", "problem.noise_variance=0"])


def test_a_trim_below_the_worst_contamination_is_told_in_one_line(tmp_path: Path) -> None:
    options = [*SMALL, "--method", "brifca-trimmed", "--json"]
    told = coterie("run", *options, cwd=tmp_path)
    assert told.stderr.startswith("note: algorithm.trim = 0.05 is below 0.0")
    assert told.stderr.count("\n") == 1
    assert json.loads(told.stdout)
    assert coterie("run", *options, "--set", "algorithm.trim=0.2", cwd=tmp_path).stderr == ""


def test_more_liars_than_the_method_is_told_of_are_told_in_one_line(tmp_path: Path) -> None:
    told = coterie("run", *SMALL, "--set", "problem.byzantine=0.2", "--method", "coterie", "--json", cwd=tmp_path)
    assert told.stderr.startswith("note: problem.byzantine = 0.2 is above algorithm.max_byzantine = 0.05")
    few = [
        *SMALL,
        "--set",
        "problem.clients=18",
        "--set",
        "attack.kind=data-poisoning",
        "--method",
        "coterie",
        "--json",
    ]
    assert coterie("run", *few, cwd=tmp_path).stderr == ""  # 0.9 liars are one, for the problem and for the method
    assert told.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run", "--trials", "abc"], "'--trials': 'abc' is not a valid integer (see `coterie run --help`)"),
        (["run", "--trails", "3"], "'--trials'"),
        (["rnu"], "No such command 'rnu'"),
        (["results"], "Missing argument 'FOLDER'"),
    ],
)
def test_a_command_line_that_is_not_understood_gets_one_line(arguments: list[str], named: str, tmp_path: Path) -> None:
    done = coterie(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("coterie: ")
    assert named in done.stderr
    assert done.stderr.count("Did you mean") <= 1


def test_without_a_command_there_is_help(tmp_path: Path) -> None:
    done = coterie(cwd=tmp_path)
    assert done.returncode == 2
    assert "reproduce" in done.stdout + done.stderr
