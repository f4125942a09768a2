"""One self-contained page: sections, style and script in one file, with a policy that forbids every request."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from numpy.typing import NDArray

from coterie import __version__
from coterie._src.report.html.colours import cluster_rules, method_rules, shade_rules
from coterie._src.report.html.markup import Markup, element, joined

MAX_MODELS = 1 << 14
"""The most numbers of models that a page offers for download."""


class Section(NamedTuple):
    """A part of a page. name: of its anchor."""

    name: str
    title: str
    body: Markup


def section(name: str, title: str, *parts: Markup | None) -> list[Section]:
    """A section of the parts that are there; none without any."""
    there = [part for part in parts if part is not None]
    return [Section(name, title, joined(*there))] if there else []


@cache
def template(name: str) -> str:
    """A file of the folder `template`."""
    return files("coterie._src.report.html").joinpath("template", name).read_text(encoding="utf-8")


class Live(NamedTuple):
    """What a page has in addition that is shown by a server, and asks it for what has changed."""

    style: str
    script: str
    footer: str


COMPLETE = "This file is complete: it loads nothing and sends nothing."


class Looks(NamedTuple):
    """The style and the script of a page, and the policy that allows these and nothing else."""

    style: str
    script: str
    policy: str


def looks(methods: Sequence[str] = (), live: Live | None = None) -> Looks:
    """The looks of a page; methods: those whose colours it uses, in the order of the table."""
    style = template("style.css") + method_rules(methods) + cluster_rules() + shade_rules()
    script, asks = template("script.js"), ""
    if live is not None:
        style, script, asks = style + live.style, script + live.script, "connect-src 'self'; "
    policy = (
        f"default-src 'none'; style-src '{_fingerprint(style)}'; script-src '{_fingerprint(script)}'; {asks}"
        "base-uri 'none'; form-action 'none'"
    )
    return Looks(style, script, policy)


def page(
    title: str,
    facts: Sequence[tuple[str, object]],
    sections: Sequence[Section],
    methods: Sequence[str] = (),
    live: Live | None = None,
) -> str:
    """The page; facts: what stands below its title. methods: those whose colours it uses, in the order of the table."""
    style, script, policy = looks(methods, live)
    known = [element("div", element("dt", name), element("dd", value)) for name, value in facts]
    links = [element("li", element("a", one.title, href=f"#{one.name}")) for one in sections]
    body = [
        element("section", element("h2", one.title, id=f"{one.name}-title"), one.body, id=one.name,
                aria_labelledby=f"{one.name}-title")
        for one in sections
    ]  # fmt: skip
    parts = {
        "policy": Markup.of(policy),
        "title": Markup.of(title),
        "style": style,
        "facts": joined(*known),
        "links": joined(*links),
        "sections": joined(*body),
        "version": Markup.of(__version__),
        "footer": Markup.of(COMPLETE if live is None else live.footer),
        "script": script,
    }
    return _filled(template("page.html"), parts)


def _filled(text: str, parts: Mapping[str, str]) -> str:
    """The template with every {{name}} replaced once; what is put in is not looked at again."""
    pieces = text.split("{{")
    found = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        found += [parts[name.strip()], rest]
    return "".join(found)


def _fingerprint(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def sentences(lines: Sequence[object]) -> Markup | None:
    """A list of lines; None without any."""
    return element("ul", *(element("li", line) for line in lines), class_="lines") if lines else None


def notes(lines: Sequence[str]) -> Markup | None:
    """Lines that ask for attention."""
    return joined(*(element("p", line, class_="note", role="note") for line in lines)) if lines else None


def copyable(name: str, title: str, content: str) -> Markup:
    """A text with a button that copies it."""
    button = element("button", "Copy", type="button", data_copy=name)
    return element(
        "div", element("h3", title), button, element("pre", element("code", content, id=name), tabindex=0),
        class_="copyable",
    )  # fmt: skip


def model_links(words: str, models: Mapping[str, NDArray[Any]]) -> Markup | None:
    """Links that save models as CSV files, which are a part of the page; too large ones are left out."""
    links = []
    for name, rows in models.items():
        if rows.ndim == 2 and rows.size <= MAX_MODELS // len(models):
            content = "".join(",".join(f"{value:.9g}" for value in row) + "\n" for row in rows.tolist())
            data = base64.b64encode(content.encode()).decode()
            file = f"centres-{''.join(c if c.isalnum() or c in '-+' else '-' for c in name)}.csv"
            link = element("a", name, href=f"data:text/csv;base64,{data}", download=file)
            links.append(joined(link, f": {rows.shape[0]} × {rows.shape[1]} numbers"))
    if not links:
        return element("p", "The models have too many numbers for this page; they are in its folder.", class_="soft")
    return joined(element("p", words), sentences(links))
