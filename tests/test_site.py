"""The documentation as `make docs` has built it: all links lead somewhere, and nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from reference_pages import public_modules, public_names

SITE = Path(__file__).parent.parent / "out" / "site"
LOADED = {"src", "srcset", "href", "data", "poster"}
"""Attributes that name another file."""
PLACES = {"index", "search", "next", "prev"}
"""Kinds of `<link>` that a browser does not load."""

pytestmark = pytest.mark.site


class Page(HTMLParser):
    """The links of a page, what it loads, and the names of its places."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.places: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.places |= {given[name] for name in ("id",) if name in given}
        is_link = tag in ("a", "use") or (tag == "link" and given.get("rel") in PLACES)
        for name in LOADED & given.keys():
            (self.links if is_link else self.loaded).add(given[name])


@cache
def page(file: Path) -> Page:
    return Page(file)


def pages() -> list[Path]:
    found = sorted(SITE.rglob("*.html"))
    assert len(found) > 40, "make docs builds the site"
    return found


def test_nothing_is_loaded_from_elsewhere() -> None:
    for file in pages():
        for target in page(file).loaded:
            address = urlsplit(target)
            assert address.scheme in ("", "data"), (file, target)
            assert not address.netloc, (file, target)
            assert address.scheme or (file.parent / unquote(address.path)).is_file(), (file, target)
    styles = list(SITE.rglob("*.css"))
    assert styles
    for file in styles:
        for target in re.findall(r"url\(\s*['\"]?([^'\")]*)|@import\s+([^;]*)", file.read_text(encoding="utf-8")):
            assert not re.match(r"['\"]?(https?:)?//", "".join(target)), (file, target)


def test_every_link_leads_to_a_file_and_a_place_in_it() -> None:
    for file in pages():
        for target in page(file).links:
            address = urlsplit(target)
            if address.scheme in ("http", "https", "mailto"):
                continue
            to = (file.parent / unquote(address.path)).resolve() if address.path else file
            assert to.is_file(), (file, target)
            if address.fragment and to.suffix == ".html":
                assert unquote(address.fragment) in page(to).places, (file, target)


@pytest.mark.parametrize("module", public_modules())
def test_every_public_name_is_on_its_page(module: str) -> None:
    file = SITE / "docs" / "reference" / f"{module.rpartition('.')[2]}.html"
    places = page(file).places
    for name in public_names(module):
        assert any(place.endswith(f".{name}") and place.startswith("coterie") for place in places), name
    assert "Parameters" in file.read_text(encoding="utf-8")


def test_the_index_has_every_page_in_its_contents() -> None:
    index = SITE / "docs" / "index.html"
    linked = {(index.parent / unquote(urlsplit(link).path)).resolve() for link in page(index).links if ":" not in link}
    made = {SITE / name for name in ("index.html", "search.html", "genindex.html")}
    assert set(pages()) - made - {index} <= linked
