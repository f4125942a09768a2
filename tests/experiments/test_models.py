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
from coterie._src.data import Clients, read_digits, rotated
from coterie._src.data.known_tables import schools_like
from coterie._src.personal import personalise
from coterie._src.tasks import TASKS

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
    new = models.personalise(turned[2].images[:50], turned[2].labels[:50], nearest=True)
    assert new.cluster == models.assign(turned[2].images[:50], turned[2].labels[:50], nearest=True)
    assert (new.predict(turned[2].images[50:]) == turned[2].labels[50:]).mean() > 0.7
    again = models.personalise(turned[2].images[:50], turned[2].labels[:50], nearest=True)
    assert np.array_equal(new.model, again.model)
    mirrored = turned[2].images[:, :, ::-1]
    odd = models.personalise(mirrored[:300], (turned[2].labels[:300] + 3) % 10, nearest=True)  # as no cluster has them
    share = (odd.predict(mirrored[300:]) == (turned[2].labels[300:] + 3) % 10).mean()
    assert share > (models.predict(mirrored[300:], odd.cluster) == (turned[2].labels[300:] + 3) % 10).mean() + 0.3
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


@pytest.mark.parametrize("task", ["linear", "logistic", "softmax"])
def test_a_new_client_gets_a_model_from_a_stored_run(task: str, tmp_path: Path) -> None:
    """That of `client.personalise` on its samples and the stored centres; one that fits no cluster has its own."""
    words = [
        "problem.kind=tabular", f"problem.task={task}", "problem.clusters=2", "problem.clients=20", "problem.dim=4",
        "problem.byzantine=0", "problem.samples=80", "problem.separation=3", "problem.intercept=true",
        "problem.dtype=float64", "algorithm.rounds=30",
    ]  # fmt: skip
    arguments = [text for change in words for text in ("--set", change)]
    done = coterie("run", *arguments, "--method", "coterie", "--trials", "1", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    models = ct.load(tmp_path / "out")
    drawn = ct.tabular(
        7, clients=6, clusters=1, samples=60, dim=4, byzantine=0, task=task, intercept=True, dtype=np.float64
    )
    x, _ = drawn.clients.samples(0)
    for cluster, centre in enumerate(models.centres):
        scores, rng = x @ centre.reshape(4, -1), np.random.default_rng(1)
        y = {
            "linear": scores[:, 0] + 0.3 * rng.standard_normal(60),
            "logistic": (scores[:, 0] > rng.logistic(size=60)) * 1.0,
            "softmax": (scores + rng.gumbel(size=scores.shape)).argmax(axis=1) * 1.0,
        }[task]
        found = models.personalise(x, y, nearest=True)
        assert found.cluster == models.assign(x, y, nearest=True) == cluster
        clients = Clients(x, y, np.array([60]))
        expected = personalise(TASKS[task].build(clients, 3), models.centres, np.array([cluster]))
        np.testing.assert_allclose(found.model, expected.models[0], rtol=1e-7, atol=1e-9)
        assert (found.shrinkage, found.anchor) == (pytest.approx(expected.shrinkage[0]), expected.anchors[0])
        outputs = x @ found.model.reshape(4, -1)
        predicted = {"linear": outputs[:, 0], "logistic": outputs[:, 0] > 0, "softmax": outputs.argmax(axis=1)}[task]
        np.testing.assert_allclose(found.predict(x), predicted, rtol=1e-12)
    if task == "linear":
        strange = models.personalise(x, 9 * x[:, 0] + 5)
        assert (strange.cluster, strange.anchor) == (-1, "own")
        np.testing.assert_allclose(strange.predict(x), 9 * x[:, 0] + 5, rtol=1e-3, atol=0.05)
    with pytest.raises(ValueError, match="y holds a value that is not a finite number"):
        models.personalise(x, np.full(60, np.nan))


def test_a_table_that_is_known_by_name_comes_back_with_its_columns(tmp_path: Path) -> None:
    """Text, missing cells and the intercept are those of the run."""
    done = coterie("run", "--set", "problem.kind=schools-like", "--method", "coterie", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    models, school = ct.load(tmp_path / "out"), schools_like()["school 02"].columns
    frame = pandas.DataFrame({name: column for name, column in school.items() if name != "score"})
    cluster = models.assign(frame, school["score"])
    rows = list(csv.DictReader((tmp_path / "out" / "clients.csv").read_text().splitlines()))
    assert cluster == int(rows[1]["cluster"])
    assert models.personalise(frame, school["score"]).cluster == cluster
    errors, scores = [], []
    for row in rows:
        school = schools_like()[row["client"]].columns
        frame = pandas.DataFrame({name: column for name, column in school.items() if name != "score"})
        cluster, score = int(row["cluster"]), np.asarray(school["score"])
        own = models.personalise(frame, school["score"]).predict(frame)
        errors.append([((given - score) ** 2).mean() for given in (own, models.predict(frame, cluster))])
        scores.append(score)
    own_error, cluster_error = np.mean(errors, axis=0)
    assert own_error < cluster_error < 0.3 * np.concatenate(scores).var()


def test_the_clients_of_a_run_are_known_by_name(tmp_path: Path) -> None:
    rng, rows = np.random.default_rng(0), ["site,x,y"]
    for i in range(8):
        slope = (3.0 if i % 2 else -3.0) + 0.1 * i
        rows += [f"s{i},{x:.6f},{slope * x + 0.1 * rng.standard_normal():.6f}" for x in rng.standard_normal(25)]
    (tmp_path / "all.csv").write_text("\n".join(rows) + "\n")
    options = ["--set", "problem.kind=folder", "--set", "problem.path=all.csv", "--set", "problem.client=site"]
    for out, *more in (("own",), ("plain", "--set", "algorithm.personalise=none")):
        done = coterie("run", *options, "--set", "problem.clusters=2", *more, "--out", out, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    own, plain = (ct.load(tmp_path / out) for out in ("own", "plain"))
    assert own.cluster_of("s1") == own.cluster_of("s7") != own.cluster_of("s0")
    at_one = pandas.DataFrame({"x": [0.0, 1.0]})
    for models, tolerance in ((own, 0.1), (plain, 0.6)):
        slopes = [float(np.diff(models.predict(at_one, client=f"s{i}"))[0]) for i in range(8)]
        np.testing.assert_allclose(slopes, [(3.0 if i % 2 else -3.0) + 0.1 * i for i in range(8)], atol=tolerance)
        assert len(set(slopes)) == (8 if models is own else 2)
    assert np.array_equal(plain.predict(at_one, client="s3"), plain.predict(at_one, plain.cluster_of("s3")))
    for call, message in (
        (lambda: own.cluster_of("s7 "), r"^client: s7  was not in the run; did you mean s7\?$"),
        (lambda: own.predict(at_one, 0, client="s1"), r"^predict: name a client or a cluster, and not both$"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    (tmp_path / "own" / "audit.csv").unlink()
    with pytest.raises(ValueError, match="are known for trial 0 of a run; name a cluster"):
        ct.load(tmp_path / "own").cluster_of("s1")
