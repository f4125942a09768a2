"""What a malicious server learns from a site: single rows without the policy, none with it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from coterie._src.data import Clients, Federation
from coterie._src.experiments.toml import toml_value
from coterie._src.federation import Question, Site, client_app, site_log
from coterie._src.federation.audit import audit_clients
from coterie._src.federation.checkpoint import Checkpoint
from coterie._src.federation.client import respond_to
from coterie._src.federation.guard import Guard
from coterie._src.federation.messages import DECLINED, OWN_CHOICE, SITE_ERROR, Answer, read_answer, refusal_record
from coterie._src.federation.privacy import epsilon_of
from coterie._src.federation.site_log import ANSWERED, HOUR, LOG, SiteLog
from coterie._src.federation.site_policy import (
    REFUSALS,
    History,
    SiteFacts,
    SitePolicy,
    judge,
    policy_as_toml,
    read_policy,
    rows_behind,
)
from coterie._src.federation.site_reports import Request
from coterie._src.tasks import linear_regression, logistic_regression
from in_process import InProcessGrid
from small_federation import CLIENTS, app, centres_of, strategy

DIM = 4
Ask = Callable[[Question], Answer]


def patients(count: int, seed: int = 0) -> Clients:
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.standard_normal((count, DIM - 1)), np.ones(count)])
    return Clients(x, x @ [1.0, -2.0, 0.5, 3.0] + rng.standard_normal(count), np.array([count]))


def rows_of(clients: Clients) -> np.ndarray:
    """The rows with their targets."""
    return np.column_stack([clients.features, np.asarray(clients.targets)])


class Refused(Exception):
    """The site declines."""


def asking(client: ClientApp, config: dict[str, Any] | None = None) -> Ask:
    def ask(question: Question) -> Answer:
        message = Message(question.record(), dst_node_id=1, message_type="train")
        answer, fault = read_answer(client(message, Context(1, 1, config or {}, RecordDict(), {})))
        if fault:
            raise Refused(fault)
        return answer

    return ask


def site_asking(clients: Clients, *, guarded: bool = True, policy: Path | None = None) -> Ask:
    client = client_app(lambda context: linear_regression(clients), guarded=guarded)
    return asking(client, {} if policy is None else {"policy": str(policy)})


# --- attacks ------------------------------------------------------------------------------------------


def quadratic_centres() -> np.ndarray:
    """Centres at which the values of a quadratic function determine it."""
    unit = np.eye(DIM)
    pairs = [unit[i] + unit[j] for i, j in combinations_with_replacement(range(DIM), 2) if i != j]
    return np.array([np.zeros(DIM), *unit, *-unit, *pairs])


def row_from_losses(losses: np.ndarray) -> np.ndarray:
    """The row (x, y) whose squared errors at these centres these are, where the last entry of x is 1."""
    at_zero, plus, minus = losses[0], losses[1 : DIM + 1], losses[DIM + 1 : 2 * DIM + 1]
    mixed = -(plus - minus) / 4  # x·y
    pairs = [pair for pair in combinations_with_replacement(range(DIM), 2) if pair[0] != pair[1]]
    with_last = {i: losses[2 * DIM + 1 + pairs.index((i, DIM - 1))] for i in range(DIM - 1)}
    x = [(value - plus[i] - plus[DIM - 1] + at_zero) / 2 for i, value in with_last.items()]  # x_i·1
    return np.array([*x, 1.0, mixed[DIM - 1]])


def rebuilt_by_tiny_parts(ask: Ask, count: int) -> list[np.ndarray]:
    """Every row, from parts of one sample: gradients of one half of the rows, losses of the other."""
    found, parts = [], count // 2
    for index in range(parts):
        try:
            gradient = ask(Question("gradient", 0, np.zeros((1, DIM)), 0, (index, parts))).update
            found.append(np.append(gradient / gradient[-1], -gradient[-1] / 2))
            found.append(row_from_losses(ask(Question("loss", 0, quadratic_centres(), part=(index, parts))).update))
        except Refused:
            continue
    return found


def count_rebuilt(clients: Clients, found: list[np.ndarray]) -> int:
    return sum(any(np.allclose(row, one, atol=1e-6) for one in found) for row in rows_of(clients))


def test_tiny_parts_rebuild_every_row_without_a_policy_and_none_with_it() -> None:
    clients = patients(40)
    assert count_rebuilt(clients, rebuilt_by_tiny_parts(site_asking(clients, guarded=False), 40)) == 40
    assert rebuilt_by_tiny_parts(site_asking(clients), 40) == []


def row_between_partitions(ask: Ask, samples: int) -> np.ndarray | None:
    """Row 156, from two partitions of 1,000 rows into parts of at least 26: they have cuts at 156 and at 157."""
    totals = []
    for pieces, last in ((32, 5), (38, 6)):
        cuts = [samples * i // pieces for i in range(last + 1)]
        assert min(np.diff(cuts)) >= 26
        total = 0.0
        for piece in range(last):
            question = Question(
                "loss", 0, quadratic_centres(), part=(piece // 2, pieces // 2), computing=bool(piece % 2)
            )
            total = total + (cuts[piece + 1] - cuts[piece]) * ask(question).update
        totals.append(total)
    return row_from_losses(totals[1] - totals[0])


def test_two_partitions_tell_a_row_without_a_policy_and_not_with_it() -> None:
    clients = patients(1000)
    found = row_between_partitions(site_asking(clients, guarded=False), 1000)
    np.testing.assert_allclose(found, rows_of(clients)[156], atol=1e-6)
    with pytest.raises(Refused, match="overlap"):
        row_between_partitions(site_asking(clients), 1000)


def test_a_row_that_is_added_is_told_without_a_policy_and_not_with_it(tmp_path: Path) -> None:
    before, after = patients(60), patients(61)
    before = after.of_samples(np.arange(60), np.array([60]), after.names)
    question = Question("gradient", 0, np.zeros((1, DIM)), 0)
    first, second = (site_asking(clients, guarded=False)(question).update for clients in (before, after))
    new = 61 * second - 60 * first
    np.testing.assert_allclose(np.append(new / new[-1], -new[-1] / 2), rows_of(after)[60], atol=1e-6)
    policy = tmp_path / "site.toml"
    policy.write_text("")
    site_asking(before, policy=policy)(question)
    with pytest.raises(Refused, match="rows changed"):
        site_asking(after, policy=policy)(question)
    policy.write_text("row_sets = 2\n")  # the administrator allows it
    assert np.isfinite(site_asking(after, policy=policy)(question).update).all()


def test_differencing_at_slowly_changing_centres_ends() -> None:
    ask, answered, reasons = site_asking(patients(60)), 0, set()
    for round in range(1000):
        try:
            ask(Question("gradient", round, np.full((1, DIM), 1e-6 * round), 0))
            answered += 1
        except Refused as refused:
            reasons.add(str(refused))
    assert reasons == {f"{DECLINED}questions per run"}
    assert answered == SitePolicy().questions_per_run == 500


def test_a_site_with_few_rows_answers_nothing() -> None:
    for rows in (1, 19):
        for kind in ("gradient", "loss", "minimiser", "curvature", "hessian", "size"):
            with pytest.raises(Refused, match="too few samples"):
                site_asking(patients(rows))(Question(kind, 0, np.zeros((1, DIM)), 0))  # type: ignore[arg-type]
    assert site_asking(patients(20))(Question("gradient", 0, np.zeros((1, DIM)))).samples == 20


def test_scores_on_few_held_out_rows_are_not_reported() -> None:
    for held, reported in ((9, 0), (10, 10)):
        client = client_app(lambda context, held=held: Site(linear_regression(patients(40)), patients(held, 1)))
        message = Message(Request(np.zeros((1, DIM))).record(), dst_node_id=1, message_type="evaluate")
        report = client(message, Context(1, 1, {}, RecordDict(), {})).content.metric_records["report"]
        assert report["test_samples"] == reported
        assert ("loss.cluster" in report) == bool(reported)


def test_the_rules_do_not_stop_two_questions_about_classes_but_noise_does(tmp_path: Path) -> None:
    """The limit that docs/policy.md names: logistic models that are certain of all samples but one, on either side.

    Two full-batch gradients at them differ by one sample, whose row is read off with the intercept.
    """
    clients = patients(200)
    clients = Clients(clients.features, (np.asarray(clients.targets) > 3) * 1.0, clients.sizes)
    order = np.argsort(clients.features[:, 0])
    first = clients.features[order, 0]

    def difference(policy: Path) -> np.ndarray:
        ask = asking(client_app(lambda context: logistic_regression(clients)), {"policy": str(policy)})
        updates = []
        for place in (100, 101):
            centre = np.zeros((1, DIM))
            centre[0, 0], centre[0, -1] = 1e6, -1e6 * (first[place - 1] + first[place]) / 2
            updates.append(ask(Question("gradient", 0, centre, 0)).update)
        found: np.ndarray = updates[0] - updates[1]
        return found / found[-1]

    for name, text in (("rules", ""), ("noise", "clip = 1.0\nnoise = 5.0\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "site.toml").write_text(text)
    row = clients.features[order[100]]
    np.testing.assert_allclose(difference(tmp_path / "rules" / "site.toml"), row, atol=1e-6)
    assert np.abs(difference(tmp_path / "noise" / "site.toml") - row).max() > 0.01


# --- rules, one by one --------------------------------------------------------------------------------

ZEROS = np.zeros((2, DIM))
FACTS = SiteFacts(100, "a", DIM)
CASES: dict[str, tuple[Question | Request, dict[str, Any], History, str | None]] = {
    "fine": (Question("gradient", 0, ZEROS), {}, History(), None),
    "huge k": (Question("loss", 0, np.zeros((1001, DIM))), {}, History(), "centres"),
    "k as large as allowed": (Question("loss", 0, np.zeros((1000, DIM))), {}, History(), None),
    "no centres": (Question("gradient", 0, np.zeros((0, DIM))), {}, History(), "centres"),
    "no centres of a size": (Question("size", 0, np.zeros((0, 1))), {}, History(), "centres"),
    "another length": (Question("minimiser", 0, np.zeros((2, 3))), {}, History(), "centres"),
    "no length": (Question("gradient", 0, np.zeros((2, 0))), {}, History(), "centres"),
    "a size is about no model": (Question("size", 0, np.zeros((1, 1))), {}, History(), None),
    "3e38": (Question("gradient", 0, np.full((1, DIM), 3e38, np.float32)), {}, History(), "malformed"),
    "nan": (Question("gradient", 0, np.full((1, DIM), np.nan)), {}, History(), "malformed"),
    "half precision": (Question("gradient", 0, ZEROS.astype(np.float16)), {}, History(), "malformed"),
    "nan ridge": (Question("minimiser", 0, ZEROS, ridge=np.nan), {}, History(), "malformed"),
    "negative ridge": (Question("minimiser", 0, ZEROS, ridge=-1.0), {}, History(), "malformed"),
    "infinite ridge": (Question("minimiser", 0, ZEROS, ridge=np.inf), {}, History(), "malformed"),
    "label": (Question("gradient", 0, ZEROS, 2), {}, History(), "malformed"),
    "negative label": (Question("gradient", 0, ZEROS, -2), {}, History(), "malformed"),
    "hessian of no model": (Question("hessian", 0, ZEROS, -1), {}, History(), "malformed"),
    "a report among the questions": (Question("report", 0, ZEROS), {}, History(), "malformed"),  # type: ignore[arg-type]
    "no parts": (Question("gradient", 0, ZEROS, part=(0, 0)), {}, History(), "part"),
    "part after the last": (Question("gradient", 0, ZEROS, part=(2, 2)), {}, History(), "part"),
    "negative part": (Question("gradient", 0, ZEROS, part=(-1, 2)), {}, History(), "part"),
    "very many parts": (Question("gradient", 0, ZEROS, part=(0, 2**62)), {}, History(), "too_few_samples"),
    "parts of 25": (Question("gradient", 0, ZEROS, part=(0, 2)), {}, History(), None),
    "parts of 16": (Question("gradient", 0, ZEROS, part=(0, 3)), {}, History(), "too_few_samples"),
    "a part of 16 of a curvature": (Question("curvature", 0, ZEROS, part=(0, 3)), {}, History(), "too_few_samples"),
    "a minimiser of 16": (Question("minimiser", 0, ZEROS, part=(1, 3)), {}, History(), "too_few_samples"),
    "a loss of 16": (Question("loss", 0, ZEROS, part=(1, 3)), {}, History(), "too_few_samples"),
    "another partition": (
        Question("loss", 0, ZEROS, part=(0, 1)), {}, History(cuts=frozenset({25, 49})), "overlap",
    ),
    "the same partition": (Question("loss", 0, ZEROS, part=(0, 1)), {}, History(cuts=frozenset({25, 75})), None),
    "other rows": (Question("size", 0, ZEROS), {}, History(row_sets=frozenset("b")), "rows_changed"),
    "other rows, allowed": (Question("size", 0, ZEROS), {"row_sets": 2}, History(row_sets=frozenset("b")), None),
    "the same rows": (Question("size", 0, ZEROS), {}, History(row_sets=frozenset("a")), None),
    "kind": (Question("hessian", 0, ZEROS, 0), {"kinds": ["gradient"]}, History(), "kind"),
    "a report": (Request(ZEROS), {"kinds": ["gradient"]}, History(), "kind"),
    "a report of no models": (Request(np.zeros((0, DIM))), {}, History(), "centres"),
    "a report of a model for all": (Request(ZEROS, np.full((1, DIM), 1e30)), {}, History(), "malformed"),
    "a run": (Question("size", 0, ZEROS), {}, History(in_run=500), "questions_per_run"),
    "an hour": (Question("size", 0, ZEROS), {}, History(in_hour=2000), "questions_per_hour"),
    "in all": (Question("size", 0, ZEROS), {}, History(in_all=10_000), "questions_in_all"),
    "just below": (Question("size", 0, ZEROS), {}, History(499, 1999, 9999), None),
    "a report with noise": (Request(ZEROS), {"clip": 1.0, "noise": 9.0}, History(), "not_private"),
    "a size costs nothing": (
        Question("size", 0, ZEROS), {"clip": 1.0, "noise": 1.0, "epsilon": 0.1}, History(spent=9.0), None,
    ),
    "spent": (
        Question("loss", 0, ZEROS), {"clip": 1.0, "noise": 100.0, "epsilon": 0.1}, History(spent=9.0), "budget",
    ),
    "no bound on epsilon": (Question("loss", 0, ZEROS), {"clip": 1.0, "noise": 1.0}, History(spent=9.0), None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_rule(name: str) -> None:
    question, rules, history, expected = CASES[name]
    assert judge(SitePolicy.model_validate(rules), question, FACTS, history) == expected


@pytest.mark.parametrize("kind", ["gradient", "loss", "minimiser", "curvature", "hessian", "size"])
@pytest.mark.parametrize("computing", [False, True])
@pytest.mark.parametrize("label", [OWN_CHOICE, 0])
def test_no_other_samples_are_behind_an_answer(kind: Any, computing: bool, label: int) -> None:
    """The answer is the same whatever the samples outside the ranges are; only the loss for the audit is of all."""
    clients = patients(80)
    question = Question(kind, 0, np.array([[0.0] * DIM, [1.0] * DIM]), max(label, 0) if kind == "hessian" else label)
    question = question._replace(part=(1, 2), computing=computing)
    behind = np.zeros(80, dtype=np.bool_)
    for low, high in rows_behind(question, 80):
        behind[low:high] = True
    features = np.where(behind[:, None], clients.features, 7.0)
    others = Clients(features, np.where(behind, clients.targets, -7.0), clients.sizes)
    one, other = (respond_to(question, linear_regression(given)) for given in (clients, others))
    np.testing.assert_array_equal(one.update, other.update)
    assert one.label == other.label


@pytest.mark.parametrize("clusters", [1, 2])
def test_the_budget_ends_with_the_last_answer_that_it_allows(clusters: int, tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text("clip = 1.0\nnoise = 4.0\nepsilon = 3.0\n")
    ask, answered, reasons = site_asking(patients(50), policy=path), 0, set()
    for round in range(30):
        try:
            ask(Question("gradient", round, np.zeros((clusters, DIM))))
            answered += 1
        except Refused as refused:
            reasons.add(str(refused))
    assert reasons == {f"{DECLINED}budget"}
    each = np.sqrt(clusters) * 2 / 4
    assert epsilon_of(each * np.sqrt(answered), 1e-6) <= 3.0 < epsilon_of(each * np.sqrt(answered + 1), 1e-6)
    assert ask(Question("size", 0, np.zeros((1, 1)))).update == 50


def message_of(settings: dict[str, Any], centres: np.ndarray) -> Message:
    content = Question("gradient", 0, ZEROS).record()
    content["question"] = ConfigRecord({**content.config_records["question"], **settings})
    content["centres"] = ArrayRecord({"centres": Array(centres)})
    return Message(content, dst_node_id=1, message_type="train")


@pytest.mark.parametrize(
    ("settings", "centres"),
    [
        ({"ridge": float("nan")}, ZEROS),
        ({"round": float("inf")}, ZEROS),
        ({"kind": "rows"}, ZEROS),
        ({"kind": b"\x00"}, ZEROS),
        ({"part": [1]}, ZEROS),
        ({"part": [0.5, float("nan")]}, ZEROS),
        ({}, np.zeros((0, DIM))),
        ({}, np.full((1, DIM), 3e38, np.float32)),
        ({}, np.zeros(DIM)),
        ({}, np.array([["x"]])),
        ({"kind": "minimiser", "label": 2**62, "round": -(2**62)}, np.zeros((20_000, DIM))),
    ],
)
def test_no_message_raises_an_error_at_a_site(settings: dict[str, Any], centres: np.ndarray) -> None:
    client = client_app(lambda context: linear_regression(patients(40)))
    reply = client(message_of(settings, centres), Context(1, 1, {}, RecordDict(), {}))
    assert reply.content.config_records["refusal"]["code"] in ("malformed", "centres")


# --- the file and the log -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("min_sample = 3", "site.toml: min_sample: unknown key; did you mean min_samples?"),
        ("min_samples = 0", "site.toml: min_samples: be greater than or equal to 1, got 0"),
        ("min_samples = nan", "site.toml: min_samples: "),
        ('kinds = ["gradients"]', "site.toml: kinds: "),
        ("noise = 1.0", "site.toml: noise: needs clip"),
        ("clip = 1.0\nepsilon = 1.0", "site.toml: epsilon: needs noise"),
        ("[policy", "is not TOML"),
    ],
)
def test_a_policy_that_is_wrong_is_one_line_and_answers_nothing(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        read_policy(path)
    assert "\n" not in str(raised.value)
    with pytest.raises(Refused, match="site error"):
        site_asking(patients(100), policy=path)(Question("size", 0, np.zeros((1, 1))))
    path.unlink()
    with pytest.raises(Refused, match="site error"):
        site_asking(patients(100), policy=path)(Question("size", 0, np.zeros((1, 1))))


def test_the_file_of_a_deployment_is_the_default_policy(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(policy_as_toml(300))
    assert read_policy(path) == SitePolicy()
    path.write_text(re.sub(r"^# (\w+ = .+)$", r"\1", policy_as_toml(300), flags=re.MULTILINE))
    assert read_policy(path) == SitePolicy()
    path.write_text(policy_as_toml(2000))
    assert read_policy(path) == SitePolicy(questions_per_run=2200)


def test_the_page_has_every_rule_and_every_refusal() -> None:
    page = (Path(__file__).parents[2] / "docs" / "policy.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", page, flags=re.MULTILINE)
    for name, field in SitePolicy.model_fields.items():
        shown = "all" if name == "kinds" else "not set" if field.default is None else f"`{toml_value(field.default)}`"
        assert (name, f"{shown} | {field.description}") in rows
    assert set(REFUSALS.items()) <= set(rows)


def test_the_log_outlives_the_process_and_belongs_to_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message of a real federation comes to a new process, here a new app."""
    path = tmp_path / "site.toml"
    path.write_text("questions_per_run = 2\nquestions_in_all = 3\n")
    clients = patients(50)
    before = os.umask(0)
    try:
        results = []
        for run in (1, 1, 1, 2, 2):
            monkeypatch.setattr(TaskIdentity, "_run_id", run)
            try:
                site_asking(clients, policy=path)(Question("gradient", 7, np.zeros((2, DIM)), part=(0, 1)))
                results.append(ANSWERED)
            except Refused as refused:
                results.append(str(refused).removeprefix(DECLINED).replace(" ", "_"))
    finally:
        os.umask(before)
    assert results == [ANSWERED, ANSWERED, "questions_per_run", ANSWERED, "questions_in_all"]
    assert stat.S_IMODE((tmp_path / LOG).stat().st_mode) == 0o600
    entries = SiteLog(tmp_path / LOG).entries(10)
    assert [entry.code for entry in entries] == results
    assert [entry.run for entry in entries] == ["1", "1", "1", "2", "2"]
    first = entries[0]
    assert (first.kind, first.round, first.part, first.centres) == ("gradient", 7, "0 of 1", "2x4")
    assert (first.samples, first.numbers) == (25, 4)
    answer = respond_to(Question("gradient", 7, np.zeros((2, DIM)), part=(0, 1)), linear_regression(clients))
    assert first.norm == pytest.approx(np.linalg.norm(answer.update))
    assert entries[2].numbers is None


