"""Reading and writing configurations: TOML files and overrides. An error is one line that names the key."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from coterie._src.experiments.config import AlgorithmSection, AttackSection, Config, RunSection, ThreeStageSection
from coterie._src.experiments.problems import PROBLEMS, MixedRegression
from coterie._src.experiments.sections import Section


def read_config(path: str | Path | None, overrides: Iterable[str] = ()) -> Config:
    """The configuration of a TOML file (or the default), changed by `section.key=value` overrides."""
    changes = list(overrides)
    raw = {} if path is None else read_toml(path)
    if any(change.replace(" ", "").startswith("problem.kind=") for change in changes):
        # drop the keys of the file's kind of problem that the new kind does not have
        chosen: dict[str, Any] = {}
        for change in changes:
            override(chosen, change)
        model = _sections(chosen["problem"]["kind"])["problem"]
        problem = raw.get("problem", {})
        if isinstance(problem, dict):
            raw["problem"] = {key: value for key, value in problem.items() if key in model.model_fields}
    for change in changes:
        override(raw, change)
    return parse_config(raw)


def read_toml(path: str | Path) -> dict[str, Any]:
    """The content of a TOML file; an invalid file raises a ValueError of one line."""
    file = Path(path)
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: is not TOML ({error})") from None


def parse_value(text: str) -> Any:
    """A value in TOML syntax; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def override(raw: dict[str, Any], change: str) -> None:
    """Apply one `section.key=value` to a raw configuration."""
    key, equals, text = change.partition("=")
    parts = key.strip().split(".")
    if not equals or len(parts) != 2 or not all(parts):
        raise ValueError(f"--set {change}: must read section.key=value")
    value = parse_value(text)
    section = raw.setdefault(parts[0], {})
    if not isinstance(section, dict):
        raise ValueError(f"{parts[0]}: must be a table of keys")
    section[parts[1]] = value


def parse_config(raw: dict[str, Any]) -> Config:
    """The validated configuration; a ValueError of one line names the key, the rule and the value."""
    problem = raw.get("problem")
    if isinstance(problem, dict) and problem.get("clusters") == "auto":
        raise ValueError("problem.clusters: must be a number; algorithm.clusters=auto estimates it")
    if isinstance(problem, dict) and "kind" not in problem:
        raw = {**raw, "problem": {"kind": "mixed-regression", **problem}}
    if isinstance(problem, dict) and problem.get("kind") in PROBLEMS.names:
        for section, keys in PROBLEMS[problem["kind"]].section.defaults_for(problem).items():
            if isinstance(raw.get(section, {}), dict):
                raw = {**raw, section: {**keys, **raw.get(section, {})}}
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        raise ValueError(_explain(error, raw)) from None


def _sections(kind: Any = None) -> dict[str, type[Section]]:
    return {
        "problem": PROBLEMS[kind].section if kind in PROBLEMS.names else MixedRegression,
        "algorithm": AlgorithmSection,
        "three_stage": ThreeStageSection,
        "attack": AttackSection,
        "run": RunSection,
    }


def _explain(error: ValidationError, raw: dict[str, Any]) -> str:
    """One line about the first error."""
    faults = error.errors(include_url=False)
    kind = raw.get("problem", {}).get("kind") if isinstance(raw.get("problem"), dict) else None
    sections = _sections(kind)
    first = faults[0]
    location = [str(part) for part in first["loc"]]
    if location and location[0] == "problem" and len(location) > 1 and location[1] == kind:
        del location[1]  # the name of the kind, which is not part of the key
    key = ".".join(location[:2])
    if first["type"] == "extra_forbidden":
        return _unknown_key(location, sections)
    if first["type"] == "union_tag_invalid":
        return f'problem.kind: must be {", ".join(PROBLEMS.names[:-1])} or folder, got "{kind}"'
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        if not location:
            return message  # the message of a rule about several sections names the key
        named = re.match(r"(\w+)", message)
        if len(location) == 1 and named and named[1] in sections[location[0]].model_fields:
            return f"{location[0]}.{message}"
        return f"{key}: {message}"
    if first["type"] == "missing":
        return f"{key}: is missing"
    same = [fault for fault in faults if fault["loc"][: len(first["loc"]) - 1] == first["loc"][:-1]]
    alternatives = same if len(location) > 2 and not location[2].isdigit() else [first]
    rules = " or ".join(dict.fromkeys(_rule(fault) for fault in alternatives))
    return f"{key}: must be {rules}, got {json.dumps(first['input'], default=str)}"


def explain(error: ValidationError, section: type[Section]) -> str:
    """One line about the first error in a single section; keys are named without the section."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        return f"{name}: unknown option{suggest(name, list(section.model_fields))}"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return f"{name}: {message}" if name else message
    same = [fault for fault in error.errors(include_url=False) if fault["loc"][:1] == first["loc"][:1]]
    rules = " or ".join(dict.fromkeys(_rule(fault) for fault in same if len(first["loc"]) > 1 or fault is first))
    return f"{name}: must be {rules or _rule(first)}, got {json.dumps(first['input'], default=str)}"


def _rule(fault: Any) -> str:
    message = str(fault["msg"])
    if fault["type"] == "string_pattern_mismatch":
        return 'a range like "20..500"'
    return re.sub(r"^(Input|String|List|Value) should (be a valid|be|have|match) ?", "", message).strip()


def _unknown_key(location: list[str], sections: dict[str, type[Section]]) -> str:
    if len(location) == 1:
        return f"{location[0]}: unknown section{suggest(location[0], list(sections))}"
    section, name = location[:2]
    kinds = [record.name for record in PROBLEMS if section == "problem" and name in record.section.model_fields]
    if kinds:
        return f"{section}.{name}: unknown key for this problem; it belongs to problem.kind = {' or '.join(kinds)}"
    close = suggest(name, list(sections[section].model_fields))
    if not close:
        elsewhere = [f"{other}.{name}" for other, model in sections.items() if name in model.model_fields]
        close = f"; did you mean {elsewhere[0]}?" if elsewhere else ""
    else:
        close = close.replace("did you mean ", f"did you mean {section}.")
    return f"{section}.{name}: unknown key{close}"


def suggest(name: str, valid: list[str]) -> str:
    """The end of an error about an unknown name: the valid one that is nearest, if one is near."""
    near = difflib.get_close_matches(name, valid, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def as_toml(config: Config, header: str = "") -> str:
    """The complete configuration as TOML, with a comment on every key."""
    lines = [f"# {line}" for line in header.splitlines()]
    for name in Config.model_fields:
        section: Section = getattr(config, name)
        lines += ["", f"[{name}]"] if lines else [f"[{name}]"]
        fields = type(section).model_fields
        for key in sorted(fields, key=lambda key: key != "kind"):  # `kind` first, the others as declared
            value = getattr(section, key)
            if name == "run" and key == "methods":
                value = config.methods
            lines += [f"# {fields[key].description}", f"{key} = {toml_value(value)}"]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """A value in TOML syntax."""
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, bool | str):
        # JSON and TOML write strings and booleans alike, except for one control character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
