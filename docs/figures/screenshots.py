"""Pictures of the sections of a report, taken in a headless Chromium.

    python docs/figures/screenshots.py            runs what is shown, and writes the PNG files beside this one
    python docs/figures/screenshots.py DIR OUT    all sections of DIR/report.html into the folder OUT

It needs selenium and Debian's chromium and chromium-driver (`make test-browser` installs selenium).
"""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).parent
sys.path.insert(0, str(FIGURES.parents[1] / "tests"))

from chromium import chromium, opened  # noqa: E402

RUNS = {
    "paper": ["--trials", "6", "--set", "attack.kind=alie", "--set", "attack.target=smallest"],
    "schools": ["--set", "problem.kind=schools-like"],
}
"""The runs that are shown: the arguments of `coterie run`."""
KEPT = {
    "paper": ["methods", "rounds", "clusters-of-clients", "clients", "diagnostics", "theory"],
    "schools": ["scores"],
}
"""The sections that are kept of each."""
SCALE = 1.0
MARGIN = 12


def clip(driver: Any, element: Any, file: Path) -> None:
    """Write a picture of one element."""
    box = driver.execute_script(
        "const b = arguments[0].getBoundingClientRect();"
        "return [b.left + scrollX, b.top + scrollY, b.width, b.height]", element,
    )  # fmt: skip
    area = {"x": box[0] - MARGIN, "y": box[1], "width": box[2] + 2 * MARGIN, "height": box[3] + MARGIN, "scale": SCALE}
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": area})
    file.write_bytes(base64.b64decode(shot["data"]))


def take(report: Path, out: Path, prefix: str, sections: list[str] | None = None, dark: bool = False) -> None:
    """Write a picture of each section of a report, or of some."""
    with chromium(width=920, dark=dark) as driver:
        opened(driver, report)
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
        for name, arguments in RUNS.items():
            command = [sys.executable, "-m", "coterie", "run", *arguments, "--out", name]
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            take(Path(folder) / name / "report.html", FIGURES, "report", KEPT[name])
        take(Path(folder) / "paper" / "report.html", FIGURES, "report-dark", ["methods"], dark=True)


if __name__ == "__main__":
    main()
