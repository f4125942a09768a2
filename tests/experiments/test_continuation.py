"""A finished run goes on with new data, and says what has changed."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie as ct
from command import coterie
from coterie._src.experiments.changes import ClusterChange
from coterie._src.fitting import Result

DIM, SAMPLES, NOISE = 4, 60, 0.4
OPTIMA = 1.5 * np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.0, 0]])
LABELS = np.arange(45) % 3


def draw(seed: int, optima: Any, labels: Sequence[int] | Any, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Clients by name, each with samples of the optimum that its label names."""
    rng, found = np.random.default_rng(seed), {}
    for i, label in enumerate(labels):
        x = rng.standard_normal((SAMPLES, DIM))
        name = f"c{i}" if names is None else names[i]
        found[name] = (x, x @ np.asarray(optima)[label] + NOISE * rng.standard_normal(SAMPLES))
    return found


def go(clients: Any, state: Any = None, clusters: Any = "auto", max_byzantine: float = 0.05, **more: Any) -> Result:
    more = {"holdout": 0, "personalise": "none", **more}
    return ct.fit(clients, clusters=clusters, max_byzantine=max_byzantine, intercept=False, state=state, **more)


@pytest.fixture(scope="module")
def first() -> Result:
    found = go(draw(0, OPTIMA, LABELS))
    assert len(found.centres) == 3
    return found


def statuses(result: Result) -> list[str]:
    assert result.changes is not None
    return [one.status for one in result.changes.clusters]


def true_label(result: Result, optimum: Any) -> int:
    """The cluster whose centre is nearest to an optimum."""
    return int(np.linalg.norm(result.centres - np.asarray(optimum), axis=1).argmin())


def test_the_same_data_change_nothing(first: Result) -> None:
    again = go(draw(0, OPTIMA, LABELS), first)
    changes = again.changes
    assert changes is not None
    assert (statuses(again), changes.moved, changes.joined, changes.left) == (["same"] * 3, (), (), ())
    assert not changes.restarted
    assert again.metrics["rounds"] <= 3
    np.testing.assert_allclose(again.centres, first.centres, atol=1e-3)
    assert max(one.moved_by for one in changes.clusters) < 0.1


def test_new_samples_of_the_same_clusters_change_nothing(first: Result) -> None:
    for seed in range(1, 9):
        again = go(draw(seed, OPTIMA, LABELS), first)
        assert again.changes is not None
        assert (statuses(again), again.changes.moved, again.changes.restarted) == (["same"] * 3, (), False)
        assert [0.2 < one.moved_by < 3 for one in again.changes.clusters] == [True] * 3  # in standard errors


def test_a_client_moves(first: Result) -> None:
    labels = LABELS.copy()
    labels[4] = 2
    again = go(draw(1, OPTIMA, labels), first)
    assert again.changes is not None
    assert again.changes.moved == (("c4", true_label(first, OPTIMA[1]), true_label(first, OPTIMA[2])),)
    assert statuses(again) == ["same"] * 3


@pytest.mark.parametrize("shift", [0.4, 3.0])
def test_an_optimum_moves(first: Result, shift: float) -> None:
    optima = OPTIMA.copy()
    optima[1, 3] += shift
    again = go(draw(1, optima, LABELS), first)
    assert again.changes is not None
    j = true_label(first, OPTIMA[1])
    assert [one.cluster for one in again.changes.clusters if one.status != "same"] == [j]
    assert statuses(again)[j] == "changed"
    assert again.changes.moved == ()
    np.testing.assert_allclose(again.centres[j], optima[1], atol=0.1)


def test_a_cluster_splits(first: Result) -> None:
    optima = np.vstack([OPTIMA, OPTIMA[1] + [0, 0, 0, 2.0]])
    labels = LABELS.copy()
    labels[np.flatnonzero(LABELS == 1)[:6]] = 3
    again = go(draw(1, optima, labels), first)
    assert again.changes is not None
    j = true_label(first, OPTIMA[1])
    assert again.changes.clusters[3] == ClusterChange(3, "split", again.changes.clusters[3].moved_by, j)
    assert len(again.centres) == 4
    assert {(name, before) for name, before, _ in again.changes.moved} <= {
        (f"c{i}", j) for i in np.flatnonzero(LABELS == 1)
    }
    assert again.changes.restarted
    for k in range(4):  # whatever the numbers, the optima are found
        assert np.linalg.norm(again.centres - optima[k], axis=1).min() < 0.15
    assert f"3 split from {j}" in again.changes.lines()[0]


def test_a_cluster_dies(first: Result) -> None:
    kept = [f"c{i}" for i in range(45) if LABELS[i] != 1]
    again = go(draw(1, OPTIMA, LABELS[LABELS != 1], kept), first)
    assert again.changes is not None
    j = true_label(first, OPTIMA[1])
    assert [one.status for one in again.changes.clusters] == ["died" if i == j else "same" for i in range(3)]
    assert again.changes.left == tuple(f"c{i}" for i in range(45) if LABELS[i] == 1)
    x = np.random.default_rng(5).standard_normal((50, DIM))
    assert again.assign(x, x @ OPTIMA[1] + NOISE * np.random.default_rng(6).standard_normal(50)) == j  # it may return
    assert again.assign(x, x @ np.full(DIM, 2.0)) == -1


