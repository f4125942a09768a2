"""The pages of reference, from the package itself: public names, commands, keys of a configuration, registered names.

`docs/conf.py` puts them into the site where a page of `docs/reference` asks for them; nothing of them is kept.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from types import FunctionType
from typing import Any, get_args

import typer
from typer.utils import get_params_from_function

import coterie
from coterie._src.cli import app
from coterie._src.experiments.config import ATTACK_TARGETS, ATTACKS, Config
from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.problems import PROBLEMS, Problem
from coterie._src.experiments.sections import Section
from coterie._src.experiments.starts import STARTS
from coterie._src.experiments.summary import METRICS
from coterie._src.experiments.toml import toml_value
from coterie._src.registry import Registry
from coterie._src.sharding.rules import RULES
from coterie._src.studies.registry import STUDIES
from coterie._src.tasks import TASKS

REGISTRIES: dict[str, Registry[Any]] = {
    "methods": METHODS,
    "attacks": ATTACKS,
    "targets": ATTACK_TARGETS,
    "starts": STARTS,
    "problems": PROBLEMS,
    "tasks": TASKS,
    "rules": RULES,
    "metrics": METRICS,
    "studies": STUDIES,
}
GENERATED = re.compile(r"^<!-- generated: (\w+)(?: ([\w.]+))? -->$", re.MULTILINE)
"""Where a page asks for what is generated: `<!-- generated: api coterie.sklearn -->`."""


def generated(text: str) -> str:
    """The text of a page with everything in it that is generated."""
    return GENERATED.sub(lambda found: PAGES[found[1]](*([found[2]] if found[2] else [])), text)


# --- public names -----------------------------------------------------------------------------------------


def public_modules() -> list[str]:
    """The package and its public modules, each with a page of its own."""
    found = (module.name for module in pkgutil.iter_modules(coterie.__path__))
    return ["coterie", *sorted(f"coterie.{name}" for name in found if not name.startswith("_"))]


def api(module: str) -> str:
    """The docstrings of a module's public names, as directives of Sphinx, one heading each."""
    parts = []
    for name in public_names(module):
        documented = getattr(importlib.import_module(module), name)
        kind = "autoclass" if inspect.isclass(documented) else "autofunction"
        members = public_members(documented) if inspect.isclass(documented) else []
        options = [f"   :members: {', '.join(members)}"] if members else []
        parts += [f"## {name}", "", "```{eval-rst}", f".. {kind}:: {module}.{name}", *options, "```", ""]
    return "\n".join(parts)


MEMBERS = (FunctionType, property, cached_property, classmethod, staticmethod)


def public_names(module: str) -> list[str]:
    """The names that a module offers and documents."""
    return [name for name in importlib.import_module(module).__all__ if name != "__version__"]


def public_members(documented: type) -> list[str]:
    """The public methods and properties of a class, with those of its bases that are not public themselves."""
    found: dict[str, None] = {}
    for base in documented.__mro__:
        public = base is not documented and base.__name__ in coterie.__all__
        if public or not base.__module__.startswith("coterie."):
            continue
        for name, value in vars(base).items():
            if (
                isinstance(value, MEMBERS)
                and not name.startswith("_")
                and name not in getattr(base, "__dataclass_fields__", {})
            ):
                found[name] = None
    return list(found)


# --- commands ---------------------------------------------------------------------------------------------


def commands() -> str:
    """Every command with its help, arguments and options."""
    parts = []
    for path, command in all_commands(typer.main.get_command(app), "coterie"):
        context = typer.Context(command, info_name=path)
        usage = " ".join([path, *command.collect_usage_pieces(context)])
        heading = "#" * (path.count(" ") + 1)
        parts += [f"{heading} {path}", "", *paragraphs(command.help), "```", usage, "```", ""]
        declared = get_params_from_function(inspect.unwrap(command.callback)) if command.callback else {}
        rows = [parameter(one, context, declared) for one in command.params if not one.hidden]
        parts += [*table(["argument or option", "meaning", "default"], rows), ""] if rows else []
    return "\n".join(parts)


