"""What goes on from a state: the same configuration, in this and in later versions, on a disk that has room."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from coterie._src.algorithms import State
from coterie._src.experiments import read_config
from coterie._src.federation.apps import RunSettings, apps, run_server
from coterie._src.federation.checkpoint import VERSION, Checkpoint, Saved
from coterie._src.federation.identity import differences, identity_of
from coterie._src.federation.page import federation_page
from coterie._src.federation.progress import read_progress
from in_process import InProcessGrid
from real_processes import ENVIRONMENT

KEPT = Path(__file__).parent / "kept" / "0.1.0"
FOLDER = ["problem.kind=folder", 'problem.columns=["dose", "age"]', "problem.target=response"]


def write_sites(folder: Path) -> dict[int, dict[str, Any]]:
    """Write the files of the sites, as kept/README.md says, and return the configurations of the nodes."""
    for site in range(8):
        rng = np.random.default_rng(site)
        x = rng.normal(size=(40, 2)).round(3)
        y = (x @ [[1.0, -1.0], [-1.0, 2.0]][site % 2] + 0.1 * rng.normal(size=40)).round(3)
        lines = "".join(f"{a},{b},{c}\n" for (a, b), c in zip(x, y, strict=True))
        (folder / f"{site}.csv").write_text("dose,age,response\n" + lines)
    return {site: {"data": str(folder / f"{site}.csv")} for site in range(8)}


@pytest.mark.filterwarnings("ignore:.* is now called .*:DeprecationWarning")  # its configuration has old names
@pytest.mark.parametrize("changed", ["", 'problem.columns=["age", "dose"]', "run.seed=3"])
def test_a_run_of_version_0_1_0_goes_on(changed: str, tmp_path: Path) -> None:
    """Three rounds are of 0.1.0, three more are played, and another configuration is refused."""
    folder = tmp_path / "federation"
    shutil.copytree(KEPT, folder)
    before = Checkpoint(folder).load()
    assert before is not None
    assert (before.state.round, before.nodes) == (3, list(range(8)))
    assert len(Checkpoint(folder).rows()) == 24
    assert "Federation of 8 sites" in federation_page(folder)
    text = (KEPT / "config.toml").read_text().replace("[problem]", "[problem]\nholdout = 0.0")
    text = text.replace("rounds = 3", "rounds = 6").replace("most_byzantine = 0.05", "most_byzantine = 0.0")
    (tmp_path / "app.toml").write_text(text)
    config = read_config(tmp_path / "app.toml", [changed] if changed else [])
    client = apps(tmp_path / "app.toml")[1]
    grid = InProcessGrid(client, range(8), configs=write_sites(tmp_path))
    settings = RunSettings("brifca-median", 8, 8, 5.0, 5.0, folder=str(folder), min_replies=1)
    if changed:
        with pytest.raises(ValueError, match=r"holds the rounds of another configuration"):
            run_server(config, settings, grid)
        return
    run_server(config, settings, grid)
    rows = Checkpoint(folder).rows()
    assert sorted({row["round"] for row in rows}) == [1, 2, 3, 4, 5, 6]
    assert {row["verdict"] for row in rows} == {"accepted"}
    centres = load_file(folder / "centres.safetensors")["brifca-median"]
    moved = np.linalg.norm(centres - before.state.centres)
    assert 0 < moved < 2
    after = Checkpoint(folder).load()
    assert after is not None
    assert json.loads(after.identity)["method"] == "brifca-median"


def test_an_identity_names_what_differs_and_takes_keys_of_a_later_version() -> None:
    config = read_config(None, FOLDER)
    saved = identity_of(config, "coterie", 3)
    assert differences(saved, saved) == []
    assert differences("", saved) == []
    rounds = read_config(None, [*FOLDER, "algorithm.rounds=9", "problem.path=elsewhere"])
    assert differences(saved, identity_of(rounds, "coterie", 3)) == []
    for changes, method, named in (
        (["problem.clusters=3"], "coterie", ["problem.clusters"]),
        (["problem.holdout=0.5", "problem.task=logistic"], "coterie", ["problem.holdout", "problem.task"]),
        ([], "ifca", ["method"]),
        (["run.seed=1"], "coterie", ["seed"]),
    ):
        assert differences(saved, identity_of(read_config(None, [*FOLDER, *changes]), method, 3)) == named
    later = json.loads(saved)
    later["problem"]["shrinkage"] = 0.0  # a key that the next version adds, at its default
    del later["problem"]["level_clients"]  # and one that it no longer has
    assert differences(saved, json.dumps(later)) == []
    later["not_default"].append("shrinkage")
    assert differences(saved, json.dumps(later)) == ["problem.shrinkage"]
    assert differences("another text", saved) == ["identity"]


def test_a_state_of_a_later_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie._src.federation.checkpoint.VERSION", VERSION + 1)
    Checkpoint(tmp_path).save(Saved(State(2, np.ones((1, 2))), np.random.default_rng(0), []))
    monkeypatch.undo()
    with pytest.raises(ValueError, match="a later version of Coterie has written it, in form 2; update Coterie"):
        Checkpoint(tmp_path).load()


def test_a_full_disk_is_one_line_and_the_state_before_stays(tmp_path: Path) -> None:
    """The system refuses to let files grow, as a full disk does; with room again the run goes on."""
    code = (
        "import sys, resource, signal, numpy as np\n"
        "from coterie._src.algorithms import State\n"
        "from coterie._src.federation.checkpoint import Checkpoint, Saved\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "checkpoint = Checkpoint(sys.argv[1])\n"
        "row = {'round': 1, 'client': 0, 'fault': 'x' * 100}\n"
        "checkpoint.save(Saved(State(1, np.ones((2, 9))), np.random.default_rng(0), [7]), [row])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))\n"
        "rows = [{'round': 2, 'client': i, 'fault': 'x' * 100} for i in range(int(sys.argv[3]))]\n"
        "try:\n"
        "    checkpoint.save(Saved(State(2, np.ones((2, int(sys.argv[4])))), np.random.default_rng(0), [7]), rows)\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    for name, rows, width in (("audit", "3000", "9"), ("state", "1", "90000")):
        folder = tmp_path / name
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder), "200000", rows, width],
            capture_output=True, text=True, check=False, env=ENVIRONMENT,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("\n") == 1
        assert "round 2 cannot be written (" in done.stdout
        assert "it goes on after the round before" in done.stdout
        found = Checkpoint(folder).load()
        assert found is not None
        assert (found.state.round, found.nodes) == (1, [7])
        assert [path.name for path in folder.iterdir() if path.name.endswith(".partial")] == []
        Checkpoint(folder).save(found._replace(state=found.state._replace(round=2)))


def test_a_clock_that_jumps_makes_no_file_younger_than_now(tmp_path: Path) -> None:
    """The file of a federation lies in the future, or far in the past; durations are not read from that clock."""
    shutil.copy(KEPT / "progress.json", tmp_path / "progress.json")
    for shift, age in ((3600.0, 0.0), (-3600.0, 3600.0)):
        moment = time.time() + shift
        os.utime(tmp_path / "progress.json", (moment, moment))
        found = read_progress(tmp_path)
        assert found is not None
        assert found[1] == pytest.approx(age, abs=60)
        assert not found[0].has_died()
