"""A headless Chromium that selenium drives, and what it says about a page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def missing() -> str:
    """What is missing for a browser, in a few words; empty where nothing is."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "no selenium (pip install selenium)"
    if not any(map(shutil.which, BROWSERS)):
        return f"no browser ({', '.join(BROWSERS)})"
    return "" if shutil.which("chromedriver") else "no chromedriver"


@contextmanager
def chromium(width: int = 1100, height: int = 900, dark: bool = False) -> Iterator[Any]:
    """A browser with a window of this size; it logs what pages request and what they complain about."""
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = next(filter(None, map(shutil.which, BROWSERS)))
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     f"--window-size={width},{height}", "--force-device-scale-factor=1"):  # fmt: skip
        options.add_argument(argument)
    if dark:
        options.add_argument("--force-dark-mode")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))
    try:
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        yield driver
    finally:
        driver.quit()


def opened(driver: Any, file: Path) -> Any:
    """The driver, with the page of a file."""
    driver.get(file.resolve().as_uri())
    return driver


def requests(driver: Any) -> list[str]:
    """The addresses that were asked for since the last look."""
    found = []
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            found.append(message["params"]["request"]["url"])
    return found


def complaints(driver: Any) -> list[str]:
    """What the console has to say: errors, warnings, and violations of the page's policy."""
    return [f"{entry['level']}: {entry['message']}" for entry in driver.get_log("browser")]
