"""The public door `ct.fit`: every kind of data, task, method and mistake; the same numbers as a trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie._src.aggregators import median
from coterie._src.algorithms import ClusteredDescent, ThreeStage
from coterie._src.experiments import parse_config, run_trial
from coterie._src.experiments.problems.networks import on_device
from coterie._src.init import RobustStart, spectral
from coterie._src.server import Server
from coterie._src.simulation import stream
from coterie._src.tasks import linear_regression

METHODS = list(ct.registered("methods"))

PLAIN: dict[str, Any] = {"holdout": 0, "personalise": "none"}
"""All samples, and no personal models: what data of one's own have where one asks for it."""


def federation(seed: int = 0, **changes: Any) -> ct.Federation:
    shape: dict[str, Any] = {"clients": 24, "clusters": 2, "samples": 30, "dim": 6, "byzantine": 0.1}
    return ct.mixed_regression(seed, **{**shape, **changes})


def regression_clients(seed: int = 0, clients: int = 12, columns: int = 3) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Two groups of clients in turn: y = ±(1 + Σx) with little noise, so that an intercept is needed."""
    rng = np.random.default_rng(seed)
    found = {}
    for client in range(clients):
        x = rng.standard_normal((20, columns))
        found[f"site {client}"] = x, (1 - 2 * (client % 2)) * (1 + x.sum(axis=1)) + 0.05 * rng.standard_normal(20)
    return found


def in_turn(labels: np.ndarray) -> bool:
    """Whether the clients of even and of odd numbers are the two clusters."""
    return len(set(labels[::2])) == len(set(labels[1::2])) == 1 and labels[0] != labels[1]


# --- the same numbers as a trial --------------------------------------------------------------------------


@pytest.mark.parametrize("clusters", [2, "auto"])
@pytest.mark.parametrize("method", METHODS)
def test_the_same_bits_as_a_trial_of_the_same_problem(method: str, clusters: Any) -> None:
    needs_number = method not in ("coterie", "local", "global", "oracle")
    options: dict[str, Any] = {"rounds": 15, "max_clusters": 4, "trim": 0.1}
    if clusters == "auto" and needs_number:
        options["init"] = "spectral"
    found = "known" if clusters == 2 else "auto"
    config = parse_config(
        {
            "problem": {"clusters": 2, "clients": 24, "samples": 30, "dim": 6, "byzantine": 0.1},
            "algorithm": {**options, "max_byzantine": 0.1, "clusters": found},
            "attack": {"kind": "sign-flip", "target": "smallest"},
            "run": {"seed": 3, "methods": [method]},
        }
    )
    expected = run_trial(config, 0).methods[method]
    result = ct.fit(
        config.problem.draw(stream(3, 0, "data")),
        "linear",
        clusters,
        0.1,
        method,
        3,
        attack=ct.attack("sign-flip", target="smallest"),
        **options,
    )
    assert result.method == method
    assert result.centres.tobytes() == expected.centres.tobytes()
    assert np.array_equal(result.labels, expected.labels)
    assert repr(result.rounds) == repr(expected.rounds)
    assert result.audit == expected.audit
    ours, theirs = ({**metrics, "seconds": 0} for metrics in (result.metrics, expected.metrics))
    assert repr(ours) == repr(theirs)


def test_the_same_bits_as_a_trial_of_a_network() -> None:
    config = parse_config(
        {
            "problem": {"kind": "rotated-digits", "hidden": 8, "clients": 12, "samples": 20},
            "algorithm": {"rounds": 2},
            "run": {"methods": ["brifca-median"]},
        }
    )
    expected = run_trial(config, 0).methods["brifca-median"]
    drawn, options = config.problem.draw(stream(0, 0, "data")), config.algorithm
    assert drawn.truth is not None
    assert drawn.truth.test is not None
    truth = replace(drawn.truth, test=on_device(drawn.truth.test, "cpu"))
    result = ct.fit(
        ct.Federation(on_device(drawn.clients, "cpu"), truth),
        config.problem.build_task,
        4,
        options.max_byzantine,
        "brifca-median",
        attack=ct.attack("sign-flip"),
        step=options.step,
        rounds=2,
        trim=options.trim,
    )
    assert result.centres.tobytes() == expected.centres.tobytes()
    assert result.metrics["accuracy"] == expected.metrics["accuracy"]
    assert result.predict(drawn.clients.samples(0)[0], client=0).shape == (20,)
    x, y = drawn.clients.samples(0)
    assert result.assign(x, y) == result.labels[0]


def test_three_stage_options_and_a_worst_attack_are_those_of_a_trial() -> None:
    config = parse_config(
        {
            "problem": {"clusters": 2, "clients": 24, "samples": 30, "dim": 6, "byzantine": 0.1},
            "algorithm": {"rounds": 5, "init": "warm", "trim": 0.1},
            "three_stage": {"first": "truth", "erm": "float32-inverse", "project": "unit-sphere"},
            "attack": {"kind": "alie", "target": "smallest", "scale": "worst"},
            "run": {"methods": ["three-stage"]},
        }
    )
    result = ct.fit(
        config.problem.draw(stream(0, 0, "data")),
        clusters=2,
        method="three-stage",
        attack=ct.attack("alie", target="smallest", scale="worst"),
        three_stage={"first": "truth", "erm": "float32-inverse", "project": "unit-sphere"},
        rounds=5,
        init="warm",
        trim=0.1,
    )
    expected = run_trial(config, 0).methods["three-stage"]
    assert result.centres.tobytes() == expected.centres.tobytes()
    np.testing.assert_allclose(np.linalg.norm(result.centres, axis=1), 1.0, rtol=1e-5)


# --- the kinds of data ------------------------------------------------------------------------------------


def test_names_change_nothing_and_the_order_only_the_order() -> None:
    clients = regression_clients()
    first = ct.fit(clients, clusters=2, **PLAIN)
    renamed = ct.fit({f"n{i}": data for i, data in enumerate(clients.values())}, clusters=2, **PLAIN)
    assert renamed.centres.tobytes() == first.centres.tobytes()
    assert np.array_equal(renamed.labels, first.labels)
    assert renamed.rounds == first.rounds
    assert [row["client"] for row in renamed.audit] == [f"n{i}" for i in range(12)]
    order = [5, 0, 3, 11, 1, 2, 4, 10, 9, 8, 7, 6]
    shuffled = ct.fit({f"site {i}": clients[f"site {i}"] for i in order}, clusters=2, **PLAIN)
    assert shuffled.names == tuple(f"site {i}" for i in order)
    by_name = dict(zip(shuffled.names, shuffled.labels, strict=True))
    pairs = {(by_name[name], label) for name, label in zip(first.names, first.labels, strict=True)}
    assert len(pairs) == 2  # the same clusters, under any numbers
    for ours, theirs in pairs:
        np.testing.assert_allclose(shuffled.centres[ours], first.centres[theirs], rtol=1e-4, atol=1e-5)


def test_the_order_of_the_clients_of_a_federation_is_no_matter() -> None:
    drawn = federation(byzantine=0.0)
    assert drawn.truth is not None
    order = np.random.default_rng(1).permutation(24)
    moved = ct.Federation(drawn.clients.take(order), ct.Truth(drawn.truth.centres, drawn.truth.labels[order]))
    one, other = (ct.fit(data, max_byzantine=0.0, max_clusters=4) for data in (drawn, moved))
    assert one.metrics["matched_dist"] == pytest.approx(other.metrics["matched_dist"], rel=1e-3)
    assert one.metrics["clusters"] == other.metrics["clusters"] == 2
    assert one.metrics["ari"] == other.metrics["ari"] == 1.0


def test_a_mapping_an_equal_folder_and_equal_clients_give_the_same_bits(tmp_path: Path) -> None:
    clients = regression_clients()
    for name, (x, y) in clients.items():
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    names = sorted(clients)
    mapped = ct.fit({name: clients[name] for name in names}, clusters=2, **PLAIN)
    ones = [np.column_stack([clients[name][0], np.ones(20)]) for name in names]
    flat = ct.Clients(
        np.concatenate(ones),
        np.concatenate([clients[name][1] for name in names]),
        np.full(12, 20),
        tuple(names),
    )
    for source in (str(tmp_path), tmp_path, flat):
        other = ct.fit(source, clusters=2, **PLAIN)
        assert other.centres.tobytes() == mapped.centres.tobytes()
        assert np.array_equal(other.labels, mapped.labels)
        assert other.names == tuple(names)


def test_the_target_column_of_a_folder_has_a_name(tmp_path: Path) -> None:
    for name, (x, y) in regression_clients().items():
        np.savez(tmp_path / f"{name}.npz", x=x, effect=y)
    assert ct.fit(tmp_path, clusters=2, target="effect").centres.shape == (2, 4)
    with pytest.raises(ValueError, match=r"no column 'y'"):
        ct.fit(tmp_path, clusters=2)


def test_who_gets_an_intercept() -> None:
    clients = regression_clients()
    added = ct.fit(clients, clusters=2)
    np.testing.assert_allclose(np.abs(added.centres), 1.0, atol=0.1)
    assert added.centres.shape == (2, 4)
    assert in_turn(added.labels)
    assert ct.fit(clients, clusters=2, intercept=False).centres.shape == (2, 3)
    drawn = federation()
    assert ct.fit(drawn, clusters=2, rounds=1).centres.shape == (2, 6)
    assert ct.fit(drawn.clients, clusters=2, rounds=1).centres.shape == (2, 6)
    wide = ct.fit(drawn, clusters=2, intercept=True)
    assert wide.centres.shape == (2, 7)
    assert wide.metrics["ari"] == 1.0
    assert np.isnan(wide.metrics["matched_dist"])  # the truth has no weight for it


def test_precision_of_a_mapping() -> None:
    clients = regression_clients()
    assert ct.fit(clients, clusters=2, rounds=1).centres.dtype == np.float64
    assert ct.fit(clients, clusters=2, rounds=1, dtype="float32").centres.dtype == np.float32


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_the_columns_of_frames_go_by_their_names(library: str) -> None:
    frames = pytest.importorskip(library)
    names, scale = ["dose", "age", "bmi"], np.array([1.0, 10.0, 100.0])  # so that a swapped column is noticed
    arrays = {name: (x * scale, y) for name, (x, y) in regression_clients().items()}
    framed = {name: (frames.DataFrame(dict(zip(names, x.T, strict=True))), y) for name, (x, y) in arrays.items()}
    turned = {name: (x[names[::-1]] if name == "site 3" else x, y) for name, (x, y) in framed.items()}
    expected, found = ct.fit(arrays, clusters=2), ct.fit(turned, clusters=2)
    assert found.centres.tobytes() == expected.centres.tobytes()
    x, y = framed["site 4"]
    values = arrays["site 4"][0]
    for given in (x, x[names[::-1]], values):
        assert np.array_equal(found.predict(given, client="site 4"), expected.predict(values, client="site 4"))
        assert found.assign(given, y) == expected.assign(values, y)
    long = [x.to_numpy() for x, _ in framed.values()]
    one = dict(zip(names, np.concatenate(long).T, strict=True))
    site = np.repeat(list(framed), 20)
    table = frames.DataFrame({"site": site, **one, "y": np.concatenate([y for _, y in framed.values()])})
    pooled = ct.fit(table, clusters=2, client="site")
    assert np.array_equal(pooled.predict(x, client="site 4"), pooled.predict(x[names[::-1]], client="site 4"))
    wrong = x.rename({"age": "Age"}) if library == "polars" else x.rename(columns={"age": "Age"})
    for call, message in (
        (lambda: expected.predict(x, client="site 4"), "x must be an array: the data that were fitted have no names"),
        (lambda: expected.assign(x, y), "x must be an array"),
        (lambda: found.predict(x[["dose", "age"]], cluster=0), "no column 'bmi'"),
        (lambda: ct.fit({"a": (x, y), "b": (values, y)}), "clients: b: x must be a frame if that of the first client"),
        (lambda: ct.fit({"a": (values, y), "b": (x, y)}), "clients: b: x must be a frame if that of the first client"),
        (lambda: ct.fit({"a": (x, y), "b": (wrong, y)}), "b: x must have the columns dose, age, bmi, got dose, Age, b"),
    ):
        with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
            call()
        assert message in str(caught.value)


def test_assign_refuses_what_is_not_finite_and_changes_no_prediction() -> None:
    clients = regression_clients()
    result = ct.fit(clients, clusters=2)
    x, y = clients["site 4"]
    before = [result.predict(x, client="site 4"), result.predict(x, cluster=0), result.predict(x, cluster=1)]
    assert result.assign(x, -y, nearest=True) != result.assign(x, y, nearest=True)
    after = [result.predict(x, client="site 4"), result.predict(x, cluster=0), result.predict(x, cluster=1)]
    assert np.array_equal(before, after)
    with pytest.raises(ValueError, match=r"^predict: name a client or a cluster"):
        result.predict(x)  # assign has chosen none
    for wrong in (np.nan, np.inf):
        with pytest.raises(ValueError, match=r"^x holds a value that is not a finite number$"):
            result.assign(np.where(x == x[3, 1], wrong, x), y)
        with pytest.raises(ValueError, match=r"^y holds a value that is not a finite number$"):
            result.assign(x, np.where(y == y[3], wrong, y))


# --- tasks ------------------------------------------------------------------------------------------------


def classes_of(task: str, seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Two groups in turn, whose classes have opposite names."""
    rng, count = np.random.default_rng(seed), 2 if task == "logistic" else 3
    found = {}
    for client in range(12):
        x = rng.standard_normal((60, 3))
        y = x[:, :count].argmax(axis=1)
        found[str(client)] = x, count - 1 - y if client % 2 else y
    return found


