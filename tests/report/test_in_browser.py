"""Pages in a headless Chromium: `make test-browser`. Skipped where there is no browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chromium import chromium, complaints, missing, opened, requests
from coterie._src.report.html import sweep_page
from coterie._src.report.html.colours import contrast
from hostile import NAMES

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(missing()), reason=f"no browser test: {missing()}")]

ARENA = Path(__file__).parents[2] / "docs" / "results" / "arena"


@pytest.fixture(scope="module")
def pages(paper_run: Path, hostile_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "arena.html").write_text(sweep_page(ARENA), encoding="utf-8")
    return {
        "paper": paper_run / "report.html",
        "hostile": hostile_run / "report.html",
        "arena": folder / "arena.html",
    }


@pytest.fixture(scope="module", params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


@pytest.fixture
def paper(browser: Any, pages: dict[str, Path]) -> Any:
    return opened(browser, pages["paper"])


def all_of(driver: Any, query: str) -> list[Any]:
    return list(driver.find_elements("css selector", query))


def cells(driver: Any, table: str, column: int) -> list[str]:
    rows = all_of(driver, f"#{table} tbody tr:not([hidden])")
    return [row.find_elements("css selector", "th, td")[column].text for row in rows]


@pytest.mark.parametrize("page", ["paper", "hostile", "arena"])
def test_a_page_complains_of_nothing_and_asks_for_nothing(page: str, browser: Any, pages: dict[str, Path]) -> None:
    browser.get("about:blank")
    complaints(browser), requests(browser)
    opened(browser, pages[page])
    for button in all_of(browser, "thead button"):
        browser.execute_script("arguments[0].click()", button)
    browser.find_element("id", "theme").click()
    for place in range(0, 4000, 400):
        browser.execute_script(f"scrollTo(0, {place})")
    assert complaints(browser) == []
    assert [address for address in requests(browser) if address != pages[page].resolve().as_uri()] == []


def test_the_policy_forbids_requests_and_code(paper: Any) -> None:
    """What would happen if something did get into the page: it is not loaded, and not run."""
    paper.execute_script(
        "const image = document.createElement('img'); image.src = 'http://127.0.0.1:9/x.png';"
        "const code = document.createElement('script'); code.textContent = 'window.hacked = 1';"
        "document.body.append(image, code);"
    )
    assert paper.execute_script("return window.hacked") is None
    told = paper.execute_async_script("const done = arguments[0]; fetch('http://127.0.0.1:9/').catch(() => done('no'))")
    assert told == "no"
    violations = [line for line in complaints(paper) if "Content Security Policy" in line]
    assert len(violations) >= 3, violations


def test_sorting_goes_up_and_down_by_numbers(paper: Any) -> None:
    heading = all_of(paper, "#methods-table thead th")[2]
    button = heading.find_element("css selector", "button")
    button.click()
    assert heading.get_attribute("aria-sort") == "ascending"
    up = [float(text.split(" ")[0]) for text in cells(paper, "methods-table", 2)]
    assert up == sorted(up)
    button.send_keys("\n")  # by the keyboard
    assert heading.get_attribute("aria-sort") == "descending"
    assert [float(text.split(" ")[0]) for text in cells(paper, "methods-table", 2)] == up[::-1]
    assert len(set(up)) > 3


def test_what_is_not_known_comes_last_in_both_orders(paper: Any) -> None:
    (column,) = [i for i, one in enumerate(all_of(paper, "#methods-table thead th")) if one.text.startswith("ARI")]
    for _ in range(2):
        all_of(paper, "#methods-table thead button")[column].click()
        assert cells(paper, "methods-table", column)[-1] == "–"


def test_clients_are_filtered_by_a_text(paper: Any) -> None:
    field = paper.find_element("css selector", "[data-filter='clients-table']")
    field.send_keys("yes")  # Byzantine
    assert len(cells(paper, "clients-table", 0)) == 10
    assert paper.find_element("css selector", "[data-count='clients-table']").text == "10 of 200 rows"
    field.send_keys("\b\b\b")
    assert len(cells(paper, "clients-table", 0)) == 200


def test_hovering_says_what_is_under_the_pointer(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver import ActionChains

    opened(browser, pages["hostile"])
    tip = browser.find_element("id", "tip")
    assert not tip.is_displayed()
    dots = [dot for dot in all_of(browser, "#strip-cluster circle") if dot.get_attribute("data-tip")]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", dots[0])
    for dot in dots[:3]:
        ActionChains(browser).move_to_element(dot).perform()
        assert tip.is_displayed()
        assert tip.text in [one.get_attribute("data-tip") for one in dots]
        assert tip.find_elements("css selector", "*") == []  # text, no elements
    heading = browser.find_element("css selector", "#scores h2")
    ActionChains(browser).move_to_element(heading).perform()
    assert not tip.is_displayed()


def test_the_values_of_a_round_by_pointer_and_by_keyboard(paper: Any) -> None:
    from selenium.webdriver import ActionChains, Keys

    data = json.loads(paper.find_element("id", "convergence-data").get_attribute("textContent"))
    slider = paper.find_element("css selector", "#convergence .slider")
    paper.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", slider)
    shown = paper.find_element("css selector", "#convergence .readout")
    last = data["rounds"][-1]
    assert shown.text.startswith(f"round {last}")
    slider.send_keys(Keys.HOME)
    assert shown.text.startswith("round 1")
    first = dict(data["series"])["ifca"][0]
    assert f"ifca {first:.3g}" in shown.text
    ActionChains(paper).move_to_element(paper.find_element("css selector", "#convergence svg")).perform()
    assert not shown.text.startswith("round 1 ")


def test_hostile_names_do_nothing(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["hostile"])
    assert browser.execute_script("return window.hacked") is None
    listed = browser.execute_script(
        "return [...document.querySelectorAll('#clients-table bdi')].map(x => x.textContent)"
    )
    assert sorted(listed) == sorted(NAMES)
    assert all_of(browser, "img, iframe, object, [onerror], [onmouseover]") == []
    assert browser.title.startswith(str(pages["hostile"].parents[1]))


def test_one_of_several_figures_is_chosen(paper: Any) -> None:
    from selenium.webdriver.support.ui import Select

    menu = paper.find_element("css selector", "[data-choice='cluster-figures']")
    assert paper.find_element("id", "cluster-sizes-0").is_displayed()
    Select(menu).select_by_visible_text("ifca")
    assert not paper.find_element("id", "cluster-sizes-0").is_displayed()
    shown = [one for one in all_of(paper, "#clusters-of-clients figure") if one.is_displayed()]
    assert shown
    assert all("ifca" in one.text for one in shown)


def colour_of(driver: Any, element: Any, name: str) -> str:
    value = driver.execute_script("return getComputedStyle(arguments[0])[arguments[1]]", element, name)
    numbers = [int(float(part)) for part in value[value.index("(") + 1 : -1].split(",")[:3]]
    return "#" + "".join(f"{number:02x}" for number in numbers)


def test_both_schemes_are_readable(scheme: str, pages: dict[str, Path]) -> None:
    """4.5:1 for every kind of text, 3:1 for lines; in the scheme that the system asks for, and in the other one."""
    with chromium(dark=scheme == "dark") as driver:
        opened(driver, pages["paper"])
        papers = []
        for _ in range(2):
            paper = colour_of(driver, driver.find_element("css selector", "body"), "backgroundColor")
            papers.append(paper)
            for query in ("h1", "h2", "p", "figcaption", "td", "thead button", "a", ".facts dt", "figure h3"):
                for element in all_of(driver, f"main {query}, header {query}")[:3]:
                    assert contrast(colour_of(driver, element, "color"), paper) >= 4.5, query
            for query in ("svg text", "svg .tick"):
                for element in all_of(driver, query)[:3]:
                    assert contrast(colour_of(driver, element, "fill"), paper) >= 4.5, query
            for element in all_of(driver, "#convergence svg .line"):
                assert contrast(colour_of(driver, element, "stroke"), paper) >= 3.0
            driver.find_element("id", "theme").click()
        light_first = contrast(papers[0], "#000000") > contrast(papers[1], "#000000")
        assert light_first == (scheme == "light")


def test_every_figure_has_a_text_that_is_read_aloud(paper: Any) -> None:
    drawings = all_of(paper, "figure svg")
    assert len(drawings) > 5
    for drawing in drawings:
        assert not drawing.is_displayed() or drawing.aria_role in ("img", "image")
        assert len(drawing.get_attribute("aria-label")) > 60
    for figure in all_of(paper, "figure"):
        assert len(figure.find_element("css selector", "figcaption").get_attribute("textContent")) > 60


@pytest.mark.parametrize("page", ["paper", "hostile", "arena"])
def test_a_small_window_scrolls_tables_and_figures_but_not_the_page(page: str, pages: dict[str, Path]) -> None:
    with chromium(width=360, height=640) as driver:
        opened(driver, pages[page])
        assert driver.execute_script("return document.documentElement.scrollWidth") <= 360
        for text in all_of(driver, "figure svg text")[:20]:
            assert driver.execute_script("return arguments[0].getBoundingClientRect().height", text) >= 9


def test_paper_shows_no_controls_and_everything_that_scrolls(paper: Any) -> None:
    paper.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert not any(one.is_displayed() for one in all_of(paper, "button:not(thead button), select, nav, .slider"))
        cut = paper.execute_script(
            "return [...document.querySelectorAll('.scroll, pre')].filter(x => x.offsetParent && "
            "x.scrollHeight > x.clientHeight + 2 && getComputedStyle(x).overflowY !== 'visible').length"
        )
        assert cut == 0
    finally:
        paper.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_the_command_is_copied(paper: Any) -> None:
    paper.execute_script(
        "window.copied = ''; navigator.clipboard.writeText = async (text) => { window.copied = text; };"
    )
    paper.execute_script("arguments[0].click()", paper.find_element("css selector", "[data-copy='command']"))
    assert paper.execute_script("return window.copied").startswith("coterie run ")
