"""HTML from values: whatever is not HTML already is escaped where it becomes a part of it."""

from __future__ import annotations

import json
import re
from typing import Any, Self

NEVER = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""Characters that a document may not contain; they are shown as the replacement character."""
VOID = ("br", "hr", "input", "meta")
"""Elements without an end tag."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()

    @classmethod
    def of(cls, value: object) -> Self:
        """The value as HTML: escaped, unless it is HTML already.

        >>> Markup.of("<script>"), Markup.of(Markup("<b>"))
        ('&lt;script&gt;', '<b>')
        """
        if isinstance(value, Markup):
            return cls(value)
        text = NEVER.sub("\ufffd", str(value))
        for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
            text = text.replace(character, entity)
        return cls(text)


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """An element; None, False and "" leave out an attribute, True gives one without a value.

    A trailing underscore of an attribute's name is dropped, other underscores become hyphens; children that are None
    are left out.

    >>> element("a", "1 < 2", class_="x", data_n=3, hidden=None)
    '<a class="x" data-n="3">1 &lt; 2</a>'
    """
    parts = [tag]
    for name, value in attributes.items():
        if value is None or value is False or value == "":
            continue
        written = name.rstrip("_").replace("_", "-")
        parts.append(written if value is True else f'{written}="{Markup.of(value)}"')
    begin = f"<{' '.join(parts)}>"
    if tag in VOID:
        return Markup(begin)
    return Markup(f"{begin}{joined(*children)}</{tag}>")


def joined(*children: object) -> Markup:
    """The children one after the other, without those that are None."""
    return Markup("".join(Markup.of(child) for child in children if child is not None))


def named(name: object) -> Markup:
    """A name that somebody else has chosen, set apart so that its writing direction does not spread."""
    return element("bdi", name)


def json_script(name: str, value: Any) -> Markup:
    """A block of data for the page's script; no part of it can end the block or begin a tag."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(f'<script type="application/json" id="{Markup.of(name)}">{text}</script>')