@pytest.mark.parametrize("task", ["logistic", "softmax"])
def test_classes(task: str) -> None:
    clients = classes_of(task)
    result = ct.fit(clients, task, 2, max_byzantine=0.0)
    assert in_turn(result.labels)
    for name, (x, y) in clients.items():
        assert (result.predict(x, client=name) == y).mean() > 0.8
        assert result.assign(x, y) == result.cluster_of(name)
    columns = 4 * (3 if task == "softmax" else 1)
    assert result.centres.shape == (2, columns)
    if task == "softmax":
        assert ct.fit(clients, task, 2, classes=5, rounds=1).centres.shape == (2, 20)


def test_means() -> None:
    drawn = ct.gaussian_means(0, clients=20, clusters=2, samples=10, dim=5, byzantine=0.1)
    result = ct.fit(drawn, "mean", 2, 0.1)
    assert result.metrics["ari"] == 1.0
    for client in range(20):
        x, _ = drawn.clients.samples(client)
        assert result.assign(x, nearest=True) == result.labels[client]
        assert result.assign(x) == (-1 if drawn.is_byzantine[client] else result.labels[client])
    mapped = ct.fit({str(i): drawn.clients.samples(i)[0] for i in range(20)}, "mean", 2, 0.1, dtype="float32", **PLAIN)
    assert mapped.centres.tobytes() == result.centres.tobytes()  # no intercept
    with pytest.raises(ValueError, match="predicts nothing"):
        result.predict(np.zeros((1, 5)), cluster=0)
    with pytest.raises(ValueError, match="y: the task has no targets"):
        result.assign(np.zeros((1, 5)), [0.0])


