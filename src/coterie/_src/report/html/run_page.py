"""The page of a run: for those who want to know how well the methods did, and whether to trust it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file

from coterie._src.diagnostics import Diagnostics
from coterie._src.experiments.methods import OWN
from coterie._src.experiments.plan import plan
from coterie._src.experiments.problems import ClientTables
from coterie._src.experiments.summary import METRICS, Statistic, run_title
from coterie._src.report.html.figures.clients import SCORES, Placed, directions, strips
from coterie._src.report.html.figures.clusters import Member, Move, cluster_bars, flow
from coterie._src.report.html.figures.methods import convergence, intervals
from coterie._src.report.html.figures.style import styles, swatch
from coterie._src.report.html.markup import Markup, element, joined, named
from coterie._src.report.html.page import Section, copyable, model_links, notes, page, section, sentences
from coterie._src.report.html.svg import choice
from coterie._src.report.html.tables import Cell, Column, number_cell, table
from coterie._src.report.looks import looks
from coterie._src.report.run_record import Mean, RunRecord, as_number, curves, finals, read_run
from coterie._src.report.terminal import cell, number, shown
from coterie._src.theory import Constants

PRIMARY = ("matched_dist", "accuracy", "test_loss", "loss")
"""The metrics by which methods are compared, the best first."""
MAX_LISTED = 50
"""The clients worth a look that are listed, at most."""
JUDGED = (
    ("loss", "loss", "its mean loss at the model of its own cluster"),
    (
        "suspicion",
        "suspicion",
        "-log10 of the probability that a member of the cluster has such a loss or a larger one",
    ),
)
AUDITED = (
    ("trimmed", "trimmed", "share of its coordinates that were among the outermost of its cluster"),
    ("refused", "refused", "share of the rounds in which its reply was refused"),
    ("silent", "silent", "share of the rounds without a reply"),
    ("changed", "changes of cluster", "how often it changed its cluster"),
)
"""The columns of audit.csv, their headings and what they mean."""


def run_page(folder: Path) -> str:
    """The page of the run in a folder."""
    record = read_run(folder)
    return page(title(record), _facts(record), sections(record), record.methods)


def title(record: RunRecord) -> str:
    """One line about the problem; the folder's name where the configuration cannot be read."""
    if record.config is None:
        return record.path.resolve().name
    found = finals(record, "clusters")
    return run_title(record.config, found[record.clustering[0]] if record.clustering else [])


def _facts(record: RunRecord) -> list[tuple[str, object]]:
    summary = record.summary
    finished, wanted = len(summary.trials_finished), summary.trials_wanted
    return [
        ("status", summary.status),
        ("trials", f"{finished} of {wanted}" if wanted not in (None, finished) else finished),
        ("seed", "unknown" if summary.seed is None else summary.seed),
        *([("clients", len(record.audit_of(record.clustering[0])))] if record.clustering else []),
        ("computed by", f"Coterie {summary.version}"),
    ]


def sections(record: RunRecord) -> list[Section]:
    """The sections that the files of the folder have something for."""
    found = [
        *section("notes", "Worth a look first", notes(record.summary.notes)),
        *section("methods", "Methods", methods_table(record), _intervals(record)),
        *section("rounds", "Rounds", _convergence(record)),
        *section("clusters-of-clients", "Clusters", _clusters(record)),
        *section("scores", "Held-out scores", _comparisons(record), strips(_scores(record), _score_name(record))),
        *section("look", "Clients worth a look", _worth_a_look(record)),
        *section("clients", "Clients", _clients_table(record)),
        *section("diagnostics", "Diagnostics", _diagnostics(record), _changes(record)),
        *section("theory", "What the theorems say", _theory(record)),
        *section("models", "Models", _models(record)),
        *section("configuration", "Configuration", _configuration(record)),
    ]
    return found


# --- methods ------------------------------------------------------------------------------------------


