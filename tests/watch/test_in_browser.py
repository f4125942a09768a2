"""The live page in a headless Chromium: `make test-browser`. Skipped where there is no browser."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chromium import chromium, complaints, missing, requests
from command import COTERIE, ENVIRONMENT
from coterie._src.federation.progress import read_progress
from coterie._src.report.html.colours import contrast
from hostile import NAMES
from interrupted import until_kept, wait_for
from report.test_in_browser import all_of, colour_of
from watch.folders import ESCAPE, run_under_way, write_trial
from watch.relay import Relay
from watch.served import Served, served

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(missing()), reason=f"no browser test: {missing()}")]

GRID = """
[problem]
clusters = 2
clients = 60
samples = 60
dim = [20, 30]

[algorithm]
rounds = 200
tolerance = 0

[run]
methods = ["brifca-median", "ifca"]
trials = 400
workers = 1
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run_under_way(tmp_path / "run", (*NAMES, ESCAPE))
    return tmp_path / "run"


@pytest.fixture
def server(folder: Path) -> Iterator[Served]:
    with served(folder) as found:
        yield found


def until(driver: Any, condition: Callable[[Any], Any], seconds: float = 60.0) -> Any:
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, seconds, 0.1, [StaleElementReferenceException]).until(condition)


def state(driver: Any) -> str:
    return str(driver.execute_script("return document.querySelector('[data-state]').dataset.state"))


def text_of(driver: Any, part: str) -> str:
    return str(driver.execute_script("return document.getElementById(arguments[0]).textContent", f"live-{part}"))


def done_so_far(driver: Any) -> int:
    return int(driver.execute_script("return Number(document.querySelector('#live-progress progress').value)"))


def test_hostile_names_do_nothing_and_nothing_is_asked_of_others(browser: Any, folder: Path, server: Served) -> None:
    browser.get("about:blank")
    complaints(browser), requests(browser)
    browser.get(server.address)
    write_trial(folder, (*NAMES, ESCAPE), round=8)
    until(browser, lambda driver: "round 8 of 12" in text_of(driver, "clusters"))
    script = "return [...document.querySelectorAll('#audit-table bdi')].map(x => x.textContent)"
    shown = [name.replace("\x1b", "\ufffd").replace("\x07", "\ufffd") for name in (*NAMES, ESCAPE)]
    assert sorted(browser.execute_script(script)) == sorted(shown)
    assert browser.execute_script("return window.hacked") is None
    assert all_of(browser, "img, iframe, object, [onerror], [onmouseover]") == []
    assert complaints(browser) == []
    asked = set(requests(browser))
    assert asked == {server.address, f"{server.address}events"}


def test_a_sweep_under_way_killed_and_continued(browser: Any, tmp_path: Path) -> None:
    """Real processes: the page shows how far it is, that it died, that it goes on, and how it ended."""
    (tmp_path / "grid.toml").write_text(GRID)
    out = tmp_path / "out"

    def sweep(*options: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COTERIE, "sweep", "grid.toml", "--out", "out", *options], cwd=tmp_path, env=ENVIRONMENT,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    with sweep() as process:
        until_kept(4, out, process)
        with served(out) as server:
            browser.get("about:blank")
            complaints(browser)
            browser.get(server.address)
            until(browser, lambda driver: state(driver) == "running")
            before = done_so_far(browser)
            until(browser, lambda driver: done_so_far(driver) > before)
            until(browser, lambda driver: "brifca-median" in text_of(driver, "results"))
            until(browser, lambda driver: "cluster 1" in text_of(driver, "clusters"))
            assert " % · Sweep out" in browser.title
            process.send_signal(signal.SIGKILL)
            process.wait()
            until(browser, lambda driver: state(driver) == "gone")
            assert "coterie sweep --resume" in text_of(browser, "progress")
            assert browser.find_element("css selector", "[data-state]").get_attribute("role") == "status"
            killed_at = done_so_far(browser)
            with sweep("--resume") as resumed:
                until(browser, lambda driver: state(driver) == "running")
                until(browser, lambda driver: done_so_far(driver) > killed_at)
                resumed.send_signal(signal.SIGINT)
                assert resumed.wait(60) == 130
            until(browser, lambda driver: state(driver) == "interrupted")
            assert complaints(browser) == []


