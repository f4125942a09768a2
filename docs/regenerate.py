"""Write the reports in docs/results anew from the kept results, and the tables in the pages that quote them.

    python docs/regenerate.py            all reports but the information limit, from the kept SQLite files
    python docs/regenerate.py --limit    the information limit, too, which is measured anew: some minutes
    python docs/regenerate.py --figures  the figures, too

For a change of words in a report: no number may change. tests/test_docs.py checks that nothing is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from coterie._src.experiments.database import ARCHIVE, FILE, Database
from coterie._src.experiments.results import Row
from coterie._src.studies.registry import STUDIES
from coterie._src.studies.study import Options

DOCS = Path(__file__).parent
RESULTS = DOCS / "results"
MEASURED = "information_limit.md"
"""The report that is not made from kept results."""


class Kept(NamedTuple):
    """The folder of a study's kept results, and the page that quotes its tables."""

    study: str
    folder: Path
    options: Options
    page: str = ""


KEPT = (
    Kept("figure1", RESULTS / "as-published", Options(50, preset="as-published")),
    Kept("figure1", RESULTS / "fair", Options(50, preset="fair")),
    Kept("claims", RESULTS, Options(50, out=RESULTS), "reproduction.md"),
    Kept("slopes", RESULTS / "slopes", Options(50), "theory.md"),
    Kept("beyond", RESULTS / "beyond", Options(50), "beyond.md"),
    Kept("rotated-mnist", RESULTS / "models", Options(5, data=Path("mnist")), "models.md"),
    Kept("tables", RESULTS / "tables", Options(5, data=Path("tables")), "tables.md"),
    Kept("arena", RESULTS / "arena", Options(5, quick=True), "beyond.md"),
)


def is_kept(folder: Path) -> bool:
    """Whether a folder holds results."""
    return (folder / FILE).is_file() or (folder / ARCHIVE).is_file()


def rows_of(kept: Kept) -> dict[str, list[Row]]:
    """The kept results of each grid."""
    names = STUDIES[kept.study].grids(kept.options)
    return {name: Database(kept.folder / name).rows() for name in names if is_kept(kept.folder / name)}


def reports(kept: Kept, measured: bool = False) -> dict[Path, str]:
    """The reports of a study from its kept results, by the file that holds them."""
    rows = rows_of(kept)
    made = {file: report for file, report in STUDIES[kept.study].reports.items() if measured or file != MEASURED}
    return {kept.folder / file: report(rows, kept.options) for file, report in made.items()}


def main() -> None:
    """Write the reports and figures, and in the pages every table that changed in a report."""
    for kept in KEPT:
        if "--figures" in sys.argv:
            rows = rows_of(kept)
            for name, draw in STUDIES[kept.study].figures.items():
                draw(rows, kept.folder / name, kept.options)
        for file, text in reports(kept, "--limit" in sys.argv).items():
            before = file.read_text(encoding="utf-8").split("\n\n")
            file.write_text(text, encoding="utf-8")
            if not kept.page:
                continue
            page = (DOCS / kept.page).read_text(encoding="utf-8")
            for old, new in zip(before, text.split("\n\n"), strict=True):
                page = page.replace(old.strip(), new.strip()) if old != new else page
            (DOCS / kept.page).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