def test_a_site_without_a_policy_keeps_its_log_beside_its_models(tmp_path: Path) -> None:
    for samples in (50, 51):
        client = client_app(lambda context, samples=samples: linear_regression(patients(samples)))
        ask = asking(client, {"models": str(tmp_path / "oslo" / "models")})
        if samples == 50:
            ask(Question("size", 0, np.zeros((1, 1))))
        else:
            with pytest.raises(Refused, match="rows changed"):
                ask(Question("size", 0, np.zeros((1, 1))))
    assert [entry.code for entry in SiteLog(tmp_path / "oslo" / LOG).entries(10)] == [ANSWERED, "rows_changed"]


def test_a_log_that_others_may_read_is_made_private(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text("")
    (tmp_path / LOG).touch(0o644)
    site_asking(patients(50), policy=tmp_path / "site.toml")(Question("size", 0, np.zeros((1, 1))))
    assert stat.S_IMODE((tmp_path / LOG).stat().st_mode) == 0o600


def test_the_log_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text("")
    (tmp_path / LOG).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused, match="site error"):
        site_asking(patients(50), policy=tmp_path / "site.toml")(Question("size", 0, np.zeros((1, 1))))
    assert not (tmp_path / "elsewhere").exists()


def test_what_the_log_knows_of_earlier_answers() -> None:
    log, question = SiteLog(None), Question("loss", 0, ZEROS, part=(0, 2))
    with log.locked() as connection:
        for now, run, code, rows in (
            (0.0, "old", ANSWERED, "a"), (10.0, "now", ANSWERED, "a"), (20.0, "now", "kind", "a"),
            (HOUR + 5.0, "now", ANSWERED, "b"),
        ):  # fmt: skip
            log.add(connection, question, FACTS._replace(rows=rows), run=run, now=now, code=code, cost=0.5)
        found = log.history(connection, "now", "a", HOUR + 5.0)
        assert found == History(2, 2, 3, frozenset({0, 25}), frozenset("ab"), 1.5)
        assert log.history(connection, "new", "c", 3 * HOUR) == History(0, 0, 3, frozenset(), frozenset("ab"), 1.5)


