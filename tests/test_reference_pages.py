"""The pages of reference have everything that the package has: public names, commands, keys, registered names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

import reference_pages
from coterie._src.cli import app
from coterie._src.experiments import default_config
from coterie._src.experiments.config import Config
from coterie._src.experiments.problems import PROBLEMS
from coterie._src.experiments.toml import toml_value

FOLDER = Path(__file__).parent.parent / "docs" / "reference"


def cells(text: str) -> list[list[str]]:
    """The rows of all tables, cell by cell."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [re.split(r"(?<!\\) \| ", line[2:-2]) for line in lines]


def test_every_kind_of_page_is_asked_for_once() -> None:
    asked = [found for file in FOLDER.glob("*.md") for found in reference_pages.GENERATED.findall(file.read_text())]
    modules = sorted(module for kind, module in asked if kind == "api")
    assert modules == sorted(reference_pages.public_modules())
    assert {"coterie", "coterie.federation", "coterie.sklearn"} <= set(modules)
    assert sorted(kind for kind, _ in asked if kind != "api") == ["commands", "configuration", "names"]


def test_a_page_keeps_what_is_written_around_what_is_generated() -> None:
    text = reference_pages.generated("# Names\n\n<!-- generated: names -->\n\nThe end, `<!-- generated: x -->`.")
    assert text.startswith("# Names\n\n## Methods\n")
    assert text.endswith("The end, `<!-- generated: x -->`.")


@pytest.mark.parametrize("module", reference_pages.public_modules())
def test_every_public_name_has_its_docstring(module: str) -> None:
    text = reference_pages.api(module)
    for name in reference_pages.public_names(module):
        assert re.search(rf"^\.\. auto(class|function):: {module}\.{name}$", text, re.MULTILINE), name


def test_the_members_of_a_class_are_its_own_and_those_of_private_bases() -> None:
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", reference_pages.api("coterie"), re.M | re.S))
    assert ":members: cluster_of, predict, assign, personalise" in sections["Result"]
    assert "aggregate_weighted" in sections["Aggregator"]
    assert "aggregate_weighted" not in sections["Median"]  # which inherits it from Aggregator, a public class
    assert "rule" not in sections["Method"]  # a field that holds a function
    assert "score" in reference_pages.api("coterie.sklearn")  # from a private base


def test_every_command_has_its_help_and_options() -> None:
    text = reference_pages.commands()
    sections = dict(re.findall(r"^#+ (coterie [\w -]+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    group = typer.main.get_command(app)
    found = dict(reference_pages.all_commands(group, "coterie"))
    assert set(sections) == set(found)
    assert {"coterie run", "coterie federate simulate"} <= set(found)
    for name, command in found.items():
        assert command.help.split()[0] in sections[name]
        rows = cells(sections[name])[2:]
        assert len(rows) == len(command.params)
        for row, one in zip(rows, command.params, strict=True):
            assert one.param_type_name == "argument" or f"`{one.opts[0]}`" in row[0]
            assert len(row) == 3
            assert row[1], (name, one.name)  # what it means


@pytest.mark.parametrize("kind", PROBLEMS.names)
def test_every_key_of_a_problem_has_its_meaning(kind: str) -> None:
    sections = re.split(r"^##+ ", reference_pages.configuration(), flags=re.MULTILINE)
    (text,) = (section for section in sections if f"`{kind}`" in section.partition("\n")[0])
    rows = {row[0]: row for row in cells(text)}
    for key, field in PROBLEMS[kind].section.model_fields.items():
        row = rows[f"`{key}`"]
        assert row[3] == field.description
        assert row[1]
        if key != "kind":
            assert row[2] == f"`{toml_value(field.get_default())}`"
    assert PROBLEMS[kind].summary in text


def test_every_key_of_the_other_tables_has_its_default_and_values() -> None:
    sections = dict(re.findall(r"^## `\[(\w+)\]`\n(.*?)(?=^## |\Z)", reference_pages.configuration(), re.M | re.S))
    assert list(sections) == list(Config.model_fields)
    for name in set(sections) - {"problem"}:
        section = getattr(default_config(), name)
        rows = {row[0]: row for row in cells(sections[name])}
        for key, field in type(section).model_fields.items():
            assert rows[f"`{key}`"][2:] == [f"`{toml_value(getattr(section, key))}`", field.description]
    algorithm = {row[0]: row[1] for row in cells(sections["algorithm"])}
    assert algorithm["`trim`"] == "number ≥ 0, < 0.5"
    assert algorithm["`clusters`"] == '`"known"` or `"auto"`'
    assert "[attack](names.md#attacks)" in sections["attack"]
    assert "list of name of a [method](names.md#methods)" in sections["run"]


def test_every_registered_name_has_its_summary() -> None:
    rows = cells(reference_pages.names())
    for kind, registry in reference_pages.REGISTRIES.items():
        assert f"## {kind.capitalize()}\n" in reference_pages.names()
        for record in registry:
            assert [f"`{record.name}`", " ".join(record.summary.split())] in rows