def test_a_task_and_a_function_to_one_are_the_named_task() -> None:
    drawn = federation()
    expected = ct.fit(drawn, "linear", 2, rounds=5)
    for task in (linear_regression(drawn.clients), linear_regression):
        found = ct.fit(drawn, task, 2, rounds=5)
        assert found.centres.tobytes() == expected.centres.tobytes()
        x, y = drawn.clients.samples(0)
        assert found.assign(x, y) == expected.assign(x, y)


def test_a_module() -> None:
    clients = {name: tuple(map(torch.from_numpy, data)) for name, data in classes_of("softmax").items()}
    task = ct.module(lambda: nn.Linear(3, 3), nn.CrossEntropyLoss(reduction="none"))
    result = ct.fit(clients, task, 2, max_byzantine=0.0, step=1.0, rounds=60, init="spectral")
    assert result.centres.shape == (2, 12)  # its own bias, and no other intercept
    assert in_turn(result.labels)
    for name, (x, y) in clients.items():
        assert (result.predict(x, client=name) == y.numpy()).mean() > 0.8
    fresh = ct.fit(clients, task, 2, method="ifca", step=1.0, rounds=0)
    assert not np.array_equal(fresh.centres[0], fresh.centres[1])
    with pytest.raises(ValueError, match="step must be a number"):
        ct.fit(clients, task, 2)


