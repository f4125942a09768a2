"""`coterie site`: what an administrator sees of a site."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from coterie._src.experiments import read_config
from coterie._src.federation import Question
from coterie._src.federation.apps import apps
from coterie._src.federation.deployment import write_deployment
from coterie._src.federation.site_log import ANSWERED, LOG, SiteLog
from coterie._src.federation.site_policy import SiteFacts
from real_processes import coterie

CONFIG = """
[problem]
kind = "folder"
clusters = 2
columns = ["dose", "rare"]
target = "y"
[algorithm]
rounds = 30
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A deployment with the file of a site in which two patients have a rare diagnosis."""
    (tmp_path / "config.toml").write_text(CONFIG)
    config = read_config(tmp_path / "config.toml")
    write_deployment(tmp_path / "deployment", config, ["oslo"], host="127.0.0.1", insecure=True)
    rng = np.random.default_rng(0)
    lines = [f"{rng.standard_normal()},{int(i < 3)},{rng.standard_normal()}" for i in range(60)]
    (tmp_path / "oslo.csv").write_text("\n".join(["dose,rare,y", *lines, ""]))
    return tmp_path


def checked(place: Path, file: str = "oslo.csv") -> list[str]:
    words = ["site", "check", file, "--config", "deployment/oslo/config.toml", "--folder", "deployment/oslo"]
    found = coterie(*words, cwd=place)
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


def test_a_dry_run_says_what_would_be_sent(place: Path) -> None:
    lines = checked(place)
    assert lines[0] == "oslo.csv: can be read; 45 samples to learn from, 15 held out"
    assert lines[1] == "a model has a weight for dose, rare, intercept"
    hessian = next(line for line in lines if line.startswith("hessian"))
    assert hessian.split()[-3:] == ["6", "45", "answered"]
    (note,) = [line for line in lines if line.startswith("note: ")]
    assert note.startswith("note: rare: only ")
    assert not (place / "deployment" / "oslo" / LOG).exists()


def test_a_site_with_too_few_rows_is_told_at_once(place: Path) -> None:
    file = place / "oslo.csv"
    file.write_text("\n".join([*file.read_text().splitlines()[:21], ""]))
    lines = checked(place)
    assert "note: min_samples: all is refused: 15 samples to learn from, at least 20 are wanted" in lines
    assert "note: min_held_out: 5 samples are held out, fewer than 10; no scores are reported" in lines
    assert sum("answered" in line for line in lines) == 0
    config = place / "deployment" / "oslo" / "config.toml"
    config.write_text(config.read_text().replace("resample = false", "resample = true"))
    assert any("resample with 30 rounds takes 1200 samples, here are 15" in line for line in checked(place))
    file.write_text("dose,y\n1,2\n")
    words = ["site", "check", "oslo.csv", "--config", "deployment/oslo/config.toml"]
    missing = coterie(*words, cwd=place)
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "rare" in missing.stderr


def test_a_dry_run_warns_of_losses_for_which_the_rules_are_not_enough(place: Path) -> None:
    config = place / "deployment" / "oslo" / "config.toml"
    file = place / "oslo.csv"
    rows = [line.split(",") for line in file.read_text().split()[1:]]
    file.write_text("\n".join(["dose,rare,y", *(f"{a},{b},{int(float(y) > 0)}" for a, b, y in rows), ""]))
    assert not any("malicious" in line for line in checked(place))
    config.write_text(config.read_text().replace('task = "linear"', 'task = "logistic"'))
    assert any("malicious" in line for line in checked(place))
    (place / "deployment" / "oslo" / "site.toml").write_text("clip = 1.0\nnoise = 20.0\nepsilon = 4.0\n")
    lines = checked(place)
    assert not any("malicious" in line for line in lines)
    assert any(line.startswith("note: noise: 30 rounds would have ε = ") and "stops at 4" in line for line in lines)


def test_the_log_shows_what_was_asked_and_answered(place: Path) -> None:
    folder = place / "deployment" / "oslo"
    nothing = coterie("site", "log", str(folder), cwd=place)
    assert (nothing.returncode, nothing.stderr) == (
        2,
        f"coterie: {folder}: no question has come yet (it has no {LOG})\n",
    )
    (folder / "site.toml").write_text("clip = 1.0\nnoise = 10.0\n")
    client = apps(folder / "config.toml")[1]
    node = {"data": str(place / "oslo.csv"), "policy": str(folder / "site.toml")}
    for label, part in ((0, None), (0, (0, 30)), (1, None)):
        message = Message(Question("gradient", 4, np.zeros((2, 3)), label, part).record(), 1, "train")
        client(message, Context(1, 1, node, RecordDict(), {}))
    shown = coterie("site", "log", str(folder), cwd=place)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert [line.split()[-1] for line in lines[1:4]] == ["answered", "samples", "answered"]
    assert "3 numbers" in lines[1]
    assert "0 of 30" in lines[2]
    assert lines[4:6] == ["2 of at most 10000 answers, in 1 runs of the server", "1 refused: too few samples"]
    assert lines[6].startswith("privacy: ε = 1.")  # μ = sqrt(2)·2/10


def test_the_log_shows_no_control_characters_and_no_markup(place: Path) -> None:
    folder = place / "deployment" / "oslo"
    log = SiteLog(folder / LOG)
    with log.locked() as connection:
        question = Question("size", 0, np.zeros((1, 1)))
        log.add(connection, question, SiteFacts(1, "a", 1), run="1", now=0.0, code=ANSWERED, detail="\x1b[2J[red]x")
    shown = coterie("site", "log", str(folder), cwd=place)
    assert "answered (?[2J[red]x)" in shown.stdout
