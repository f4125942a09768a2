"""Pictures and tables of a run that went partly wrong."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from coterie._src import plot
from coterie._src.experiments import MethodResult, TrialResult, summarise
from coterie._src.experiments.summary import METRICS
from coterie._src.report import as_table


def result(trial: int, curves: dict[str, list[float]], metric: str = "matched_dist") -> TrialResult:
    return TrialResult(
        trial,
        {
            name: MethodResult(
                dict.fromkeys(METRICS.names, curve[-1]) | dict.fromkeys(("accuracy", "worst_accuracy"), math.nan),
                [{"round": t, metric: value} for t, value in enumerate(curve, 1)] if len(curve) > 1 else [],
                [],
                np.zeros((1, 1)),
            )
            for name, curve in curves.items()
        },
    )


@pytest.fixture
def uneven() -> list[TrialResult]:
    """One method stops early, one runs away, one becomes infinite, one has no rounds."""
    early = {"brifca-median": [1.0, 0.1], "ifca": [1.0, 1e30, 1e35], "global": [1.0, np.inf, np.nan], "oracle": [0.05]}
    late = {"brifca-median": [1.0, 0.2, 0.1], "ifca": [1.0, 1e30, 1e36], "global": [1.0, 2.0, 3.0], "oracle": [0.04]}
    return [result(0, early), result(1, late)]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_of_uneven_trials(uneven: list[TrialResult], suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"convergence.{suffix}"
    plot.convergence(uneven, file, "a title")
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    assert len(content) > 5000


@pytest.mark.parametrize("title", ["[/x]", "$a_{$", "客户"])
def test_methods_without_rounds_and_odd_titles(title: str, tmp_path: Path) -> None:
    file = tmp_path / "convergence.svg"
    plot.convergence([result(0, {"oracle": [0.05], "local": [0.4]})], file, title)
    assert "oracle" in file.read_text()
    Console(file=io.StringIO()).print(as_table(summarise([result(0, {"oracle": [0.05]})]), title))


def test_without_a_truth_the_movement_is_drawn(tmp_path: Path) -> None:
    unknown = result(0, {"ifca": [1.0, 0.5]}, "movement")
    unknown.methods["ifca"].metrics["matched_dist"] = np.nan
    plot.convergence([unknown], tmp_path / "movement.svg")
    assert "largest movement" in (tmp_path / "movement.svg").read_text().replace("<!-- ", "").replace(" -->", "")


@pytest.mark.parametrize("clients", [3, 60])
def test_the_audit_of_a_federation_has_names_where_there_is_room(clients: int, tmp_path: Path) -> None:
    verdicts = ["accepted", "refused", "silent"]
    rows = [
        {"client": i, "round": t, "node": f"node {i}", "verdict": verdict, "distance": 1.0 if t % 3 == 0 else None}
        for i in range(clients)
        for t, verdict in enumerate(verdicts, 1)
    ]
    plot.audit_map(rows, tmp_path / "audit.svg", {"node 1": "$oslo_{$"})
    texts = re.findall(r"<!-- (.*?) -->", (tmp_path / "audit.svg").read_text())
    assert ("$oslo_{$" in texts) == (clients == 3)
    assert {"round", "client", "0.3", "10"} <= set(texts)
    assert {"1", "2", "3"} <= set(texts) or clients > 3
    assert not {"1.5", "2.5"} & set(texts)


def test_the_table_says_what_is_not_a_number(uneven: list[TrialResult]) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(as_table(summarise(uneven), "a title"))
    text = console.export_text()
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "0.100 ± 0.000" in rows["brifca-median"]
    assert "-" in rows["global"]
    assert "e+3" in rows["ifca"]