@pytest.mark.parametrize("task", ["linear", "mean", "module"])
def test_a_new_client_gets_a_personal_model(task: str) -> None:
    """In the columns of the fitted data; with few samples it is near the model of its cluster."""
    clients: Any = regression_clients()
    given: Any = task
    if task == "mean":
        clients = {name: x + 3 * (i % 2) for i, (name, (x, _)) in enumerate(clients.items())}
    if task == "module":
        clients = {name: tuple(map(torch.from_numpy, data)) for name, data in classes_of("softmax").items()}
        given = ct.module(lambda: nn.Linear(3, 3), nn.CrossEntropyLoss(reduction="none"))
    options: dict[str, Any] = {"step": 1.0, "rounds": 60, "init": "spectral"} if task == "module" else {}
    result = ct.fit(clients, given, 2, max_byzantine=0.0, **{**PLAIN, **options})
    name = result.names[3]
    data = (clients[name], None) if task == "mean" else clients[name]
    found = result.personalise(*data, nearest=True)
    assert found.cluster == result.labels[3]
    assert found.model.shape == result.centres[0].shape
    distances = np.linalg.norm(result.centres - found.model, axis=1)
    assert distances.argmin() == found.cluster
    if task == "mean":
        with pytest.raises(ValueError, match="this task predicts nothing"):
            found.predict(data[0])
    elif task == "linear":
        np.testing.assert_allclose(found.predict(data[0]), data[1], atol=0.3)
    else:
        assert (found.predict(data[0]) == data[1].numpy()).mean() > 0.8
    with pytest.raises(ValueError, match="y: the task has no targets" if task == "mean" else "y must be given"):
        result.personalise(data[0], data[0][:, 0] if task == "mean" else None)


