"""The models of a finished run come back, for clients that were not in it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

import coterie as ct
from command import coterie
from coterie._src.data import read_digits, rotated

DIGITS = {
    "problem.kind": "rotated-digits",
    "problem.hidden": 32,
    "algorithm.rounds": 15,
    "run.workers": 1,
}


def test_a_run_reports_and_its_models_come_back(tmp_path: Path) -> None:
    changes = [f"{key}={value}" for key, value in DIGITS.items()]
    arguments = [text for change in changes for text in ("--set", change)]
    done = coterie(
        "run", *arguments, "--method", "coterie", "--method", "local", "--trials", "1", "--out", "out", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "test accuracy by cluster" in done.stdout
    assert "worst cluster" in done.stdout
    out = tmp_path / "out"
    clusters = list(csv.DictReader((out / "clusters.csv").read_text().splitlines()))
    assert [(row["method"], row["cluster"]) for row in clusters[:4]] == [("coterie", str(j)) for j in range(4)]
    kept = json.loads((out / "summary.json").read_text())["methods"]["coterie"]
    mean = np.average(
        [float(row["accuracy"]) for row in clusters[:4]], weights=[int(row["clients"]) for row in clusters[:4]]
    )
    assert kept["accuracy"]["mean"] == pytest.approx(mean)
    assert (out / "convergence.png").is_file()

    models = ct.load(out)
    digits = read_digits()
    turned = rotated(digits.images / 16, digits.labels, 4)
    with pytest.raises(ValueError, match="cluster: must be named"):
        models.predict(turned[0].images)
    seen = set()
    for copy in turned:
        cluster = models.assign(copy.images[:50], copy.labels[:50], nearest=True)
        seen.add(cluster)
        right = models.predict(copy.images, cluster) == copy.labels
        assert right.mean() > 0.7
        network = models.module(cluster)
        flat = torch.from_numpy(copy.images.reshape(-1, 64)).float()
        assert np.array_equal(network(flat).argmax(dim=1).numpy(), models.predict(copy.images, cluster))
    assert seen == {0, 1, 2, 3}
    with pytest.raises(ValueError, match="has no method ifca"):
        ct.load(out, "ifca")
    with pytest.raises(ValueError, match="no trial 7"):
        ct.load(out, trial=7)
    with pytest.raises(ValueError, match="must have 64 features"):
        models.predict(np.zeros((2, 5)), cluster=0)
    with pytest.raises(ValueError, match="from 0 to 3"):
        models.predict(np.zeros((2, 64)), cluster=9)


def test_statistical_models_come_back_too(tmp_path: Path) -> None:
    small = ["problem.clusters=2", "problem.clients=20", "problem.samples=30", "problem.dim=5", "algorithm.rounds=30"]
    arguments = [text for change in small for text in ("--set", change)]
    done = coterie("run", *arguments, "--method", "coterie", "--trials", "1", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    models = ct.load(tmp_path / "out")
    rng = np.random.default_rng(0)
    for j, centre in enumerate(models.centres):
        x = rng.standard_normal((40, 5))
        assert models.assign(x, x @ centre) == j
        np.testing.assert_allclose(models.predict(x, j), x @ centre, rtol=1e-4, atol=1e-5)
        with pytest.warns(DeprecationWarning, match=f"cluster={j}"):
            models.predict(x)
    assert models.assign(x, 3 * x[:, 0] + 2) == -1
    assert models.assign(x, 3 * x[:, 0] + 2, nearest=True) in (0, 1)
    with pytest.raises(ValueError, match="y holds a value that is not a finite number"):
        models.assign(x, np.full(40, np.nan))
    with pytest.raises(ValueError, match="x holds a value that is not a finite number"):
        models.assign(np.where(x == x[0, 0], np.nan, x), x @ models.centres[0])
    with pytest.raises(ValueError, match="x must be an array: the data that were fitted have no names"):
        models.predict(pandas.DataFrame(x), cluster=0)  # in which order?
    (tmp_path / "out" / "membership.json").write_text('{"coterie": {"loss": 1}}')
    with pytest.raises(ValueError, match="membership must have exactly the keys"):
        ct.load(tmp_path / "out")
    (tmp_path / "out" / "membership.json").unlink()
    assert ct.load(tmp_path / "out").assign(x, 3 * x[:, 0] + 2) in (0, 1)  # as an older run: the nearest
    with pytest.raises(ValueError, match="no network"):
        models.module(0)