def test_a_new_cluster_of_new_clients(first: Result) -> None:
    optima = np.vstack([OPTIMA, [-1.5, -1.5, 0, 0]])
    labels = np.concatenate([LABELS, np.full(12, 3)])
    names = [f"c{i}" for i in range(45)] + [f"n{i}" for i in range(12)]
    again = go(draw(1, optima, labels, names), first)
    assert again.changes is not None
    assert statuses(again) == ["same"] * 3 + ["new"]
    assert again.changes.joined == tuple(names[45:])
    assert again.changes.moved == ()
    assert len(again.changes.lines()) <= 6


def test_clients_with_other_names_keep_the_numbers_of_the_clusters(first: Result) -> None:
    again = go(draw(1, OPTIMA, LABELS, [f"other{i}" for i in range(45)]), first)
    assert statuses(again) == ["same"] * 3
    assert [true_label(again, one) for one in OPTIMA] == [true_label(first, one) for one in OPTIMA]


@pytest.mark.parametrize("kind", [None, "sign-flip", "alie"])
@pytest.mark.parametrize("seed", [0, 1])
def test_byzantine_clients_cannot_fake_a_drift(kind: str | None, seed: int) -> None:
    """A tenth of the clients, at the bound: their data come from another optimum, or they also send attacks."""
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(54) % 3, np.full(6, -1)])
    fake = np.vstack([OPTIMA, OPTIMA[0] + [0, 0, 0, 1.5]])

    def federation(seed: int, poisoned: bool) -> ct.Federation:
        own = np.where(labels < 0, 3 if poisoned else 0, labels)
        clients = draw(seed, fake, own)
        x, y = (np.concatenate([one[part] for one in clients.values()]) for part in (0, 1))
        return ct.Federation(ct.Clients(x, y, np.full(60, SAMPLES), tuple(clients)), ct.Truth(OPTIMA, labels))

    first = go(federation(int(rng.integers(1 << 30)), False), max_byzantine=0.1)
    attack = None if kind is None else ct.attack(kind)
    poisoned = federation(int(rng.integers(1 << 30)), True)
    again = go(poisoned, first, max_byzantine=0.1, attack=attack)
    anew = go(poisoned, clusters=3, max_byzantine=0.1, attack=attack)
    assert again.metrics["oracle_ratio"] <= 1.1 * anew.metrics["oracle_ratio"]  # they gain nothing by the earlier run
    assert set(statuses(again)) <= {"same", "changed"}
    for (
        optimum
    ) in OPTIMA:  # the fake optimum is at a distance of 1.5; that of a centre of 18 clients has an error of 0.02
        assert np.linalg.norm(again.centres - optimum, axis=1).min() < 0.08
    assert len(again.centres) == 3


def test_what_cannot_be_continued_is_refused(first: Result, tmp_path: Path) -> None:
    clients = draw(0, OPTIMA, LABELS)
    wider = {name: (np.hstack([x, x[:, :1] ** 2]), y) for name, (x, y) in clients.items()}
    with pytest.raises(ValueError, match="state: its centres have 4 parameters, the data need 5"):
        go(wider, first)
    with pytest.raises(ValueError, match="state must be a Result"):
        go(clients, 3)
    with pytest.raises(ValueError, match="state: the method three-stage cannot begin"):
        go(clients, first, clusters=3, method="three-stage")
    with pytest.raises(ValueError, match=r"config\.toml"):
        go(clients, tmp_path)


def write(folder: Path, clients: dict[str, Any]) -> None:
    folder.mkdir()
    for name, (x, y) in clients.items():
        with (folder / f"{name}.csv").open("w", newline="") as stream:
            rows = csv.writer(stream)
            rows.writerow(["a", "b", "c", "d", "y"])
            rows.writerows([repr(float(one)) for one in row] for row in np.column_stack([x, y]))


def test_a_folder_is_continued_as_a_result_is(tmp_path: Path) -> None:
    labels = LABELS.copy()
    labels[4] = 2
    before, after = draw(0, OPTIMA, LABELS), draw(1, OPTIMA, labels)
    write(tmp_path / "before", before)
    write(tmp_path / "after", after)
    options = ["problem.kind=folder", "problem.path=before", "problem.clusters=3"]
    options += ["problem.intercept=false", "problem.holdout=0", "algorithm.personalise=none"]
    words = [word for option in options for word in ("--set", option)]
    done = coterie("run", *words, "--method", "coterie", "--trials", "1", "--out", "one", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = coterie("run", "--continue", "one", "--set", "problem.path=after", "--out", "two", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "changes since the earlier run:\n  clusters: 0 same, 1 same, 2 same\n  moved: 1 (c4 (" in done.stdout
    written = json.loads((tmp_path / "two" / "changes.json").read_text())
    assert [one["client"] for one in written["moved"]] == ["c4"]

    states = [tmp_path / "one", str(tmp_path / "one"), ct.load(tmp_path / "one"), go(tmp_path / "before", clusters=3)]
    found = [go(tmp_path / "after", state, clusters=3) for state in states]
    for one in found:
        assert one.changes is not None
        assert json.loads(json.dumps(one.changes.as_dict()))["moved"] == written["moved"]
        np.testing.assert_allclose(one.centres, ct.load(tmp_path / "two").centres, rtol=1e-6)
    two = coterie("run", "--continue", "one", "--trials", "2", cwd=tmp_path)
    assert (two.returncode, "--continue: has the configuration" in two.stderr) == (2, True)
    third = go(tmp_path / "after", tmp_path / "two", clusters=3)  # and so on
    assert third.changes is not None
    assert third.changes.moved == ()