def test_personal_networks_are_in_the_result() -> None:
    """Each is that of `personalise`, and beats what the client has alone where the clients of a cluster are alike."""
    clients = {name: tuple(map(torch.from_numpy, data)) for name, data in classes_of("softmax").items()}
    task = ct.module(lambda: nn.Linear(3, 3), nn.CrossEntropyLoss(reduction="none"))
    result = ct.fit(clients, task, 2, max_byzantine=0.0, step=1.0, rounds=60, init="spectral")
    assert result.method == "coterie+own"
    assert result.personal is not None
    x, y = next(iter(clients.values()))
    assert (result.predict(x, client=result.names[0]) == y.numpy()).mean() > 0.8
    assert "within one standard error" in result.comparison
    assert not result.comparison.endswith(" 0 within one standard error")
    options: dict[str, Any] = {"step": 1.0, "rounds": 60, "holdout": 0}
    alone = ct.fit(clients, task, 2, method="local+own", **options)  # trained for as long as all rounds together
    np.testing.assert_allclose(alone.personal, ct.fit(clients, task, 2, method="local", **options).centres, rtol=1e-6)


# --- methods ----------------------------------------------------------------------------------------------


def test_an_aggregator_is_algorithm_1_with_it() -> None:
    drawn, attack = federation(), ct.attack("alie", scale="worst")
    by_name = ct.fit(drawn, clusters=2, method="brifca-trimmed", attack=attack, trim=0.2, rounds=5)
    by_rule = ct.fit(drawn, clusters=2, method=ct.TrimmedMean(0.2), attack=attack, trim=0.2, rounds=5)
    assert by_rule.centres.tobytes() == by_name.centres.tobytes()
    assert by_rule.method == "TrimmedMean(trim=0.2)"
    own = ct.fit(drawn, clusters=2, method=lambda rows: rows[0], rounds=2)
    assert own.centres.shape == (2, 6)


def test_an_algorithm_brings_its_own_options_and_an_adversary_knows_its_rule() -> None:
    drawn, attack = federation(), ct.attack("alie", scale="worst")
    descent = ClusteredDescent(Server(ct.TrimmedMean(0.2), trim=0.2), rounds=5)
    named = ct.fit(drawn, clusters=2, method="brifca-trimmed", attack=attack, trim=0.2, rounds=5)
    found = ct.fit(drawn, clusters=2, method=descent, attack=attack)
    assert found.centres.tobytes() == named.centres.tobytes()
    assert found.method == "ClusteredDescent"
    staged = ct.fit(drawn, clusters=2, method=ThreeStage(descent, trim=0.2), attack=attack)
    by_name = ct.fit(drawn, clusters=2, method="three-stage", attack=attack, trim=0.2, rounds=5)
    assert staged.centres.tobytes() == by_name.centres.tobytes()
    start = RobustStart(spectral, "gradient", 0.1, None, 4)
    finding = ct.fit(drawn, method=replace(descent, init=start))
    assert finding.centres.shape == (2, 6)


def test_methods_without_clusters_need_no_number() -> None:
    drawn = federation()
    assert ct.fit(drawn, method="local").centres.shape == (24, 6)
    assert ct.fit(drawn, method="global", rounds=2).centres.shape == (1, 6)
    assert ct.fit(drawn, method="oracle").centres.shape == (2, 6)


@pytest.mark.parametrize("init", ["spectral", "balls", "erm", "bernoulli", "gaussian", "warm"])
def test_every_start(init: str) -> None:
    assert ct.fit(federation(), clusters=2, method="brifca-median", init=init, rounds=3).centres.shape == (2, 6)


def test_a_start_from_a_file(tmp_path: Path) -> None:
    drawn, centres = federation(), np.arange(12.0).reshape(2, 6)
    np.save(tmp_path / "centres.npy", centres)
    result = ct.fit(drawn, clusters=2, method="ifca", init=tmp_path / "centres.npy", rounds=0)
    assert np.array_equal(result.centres, centres)


def test_numbers_of_numpy_are_numbers_and_rounds_are_reported() -> None:
    seen: list[None] = []
    with pytest.warns(DeprecationWarning, match="on_round is now called callbacks") as caught:
        result = ct.fit(
            federation(), clusters=np.int64(2), max_byzantine=np.float64(0.1), method="ifca", seed=np.int64(3),
            rounds=np.int32(4), on_round=lambda: seen.append(None),
        )  # fmt: skip
    assert caught[0].filename == __file__
    assert len(result.rounds) == 4
    assert len(seen) == 5  # the start, and every round


# --- the result -------------------------------------------------------------------------------------------


