"""The pages of runs, sweeps and federations, without a browser."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command import coterie
from coterie._src.experiments import RunFolder, run_trials
from coterie._src.experiments.callbacks import RunInfo
from coterie._src.experiments.changes import Changes, ClusterChange
from coterie._src.experiments.methods import METHODS
from coterie._src.federation import certificates
from coterie._src.federation.checkpoint import Checkpoint
from coterie._src.federation.page import federation_page
from coterie._src.report.html import run_page, sweep_page
from coterie._src.report.run_record import read_run
from hostile import NAMES
from small_trials import small

VOID = {"meta", "br", "hr", "input"}
LARGEST = 1_500_000
"""Bytes of the page of a run with 200 clients, at most."""


class Document(HTMLParser):
    """A page as a parser reads it; fails where an element is not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), (tag, attrs)
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif self.open and self.open[-1] == "style":
            self.styles.append(data)
        else:
            self.texts.append(data)

    def with_tag(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


def check(text: str) -> Document:
    """What holds for every page: well-formed, self-contained, a policy that fits, a text for every figure."""
    found = Document(text)
    assert text.startswith("<!DOCTYPE html>")
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    for tag, attributes in found.tags:
        assert tag in KNOWN, tag
        assert not {"src", "srcset", "style", "action", "background"} & set(attributes), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        assert re.match("#|data:text/csv;base64,", attributes.get("href", "#")), attributes
        for name in ("aria-labelledby",):
            assert attributes.get(name, ids[0]) in ids, attributes
        if attributes.get("href", "").startswith("#"):
            assert attributes["href"][1:] in ids
    assert "url(" not in "".join(found.styles)
    assert "@import" not in "".join(found.styles)
    (policy,) = [m["content"] for m in found.with_tag("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    code = [script for script in found.scripts if not script.lstrip().startswith("{")]
    for part in (*found.styles, *code):
        assert base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() in policy
    assert len(code) == 1
    assert text.count("<figure") == text.count("<figcaption") == len(found.with_tag("figure"))
    for drawing in found.with_tag("svg"):
        assert drawing.get("aria-hidden") == "true" or len(drawing["aria-label"]) > 40, drawing
        assert "NaN" not in str(drawing)
    assert "nan" not in re.findall(r' (?:x|y|cx|cy|d|width|height|x1|y1)="[^"]*(nan|inf)', text)
    return found


KNOWN = {
    "html", "head", "meta", "title", "style", "body", "a", "header", "div", "button", "h1", "dl", "dt", "dd", "nav",
    "ul", "ol", "li", "main", "section", "h2", "h3", "p", "table", "thead", "tbody", "tr", "th", "td", "svg", "line",
    "rect", "circle", "path", "text", "tspan", "g", "figure", "figcaption", "span", "bdi", "strong", "label", "select",
    "option", "input", "output", "details", "summary", "pre", "code", "footer", "script",
}  # fmt: skip


def test_the_page_of_a_run_with_200_clients(paper_run: Path) -> None:
    text = (paper_run / "report.html").read_text(encoding="utf-8")
    found = check(text)
    assert len(text.encode()) < LARGEST
    titles = {attributes.get("id") for attributes in found.with_tag("section")}
    assert titles >= {"methods", "rounds", "clusters-of-clients", "clients", "diagnostics", "theory", "models",
                      "configuration"}  # fmt: skip
    for method in read_run(paper_run).methods:
        assert method in found.texts
    words = " ".join(found.texts)
    assert "two directions" in words
    assert "NO GUARANTEE" in words
    assert "worst contamination" in words
    assert (paper_run / "config.toml").read_text() in found.texts


def test_the_command_writes_the_same_page(paper_run: Path, tmp_path: Path) -> None:
    done = coterie("report", str(paper_run), "--out", str(tmp_path / "page.html"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == (paper_run / "report.html").read_bytes()


def test_the_numbers_of_the_page_are_those_of_the_summary(paper_run: Path) -> None:
    summary = json.loads((paper_run / "summary.json").read_text())["methods"]
    text = run_page(paper_run)
    for name, own in summary.items():
        mean, error = own["matched_dist"]["mean"], own["matched_dist"]["se"]
        assert f"{mean:.3f} ± {error:.3f}" in text, name
        assert f'data-key="{mean!r}"' in text, name


def test_contamination_is_that_of_the_clusters_that_are_claimed(paper_run: Path) -> None:
    """All 10 Byzantine clients claim the smallest cluster: its share there is as in rounds.csv, and 0 elsewhere."""
    with (paper_run / "rounds.csv").open(newline="") as stream:
        own = [row for row in csv.DictReader(stream) if (row["method"], row["trial"]) == ("ifca", "0")]
    last = [float(part) for part in own[-1]["contamination"].split()]
    assert sum(share > 0 for share in last) == 1
    text = run_page(paper_run)
    (found,) = [
        part for part in text.split("<table") if "claim, in the first trial of ifca;" in text.split(part)[0][-900:]
    ]
    shown = re.findall(r'cluster \d</th><td class="number" data-key="([^"]+)"', found.partition("</table>")[0])
    assert [float(share) for share in shown] == last


def test_hostile_names_stay_text(hostile_run: Path) -> None:
    text = (hostile_run / "report.html").read_text(encoding="utf-8")
    found = check(text)
    assert text.count("<script") == 2  # the data of the lines, and the page's own
    for name in NAMES:
        assert name in found.texts, name
        assert any(name in attributes.get("data-tip", "") for _, attributes in found.tags), name
    assert "{{" not in re.sub(r"\{\{(version|script)\}\}", "", text)
    titles = {attributes.get("id") for attributes in found.with_tag("section")}
    assert titles >= {"scores", "clients"}


@pytest.mark.parametrize(
    "lost", ["rounds.csv", "audit.csv", "assignments.csv", "directions.csv", "trials.csv", "centres"]
)
def test_what_a_folder_lacks_is_left_out(lost: str, paper_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(paper_run, copy)
    (copy / lost).unlink() if (copy / lost).is_file() else shutil.rmtree(copy / lost)
    check(run_page(copy))


def test_a_folder_that_is_none_is_one_line(tmp_path: Path, paper_run: Path) -> None:
    done = coterie("report", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "is the folder of no run, federation or sweep" in done.stderr
    (tmp_path / "summary.json").write_text('{"methods": 3}')
    done = coterie("report", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 2
    assert "is not the summary of a run" in done.stderr
    copy = tmp_path / "run"
    shutil.copytree(paper_run, copy)
    (copy / "config.toml").write_text("[run]\nmethods = ['of a package that is not here']\n")
    assert read_run(copy).config is None
    check(run_page(copy))


@pytest.mark.parametrize(
    ("file", "before", "after", "message"),
    [
        ("audit.csv", "trial,method,client,", "trial,method,who,", "audit.csv: client must be a column"),
        ("assignments.csv", "0,ifca,1,", "0,ifca,one,", "assignments.csv: round must be a column of whole numbers"),
        ("directions.csv", "first", "1st", "directions.csv: first must be a column"),
        ("summary.json", '"dist": {', '"dist": 3, "x": {', "summary.json: is not the summary of a run"),
        ("summary.json", "{", "[", "summary.json: is not the summary of a run"),
    ],
)
def test_a_file_that_somebody_has_edited_is_one_line(
    file: str, before: str, after: str, message: str, paper_run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(paper_run, copy)
    text = (copy / file).read_text(encoding="utf-8")
    assert before in text
    (copy / file).write_text(text.replace(before, after, 1), encoding="utf-8")
    done = coterie("report", str(copy), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=9), inner, max_size=2),
    max_leaves=5,
)


@given(data=st.data())
@settings(max_examples=40)
def test_any_other_summary_gives_a_page_or_one_line(data: st.DataObject, paper_run: Path) -> None:
    """One value of summary.json at any depth is another one."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for file in ("config.toml", "audit.csv", "trials.csv"):
            (copy / file).symlink_to(paper_run / file)
        summary = json.loads((paper_run / "summary.json").read_text())
        place = summary
        while True:
            key = data.draw(st.sampled_from(sorted(place)))
            if not isinstance(place[key], dict) or not place[key] or data.draw(st.booleans()):
                break
            place = place[key]
        place[key] = data.draw(ANY_JSON)
        (copy / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
        try:
            read_run(copy)
        except ValueError:
            return
        check(run_page(copy))


def test_what_has_changed_since_an_earlier_run_is_on_the_page(paper_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(paper_run, copy)
    changes = Changes(
        (ClusterChange(0, "changed", 4.25), ClusterChange(1, "died")), (("oslo", 0, 1),), ("rome",), (), ("<b>",),
        False, False,
    )  # fmt: skip
    summary = json.loads((copy / "summary.json").read_text()) | {"changes": {"0": changes.as_dict()}}
    (copy / "summary.json").write_text(json.dumps(summary))
    words = check(run_page(copy)).texts
    assert {"clusters: 0 changed (by 4.2 standard errors), 1 died", "oslo moved from 0 to 1", "joined: rome",
            "in no cluster: <b>"} <= set(words)  # fmt: skip


def test_a_run_under_way_has_a_page(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", small())
    folder.on_start(RunInfo("coterie run", 0))
    check(run_page(folder.path))
    folder.on_trial(next(iter(run_trials(small("run.trials=1")))))
    found = check(run_page(folder.path))
    assert "running" in found.texts
    assert "1 of 3" in found.texts


def test_the_page_of_a_sweep(finished: Path) -> None:
    found = check(sweep_page(finished))
    assert "Results" in found.texts
    assert any(name in found.texts for name in METHODS.names)


def test_the_page_of_an_arena_shades_by_the_ratio() -> None:
    kept = Path(__file__).parents[2] / "docs" / "results" / "arena"
    text = sweep_page(kept)
    check(text)
    row = re.search(r'<th scope="row">ifca</th>(.*?)</tr>', text)
    assert row is not None
    cells = re.findall(r'class="value s(\d)" data-key="([^"]+)"', row[1])
    shades = [int(shade) for shade, ratio in sorted(cells, key=lambda cell: float(cell[1]))]
    assert shades == sorted(shades)
    assert shades[0] == 0
    assert shades[-1] == 7


def reply(round: int, client: int, **changes: object) -> dict[str, object]:
    usual = {"verdict": "accepted", "label": client % 2, "loss": 0.5, "margin": 0.1, "trimmed": 0.1, "distance": 1.0,
             "samples": 20, "seconds": 0.25, "bytes": 1500, "fault": "", "node": str(100 + client)}  # fmt: skip
    return {"round": round, "client": client, **usual, **changes}


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    """A federation of eight sites over five rounds: one far off, one refused, one silent in the end; hostile names."""
    folder = tmp_path / "server" / "federation"
    checkpoint = Checkpoint(folder)
    with checkpoint._audit() as audit, audit:
        for t in range(1, 6):
            rows = [reply(t, client) for client in range(8)]
            rows[3]["distance"] = 9.0
            rows[4] |= {"verdict": "not_finite", "label": -1, "distance": None, "fault": NAMES[0], "seconds": None}
            if t > 3:
                rows[5] |= {"verdict": "silent", "label": -1, "distance": None, "seconds": None}
            for row in rows:
                names = ", ".join(row)
                audit.execute(f"INSERT INTO replies ({names}) VALUES ({', '.join('?' * len(row))})", list(row.values()))
    evaluation = {"score": "R²", "lines": ["held-out scores as 2 of 8 sites report them", NAMES[1]]}
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    (folder / "clients.csv").write_text(
        "client,cluster,cluster_score,report\noslo,0,0.9,accepted\nbern,1,0.7,accepted\n"
    )
    (tmp_path / "server" / "nodes").mkdir()
    (tmp_path / "server" / "nodes" / "<script>oslo.json").write_text('{"node-id": 103}')
    (tmp_path / "server" / "nodes" / "bern.json").write_text('{"node-id": 105}')
    return folder


def test_the_page_of_a_federation(federation: Path) -> None:
    text = federation_page(federation)
    found = check(text)
    words = "".join(found.texts)
    assert text.count("<script") == 1
    assert words.index("Sites worth a look") < words.index("client 4") < words.index("<script>oslo")
    assert "refused in 100% of the rounds (not finite" in words
    assert NAMES[0] in words
    assert "its update is 9.0 times as far" in words
    assert "silent in 40% of the rounds" in words
    assert "No reply in the last round from 1 sites" in words
    assert ["accepted in the last round", "6"] in [found.texts[i : i + 2] for i in range(len(found.texts))]
    tips = [attributes["data-tip"] for _, attributes in found.tags if "data-tip" in attributes]
    assert len(tips) == 8 * 5 + 2
    assert "oslo: 0.9\ncluster 0" in tips
    assert NAMES[1] in found.texts
    assert "bern, round 5: silent" in tips
    assert found.texts.count("7.5") == 8  # kilobytes of five answers
    assert "present in no round" not in words
    assert "certificates" not in words


def test_the_audit_and_the_page_of_a_federation_need_no_flower(federation: Path) -> None:
    hidden = "sys.modules['flwr'] = sys.modules['cryptography'] = None"
    code = f"import sys; {hidden}; from coterie._src.cli import entry; entry()"
    for command, message in (("audit", "bern"), ("report", "report.html")):
        arguments = [sys.executable, "-c", code, command, str(federation)]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert message in done.stdout


@pytest.mark.parametrize(("days", "soon"), [(29, True), (32, False)])
def test_an_operator_sees_when_certificates_end_and_who_never_came(days: int, soon: bool, federation: Path) -> None:
    authority = certificates.CertificateAuthority()
    (federation.parent / "ca.pem").write_bytes(authority.own_certificate())
    (federation.parent / "server.pem").write_bytes(authority.server_certificate("server.example", days)[1])
    (federation.parent / "nodes" / "rome.json").write_text('{"node-id": 999}')
    words = "".join(check(federation_page(federation)).texts)
    end = certificates.valid_until(federation.parent / "server.pem")
    assert end is not None
    assert f"certificates valid until{end:%Y-%m-%d}" in words
    assert (f"The certificate server.pem ends on {end:%Y-%m-%d}, and then no site connects" in words) == soon
    assert "Registered, and present in no round: rome." in words
    (federation.parent / "server.pem").write_text("no certificate")
    check(federation_page(federation))


def test_an_evaluation_that_is_none_is_one_line(federation: Path) -> None:
    (federation / "evaluation.json").write_text('{"lines": 3}')
    with pytest.raises(ValueError, match=r"evaluation\.json: is not the evaluation of a federation"):
        federation_page(federation)


def test_the_command_finds_out_that_a_folder_is_a_federation(federation: Path) -> None:
    done = coterie("report", str(federation), cwd=federation)
    assert done.returncode == 0, done.stderr
    assert (federation / "report.html").read_text(encoding="utf-8") == federation_page(federation)


def test_an_interval_is_that_of_student(paper_run: Path) -> None:
    from scipy.stats import t

    from coterie._src.report.run_record import interval

    values = [1.0, 2.5, 2.0, 4.0]
    low, high = t.interval(0.95, 3, np.mean(values), np.std(values, ddof=1) / 2)
    assert interval(values) == pytest.approx((np.mean(values), low, high))
    assert interval([2.0]) == (2.0, 2.0, 2.0)
    assert interval([1.0, np.inf]) is interval([]) is None
