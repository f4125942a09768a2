"""The changes of `make mutants`: what they are, that they compile, and that the list of equivalents is up to date."""

from __future__ import annotations

import pytest

from mutants.changes import mutants, mutated, sample
from mutants.run import PACKAGE, module_name
from mutants.selection import ROOT, TESTS, concerning, listed

SOURCE = '''
LIMIT = 3
def chosen(values, least: int = 0):
    """At least 5 of them."""
    assert len(values) > 1
    if not values:
        return None
    found = sorted(value for value in values if value >= least and value * 2 < LIMIT)
    for value in found[1:]:
        print(f"{value + 1}")
    return max(found), -value
'''


def texts(source: str) -> set[tuple[str, str, str]]:
    return {(mutant.function, mutant.before, mutant.after) for mutant in mutants(source)}


def test_every_kind_of_change_on_a_small_module() -> None:
    found = texts(SOURCE)
    line = "found = sorted((value for value in values if value >= least and value * 2 < LIMIT))"
    for function, before, after in [
        ("<module>", "LIMIT = 3", "LIMIT = 4"),
        ("<module>", "LIMIT = 3", "LIMIT = 2"),
        ("chosen", "def chosen(values, least: int=0)", "def chosen(values, least: int=1)"),
        ("chosen", "if not values", "if values"),
        ("chosen", "if not values", "if False"),
        ("chosen", line, line + "[::-1]"),
        ("chosen", line, line.replace(">=", ">")),
        ("chosen", line, line.replace(">=", "<")),
        ("chosen", line, line.replace(" and ", " or ")),
        ("chosen", line, line.replace("value >= least and ", "")),
        ("chosen", line, line.replace(" and value * 2 < LIMIT", "")),
        ("chosen", line, line.replace("*", "/")),
        ("chosen", line, line.replace("2", "3")),
        ("chosen", line, line.replace("< LIMIT", "<= LIMIT")),
        ("chosen", "for value in found[1:]", "for value in found[2:]"),
        ("chosen", "for value in found[1:]", "for value in found[0:]"),
        ("chosen", "return (max(found), -value)", "return (min(found), -value)"),
        ("chosen", "return (max(found), -value)", "return (max(found), value)"),
    ]:
        assert (function, before, after) in found
        found.remove((function, before, after))
    # the other bounds of numbers and of the comparison, the slice beside its number, and the call without a result
    assert {after for _, _, after in found} == {
        line.replace("< LIMIT", ">= LIMIT"), line.replace("2", "1"), "for value in found[1 + 1:]", "pass",
    }  # fmt: skip


def test_a_mutant_does_what_its_text_says() -> None:
    results = set()
    source = "def f(a, b):\n    if a < b:\n        return a + 1\n    return b\n"
    for mutant in mutants(source):
        space: dict[str, object] = {}
        exec(compile(mutated(source, mutant), "f", "exec"), space)
        results.add((mutant.after, space["f"](2, 3), space["f"](3, 3)))  # type: ignore[operator]  # it is a function
    assert results == {
        ("if a <= b", 3, 4), ("if a >= b", 3, 4), ("if False", 3, 3), ("return a - 1", 1, 3), ("return a + 2", 4, 3),
        ("return a + 0", 2, 3),
    }  # fmt: skip


def test_every_mutant_of_the_core_compiles() -> None:
    for file in ("server.py", "algorithms/convergence.py"):
        source = (PACKAGE / file).read_text(encoding="utf-8")
        found = mutants(source)
        assert len({mutant.key for mutant in found}) == len(found) > 40
        for mutant in found:
            compile(mutated(source, mutant), file, "exec")


def test_a_sample_stays_where_lines_move() -> None:
    drawn = sample(mutants(SOURCE), 6, "1")
    moved = sample(mutants("import math\n\n" + SOURCE), 6, "1")
    assert [mutant.key for mutant in drawn] == [mutant.key for mutant in moved]
    assert [mutant.line + 2 for mutant in drawn] == [mutant.line for mutant in moved]
    assert {mutant.key for mutant in drawn} != {mutant.key for mutant in sample(mutants(SOURCE), 6, "2")}
    assert len(sample(mutants(SOURCE), 10**6, "1")) == len(mutants(SOURCE))


@pytest.mark.parametrize("file", TESTS)
def test_files_and_their_tests_exist(file: str) -> None:
    assert module_name(file).replace(".", "/") in str(PACKAGE / file)
    assert all((ROOT / test).exists() for test in concerning(file))


def test_equivalent_mutants_are_mutants_with_a_reason() -> None:
    """An entry that fits no statement any more is to be removed."""
    possible = {file: {m.key for m in mutants((PACKAGE / file).read_text(encoding="utf-8"))} for file in TESTS}
    for entry in listed():
        assert set(entry) == {"file", "function", "before", "after", "reason"}
        assert (entry["function"], entry["before"], entry["after"]) in possible[entry["file"]], entry
        assert len(entry["reason"].split()) > 3, entry
    assert len({tuple(sorted(entry.items())) for entry in listed()}) == len(listed())
