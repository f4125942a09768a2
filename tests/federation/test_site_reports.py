"""Scores on rows that sites held out: as in the simulation, whatever some sites report, and without their models."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

import coterie as ct
from coterie._src.data import Clients, hold_out
from coterie._src.evaluation import held_out_scores
from coterie._src.experiments import Config, as_toml, read_config, run_trial
from coterie._src.federation import ClientNumbers, Evaluation, FlowerNetwork, Question, Site, client_app, evaluate_sites
from coterie._src.federation.apps import RunSettings, apps, run_server
from coterie._src.federation.client import respond_to
from coterie._src.federation.messages import read_answer
from coterie._src.federation.report import evaluation_lines
from coterie._src.federation.site import evaluated_site
from coterie._src.federation.site_reports import LARGEST, Report, Request, admit_report
from coterie._src.simulation import stream
from coterie._src.tasks import linear_regression, logistic_regression, mean_estimation
from in_process import FAULTS, Fault, InProcessGrid, reporting
from real_processes import coterie

SCHOOLS = ["problem.kind=schools-like", "problem.clusters=3", "algorithm.rounds=6"]
MODELS = ("cluster", "personal", "global", "local")


def schools(tmp_path: Path, *changes: str) -> Config:
    """The configuration of a rehearsal with the generated schools, which is also written to a file."""
    config = read_config(None, [*SCHOOLS, *changes])
    (tmp_path / "config.toml").write_text(as_toml(config))
    return config


def test_reports_have_the_scores_of_the_simulation(tmp_path: Path) -> None:
    """Nobody is Byzantine and nothing is trimmed: the numbers of the table, of clients.csv and of the sentence."""
    config = schools(tmp_path, 'run.methods=["coterie+own", "global"]')
    trial = run_trial(config, 0)
    found = evaluate_sites(
        InProcessGrid(apps(tmp_path / "config.toml")[1], range(60)),
        trial.methods["coterie+own"].centres,
        max_byzantine=0.0,
        score="r2",
        for_all=trial.methods["global"].centres,
    )
    assert not found.refused
    for model, method in (("personal", "coterie+own"), ("global", "global")):
        expected = trial.methods[method].metrics
        assert found.summary[model]["test_loss"] == pytest.approx(expected["test_loss"])
        assert found.summary[model]["test_score"] == pytest.approx(expected["test_r2"])
        assert found.summary[model]["test_worst"] == pytest.approx(expected["test_worst_r2"])
    assert found.comparison.sentence("alone") == trial.comparisons["coterie+own"]
    plain = run_trial(schools(tmp_path, 'run.methods=["coterie", "coterie+own"]'), 0).clients
    for row, expected_row in zip(found.rows(), plain, strict=True):
        assert row.pop("client") == str(int(expected_row.pop("client").removeprefix("school ")) - 1)
        assert row.pop("trial") == 0
        assert row.pop("report") == "accepted"
        assert row == pytest.approx(expected_row, abs=2e-6)


def test_a_federation_ends_with_its_scores_and_every_site_keeps_its_models(tmp_path: Path) -> None:
    """By a method that has no start of its own: the clusters are found from answers of the sites."""
    config = schools(tmp_path)
    settings = RunSettings("brifca-median", 60, 60, 5.0, 20.0, folder=str(tmp_path / "out"), for_all=True)
    client = apps(tmp_path / "config.toml")[1]
    places = {site: {"models": str(tmp_path / f"site{site}")} for site in (0, 7)}
    run_server(config, settings, InProcessGrid(client, range(60), {3: reporting(cluster=3)}, places))
    rows = list(csv.DictReader((tmp_path / "out" / "clients.csv").read_text().splitlines()))
    assert len(rows) == 60
    assert min(sum(row["cluster"] == str(j) for row in rows) for j in range(3)) > 10
    assert rows[3]["report"] == "cluster must be from 0 to 2, got 3"
    assert (rows[3]["cluster"], rows[3]["personal_score"], rows[3]["best"]) == ("-1", "", "")
    summary = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert (summary["reports"], summary["max_byzantine"], summary["trimmed_at_each_end"]) == (59, 3, 3)
    assert list(summary["models"]) == ["cluster", "personal", "global", "local"]
    assert summary["models"]["personal"]["test_loss"] < 0.5 * summary["models"]["global"]["test_loss"]
    assert (tmp_path / "out" / "for-all" / "state.safetensors").is_file()
    shown = coterie("audit", "out", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"^ one for all +\d+\.\d+ +0\.\d+ +-?\d+\.\d+$", shown.stdout, re.MULTILINE)
    assert "  3: cluster must be from 0 to 2, got 3" in shown.stdout
    centres = load_file(tmp_path / "out" / "centres.safetensors")["brifca-median"]
    for site in (0, 7):
        kept = load_file(tmp_path / f"site{site}" / "personal.safetensors")
        assert set(kept) == set(MODELS)
        np.testing.assert_array_equal(kept["cluster"], centres[int(rows[site]["cluster"])])
        assert np.isfinite(kept["personal"]).all()
        report = json.loads((tmp_path / f"site{site}" / "report.json").read_text())
        assert report["test_samples"] == int(rows[site]["test_samples"])
    assert not (tmp_path / "site3").exists()


FOLDER = """
[problem]
kind = "folder"
clusters = 2
columns = ["a", "b"]
[algorithm]
step = 0.1
"""


def site_file(path: Path, targets: np.ndarray) -> None:
    x = np.random.default_rng(0).standard_normal((len(targets), 2))
    lines = [f"{a},{b},{y}" for (a, b), y in zip(x, targets, strict=True)]
    path.write_text("\n".join(["a,b,y", *lines, ""]))


def test_a_site_learns_from_the_rows_that_it_did_not_hold_out_and_reports_on_the_others(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(FOLDER)
    config = read_config(tmp_path / "config.toml")
    centres = np.array([[1.0, -1.0, 0.5], [0.0, 2.0, 0.0]])
    rows = np.arange(40)
    _, held_out = hold_out(
        Clients(rows[:, None].astype(float), None, np.array([40])), config.problem.holdout, stream(0, 0, "data")
    )
    assert held_out is not None
    held = held_out.clients.features[:, 0].astype(int)
    assert len(held) == 10
    targets = np.random.default_rng(1).standard_normal(40)

    def asked(change: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        # another folder, since the log beside it lets a site answer about one set of rows alone
        file, place = tmp_path / "oslo.csv", Path(mkdtemp(dir=tmp_path)) / "models"
        site_file(file, targets + change)
        client = apps(tmp_path / "config.toml")[1]
        node = {"data": str(file), "models": str(place)}
        context = Context(1, 1, node, RecordDict(), {})
        train = Message(Question("gradient", 0, centres, 0).record(), dst_node_id=1, message_type="train")
        report = Message(Request(centres).record(), dst_node_id=1, message_type="evaluate")
        sent = client(report, context).content
        assert not sent.array_records  # no model leaves the site
        assert list(sent) == ["report"]
        assert all(isinstance(value, int | float) for value in sent.metric_records["report"].values())
        loaded = ct.load(place)
        assert loaded.assign(np.zeros((1, 2)), np.array([0.5]), nearest=True) == 0
        return np.asarray(read_answer(client(train, context))[0].update), dict(sent.metric_records["report"])

    update, report = asked(np.zeros(40))
    others = np.isin(rows, held, invert=True)
    update_again, report_again = asked(np.where(others, 0.0, 3.0))
    np.testing.assert_array_equal(update, update_again)
    assert (report["samples"], report["test_samples"]) == (30, 10)
    assert report_again["target_mean"] == pytest.approx(report["target_mean"] + 3.0)
    assert report_again["loss.personal"] > report["loss.personal"]
    moved, _ = asked(np.where(others, 3.0, 0.0))
    assert np.abs(moved - update).max() > 1.0


@pytest.mark.parametrize("task", ["linear", "logistic", "mean"])
def test_a_report_has_the_scores_of_the_models_that_stay(task: str) -> None:
    rng = np.random.default_rng(2)
    x = np.column_stack([rng.standard_normal((40, 3)), np.ones(40)])
    y = x @ [1.0, -2.0, 0.5, 3.0] + rng.standard_normal(40)
    targets = None if task == "mean" else (y > 3).astype(float) if task == "logistic" else y
    build = {"linear": linear_regression, "logistic": logistic_regression, "mean": mean_estimation}[task]
    rest, held = hold_out(Clients(x, targets, np.array([40])), 0.3, rng)
    assert held is not None
    request = Request(rng.standard_normal((3, 4)), rng.standard_normal((1, 4)))
    site = Site(build(rest), held.clients)
    report, models = evaluated_site(site, request)
    assert report.cluster == int(np.argmin(build(rest).losses(request.centres)))
    for name in MODELS:
        scores = held_out_scores(site.task, held, models[name], np.array([True]))
        assert report.losses[name] == pytest.approx(scores.losses[0])
        assert (name in report.accuracies) == (task == "logistic")
        if task == "logistic":
            assert report.accuracies[name] == pytest.approx(scores.accuracies[0])
    assert np.array_equal(models["global"], request.for_all)
    if task == "linear":
        held_y = np.asarray(held.clients.targets)
        each = [(np.asarray(held.clients.features) @ models[name][0] - held_y) ** 2 for name in ("personal", "local")]
        assert report.error == pytest.approx(np.std(each[0] - each[1], ddof=1) / math.sqrt(12))
        assert (report.target_mean, report.target_variance) == pytest.approx((held_y.mean(), held_y.var()))
    score: Any = {"linear": "r2", "logistic": "accuracy", "mean": "loss"}[task]
    admitted = admit_report(report.numbers(), clusters=3, models=MODELS, score=score)
    assert isinstance(admitted, Report)
    assert admitted.losses == report.losses


def test_a_site_whose_model_is_absurd_reports_the_largest_number_that_is_accepted() -> None:
    x = np.column_stack([np.arange(12.0), np.ones(12)])
    rest, held = hold_out(Clients(x, np.arange(12.0), np.array([12])), 0.25, np.random.default_rng(0))
    assert held is not None
    report, _ = evaluated_site(Site(linear_regression(rest), held.clients), Request(np.full((1, 2), 1e200)))
    assert report.losses["cluster"] == LARGEST
    assert report.losses["personal"] < 1.0
    assert isinstance(admit_report(report.numbers(), clusters=1, models=("cluster",), score="r2"), Report)


def test_a_site_refuses_requests_that_make_no_sense() -> None:
    clients = Clients(np.ones((4, 2)), np.zeros(4), np.array([4]))
    client = client_app(lambda context: linear_regression(clients), guarded=False)
    context = Context(1, 1, {}, RecordDict(), {})
    for request, message in (
        (Request(np.zeros((2, 3))), "centres has 3 parameters, this model has 2"),
        (Request(np.zeros((2, 2)), np.zeros((1, 5))), "for_all has 5 parameters"),
        (Request(np.zeros((2, 2)), np.zeros((2, 2))), "for_all must be one model"),
        (Request(np.full((2, 2), np.nan)), "centres must be a table of finite numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            client(Message(request.record(), dst_node_id=1, message_type="evaluate"), context)
    with pytest.raises(ValueError, match="cannot be read"):
        client(Message(RecordDict({}), dst_node_id=1, message_type="evaluate"), context)
    with pytest.raises(ValueError, match="its held-out rows hold 2"):
        Site(linear_regression(clients), Clients(np.ones((2, 2)), np.zeros(2), np.array([1, 1])))
    fine = client(Message(Request(np.zeros((2, 2))).record(), dst_node_id=1, message_type="evaluate"), context)
    assert fine.content.metric_records["report"]["test_samples"] == 0


def nothing(question: Message, honest: Message) -> Message | None:
    return None if question.metadata.message_type == "evaluate" else honest


def failing(question: Message, honest: Message) -> Message:
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "no handler\nTraceback"), reply_to=question)


HOSTILE: dict[str, tuple[Fault, str]] = {
    "nan": (reporting(**{"loss.personal": math.nan}), "loss.personal must be finite, got nan"),
    "infinite": (reporting(target_mean=-math.inf), "target_mean must be finite, got -inf"),
    "absurd": (reporting(**{"loss.cluster": 1e300}), "loss.cluster must be from 0 to 1e+100, got 1e+300"),
    "better than possible": (reporting(**{"loss.local": -1.0}), "loss.local must be from 0 to 1e+100, got -1"),
    "wrong shape": (reporting(**{"loss.personal": [0.1, 0.2]}), "loss.personal must be a number, got a list"),
    "missing": (reporting(target_variance=None), "target_variance must be a number, got nothing"),
    "variance below 0": (reporting(target_variance=-1e-9), "target_variance must be from 0 to 1e+100, got -1e-09"),
    "error below 0": (reporting(error=-1.0), "error must be from 0 to 1e+100, got -1"),
    "cluster": (reporting(cluster=2), "cluster must be from 0 to 1, got 2"),
    "half a cluster": (reporting(cluster=0.5), "cluster must be a whole number, got 0.5"),
    "samples": (reporting(test_samples=-1), "test_samples must be from 0"),
    "no record": (lambda question, honest: changed_to(question, RecordDict({})), "no numbers (KeyError)"),
    "an error": (failing, "the site says: no handler"),
    "silent": (nothing, "no report"),
    "another node's name": (FAULTS["another node's name"][0], "came from node 5"),
    "cannot be taken apart": (FAULTS["cannot be taken apart"][0], "cannot be taken apart (ValueError)"),
}  # fmt: skip


def changed_to(question: Message, content: RecordDict) -> Message:
    reply = Message(content, reply_to=question)
    reply.metadata.__dict__["_src_node_id"] = question.metadata.dst_node_id
    return reply


def small_sites(classes: bool = False) -> tuple[Any, np.ndarray]:
    """The app of nine sites in two clusters, each with twelve rows of which three are held out, and the centres."""
    rng, centres = np.random.default_rng(5), np.array([[2.0, 0.0], [-2.0, 1.0]])
    x = rng.standard_normal((108, 2))
    y = (x * np.repeat(centres[np.arange(9) % 2], 12, axis=0)).sum(axis=1) + 0.3 * rng.standard_normal(108)
    rest, held = hold_out(Clients(x, (y > 0) * 1.0 if classes else y, np.full(9, 12)), 0.25, rng)
    assert held is not None
    build = logistic_regression if classes else linear_regression

    def load(context: Context) -> Site:
        number = [int(context.node_config["partition-id"])]
        return Site(build(rest.take(number)), held.clients.take(number))

    return client_app(load, guarded=False), centres


@pytest.mark.parametrize("name", HOSTILE)
def test_a_report_that_is_not_as_it_must_be_is_refused_with_a_reason(name: str) -> None:
    """The summary is that of the other sites alone."""
    fault, reason = HOSTILE[name]
    client, centres = small_sites()
    options: dict[str, Any] = {"max_byzantine": 0.1, "score": "r2", "deadline": 0.3}
    found = evaluate_sites(InProcessGrid(client, range(9), {4: fault}), centres, **options)
    assert [*found.refused] == [4]
    assert found.refused[4].startswith(reason)
    assert found.rows()[4]["report"] == found.refused[4]
    without = evaluate_sites(InProcessGrid(client, [0, 1, 2, 3, 5, 6, 7, 8]), centres, **options)
    assert found.summary == without.summary
    assert any(("no report came from 4" if name == "silent" else "1 refused:") in line for line in found.lines())


def test_an_accuracy_above_1_is_refused() -> None:
    client, centres = small_sites(classes=True)
    faults = {2: reporting(**{"accuracy.personal": 1.5})}
    found = evaluate_sites(InProcessGrid(client, range(9), faults), centres, score="accuracy")
    assert found.refused == {2: "accuracy.personal must be from 0 to 1, got 1.5"}
    assert 0.5 < found.summary["personal"]["test_score"] <= 1.0
    with pytest.raises(ValueError, match=r"max_byzantine must be at least 0 and less than 0.5, got 2"):
        evaluate_sites(InProcessGrid(client, range(9)), centres, max_byzantine=2)
    assert "test accuracy" in evaluation_lines(found)[0]


def report(loss: float, mean: float = 0.0, variance: float = 1.0, better: float = 0.0) -> Report:
    return Report(0, 9, 3, {"cluster": loss, "personal": loss, "local": loss + better}, {}, mean, variance, 0.1)


def evaluation(reports: Mapping[int, Report], bound: int, score: Any = "r2") -> Evaluation:
    names = tuple(map(str, range(len(reports))))
    return Evaluation(names, reports, {}, bound, score, ("cluster", "personal", "local"))


NUMBERS = st.floats(0.0, 1e3)
ANY = st.one_of(st.floats(0.0, LARGEST), st.sampled_from([0.0, LARGEST]))


@given(
    honest=st.lists(st.tuples(NUMBERS, st.floats(-1e3, 1e3), NUMBERS), min_size=3, max_size=9),
    hostile=st.lists(st.tuples(ANY, st.one_of(ANY, ANY.map(lambda v: -v)), ANY), min_size=1, max_size=3),
)
def test_hostile_reports_move_the_summary_no_further_than_the_trimming_allows(
    honest: list[tuple[float, float, float]], hostile: list[tuple[float, float, float]]
) -> None:
    """Between the means of the lowest and of the highest honest values that can be left after trimming."""
    bound, n = len(hostile), len(honest) + len(hostile)
    if 2 * bound >= n:
        return
    rows = [report(*numbers) for numbers in [*honest, *hostile]]
    assert all(isinstance(admit_report(r.numbers(), clusters=1, models=["cluster"], score="r2"), Report) for r in rows)
    found = evaluation(dict(enumerate(rows)), bound)
    kept = n - 2 * bound

    def ends(values: list[float]) -> tuple[float, float]:
        ordered = np.sort(values)
        return float(ordered[:kept].mean()), float(ordered[-kept:].mean())

    slack = 1e-6
    low, high = ends([loss for loss, _, _ in honest])
    assert low - slack <= found.summary["cluster"]["test_loss"] <= high + slack
    middles = ends([mean for _, mean, _ in honest])
    smallest = ends([variance for _, _, variance in honest])[0]
    largest = ends([v + max((mean - middle) ** 2 for middle in middles) for _, mean, v in honest])[1]
    assert smallest - slack <= found.target_spread <= largest * (1 + 1e-9) + slack
    if smallest > 1e-3:
        assert 1 - high / smallest - slack <= found.summary["cluster"]["test_score"] <= 1 - low / largest + slack
        assert found.summary["cluster"]["test_worst"] <= 1 - low / largest + slack


def test_the_summary_by_hand() -> None:
    """Losses 1, 2, 3, 10, 0 with the target means 0, 0, 2, 99, 1 and the variances 1, 1, 4, 99, 0; one is left out."""
    numbers = [(1.0, 0.0, 1.0), (2.0, 0.0, 1.0), (3.0, 2.0, 4.0), (10.0, 99.0, 99.0), (0.0, 1.0, 0.0)]
    found = evaluation({i: report(*values) for i, values in enumerate(numbers)}, 1)
    assert found.summary["cluster"]["test_loss"] == pytest.approx(2.0)
    # the trimmed mean of the target means is 1: deviations 1+1, 1+1, 4+1, 99+98², 0+0
    assert found.target_spread == pytest.approx(3.0)
    assert found.scores["cluster"].r2 == pytest.approx([2 / 3, 1 / 3, 0.0, -7 / 3, 1.0])
    assert found.summary["cluster"]["test_score"] == pytest.approx(1 / 3)
    assert found.summary["cluster"]["test_worst"] == pytest.approx(0.0)


def test_the_sentence_counts_by_the_standard_errors_that_the_sites_report() -> None:
    reports = {i: report(1.0, better=value) for i, value in enumerate((0.2, 0.05, -0.2, 0.3))}
    assert evaluation(reports, 1).comparison.sentence("alone").startswith("2 of 4 clients are better off than alone, 1")


def test_few_reports_give_a_median_and_are_named() -> None:
    reports = {0: report(1.0), 1: report(2.0), 2: report(50.0), 3: Report(0, 3)}
    names = ("oslo", "bern", "rome", "lima", "kiev")
    found = Evaluation(names, reports, {4: "no report"}, 2, "r2", ("cluster", "personal", "local"))
    assert found.summary["cluster"]["test_loss"] == 2.0
    text = "\n".join(evaluation_lines(found))
    assert "as 3 of 5 sites report them\n2 of them may be Byzantine" in text
    assert "the means are medians, which 2 false ones can decide" in text
    assert "no report came from kiev" in text
    assert "too few samples to hold any out at lima" in text
    nobody = Evaluation(names[:1], {}, {0: "no report"}, 0, "r2", ("cluster",))
    assert nobody.as_dict()["models"]["cluster"] == {"test_loss": None, "test_score": None, "test_worst": None}


def test_sites_have_their_names_in_the_table(tmp_path: Path) -> None:
    """As a deployment's start script notes them, beside the folder of the results."""
    client, centres = small_sites()
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "oslo.json").write_text('{"node-id": "4"}')
    found = evaluate_sites(InProcessGrid(client, [3, 4, 5]), centres, folder=tmp_path / "out", max_clients=3)
    assert found.names == ("0", "oslo", "2")
    rows = list(csv.DictReader((tmp_path / "out" / "clients.csv").read_text().splitlines()))
    assert [row["client"] for row in rows] == ["0", "oslo", "2"]