def methods_table(record: RunRecord) -> Markup:
    """The table of a run: means with standard errors by method."""
    summary, looks = _complete(record), styles(record.methods)
    metrics = [name for name in shown(summary) if name in METRICS]
    rows = []
    for name, own in summary.items():
        cells = [Cell(joined(swatch(looks[name]), element("span", name, data_method=name)), name)]
        for metric in metrics:
            digits = METRICS[metric].digits
            alone = metric in ("rounds", "seconds")
            mean = own[metric]["mean"]
            text = None if mean is None else number(mean, digits) if alone else cell(own[metric], digits)
            cells.append(number_cell(None if mean is None else float(mean), text))
        rows.append(cells)
    columns = [Column("method"), *(Column(METRICS[m].heading, METRICS[m].summary) for m in metrics)]
    trials = len(record.summary.trials_finished)
    caption = f"Mean ± standard error over {trials} trials" if trials > 1 else "One trial"
    return table("methods-table", f"{caption}. A click on a heading sorts.", columns, rows)


def _complete(record: RunRecord) -> dict[str, dict[str, Statistic]]:
    """By method, the statistics of all metrics; those of another version are left out."""
    none = Mean()
    return {
        name: {metric: own.get(metric, none).statistic for metric in METRICS.names}
        for name, own in record.summary.methods.items()
    }


def _primary(record: RunRecord) -> str | None:
    """The metric by which the methods are compared."""
    summary = _complete(record)
    return next((m for m in PRIMARY if any(own[m]["mean"] is not None for own in summary.values())), None)


def _intervals(record: RunRecord) -> Markup | None:
    metric = _primary(record)
    if metric is None:
        return None
    return intervals(finals(record, metric), METRICS[metric].axis_label, metric != "accuracy")


def _convergence(record: RunRecord) -> Markup | None:
    for metric in ("matched_dist", "accuracy", "loss", "movement"):
        by_round = curves(record, metric)
        if metric == "loss":  # the rounds of a method with personal models are those of the one without
            by_round = {name: own for name, own in by_round.items() if not name.endswith(OWN)}
        if any(math.isfinite(value) for own in by_round.values() for curve in own for value in curve):
            label = METRICS[metric].axis_label if metric in METRICS else "largest movement of a centre in a round"
            return convergence(by_round, finals(record, metric), label, metric != "accuracy")
    return None


# --- clusters -----------------------------------------------------------------------------------------


def _flag(record: RunRecord, row: Mapping[str, str]) -> bool | None:
    return row.get("byzantine") == "1" if record.has_truth else None


def _clusters(record: RunRecord) -> Markup | None:
    """For each method its clusters, who moved between them, and the clients' updates."""
    made = [
        (
            method,
            joined(
                _bars(record, method, i),
                _contamination(record, method, i),
                _flow(record, method, i),
                _directions(record, method, i),
            ),
        )
        for i, method in enumerate(record.clustering)
    ]
    return choice("cluster-figures", "Method", made)


def _bars(record: RunRecord, method: str, index: int) -> Markup:
    rows = record.audit_of(method)
    members = [Member(row["client"], int(row["cluster"]), _flag(record, row)) for row in rows]
    return cluster_bars(
        members,
        f"Clients per cluster, {method}",
        f"at the end of the first trial of {method}",
        f"cluster-sizes-{index}",
    )


def _contamination(record: RunRecord, method: str, index: int) -> Markup | None:
    """Of the replies that the server counted in each cluster, the share of Byzantine ones."""
    shares = []
    for row in record.rounds:
        if (row["method"], row["trial"]) == (method, record.first) and row.get("contamination"):
            shares.append([as_number(part) for part in row["contamination"].split()])
    clusters = len(shares[0]) if shares else 0
    if not clusters or any(len(row) != clusters for row in shares):
        return None
    columns = [
        Column("cluster"),
        Column("last round", "share of Byzantine clients among the replies that the server counted there"),
        Column("largest", "the largest such share in any round"),
        Column("in round", "the first round with it"),
    ]
    rows = []
    for j in range(clusters):
        own = [row[j] if math.isfinite(row[j]) else 0.0 for row in shares]  # no reply: nothing was contaminated
        most = max(own)
        rows.append([Cell(f"cluster {j}"), _share(own[-1]), _share(most), number_cell(float(own.index(most) + 1))])
    caption = (
        f"Contamination per cluster by the clusters that the clients claim, in the first trial of {method}; above, a "
        "Byzantine client is counted in the cluster that fits its own data."
    )
    return table(f"contamination-{index}", caption, columns, rows)


