"""The files around the package agree with it: versions of Coterie and of Python, citation, changelog, workflow."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import coterie

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
YAML = sorted([*ROOT.glob(".github/**/*.yml"), ROOT / ".pre-commit-config.yaml", ROOT / "CITATION.cff"])


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def supported() -> list[str]:
    """The versions of Python that the classifiers name."""
    found = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line) for line in PROJECT["classifiers"]]
    return [match[1] for match in found if match]


@pytest.mark.parametrize("file", YAML, ids=lambda file: file.name)
def test_yaml_files_parse(file: Path) -> None:
    assert isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict)


def test_the_citation_names_this_version_and_the_paper() -> None:
    citation = read("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert citation["version"] == coterie.__version__
    assert citation["license"] == PROJECT["license"]
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in PROJECT["authors"]]
    (paper,) = citation["references"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(author["family-names"] in readme for author in paper["authors"])
    assert paper["title"] in readme


def test_the_changelog_has_a_section_for_this_version_first() -> None:
    """Before it there may be one for what is not released yet."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", changelog, flags=re.MULTILINE)
    released = headings[1:] if headings[0] == "[Unreleased]" else headings
    assert re.fullmatch(rf"\[{re.escape(coterie.__version__)}\] - \d{{4}}-\d\d-\d\d", released[0])
    kinds = re.findall(r"^### (.*)$", changelog, flags=re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_workflow_tests_the_versions_of_python_that_the_package_declares() -> None:
    workflow = read(".github/workflows/test.yml")
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == supported()
    assert PROJECT["requires-python"] == f">={supported()[0]}"
    assert workflow["permissions"] == {"contents": "read"}


def test_the_workflow_and_the_hooks_call_what_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    jobs = read(".github/workflows/test.yml")["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    called = {target for command in commands for target in re.findall(r"^make (\S+)$", command, flags=re.MULTILINE)}
    assert called == {"test", "test-browser", "wheel", "docs"}
    assert called <= set(targets)
    (local,) = read(".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"  # nothing is downloaded
    tools = {hook["entry"].split()[0] for hook in local["hooks"]}
    assert tools == {".venv/bin/ruff", ".venv/bin/mypy"}


def test_issue_forms_have_what_the_form_schema_requires() -> None:
    forms = [read(f".github/ISSUE_TEMPLATE/{name}.yml") for name in ("bug", "feature", "question")]
    for form in forms:
        assert {"name", "description", "body"} <= form.keys()
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields)
        assert all(field["attributes"]["label"] for field in fields)
        assert any(field.get("validations", {}).get("required") for field in fields)