def test_what_a_result_holds() -> None:
    drawn = federation()
    result = ct.fit(drawn, clusters=2, max_byzantine=0.1, attack=ct.attack("constant", scale=100.0))
    assert result.centres.shape == (2, 6)
    assert result.labels.shape == (24,)
    assert result.names == tuple(str(i) for i in range(24))
    assert len(result.audit) == 24
    assert [row["client"] for row in result.audit] == list(result.names)
    assert [row["round"] for row in result.rounds] == list(range(1, len(result.rounds) + 1))
    assert result.metrics["rounds"] == len(result.rounds)
    assert {"matched_dist", "oracle_ratio", "worst_ratio", "ari", "clusters", "loss"} <= set(result.metrics)
    assert result.metrics["oracle_ratio"] < 1.3
    assert result.metrics["ari"] == 1.0
    assert all(row["byzantine"] == (i >= 22) for i, row in enumerate(result.audit))
    blind = ct.fit(drawn.clients, clusters=2, max_byzantine=0.1)
    assert np.isnan(blind.metrics["ari"])
    assert np.isfinite(blind.metrics["loss"])
    assert "byzantine" not in blind.audit[0]
    assert "method='coterie'" in repr(result)
    assert "audit" not in repr(result)


def test_predictions_are_those_of_the_cluster_s_model() -> None:
    clients = regression_clients()
    result = ct.fit(clients, clusters=2, **PLAIN)
    x = np.random.default_rng(1).standard_normal((7, 3))
    for place, name in enumerate(clients):
        cluster = result.cluster_of(name)
        assert cluster == result.cluster_of(place) == result.labels[place]
        expected = np.column_stack([x, np.ones(7)]) @ result.centres[cluster]
        for found in (result.predict(x, client=name), result.predict(x.tolist(), cluster=cluster)):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert result.assign(*clients[name]) == cluster


def test_a_client_without_a_cluster() -> None:
    result = ct.fit(federation(), method="oracle")
    with pytest.raises(ValueError, match="client: 23 is in no cluster"):
        result.cluster_of(23)


def test_test_samples_are_for_modules_and_do_no_harm() -> None:
    drawn = federation()
    assert drawn.truth is not None
    tested = ct.Federation(drawn.clients, replace(drawn.truth, test=drawn.clients.take([0, 12])))
    for intercept in (False, True):
        result = ct.fit(tested, clusters=2, rounds=2, intercept=intercept)
        assert np.isnan(result.metrics["accuracy"])


# --- mistakes ---------------------------------------------------------------------------------------------

X, Y = np.ones((3, 2)), np.zeros(3)
GOOD = {"a": (X, Y), "b": (X, Y)}


def with_nan(place: str) -> ct.Clients:
    drawn = federation().clients
    features, targets = drawn.features.copy(), np.array(drawn.targets)
    (features[30:31, 2:3] if place == "features" else targets[30:31]).fill(np.nan)
    return replace(drawn, features=features, targets=targets)