def _flow(record: RunRecord, method: str, index: int) -> Markup | None:
    own = [row for row in record.assignments if row["method"] == method]
    moves = [Move(int(row["round"]), row["client"], int(row["cluster"])) for row in own]
    rounds = [int(row["round"]) for row in record.rounds if (row["method"], row["trial"]) == (method, record.first)]
    return flow(method, moves, max(rounds, default=0), f"flow-{index}")


def _directions(record: RunRecord, method: str, index: int) -> Markup | None:
    audit = {row["client"]: row for row in record.audit_of(method)}
    placed = [
        Placed(
            row["client"],
            int(audit[row["client"]]["cluster"]),
            as_number(row["first"]),
            as_number(row["second"]),
            _flag(record, audit[row["client"]]),
        )
        for row in record.directions
        if row["method"] == method and row["client"] in audit
    ]
    return directions(method, placed, f"directions-{index}")


# --- clients ------------------------------------------------------------------------------------------


def _score_name(record: RunRecord) -> str:
    """What clients.csv calls a score."""
    problem = None if record.config is None else record.config.problem
    task = problem.task if isinstance(problem, ClientTables) else ""
    return "R²" if task == "linear" else "accuracy" if task in ("logistic", "softmax") else "score"


def _scores(record: RunRecord) -> list[dict[str, str]]:
    """The rows of clients.csv of the first trial and the first clustering method."""
    found: dict[str, dict[str, str]] = {}
    for row in record.clients:
        if row.get("trial") == record.first:
            found.setdefault(row["client"], row)
    return list(found.values())


def _comparisons(record: RunRecord) -> Markup | None:
    comparisons = record.summary.comparisons.get(record.first, {})
    return sentences([f"{name}: {line}" for name, line in comparisons.items()])


def _worth_a_look(record: RunRecord) -> Markup | None:
    """The clients that stand out in the first trial of the first clustering method, with the evidence."""
    if not record.clustering:
        return None
    clients = looks(record.audit_of(record.clustering[0]))
    seen = [one for one in clients if one.reasons]
    if not seen:
        return element("p", f"Nobody stands out among {len(clients)} clients with {record.clustering[0]}.")
    lines = [element("li", element("strong", named(one.client)), f": {'; '.join(one.reasons)}") for one in seen]
    more = len(lines) - MAX_LISTED
    stand = "stands" if len(seen) == 1 else "stand"
    order = ", the most striking first" if len(seen) > 1 else ""
    words = (
        f"Of {len(clients)} clients {len(seen)} {stand} out with {record.clustering[0]}{order}. This is evidence, not "
        "a verdict: of honest clients about one in a hundred has such a loss, and updates may be extreme for honest "
        "reasons."
    )
    return joined(
        element("p", words),
        element("ol", *lines[:MAX_LISTED], class_="lines"),
        element("p", f"and {more} more; coterie audit names all of them", class_="soft") if more > 0 else None,
    )