def test_a_request_for_reports_leaves_the_answers_of_the_round_alone() -> None:
    client, centres = small_sites()
    network = FlowerNetwork(InProcessGrid(client, range(9)), ClientNumbers(9), deadline=1.0)
    network.gradients(centres, 0)
    before = dict(network.received)
    assert len(network.reports(Request(centres))) == 9
    assert network.received == before


def test_a_task_alone_is_a_site_without_held_out_rows() -> None:
    clients = Clients(np.ones((4, 1)), np.arange(4.0), np.array([4]))
    client = client_app(lambda context: linear_regression(clients), guarded=False)
    found = evaluate_sites(InProcessGrid(client, range(2)), np.zeros((1, 1)), score="r2")
    assert found.tested == []
    assert math.isnan(found.summary["cluster"]["test_loss"])
    assert "too few samples to hold any out at 0, 1" in "\n".join(found.lines())
    assert respond_to(Question("size", -1, np.zeros((1, 1))), linear_regression(clients)).samples == 4


def test_metric_records_hold_what_the_hostile_reports_send() -> None:
    """Else the cases above would test Flower and not the server."""
    assert math.isnan(float(MetricRecord({"a": math.nan})["a"]))  # type: ignore[arg-type]
    assert MetricRecord({"a": [0.1]})["a"] == [0.1]
