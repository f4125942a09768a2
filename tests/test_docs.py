"""The documentation is true: its code runs, its commands are understood, its files exist."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tomllib
import warnings
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
import sklearn
import typer

import coterie as package
import reference_pages
import regenerate
from command import coterie
from coterie._src.cli import app
from coterie._src.experiments import as_toml, default_config, read_config
from coterie._src.experiments.database import Database
from coterie._src.experiments.sweep import parse_grid
from coterie._src.studies.registry import STUDIES
from coterie._src.tracking import tracker
from regenerate import KEPT, MEASURED, Kept

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT.parent / "shared" / "data" / "tables"
"""The published files of the tables that are known by name, where they are at hand."""
MORE = [ROOT / "benchmarks" / "RESULTS.md", ROOT / "tests" / "mutants" / "README.md"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
USAGE, OWN_DATA = ((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("usage", "own-data"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/**/*.md"), *MORE])
RUN_ELSEWHERE = {"README.md", "docs/extending.md", "docs/models.md", "docs/own-data.md", "docs/trackers.md"}
"""Pages whose blocks have tests of their own."""
SIMULATION = "coterie federate simulate"
"""Half a minute each."""
COMMANDS = re.findall(r"^coterie (run|config)\b([^#>\n]*)", USAGE + OWN_DATA, flags=re.MULTILINE)
GRID_COMMANDS = re.findall(r"^coterie (sweep|results|plot|reproduce|plan)\b([^#>\n]*)", USAGE, flags=re.MULTILINE)
PRINTED = r"```\n(coterie run [^\n]*)\n```\n\n```\n(.*?)```"
"""A command on a page, and what it prints."""
RUNNABLE = r"^```(python|sh)\n(.*?)^```$(?:\n\n^```\n(.*?)^```$)?"
"""A block of Python or a command, and what it prints."""
NUMBER = r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?"


def name_of(file: Path) -> str:
    """The path of a file from the root of the repository."""
    return file.relative_to(ROOT).as_posix()


def printed_by(example: str, names: dict[str, Any] | None = None) -> str:
    """What an example prints; it may use names that are deprecated. names: those of the examples before it."""
    output = io.StringIO()
    names = {} if names is None else names
    names["__name__"] = "__main__"
    with contextlib.redirect_stdout(output), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        exec(example, names)
    return output.getvalue()


def without_seconds(text: str) -> list[list[str]]:
    """The words of the lines, but for the last column of tables, whose lines begin with one space."""
    rows = [line.split() for line in text.splitlines() if line.strip()]
    tables = [re.match(r" \S", line) is not None for line in text.splitlines() if line.strip()]
    return [row[:-1] if table else row for row, table in zip(rows, tables, strict=True)]


def assert_printed(output: str, written: str) -> None:
    """Assert that a text is what was printed; rounding may differ from machine to machine; … stands for anything."""
    found, expected = (" ".join(word for row in without_seconds(text) for word in row) for text in (output, written))
    parts = re.split(rf"({NUMBER}|─+|…)", expected)
    patterns = {"…": ".*?", "─": "─+"}
    pattern = "".join(
        patterns.get(part[:1], f"({NUMBER})") if place % 2 else re.escape(part) for place, part in enumerate(parts)
    )
    matched = re.fullmatch(pattern, found)
    assert matched, f"{found}\nis not what is written:\n{expected}"
    numbers = [float(number) for number in parts[1::2] if number[0] not in patterns]
    assert [float(number) for number in matched.groups()] == pytest.approx(numbers, rel=0.02, abs=0.02)


def run_blocks(text: str, folder: Path, until: str = "") -> int:
    """Run the blocks of a page in their order, and check what is written below them; return how many there were.

    until: a block that begins with it, and what follows, is left out.
    """
    names: dict[str, Any] = {}
    count = 0
    for language, block, written in re.findall(RUNNABLE, text, flags=re.DOTALL | re.MULTILINE):
        if until and block.startswith(until):
            break
        if language == "python":
            with contextlib.chdir(folder):
                output = printed_by(block, names)
        else:
            output = output_of(block, folder)
        if written:
            assert_printed(output, written)
        count += 1
    return count


def output_of(line: str, folder: Path) -> str:
    """What a command prints, or writes to the file that it names; backslashes continue its line."""
    command, _, file = line.replace("\\\n", " ").strip().partition(" > ")
    name, *words = shlex.split(command)
    assert name == "coterie"
    done = coterie(*words, *(["--set", "run.workers=1"] if words[0] == "run" else []), cwd=folder)
    assert done.returncode == 0, done.stderr
    if file:
        (folder / file).write_text(done.stdout, encoding="utf-8")
    return done.stdout


def demo_commands() -> list[list[str]]:
    """The arguments of the commands of `make demo`."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return [shlex.split(line) for line in re.findall(r"^\t\$\(BIN\)/coterie (run .*)$", makefile, re.MULTILINE)]