def test_questions_at_the_same_time_do_not_pass_a_limit_together(tmp_path: Path) -> None:
    clients = patients(50)
    guard = Guard(SitePolicy(questions_per_run=5), SiteLog(tmp_path / LOG))

    def ask(number: int) -> bool:
        question = Question("loss", number, ZEROS)
        record = guard.reply(
            lambda: question,
            lambda: Site(linear_regression(clients)),
            lambda asked, site: (RecordDict({}), 0, 0.0),
            "1",
        )
        return "refusal" not in record

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(24))) == 5


def test_refusals_do_not_fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_log, "MAX_REFUSED", 20)
    log = SiteLog(None)
    with log.locked() as connection:
        log.add(connection, Question("size", 1, ZEROS), FACTS, run="1", now=0.0, code=ANSWERED)
        for round in range(299):
            log.add(connection, Question("size", round, ZEROS), FACTS, run="1", now=1.0, code="kind", detail="x" * 900)
    assert log.totals().codes == {ANSWERED: 1, "kind": 20}
    assert log.entries(1)[0].round == 298
    assert len(log.entries(1)[0].detail) == 500


# --- on the server ------------------------------------------------------------------------------------


def test_the_text_of_an_error_stays_at_the_site(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text("")

    def load(context: Context) -> Site:
        raise ValueError("row 17: 'J. Doe' is not a number")

    client = client_app(load)
    message = Message(Question("size", 0, np.zeros((1, 1))).record(), dst_node_id=1, message_type="train")
    reply = client(message, Context(1, 1, {"policy": str(tmp_path / "site.toml")}, RecordDict(), {}))
    assert dict(reply.content) == dict(refusal_record("site_error"))
    assert read_answer(reply)[1] == "the site says: site error (its own log has the reason)"
    (entry,) = SiteLog(tmp_path / LOG).entries(10)
    assert (entry.code, entry.detail) == ("site_error", "ValueError: row 17: 'J. Doe' is not a number")


def test_a_site_that_declines_is_named_in_the_audit_and_the_run_goes_on(
    drawn: Federation, start: np.ndarray, tmp_path: Path
) -> None:
    (tmp_path / "site.toml").write_text('kinds = ["size"]\n')
    grid = InProcessGrid(app(drawn), range(CLIENTS), configs={5: {"policy": str(tmp_path / "site.toml")}})
    centres_of(grid, start, strategy(rounds=3, folder=tmp_path / "federation", deadline=5.0))
    rows = Checkpoint(tmp_path / "federation").rows()
    assert {row["verdict"] for row in rows if row["client"] == 5} == {"declined"}
    assert {row["verdict"] for row in rows if row["client"] != 5} == {"accepted"}
    (found,) = [one for one in audit_clients(rows) if one.client == 5]
    assert found.reasons == ("declined to answer in 100% of the rounds (the site declines: kind)",)
    assert found.refused_fraction == 0.0


@pytest.mark.parametrize("code", ["\x1b[2J", "", "A" * 50, 7, "<b>"])
def test_a_code_from_a_hostile_site_is_not_repeated(code: Any) -> None:
    question = Message(Question("size", -1, np.zeros((1, 1))).record(), dst_node_id=1, message_type="train")
    reply = Message(RecordDict({"refusal": ConfigRecord({"code": code})}), reply_to=question)
    assert read_answer(reply)[1] == f"{DECLINED}for no known reason"


def test_every_refusal_has_the_form_that_a_server_shows() -> None:
    question = Message(Question("size", -1, np.zeros((1, 1))).record(), dst_node_id=1, message_type="train")
    for code in set(REFUSALS) - {SITE_ERROR}:
        reply = Message(refusal_record(code), reply_to=question)
        assert read_answer(reply)[1] == DECLINED + code.replace("_", " ")
