"""Text that others have written, such as a site or a server, before it is shown or written down."""

from __future__ import annotations

from typing import Any

MAX_LENGTH = 200


def printable(text: Any, length: int = MAX_LENGTH) -> str:
    """Return a text as one line of at most so many characters that a terminal, a log or a page can show.

    Control characters, line ends, marks that turn the direction of writing, and halves of characters become "?". Markup
    of a page or of a terminal's library stays: who shows it escapes it.

    >>> printable("red \\x1b[31malert\\nround 3: fine\\u202e")
    'red ?[31malert?round 3: fine?'
    >>> printable("x" * 500, 8)
    'xxxxxxx…'
    """
    found = "".join(c if c.isprintable() else "?" for c in str(text)[: length + 1])
    return found if len(found) <= length else found[: length - 1] + "…"