@pytest.mark.parametrize(
    "methods",
    [
        ["coterie", "oracle"],
        pytest.param(["brifca-median", "brifca-trimmed", "ifca", "global", "oracle"], marks=pytest.mark.slow),
    ],
    ids=["quick", "rest"],
)
def test_the_table_of_the_demo_is_what_it_prints(methods: list[str], tmp_path: Path) -> None:
    """But for three-stage and local: with as many samples as dimensions their minimisers are mostly rounding."""
    (table,) = re.findall(r"```\n(mixed-regression: .*?)```", USAGE, flags=re.DOTALL)
    command = [*demo_commands()[0], *(word for method in methods for word in ("--method", method))]
    done = coterie(*command, "--set", "run.workers=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = ({row[0]: " ".join(row) for row in without_seconds(text) if row} for text in (done.stdout, table))
    found, written = ({name: row for name, row in lines.items() if name in methods} for lines in rows)
    assert list(found) == list(written) == methods
    for name in methods:
        assert_printed(found[name], written[name])


def with_blocks(start: str = "") -> list[str]:
    """The pages with blocks to run that begin so, but for those whose blocks have tests of their own."""
    texts = {name_of(file): file.read_text(encoding="utf-8") for file in PAGES}
    found = {
        name: [block for _, block, _ in re.findall(RUNNABLE, text, flags=re.DOTALL | re.MULTILINE)]
        for name, text in texts.items()
    }
    assert all(found[name] for name in RUN_ELSEWHERE)
    pages = (name for name, blocks in found.items() if any(block.startswith(start) for block in blocks))
    return [name for name in pages if name not in RUN_ELSEWHERE]


@pytest.mark.parametrize("name", with_blocks())
def test_a_page_runs_from_top_to_bottom(name: str, tmp_path: Path) -> None:
    """But for a simulation by Flower and what comes after it."""
    with sklearn.config_context():  # which a page changes
        assert run_blocks((ROOT / name).read_text(encoding="utf-8"), tmp_path, until=SIMULATION) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", with_blocks(SIMULATION))
def test_a_page_with_a_simulation_runs_to_its_end(name: str, tmp_path: Path) -> None:
    assert run_blocks((ROOT / name).read_text(encoding="utf-8"), tmp_path) >= 5


@pytest.mark.parametrize(("name", "count"), [("own-data", 1), ("heart", 2), ("parkinsons", 2)])
def test_commands_print_what_is_written_below_them(name: str, count: int, tmp_path: Path) -> None:
    examples = re.findall(PRINTED, page(f"{name}.md"), flags=re.DOTALL)
    assert len(examples) == count
    for command, written in examples:
        words = shlex.split(command)[1:]
        if "problem.path=tables" in words:
            if not PUBLISHED.is_dir():
                pytest.skip(f"{PUBLISHED}, the folder with the published tables, is not there")
            (tmp_path / "tables").unlink(missing_ok=True)
            (tmp_path / "tables").symlink_to(PUBLISHED)
        done = coterie(*words, "--set", "run.workers=1", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert_printed(done.stdout, written)


def test_the_demo_shows_own_data_as_the_page_on_it_does() -> None:
    ((command, _),) = re.findall(PRINTED, OWN_DATA, flags=re.DOTALL)
    assert demo_commands()[1] == shlex.split(command)[1:]


def test_the_example_of_a_frame_finds_the_clusters() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", OWN_DATA, flags=re.DOTALL)
    assert printed_by(example).startswith(("[0 1 0 1]", "[1 0 1 0]"))


def test_the_library_example_is_short_runs_and_finds_the_clusters() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(example.strip().splitlines()) <= 10
    assert "'misclustered': 0.0" in printed_by(example)


def test_the_example_of_a_rule_and_an_attack_prints_what_is_written_below_it() -> None:
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    (example,), (printed,) = (
        re.findall(r"```python\n(.*?)```", text, re.DOTALL),
        re.findall(r"```\n(median.*?)```", text, re.DOTALL),
    )
    output = printed_by(example)
    numbers = [[float(number) for number in re.findall(r"\d+\.\d+", lines)] for lines in (output, printed)]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.01)  # rounding may differ from machine to machine
    assert re.findall(r"^\S+", output, re.MULTILINE) == re.findall(r"^\S+", printed, re.MULTILINE)


def commands_of(file: Path) -> list[str]:
    """The commands in the code of a page, in blocks and in lines."""
    text = file.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^(?: {4}| {8})?(coterie [a-z][^#>\n]*)", code_of(text), flags=re.MULTILINE)
    return [line for line in lines if not line.startswith("coterie COMMAND")]


def code_of(text: str) -> str:
    """The lines of the blocks of code, and below them the code within lines."""
    fenced = r"^```\w*\n(.*?)^```$"
    indented = re.findall(r"^ {4}coterie .*$", text, flags=re.MULTILINE)
    blocks = re.findall(fenced, text, flags=re.DOTALL | re.MULTILINE)
    spans = re.findall(r"`([^`]+)`", re.sub(fenced, "", text, flags=re.DOTALL | re.MULTILINE))
    return "\n".join([*blocks, *indented, *(" ".join(span.split()) for span in spans)])


@pytest.mark.parametrize("name", [name_of(file) for file in PAGES if commands_of(file)])
def test_commands_are_understood(name: str) -> None:
    """Every command has its options and arguments, and every key that it sets exists."""
    for line in commands_of(ROOT / name):
        command, context, words = typer.main.get_command(app), None, shlex.split(line)[1:]
        while hasattr(command, "commands") and words and words[0] != "--help":
            assert words[0] in command.commands, line
            command, words = command.commands[words[0]], words[1:]
            if words and words[0] != "--help" and not hasattr(command, "commands"):
                context = command.make_context(command.name, list(words))
        overrides = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
        assert context is None or not context.args, line
        read_config(None, overrides)


def test_the_grid_example_and_its_commands_work(tmp_path: Path) -> None:
    (grid,) = re.findall(r"```toml\n(.*?)```", USAGE, flags=re.DOTALL)
    cells = {(c.problem.clusters, c.problem.clients, c.problem.dim) for c in parse_grid(tomllib.loads(grid)).configs}
    assert cells == {(k, 40 * k, d) for k in (2, 5) for d in (20, 50, 100)}
    small = grid.replace("[20, 50, 100]", "[2, 3]\nsamples = 4").replace("trials = 20", "trials = 1").replace("80", "8")
    (tmp_path / "grid.toml").write_text(small.replace("200", "10") + "\n[algorithm]\nrounds = 2\n")
    for command, arguments in GRID_COMMANDS:
        words = shlex.split(arguments)
        if command == "reproduce":
            assert words[0] in STUDIES  # minutes; tests/studies runs them on small grids
            continue
        done = coterie(command, *words, *(["--workers", "1"] if command == "sweep" else []), cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)


def test_every_method_is_on_the_page_on_use() -> None:
    for method in default_config().methods:
        assert f"`{method}`" in USAGE


def test_the_readme_is_short_and_leads_to_the_index() -> None:
    assert len(README.splitlines()) <= 70
    assert "](docs/index.md)" in README


def test_the_index_leads_to_every_page() -> None:
    """One line for each, by which the page is also in the contents of the site (docs/conf.py)."""
    linked = re.findall(r"^- \[[^\]]+\]\(([^)#]+\.md)\)", page("index.md"), flags=re.MULTILINE)
    assert len(set(linked)) == len(linked)
    index = ROOT / "docs" / "index.md"
    assert {file.resolve() for file in PAGES} - {index} == {(index.parent / name).resolve() for name in linked}


def test_the_folder_example_works(tmp_path: Path) -> None:
    (block,) = re.findall(r"```\n(clients/oslo\.csv.*?)```", OWN_DATA, flags=re.DOTALL)
    lines = [re.split(r"\s{2,}", line) for line in block.strip().splitlines()[:-1]]
    (tmp_path / "clients").mkdir()
    for column in range(2):
        name, *rows = [line[column] for line in lines]
        (tmp_path / name).write_text("\n".join(rows) + "\n")
    (arguments,) = [rest for _, rest in COMMANDS if "problem.kind=folder" in rest]
    done = coterie("run", *shlex.split(arguments), "--trials", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "coterie+own" in done.stdout


def anchors(file: Path) -> set[str]:
    """The names by which links call the headings of a page."""
    text = reference_pages.generated(file.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", [name_of(file) for file in PAGES])
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for target, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", text):
        if not target.startswith("https://"):
            file = (ROOT / name).parent / target if target else ROOT / name
            assert file.is_file(), target  # not a folder, which a site does not have
            assert not heading or heading in anchors(file), heading


def test_the_architecture_names_every_station() -> None:
    architecture = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    inside = Path(package.__file__).parent / "_src"
    stations = {p.name.removesuffix(".py") for p in inside.iterdir()} - {
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


@pytest.fixture(scope="module")
def reports() -> dict[Path, str]:
    """All reports, computed from the kept results."""
    return {file: text for kept in KEPT for file, text in regenerate.reports(kept).items()}


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_every_study_has_kept_results() -> None:
    assert {kept.study for kept in KEPT} == set(STUDIES.names)


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.folder.name)
def test_the_tables_of_the_documentation_are_what_the_kept_results_say(kept: Kept, reports: dict[Path, str]) -> None:
    for file in STUDIES[kept.study].reports:
        text = (kept.folder / file).read_text(encoding="utf-8")
        assert file == MEASURED or reports[kept.folder / file] == text
        tables = [line for line in text.splitlines() if line.startswith("|")]
        assert tables
        if kept.page and kept.study != "arena":  # of whose large tables the page has the picture
            assert set(tables) <= set(page(kept.page).splitlines())


@pytest.mark.parametrize(("name", "count"), [("reproduction.md", 100), ("beyond.md", 100), ("models.md", 10)])
def test_the_pages_quote_many_lines(name: str, count: int, reports: dict[Path, str]) -> None:
    files = [kept.folder / file for kept in KEPT if kept.page == name for file in STUDIES[kept.study].reports]
    lines = {line for file in files for line in reports.get(file, "").splitlines() if line.startswith("|")}
    assert len(lines & set(page(name).splitlines())) >= count


@pytest.mark.parametrize(
    ("folder", "start", "count"), [("networks", "| 1200, 200 |", 8), ("one-trial", "| 4800, 50 |", 6)]
)
def test_the_accuracies_of_networks_are_those_that_were_kept(folder: str, start: str, count: int) -> None:
    trials: dict[tuple[Any, ...], list[float]] = {}
    for row in Database(ROOT / "docs" / "results" / folder).rows():
        key = tuple(
            row[name] for name in ("problem.byzantine", "attack.kind", "attack.scale", "attack.target", "method")
        )
        trials.setdefault(key, []).append(100 * row["accuracy"])
    lines = [line for line in page("models.md").splitlines() if line.startswith(start)]
    shown = [cell for line in lines for cell in line.strip("| ").split(" | ")[2:] if cell != "-"]
    assert len(shown) == count
    assert sorted(shown) == sorted(
        f"{mean(each):.2f}" + (f" ± {stdev(each) / len(each) ** 0.5:.2f}" if len(each) > 1 else "")
        for each in trials.values()
    )


def test_the_measured_slopes_are_whole(reports: dict[Path, str]) -> None:
    (kept,) = (kept for kept in KEPT if kept.study == "slopes")
    rows = regenerate.rows_of(kept)
    grids = STUDIES["slopes"].grids(kept.options)
    assert {name: len(own) for name, own in rows.items()} == {name: len(grid.keys) for name, grid in grids.items()}
    assert reports[kept.folder / "report.md"] in page("theory.md")


def test_the_information_limit_is_quoted_whole() -> None:
    lines = (ROOT / "docs" / "results" / "beyond" / MEASURED).read_text(encoding="utf-8").splitlines()
    assert set(lines) <= set(page("beyond.md").splitlines())


def test_the_page_has_the_verdicts_of_the_arena(reports: dict[Path, str]) -> None:
    arena = reports[ROOT / "docs" / "results" / "arena" / "arena.md"]
    (command,) = re.findall(r"`(coterie arena [^`]*)`", arena)
    assert command in page("beyond.md")
    verdicts = re.findall(r"^Use .*$", arena, flags=re.MULTILINE)
    assert len(verdicts) == 2
    assert all(verdict in page("beyond.md") for verdict in verdicts)


def test_the_example_of_the_page_on_networks_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", page("models.md"), flags=re.DOTALL)
    assert printed_by(example).startswith("torch.Size([10, 2])")


def test_the_fits_of_the_page_on_trackers_print_what_is_written_below_them(tmp_path: Path) -> None:
    blocks = re.findall(
        r"```python\n(import coterie as ct\n.*?)```(?:\n\n```\n(.*?)```)?", page("trackers.md"), re.DOTALL
    )
    with contextlib.chdir(tmp_path):
        assert [printed_by(example) for example, _ in blocks] == [printed for _, printed in blocks]
    assert [bool(printed) for _, printed in blocks] == [False, True]
    assert len((tmp_path / "fit.jsonl").read_text().splitlines()) >= 4


def test_the_trackers_of_the_page_on_trackers_are_understood(tmp_path: Path) -> None:
    texts = re.findall(r"--track ([^\s…]+)", page("trackers.md"))
    assert {text.partition(":")[0] for text in texts} == {"mlflow", "tensorboard", "jsonl"}
    with contextlib.chdir(tmp_path):
        for text in texts:
            if text.startswith("jsonl") or find_spec(text.partition(":")[0]):
                assert tracker(text).target == text.partition(":")[2]
