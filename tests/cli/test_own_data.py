"""`coterie run` on a folder of one's own."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

from command import coterie
from coterie import load


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
        assert opened.metadata() == {"columns": '["dose", "intercept"]'}
    audit = (tmp_path / "o" / "audit.csv").read_text()
    assert "site03" in audit
    assert "brifca-median, trial 0:\n" in done.stdout
    assert re.search(r"cluster \d: site00, site02, site04, site06, site08, site10\n", done.stdout)
    assert re.search(r"cluster \d: site01, site03, site05, site07, site09, site11\n", done.stdout)
    (tmp_path / "elsewhere").mkdir()
    again = coterie("run", "../o/config.toml", "--json", cwd=tmp_path / "elsewhere")  # its paths are whole
    assert (again.returncode, again.stderr) == (0, "")
    idle = coterie("run", "../o/config.toml", "--set", "attack.kind=alie", "--json", cwd=tmp_path / "elsewhere")
    assert idle.stderr == "note: attack: changes nothing, since problem.byzantine is 0\n"
    (clients / "site05.csv").write_text("dose,response\n1,x\n")
    done = coterie("run", *options, "--set", "problem.target=response", cwd=tmp_path)
    assert done.returncode == 2
    assert "site05.csv: column 'response', row 2: 'x' is not a number" in done.stderr


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
    options += ["--set", "algorithm.coordinates=auto"]
    alone = coterie("run", *options, "--method", "coterie", "--set", "problem.path=raw", "--out", "alone", cwd=tmp_path)
    assert (alone.returncode, "note" in alone.stderr) == (0, False)  # it takes the columns as they are
    options += ["--method", "coterie", "--method", "brifca-median", "--trials", "1", "--json"]
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
    x = np.array([[1.0, 30.0], [9.0, 70.0], [4.0, 55.0]])  # in years, as in the files
    for name, done in (("mended", mended), ("alone", alone)):
        assert re.search(r"cluster \d: site0, site2, site4, site6\n", done.stdout)
        models = load(tmp_path / name)
        cluster = models.assign(x, 3 * x[:, 1] - x[:, 0])
        np.testing.assert_allclose(models.predict(x, cluster), 3 * x[:, 1] - x[:, 0], atol=1.5)
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
    options += ["--set", "algorithm.coordinates=auto"]
    options += ["--method", "coterie", "--trials", "1", "--set", "algorithm.max_byzantine=0.1"]
    message = coterie("run", *options, "--method", "brifca-median", "--json", cwd=tmp_path).stderr
    proposed = shlex.split(message[message.index("--set") :])
    mended = coterie("run", *options, *proposed, "--out", "out", cwd=tmp_path)
    assert "note" not in mended.stderr
    models = load(tmp_path / "out")
    x = np.array([[101320.25, 0.0], [101325.5, 1.0], [101331.75, -1.0], [101319.0, 2.0]])
    wanted = 2 * (x[:, 0] - 101325) / 5 + x[:, 1]
    cluster = models.assign(x, wanted)
    np.testing.assert_allclose(models.predict(x, cluster), wanted, atol=0.1)


def test_what_cannot_be_learnt_from_is_told_before_a_folder_is_made(tmp_path: Path) -> None:
    (tmp_path / "lg").mkdir()
    (tmp_path / "lg" / "one.csv").write_text("x,y\n1,0\n2,2\n")
    options = ["--set", "problem.kind=folder", "--set", "problem.path=lg", "--set", "problem.clusters=1"]
    done = coterie("run", *options, "--set", "problem.task=logistic", "--out", "o", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "coterie: client one, row 2: target 2.0 is not a class from 0 to 1; more than two classes need softmax\n",
    )
    assert not (tmp_path / "o").exists()


def test_the_number_of_clusters_of_own_data_is_found_unless_it_is_given(tmp_path: Path) -> None:
    """Also where there are fewer clients than the default number of clusters; title, page and picture say what is."""
    rng = np.random.default_rng(0)
    (tmp_path / "two").mkdir()
    for site in range(2):
        x = rng.standard_normal(40)
        rows = [f"{a:.5f},{2 * a + 0.3 * b:.5f}" for a, b in zip(x, rng.standard_normal(40), strict=True)]
        (tmp_path / "two" / f"site{site}.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    options = ["--set", "problem.kind=folder", "--set", "problem.path=two"]
    found = coterie("run", *options, "--out", "found", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[0].strip() == "two: k=1 found, linear"
    assert "two: k=1 found, linear" in (tmp_path / "found" / "report.html").read_text()
    given = coterie("run", *options, "--set", "problem.clusters=2", "--out", "given", cwd=tmp_path)
    assert given.stdout.splitlines()[0].strip() == "two: k=2, linear"
    again = coterie("run", "found/config.toml", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["methods"]["coterie"]["clusters"]["mean"] == 1.0
    many = coterie("run", *options, "--set", "problem.clusters=5", cwd=tmp_path)
    assert many.stderr == "coterie: problem.clusters: must be at most the number of clients (2), got 5\n"
    (tmp_path / "two" / "site0.csv").write_text("x,y\n1,2\n")
    short = coterie("run", *options, cwd=tmp_path)
    assert "auto needs at least 2 samples per client, site0 has 1; name k: problem.clusters" in short.stderr


def test_the_rounds_of_own_data_have_the_loss(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((60, 2))
    rows = [f"s{i % 6},{a:.6f},{b:.6f},{3 * a - b + 0.1 * (i % 3):.6f}" for i, (a, b) in enumerate(x)]
    (tmp_path / "all.csv").write_text("\n".join(["site,a,b,y", *rows]) + "\n")
    options = ["--set", "problem.kind=folder", "--set", "problem.path=all.csv", "--set", "problem.client=site"]
    done = coterie(
        "run", *options, "--set", "problem.clusters=1", "--set", "algorithm.init=gaussian", "--out", "run", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    with (tmp_path / "run" / "rounds.csv").open(newline="") as stream:
        losses = [float(row["loss"]) for row in csv.DictReader(stream) if row["method"] == "global"]
    with (tmp_path / "run" / "trials.csv").open(newline="") as stream:
        (end,) = [float(row["loss"]) for row in csv.DictReader(stream) if row["method"] == "global"]
    assert losses[-1] == end < losses[0]  # from a start that knows nothing of the data
    assert len(losses) > 100
    assert "mean loss" in (tmp_path / "run" / "report.html").read_text().partition('id="rounds"')[2]
