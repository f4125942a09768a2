"""Whatever a string holds, it stays text."""

from __future__ import annotations

import json
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from coterie._src.report.html.markup import NEVER, Markup, element, joined, json_script
from hostile import NAMES

ANYTHING = st.text(st.characters(exclude_categories=())) | st.sampled_from(NAMES)


class Reader(HTMLParser):
    """What a parser finds: tags with attributes, and the text between them."""

    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.others: list[str] = []
        self.text = ""
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.others.append(data)

    def handle_decl(self, decl: str) -> None:
        self.others.append(decl)

    def handle_pi(self, data: str) -> None:
        self.others.append(data)


@given(ANYTHING, ANYTHING)
def test_text_and_attributes_are_read_as_they_were_written(content: str, attribute: str) -> None:
    read = Reader(element("p", element("b", content), data_tip=attribute))
    assert [tag for tag, _ in read.tags] == ["p", "b"]
    assert read.text == NEVER.sub("\ufffd", content)
    assert read.tags[0][1].get("data-tip", "") == NEVER.sub("\ufffd", attribute)
    assert not read.others


@given(ANYTHING)
def test_a_page_can_always_be_encoded(content: str) -> None:
    assert element("p", content).encode().decode() == element("p", content)


@given(st.dictionaries(ANYTHING, st.lists(ANYTHING | st.integers() | st.none())))
def test_data_for_the_script_cannot_end_its_block(value: dict[str, list[str | int | None]]) -> None:
    block = json_script("data", value)
    begin, end = '<script type="application/json" id="data">', "</script>"
    assert block.startswith(begin)
    inside = block.removeprefix(begin).removesuffix(end)
    assert not set(inside) & set("<>&")
    assert json.loads(inside) == value


def test_only_html_is_taken_as_html() -> None:
    assert joined(Markup("<i>"), "<i>", None, 3) == "<i>&lt;i&gt;3"
    assert Markup.of(element("br")) == "<br>"
    assert isinstance(element("p") + "<b>", str)
    assert not isinstance(element("p") + "<b>", Markup)  # what is put together by hand is escaped again
    assert element("input", hidden=True, value=0, name=None, data_x=False) == '<input hidden value="0">'