def test_a_federation_under_way_killed_and_continued(browser: Any, tmp_path: Path) -> None:
    """A real server, whose clients answer in its own process: its rounds, its death and its return on the page."""
    here = Path(__file__).parent
    environment = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join([str(here.parent / "federation"), *sys.path])}

    def begun() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, str(here / "federation_server.py"), str(tmp_path)], env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def has_rounds() -> bool:
        found = read_progress(tmp_path)
        return found is not None and found[0].round > 0

    with begun() as process:
        wait_for(has_rounds, process)
        with served(tmp_path) as server:
            browser.get(server.address)
            until(browser, lambda driver: state(driver) == "running")
            before = done_so_far(browser)
            until(browser, lambda driver: done_so_far(driver) > before)
            assert "client 3 (node 3): not finite" in text_of(browser, "refused")
            assert "11 accepted, 1 refused, 0 silent" in text_of(browser, "refused")
            until(browser, lambda driver: "refused in 100% of the rounds" in text_of(driver, "audit"))
            process.kill()
            process.wait()
            until(browser, lambda driver: state(driver) == "gone")
            assert "goes on after the last round" in text_of(browser, "progress")
            killed_at = done_so_far(browser)
            assert killed_at > 0
            with begun() as again:
                until(browser, lambda driver: state(driver) == "running" and done_so_far(driver) > killed_at)
                again.kill()


def test_a_connection_that_is_lost_comes_back(browser: Any, folder: Path, server: Served) -> None:
    with Relay(server.port) as relay:
        browser.get(server.address.replace(str(server.port), str(relay.port)))
        until(browser, lambda driver: "round 7 of 12" in text_of(driver, "clusters"))
        lost = browser.find_element("id", "connection")
        until(browser, lambda _: not lost.is_displayed())
        relay.open = False
        relay.cut()
        until(browser, lambda _: lost.is_displayed())
        write_trial(folder, ("oslo",), round=9)
        assert "round 7 of 12" in text_of(browser, "clusters")
        relay.open = True
        until(browser, lambda driver: "round 9 of 12" in text_of(driver, "clusters"))
        until(browser, lambda _: not lost.is_displayed())
    complaints(browser)  # of the connections that were cut


def test_the_focus_and_the_order_of_a_table_outlast_an_update(browser: Any, folder: Path, server: Served) -> None:
    from selenium.webdriver import Keys

    write_trial(folder, ("b", "c", "a"))
    browser.get(server.address)

    def clients() -> list[str]:
        return [one.text for one in all_of(browser, "#audit-table tbody th")]

    until(browser, lambda _: clients() == ["b", "c", "a"])
    for _ in range(40):  # by the keyboard alone
        browser.switch_to.active_element.send_keys(Keys.TAB)
        if browser.switch_to.active_element.text == "client":
            break
    focused = browser.switch_to.active_element
    assert focused.tag_name == "button"
    focused.send_keys(Keys.ENTER)
    assert clients() == ["a", "b", "c"]
    write_trial(folder, ("d", "b", "c", "a"), round=8)
    until(browser, lambda _: len(clients()) == 4)
    assert clients() == ["a", "b", "c", "d"]
    assert browser.switch_to.active_element == focused
    assert focused.find_element("xpath", "..").get_attribute("aria-sort") == "ascending"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_are_readable_on_a_small_window(scheme: str, folder: Path, server: Served) -> None:
    with chromium(width=360, height=640, dark=scheme == "dark") as driver:
        driver.get(server.address)
        until(driver, lambda _: "round 7 of 12" in text_of(driver, "clusters"))
        assert driver.execute_script("return document.documentElement.scrollWidth") <= 360
        papers = []
        for _ in range(2):
            papers.append(paper := colour_of(driver, driver.find_element("css selector", "body"), "backgroundColor"))
            for query in ("h1", "h2", "h3", "h3 small", "p", "td", "th", "thead button", ".bar span", ".caption", "li"):
                for element in all_of(driver, f"main {query}, header {query}")[:3]:
                    assert contrast(colour_of(driver, element, "color"), paper) >= 4.5, query
            driver.find_element("id", "theme").click()
        assert (contrast(papers[0], "#000000") > contrast(papers[1], "#000000")) == (scheme == "light")
        for bar in all_of(driver, "progress"):
            assert bar.get_attribute("aria-label")


def test_the_policy_forbids_code_and_other_addresses(browser: Any, server: Served) -> None:
    browser.get("about:blank")
    complaints(browser)
    browser.get(server.address)
    browser.execute_script(
        "const code = document.createElement('script'); code.textContent = 'window.hacked = 1';"
        "document.body.append(code);"
    )
    assert browser.execute_script("return window.hacked") is None
    other = "const done = arguments[0]; fetch('http://127.0.0.1:9/').then(() => done('yes')).catch(() => done('no'))"
    assert browser.execute_async_script(other) == "no"
    assert len([line for line in complaints(browser) if "Content Security Policy" in line]) >= 2