def with_truth(**changes: Any) -> ct.Federation:
    drawn = federation()
    assert drawn.truth is not None
    return ct.Federation(drawn.clients, replace(drawn.truth, **changes))


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: ct.fit({}), "clients must hold at least one client"),
        (lambda: ct.fit([X, Y]), "clients must be Clients, a Federation, a mapping"),
        (lambda: ct.fit({"a": X}), "clients: a must hold (x, y)"),
        (lambda: ct.fit({"a": (X, Y, Y)}), "clients: a must hold (x, y)"),
        (lambda: ct.fit({"a": (X, Y)}, "mean"), "clients: a must hold x alone"),
        (lambda: ct.fit({"a": (Y, Y)}), "clients: a: x must have shape (n, columns) with n >= 1, got (3,)"),
        (lambda: ct.fit({"a": (X[:0], Y[:0])}), "clients: a: x must have shape (n, columns) with n >= 1, got (0, 2)"),
        (lambda: ct.fit({"a": (X, Y[:2])}), "clients: a: y must have shape (3,), got (2,)"),
        (lambda: ct.fit({"a": (X, [[0], [0, 1], [2]])}), "clients: a: y must be an array of numbers"),
        (lambda: ct.fit({"a": (X, ["0", "b", "c"])}), "clients: a: y must be an array of numbers"),
        (lambda: ct.fit({**GOOD, "c": (X * np.nan, Y)}), "clients: c: x holds a value that is not a finite number"),
        (lambda: ct.fit({**GOOD, "c": (X, Y + np.inf)}), "clients: c: y holds a value that is not a finite number"),
        (lambda: ct.fit({**GOOD, "c": (X * 1e300, Y)}, dtype="float32"), "clients: c: holds a value that is too large"),
        (lambda: ct.fit({**GOOD, "c": (X, Y + 1e300)}, dtype="float32"), "clients: c: holds a value that is too large"),
        (lambda: ct.fit({**GOOD, "c": (X[:, :1], Y)}), "clients: c: x must have 2 columns, got 1"),
        (lambda: ct.fit({"1": (X, Y), 1: (X, Y)}), "clients: two names are the same text"),
        (lambda: ct.fit("/nowhere/at/all"), "no such folder"),
        (lambda: ct.fit(with_nan("features")), "clients: 1: holds a value that is not a finite number"),
        (lambda: ct.fit(with_nan("targets")), "clients: 1: holds a value that is not a finite number"),
        (lambda: ct.fit(with_truth(labels=np.zeros(3, int))), "clients: the truth must have 24 labels from -1 to 1"),
        (lambda: ct.fit(with_truth(labels=np.full(24, 2))), "clients: the truth must have 24 labels from -1 to 1"),
        (lambda: ct.fit(with_truth(centres=np.ones((2, 5)))), "clients: the centres of the truth must have 6 columns"),
        (lambda: ct.fit(GOOD, "liner"), 'task: must be one of linear, logistic, softmax, mean, got "liner"; did you'),
        (lambda: ct.fit(GOOD, 3), "task must be a name, a Task or a function from clients to one, got int"),
        (lambda: ct.fit(GOOD, lambda clients: 3), "task: the function must return a Task, got int"),
        (lambda: ct.fit(federation(), "mean"), "task: mean is for clients without targets"),
        (lambda: ct.fit(ct.Clients(X, None, np.array([3]))), "task: linear needs targets"),
        (lambda: ct.fit({"a": (X, Y + 0.5)}, "logistic", 1), "target 0.5 is not a class from 0 to 1"),
        (lambda: ct.fit(GOOD, "softmax", 1, classes=1), "classes must be a whole number of at least 2, got 1"),
        (lambda: ct.fit(GOOD, clusters=1, classes=3), "classes: is for the softmax task alone"),
        (lambda: ct.fit(GOOD, clusters=0), 'clusters must be "auto" or a whole number from 1 to the number of clients'),
        (lambda: ct.fit(GOOD, clusters=3), "(2), got 3"),
        (lambda: ct.fit(GOOD, clusters=1.5), "got 1.5"),
        (lambda: ct.fit(GOOD, clusters=True), "got True"),
        (lambda: ct.fit(GOOD, clusters="many"), "got 'many'"),
        (lambda: ct.fit(GOOD, method="ifca"), 'clusters: "auto" needs the method "coterie" or a start that asks'),
        (lambda: ct.fit({"a": (X[:1], Y[:1])}), 'clusters: "auto" needs at least 2 samples per client, a has 1'),
        (lambda: ct.fit(GOOD, max_byzantine=0.5), "max_byzantine: must be 'auto' or less than 0.5, got 0.5"),
        (lambda: ct.fit(GOOD, max_byzantine=-1), "max_byzantine: must be 'auto' or greater than or equal to 0, got -1"),
        (lambda: ct.fit(GOOD, max_byzantine=float("nan")), "max_byzantine: must be"),
        (lambda: ct.fit(GOOD, max_byzantine="many"), "max_byzantine: must be 'auto' or number, got \"many\""),
        (
            lambda: ct.fit(GOOD, clusters=1, max_byzantine="auto", method="ifca"),
            "max_byzantine: auto needs a method that takes the bound (coterie, brifca-filter, brifca-no-regret)",
        ),
        (
            lambda: ct.fit(GOOD, clusters=1, max_byzantine="auto", method="brifca-filter"),
            "max_byzantine: auto needs a start that asks the clients with brifca-filter",
        ),
        (lambda: ct.fit(GOOD, clusters=1, strict=True, method="ifca"), "strict: needs a method that takes the bound"),
        (lambda: ct.fit(GOOD, clusters=1, method="iffca"), "method: must be one of"),
        (lambda: ct.fit(GOOD, clusters=1, method="iffca"), "did you mean ifca?"),
        (lambda: ct.fit(GOOD, clusters=1, method=3), "method must be a name, an Aggregator or an Algorithm, got int"),
        (lambda: ct.fit(GOOD, method="oracle"), "method: oracle needs a Federation with a truth"),
        (lambda: ct.fit(GOOD, seed=-1), "seed must be a whole number of at least 0, got -1"),
        (lambda: ct.fit(GOOD, seed="x"), "seed must be a whole number of at least 0, got 'x'"),
        (lambda: ct.fit(GOOD, clusters=1, attack=ct.attack("alie")), "attack: needs a Federation whose truth says"),
        (lambda: ct.fit(federation(), attack="alie"), "attack must be None or made by ct.attack, got 'alie'"),
        (lambda: ct.fit(GOOD, intercept="yes"), "intercept must be True, False or None, got 'yes'"),
        (lambda: ct.fit({"a": X}, "mean", intercept=True), "intercept: the task mean has none"),
        (lambda: ct.fit(GOOD, target="y"), "target: is for the columns of files and frames"),
        (lambda: ct.fit(GOOD, dtype="int8"), "dtype must be \"float32\" or \"float64\", got 'int8'"),
        (lambda: ct.fit(GOOD, clusters=1, round=3), "round: unknown option; did you mean rounds?"),
        (lambda: ct.fit(GOOD, clusters=1, atack=None), "atack: unknown option; did you mean attack?"),
        (lambda: ct.fit(GOOD, clusters=1, flavour=1), "flavour: unknown option"),
        (lambda: ct.fit(GOOD, clusters=1, rounds=-1), "rounds: must be greater than or equal to 0, got -1"),
        (lambda: ct.fit(GOOD, clusters=1, rounds="9"), 'rounds: must be integer, got "9"'),
        (lambda: ct.fit(GOOD, clusters=1, step="fast"), "step: must be 'auto' or number, got \"fast\""),
        (lambda: ct.fit(GOOD, clusters=1, trim=0.5), "trim: must be less than 0.5"),
        (lambda: ct.fit(GOOD, clusters=1, method="ifca", init="fresh"), "init: fresh is a module's start"),
        (lambda: ct.fit(GOOD, clusters=1, method="ifca", init="warm"), "init: warm needs a Federation whose truth has"),
        (lambda: ct.fit(federation(), clusters=3, method="ifca", init="warm"), "init: warm has the 2 centres of the"),
        (lambda: ct.fit(GOOD, clusters=1, method="ifca", init="no.npy"), "init: no.npy: no such file of centres"),
        (lambda: ct.fit(GOOD, clusters=1, resample=True), "resample: needs at least 2*rounds = 600 samples"),
        (lambda: ct.fit(GOOD, clusters=1, three_stage={"starts": 3}), "three_stage: is for the method three-stage"),
        (
            lambda: ct.fit(GOOD, clusters=1, method=median, three_stage={"starts": 3}),
            "three_stage: is for the method three-stage",
        ),
        (
            lambda: ct.fit(GOOD, clusters=1, method="three-stage", three_stage={"start": 3}),
            "three_stage.start: unknown option; did you mean starts?",
        ),
        (
            lambda: ct.fit(GOOD, clusters=1, method="three-stage", three_stage={"starts": 0}),
            "three_stage.starts: must be greater than or equal to 1",
        ),
        (
            lambda: ct.fit(GOOD, clusters=1, method="three-stage", three_stage={"first": "truth"}),
            "three_stage.first: truth needs a Federation with a truth",
        ),
        (
            lambda: ct.fit(
                {"a": X}, "mean", 1, method="three-stage", three_stage={"erm": "float32-inverse"}
            ),
            "three_stage.erm: float32-inverse is for the task linear",
        ),
        (
            lambda: ct.fit(GOOD, clusters=1, method=ClusteredDescent(Server(median)), rounds=3),
            "rounds: is an option of named methods; an algorithm has its own",
        ),
        (lambda: ct.fit(GOOD, clusters=1, method=median, before="mixing"), "before: is an option of named methods"),
        (lambda: ct.attack("alia"), "did you mean alie?"),
        (lambda: ct.attack("alie", target="smalest"), "did you mean smallest?"),
        (lambda: ct.attack("alie", scale="best"), "scale must be a finite number, \"auto\" or \"worst\", got 'best'"),
        (lambda: ct.attack("alie", scale=float("inf")), "scale must be a finite number"),
        (lambda: ct.attack("alie", sleep=-1), "sleep must be a whole number of at least 0, got -1"),
        (lambda: ct.attack("alie", sleep=1.5), "sleep must be a whole number of at least 0, got 1.5"),
        (lambda: ct.registered("flavours"), "kind must be one of methods, attacks, targets, starts, tasks"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_the_parameter(call: Callable[[], object], expected: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        call()
    assert expected in str(caught.value)


def test_mistakes_with_a_result() -> None:
    result = ct.fit(regression_clients(), clusters=2, rounds=1)
    x = np.zeros((2, 3))
    for call, expected in (
        (lambda: result.cluster_of("site 99"), "client: site 99 was not in the fit; did you mean site 9?"),
        (lambda: result.cluster_of(12), "client: must be from 0 to 11, got 12"),
        (lambda: result.cluster_of(-1), "client: must be from 0 to 11, got -1"),
        (lambda: result.predict(x), "predict: name a client or a cluster, and not both"),
        (lambda: result.predict(x, client=0, cluster=0), "predict: name a client or a cluster, and not both"),
        (lambda: result.predict(x, cluster=2), "cluster: must be from 0 to 1, got 2"),
        (lambda: result.predict(np.zeros((2, 4)), cluster=0), "x must have shape (n, 3) with n >= 1, got (2, 4)"),
        (lambda: result.predict(np.zeros(3), cluster=0), "x must have shape (n, 3) with n >= 1, got (3,)"),
        (lambda: result.predict(x * np.nan, cluster=0), "x holds a value that is not a finite number"),
        (lambda: result.assign(x), "y must be given: the task has targets"),
        (lambda: result.assign(x, [1.0]), "y must have shape (2,), got (1,)"),
    ):
        with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
            call()
        assert str(caught.value) == expected
