"""Pictures of the sections of a report, taken in a headless Chromium.

    python docs/figures/screenshots.py            runs what is shown, and writes the PNG files beside this one
    python docs/figures/screenshots.py DIR OUT    all sections of DIR/report.html into the folder OUT

It needs selenium and Debian's chromium and chromium-driver (`make test-browser` installs selenium).
"""

from __future__ import annotations

import base64
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

FIGURES = Path(__file__).parent
sys.path.insert(0, str(FIGURES.parents[1] / "tests"))

from chromium import chromium, opened  # noqa: E402

COMMANDS = {
    "paper": ["run", "--set", "problem.clusters=3", "--set", "problem.clients=90", "--set", "problem.dim=20", "--set",
              "problem.samples=40", "--set", "attack.kind=alie", "--set", "attack.target=smallest"],
    "schools": ["run", "--set", "problem.kind=schools-like"],
    "federation": ["federate", "simulate", "--method", "brifca-median", "--set", "problem.clusters=2", "--set",
                   "problem.clients=16", "--set", "problem.dim=4", "--set", "problem.samples=40", "--set",
                   "problem.byzantine=0.13", "--set", "attack.kind=sign-flip", "--set", "algorithm.rounds=20", "--set",
                   "algorithm.init=spectral", "--set", "algorithm.max_byzantine=0.13"],
}  # fmt: skip
"""What is shown: the commands, each with a folder of its name."""
KEPT = {
    "paper": ["methods", "rounds", "clusters-of-clients", "diagnostics", "theory", "models", "configuration"],
    "schools": ["scores", "look", "clients"],
    "federation": ["look", "sites", "clusters-of-sites"],
    "arena": ["arena"],
}
"""The sections that are kept of each."""
CHOSEN = "ifca"
"""The method whose clusters are shown."""
SCALE = 1.0
COLOURS = 255
MARGIN = 12


def clip(driver: Any, element: Any, file: Path) -> None:
    """Write a picture of one element."""
    box = driver.execute_script(
        "const b = arguments[0].getBoundingClientRect();"
        "return [b.left + scrollX, b.top + scrollY, b.width, b.height]", element,
    )  # fmt: skip
    area = {"x": box[0] - MARGIN, "y": box[1], "width": box[2] + 2 * MARGIN, "height": box[3] + MARGIN, "scale": SCALE}
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": area})
    picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(file, optimize=True)


def take(report: Path, out: Path, prefix: str, sections: list[str] | None = None, dark: bool = False) -> None:
    """Write a picture of each section of a report, or of some."""
    with chromium(width=920, dark=dark) as driver:
        opened(driver, report)
        for menu in driver.find_elements("css selector", "[data-choice='cluster-figures']"):
            menu.send_keys(CHOSEN)
            driver.execute_script("arguments[0].blur()", menu)
        for section in driver.find_elements("css selector", "main > section"):
            name = section.get_attribute("id")
            if sections is None or name in sections:
                clip(driver, section, out / f"{prefix}-{name}.png")


def main() -> None:
    """Take what the command line asks for."""
    if len(sys.argv) == 3:
        Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
        take(Path(sys.argv[1]) / "report.html", Path(sys.argv[2]), "report")
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name, arguments in COMMANDS.items():
            coterie(place, *arguments, "--out", name)
        shutil.copytree(FIGURES.parent / "results" / "arena", place / "arena")
        coterie(place, "report", "arena")
        for name, sections in KEPT.items():
            report = place / name / ("results" if name == "federation" else "") / "report.html"
            take(report, FIGURES, "report-federation" if name == "federation" else "report", sections)
        take(place / "paper" / "report.html", FIGURES, "report-dark", ["methods"], dark=True)


def coterie(folder: Path, *arguments: str) -> None:
    """Run the command in a folder."""
    command = [sys.executable, "-m", "coterie", *arguments]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