def all_commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The commands below a command, with the words by which each is called; a group comes before its commands."""
    for name, below in command.commands.items():
        if not below.hidden:
            yield f"{path} {name}", below
            if hasattr(below, "commands"):
                yield from all_commands(below, f"{path} {name}")


def paragraphs(text: str | None) -> list[str]:
    """A help text as paragraphs, without the ends of its lines."""
    parts = re.split(r"\n\s*\n", inspect.cleandoc(text or ""))
    return [line for part in parts for line in (" ".join(part.split()), "")]


def parameter(one: Any, context: Any, declared: Mapping[str, Any]) -> list[str]:
    """A row of the table of a command: an option or an argument, what it means, and its default.

    declared: the parameters of the function; some versions of the parser lose the help of arguments.
    """
    metavar = one.make_metavar(context)
    if one.param_type_name == "argument":
        shown = code(metavar)
    elif one.is_flag:
        shown = ", ".join(code(name) for name in [*one.opts, *one.secondary_opts])
    else:
        shown = ", ".join(code(name) for name in one.opts) + " " + code(metavar)
    stated = getattr(one, "show_default", None)
    default = stated if isinstance(stated, str) else one.default
    unset = default is None or default is False or one.required or default == ()
    meaning = one.help or declared[one.name].default.help or ""
    return [shown, meaning, "" if unset else code(str(getattr(default, "value", default)))]


# --- keys of a configuration ------------------------------------------------------------------------------


def configuration() -> str:
    """Every key of a configuration: its type, its default, what it means; those of problems kind by kind."""
    parts = []
    for name, field in Config.model_fields.items():
        parts += [f"## `[{name}]`", ""]
        if name != "problem":
            parts += [*keys(type(field.get_default(call_default_factory=True))), ""]
            continue
        kinds: dict[type[Section], list[str]] = {}
        for record in PROBLEMS:
            kinds.setdefault(record.section, []).append(record.name)
        for section, names in kinds.items():
            parts += [f"### {', '.join(code(name) for name in names)}", ""]
            parts += [f"{code(name)}: {PROBLEMS[name].summary}. " for name in names]
            parts += ["", *keys(section), "", *changed_defaults(section)]
    return "\n".join(parts)


def keys(section: type[Section]) -> list[str]:
    """The table of the keys of a section."""
    schema = section.model_json_schema()
    rows = []
    for key, field in section.model_fields.items():
        default = field.get_default(call_default_factory=True)
        chosen = field.is_required() or (key == "kind" and issubclass(section, Problem))
        registry = registry_of([field.annotation, *field.metadata])
        admitted = values(schema["properties"][key])
        if registry:
            admitted = admitted.replace("text", f"name of a [{registry.kind}](names.md#{registry.kind}s)")
        rows.append([code(key), admitted, "" if chosen else code(toml_value(default)), field.description or ""])
    return table(["key", "values", "default", "meaning"], rows)


def registry_of(annotations: Iterable[Any]) -> Registry[Any] | None:
    """The registry whose names a field admits, from its annotation."""
    for one in annotations:
        owner = getattr(getattr(one, "func", None), "__self__", None)  # of an AfterValidator(METHODS.resolve)
        if isinstance(owner, Registry):
            return owner
        if found := registry_of([*get_args(one), *getattr(one, "__metadata__", ())]):
            return found
    return None


def changed_defaults(section: Any) -> list[str]:
    """A sentence on the defaults of other sections that differ for a kind of problem."""
    changed = [f"{code(f'{name}.{key}')} = {code(toml_value(value))}" for name, own in section.defaults.items()
               for key, value in own.items()]  # fmt: skip
    return ["Here the defaults of other tables are " + ", ".join(changed) + ".", ""] if changed else []


def values(schema: dict[str, Any]) -> str:
    """The values that a JSON schema admits, in words."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(values(one) for one in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " or ".join(code(toml_value(one)) for one in schema.get("enum", [schema.get("const")]))
    words = {"integer": "integer", "number": "number", "string": "text", "boolean": "`true` or `false`"}
    if schema.get("type") == "array":
        return f"list of {values(schema['items'])}"
    bounds = [f"{sign} {schema[rule]:g}" for rule, sign in BOUNDS.items() if rule in schema]
    return " ".join([words[schema["type"]], ", ".join(bounds)]).strip()


BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


# --- registered names -------------------------------------------------------------------------------------


def names() -> str:
    """The names of all registries, each with the line that says what it is."""
    parts = []
    for kind, registry in REGISTRIES.items():
        rows = [[code(record.name), record.summary] for record in registry]
        parts += [f"## {kind.capitalize()}", "", *table(["name", "what it is"], rows), ""]
    return "\n".join(parts)


# --- Markdown ---------------------------------------------------------------------------------------------


def code(text: str) -> str:
    """The text as code."""
    return f"`{text}`"


def table(header: list[str], rows: Iterable[list[str]]) -> list[str]:
    """The lines of a table."""
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in line) + " |" for line in lines]


PAGES: dict[str, Callable[..., str]] = {
    "api": api, "commands": commands, "configuration": configuration, "names": names,
}  # fmt: skip
