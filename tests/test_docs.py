"""The documentation is true: its code runs, its commands are understood, its files exist."""

from __future__ import annotations

import csv
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import coterie
from coterie._src.experiments import as_toml, default_config, read_config
from coterie._src.experiments.database import Database
from coterie._src.experiments.sweep import parse_grid
from coterie._src.studies.arena import report as arena_report
from coterie._src.studies.beyond import beyond_report, questions
from coterie._src.studies.claims import Results, claims_report
from coterie._src.studies.figure1 import slopes, slopes_report
from coterie._src.studies.rotated_mnist import models_report

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^coterie (run|config)\b([^#>\n]*)", README, flags=re.MULTILINE)
GRID_COMMANDS = re.findall(r"^coterie (sweep|results|plot|reproduce|plan)\b([^#>\n]*)", README, flags=re.MULTILINE)


def test_the_library_example_is_short_runs_and_finds_the_clusters() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(example.strip().splitlines()) <= 15
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True)
    assert "'misclustered': 0.0" in done.stdout


def test_the_example_of_a_rule_and_an_attack_prints_what_is_written_below_it() -> None:
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    (example,), (printed,) = (
        re.findall(r"```python\n(.*?)```", text, re.DOTALL),
        re.findall(r"```\n(brifca.*?)```", text, re.DOTALL),
    )
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True)
    numbers = [[float(number) for number in re.findall(r"\d+\.\d+", lines)] for lines in (done.stdout, printed)]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.01)  # rounding may differ from machine to machine
    assert re.findall(r"^\S+", done.stdout, re.MULTILINE) == re.findall(r"^\S+", printed, re.MULTILINE)


def test_commands_are_understood() -> None:
    assert len(COMMANDS) >= 6
    for _, arguments in COMMANDS:
        words = shlex.split(arguments)
        overrides = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        known = {"--set", "--method", "--trials", "--seed", "--out", "--json"}
        assert {word for word in words if word.startswith("--")} <= known
        read_config(None, overrides)


def test_the_grid_example_and_its_commands_work(tmp_path: Path) -> None:
    (grid,) = re.findall(r"```toml\n(.*?)```", README, flags=re.DOTALL)
    cells = {(c.problem.clusters, c.problem.clients, c.problem.dim) for c in parse_grid(tomllib.loads(grid)).configs}
    assert cells == {(k, 40 * k, d) for k in (2, 5) for d in (20, 50, 100)}
    small = grid.replace("[20, 50, 100]", "[2, 3]\nsamples = 4").replace("trials = 20", "trials = 1").replace("80", "8")
    (tmp_path / "grid.toml").write_text(small.replace("200", "10") + "\n[algorithm]\nrounds = 2\n")
    executable = str(Path(sys.executable).with_name("coterie"))
    for command, arguments in GRID_COMMANDS:
        if command == "reproduce":
            continue  # minutes; tests/test_sweep.py runs them on small grids
        words = [executable, command, *shlex.split(arguments)]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stderr)


def test_every_method_is_in_the_readme() -> None:
    for method in default_config().methods:
        assert f"`{method}`" in README


def test_the_folder_example_works(tmp_path: Path) -> None:
    (block,) = re.findall(r"```\n(clients/oslo\.csv.*?)```", README, flags=re.DOTALL)
    lines = [re.split(r"\s{2,}", line) for line in block.strip().splitlines()[:-1]]
    (tmp_path / "clients").mkdir()
    for column in range(2):
        name, *rows = [line[column] for line in lines]
        (tmp_path / name).write_text("\n".join(rows) + "\n")
    (arguments,) = [rest for _, rest in COMMANDS if "problem.kind=folder" in rest]
    command = [
        str(Path(sys.executable).with_name("coterie")),
        "run",
        *shlex.split(arguments),
        "--trials",
        "1",
        "--json",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "brifca-median" in done.stdout


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/theory.md",
        "docs/reproduction.md",
        "docs/beyond.md",
        "docs/models.md",
        "docs/federation.md",
    ],
)
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or ((ROOT / name).parent / target).exists(), target


def test_the_architecture_names_every_station() -> None:
    architecture = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    package = Path(coterie.__file__).parent
    stations = {p.name.removesuffix(".py") for p in package.iterdir()} - {
        "__init__",
        "__main__",
        "__pycache__",
        "py.typed",
    }
    for station in stations:
        assert f"`{station}`" in architecture, station


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" not in project
    assert project["dynamic"] == ["version"]
    assert tomllib.loads(as_toml(default_config()))


def test_the_tables_of_the_reproduction_are_what_the_kept_results_say() -> None:
    kept = ROOT / "docs" / "results"
    presets = [Database(kept / name).rows() for name in ("as-published", "fair", "divisor", "ridge", "warm")]
    many = list(csv.DictReader((kept / "many" / "summary.csv").read_text(encoding="utf-8").splitlines()))
    report = claims_report(Results(*presets)._replace(many=many))
    assert (kept / "claims.md").read_text(encoding="utf-8") == report
    tables = [line for line in report.splitlines() if line.startswith("|")]
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8").splitlines()
    assert len(tables) > 100
    assert set(tables) <= set(page)


def test_the_measured_slopes_are_what_the_kept_results_say() -> None:
    kept = ROOT / "docs" / "results" / "slopes"
    found = [(slope, Database(kept / slope.folder).rows()) for slope in slopes(50)]
    assert all(len(rows) == len(slope.grid.keys) for slope, rows in found)
    report = slopes_report(found)
    assert (kept / "report.md").read_text(encoding="utf-8") == report
    assert report in (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")


def test_the_tables_beyond_the_paper_are_what_the_kept_results_say() -> None:
    kept = ROOT / "docs" / "results"
    report = beyond_report({name: Database(kept / "beyond" / name).rows() for name in questions(50)})
    assert (kept / "beyond" / "beyond.md").read_text(encoding="utf-8") == report
    tables = [line for line in report.splitlines() if line.startswith("|")]
    page = (ROOT / "docs" / "beyond.md").read_text(encoding="utf-8")
    assert len(tables) > 100
    assert set(tables) <= set(page.splitlines())
    wall = (kept / "beyond" / "wall.md").read_text(encoding="utf-8").splitlines()
    assert set(wall) <= set(page.splitlines())
    arena = (kept / "arena" / "arena.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"`(coterie arena [^`]*)`", arena)
    assert arena_report(Database(kept / "arena").rows(), command) == arena
    assert command in page
    assert all(verdict in page for verdict in re.findall(r"^Use .*$", arena, flags=re.MULTILINE))


def test_the_page_on_networks_is_what_the_kept_results_say_and_its_example_runs() -> None:
    kept = ROOT / "docs" / "results" / "models"
    report = models_report(
        {name: Database(kept / name).rows() for name in ("honest", "attacked", "momentum", "random")}
    )
    assert (kept / "models.md").read_text(encoding="utf-8") == report
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    tables = [line for line in report.splitlines() if line.startswith("|")]
    assert len(tables) >= 10
    assert set(tables) <= set(page.splitlines())
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("torch.Size([10, 2])")
