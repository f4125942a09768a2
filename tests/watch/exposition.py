"""A strict reader of Prometheus' text format, version 0.0.4."""

from __future__ import annotations

import re

NAME = r"[a-zA-Z_][a-zA-Z0-9_]*"
LABEL = rf'({NAME})="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")
VALUE = re.compile(r"[+-]?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|Inf)|NaN")
UNITS = ("_seconds", "_ratio", "_info", "_trials", "_rounds", "_clients", "_loss", "_movement", "_replies", "_state")
"""What a name ends with: its unit, or what is counted or measured in no unit."""

Samples = dict[str, dict[frozenset[tuple[str, str]], float]]


def parsed(text: str) -> Samples:
    """By metric, {labels: value}; AssertionError where the text is not what the format asks for."""
    assert text.endswith("\n")
    found: Samples = {}
    helped, current = set(), ""
    for line in text.removesuffix("\n").split("\n"):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", line), line
        if line.startswith("# HELP "):
            _, _, current, meaning = line.split(" ", 3)
            assert current not in helped, line
            assert meaning.endswith(".")
            helped.add(current)
        elif line.startswith("# TYPE "):
            assert line == f"# TYPE {current} gauge"
            assert re.fullmatch(rf"coterie_{NAME}", current)
            assert current.endswith(UNITS), current
            assert current not in found
            found[current] = {}
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            assert sample[1] == current, line
            pairs = [(name, unescaped(value)) for name, value in re.findall(LABEL, sample[2] or "")]
            labels = frozenset(pairs)
            assert len(labels) == len({name for name, _ in pairs}) == len(pairs), line
            assert labels not in found[current], line
            assert VALUE.fullmatch(sample[sample.re.groups]), line
            found[current][labels] = float(sample[sample.re.groups])
    assert set(found) == helped
    assert all(found.values())
    return found


def unescaped(value: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], value)