def _clients_table(record: RunRecord) -> Markup | None:
    if not record.clustering:
        return None
    method = record.clustering[0]
    rows, scores = record.audit_of(method), {row["client"]: row for row in _scores(record)}
    known = [name for name in SCORES if any(row.get(f"{name}_score") for row in scores.values())]
    columns: list[Column] = [Column("client"), Column("cluster")]
    cells = [[Cell(named(row["client"])), number_cell(as_number(row["cluster"]))] for row in rows]

    def add(column: Column, new: Sequence[Cell]) -> None:
        columns.append(column)
        for own, one in zip(cells, new, strict=True):
            own.append(one)

    if record.has_truth:
        add(Column("true cluster"), [number_cell(as_number(row.get("true_cluster"))) for row in rows])
        add(Column("Byzantine"), [Cell("yes" if _flag(record, row) else "") for row in rows])
    for name in known:
        own_scores = [scores.get(row["client"], {}).get(f"{name}_score") for row in rows]
        meaning = f"held-out {_score_name(record)} {SCORES[name]}"
        add(Column(f"{name} {_score_name(record)}", meaning), list(map(_three_digits, own_scores)))
    for name, words, meaning in JUDGED:
        if any(row.get(name) for row in rows):
            add(Column(words, meaning), [_three_digits(row.get(name)) for row in rows])
    never = []
    for name, words, meaning in AUDITED:
        values = [as_number(row.get(name)) for row in rows]
        if any(values):
            shown_as = [number_cell(value) if name == "changed" else _share(value) for value in values]
            add(Column(words, meaning), shown_as)
        else:
            never.append(words)
    if any(row.get("reasons") for row in rows):
        add(Column("reasons", "why its replies were refused"), [Cell(row.get("reasons", "")) for row in rows])
    caption = f"The clients in the first trial of {method}." + (
        f" Nothing for any client, so without a column: {', '.join(never)}." if never else ""
    )
    return table("clients-table", caption, columns, cells)


def _three_digits(text: str | None) -> Cell:
    value = as_number(text)
    return number_cell(value, number(value, 3) if math.isfinite(value) else None)


def _share(value: float) -> Cell:
    return number_cell(value, f"{value:.0%}" if math.isfinite(value) else None)


# --- the rest -----------------------------------------------------------------------------------------


def _diagnostics(record: RunRecord) -> Markup | None:
    parts: list[object] = []
    for method, by_trial in record.summary.diagnostics.items():
        for trial, values in by_trial.items():
            names = [row["client"] for row in record.audit_of(method)]
            try:
                lines = Diagnostics.from_dict(values).lines(names)
            except (TypeError, ValueError, IndexError):  # of another version
                continue
            if lines:
                parts += [element("h3", f"{method}, trial {trial}"), sentences(lines)]
    return joined(*parts) if parts else None


def _changes(record: RunRecord) -> Markup | None:
    if not record.summary.changes:
        return None
    found = next(iter(record.summary.changes.values()))
    clusters = [
        f"{one.cluster} {one.status}" + ("" if one.moved_by is None else f" (by {one.moved_by:.1f} standard errors)")
        for one in found.clusters
    ]
    lines = [
        f"clusters: {', '.join(clusters)}",
        *(f"{one.client} moved from {one.before} to {one.now}" for one in found.moved),
        *(
            f"{words}: {', '.join(names)}"
            for words, names in (("joined", found.joined), ("left", found.left), ("in no cluster", found.unfit))
            if names
        ),
    ]
    return joined(element("h3", "Changes since the earlier run"), sentences(lines))


def _theory(record: RunRecord) -> Markup | None:
    if record.config is None:
        return None
    try:
        lines = plan(record.config, Constants())
    except ValueError as error:
        return element("p", f"Not known for this problem ({str(error).removeprefix('plan: ')}).", class_="soft")
    rows = [[Cell(line.name), Cell(line.value, None, "number"), Cell(line.meaning)] for line in lines]
    alarms = ["alarm" if line.is_alarm else "" for line in lines]
    caption = (
        "The quantities and conditions of the paper's theorems, as coterie plan prints them; the constant of the error "
        "bounds, which the paper does not name, is taken as 1."
    )
    return table("theory-table", caption, [Column("quantity"), Column("value"), Column("meaning")], rows, alarms)


def _models(record: RunRecord) -> Markup | None:
    path = record.path / "centres" / f"{record.first}.safetensors"
    try:
        centres = load_file(path)
    except (OSError, SafetensorError):
        return None
    words = f"The centres of the first trial, a row for each cluster; coterie.load({str(record.path)!r}) reads all."
    return model_links(words, {name: centres[name] for name in record.methods if name in centres})


def _configuration(record: RunRecord) -> Markup:
    command = f"coterie run {shlex.quote(str(record.path / 'config.toml'))}"
    return joined(
        copyable("command", "The command that gives these numbers again", command),
        copyable("toml", "config.toml", record.config_text),
    )
