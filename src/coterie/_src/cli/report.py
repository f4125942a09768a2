"""`coterie report`: a folder of results as one page of HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie._src.cli.app import app


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, a federation, a sweep or an arena.")],
    out: Annotated[Path | None, typer.Option(help="The file to write. Default: FOLDER/report.html.")] = None,
) -> None:
    """Write a page about results for any browser: tables to sort, figures, diagnostics, configuration.

    One file that needs nothing beside it and makes no request. `coterie run` writes it, too.
    """
    from coterie._src.report.html import FILE

    path = out or folder / FILE
    write_page(folder, path)
    print(path)


def write_page(folder: Path, path: Path) -> None:
    """Write the page of a folder; which page it is, its files tell."""
    from coterie._src.experiments.run_folder import write_atomically
    from coterie._src.report.html import run_page, sweep_page
    from coterie._src.report.kinds import kind_of

    text = {"run": run_page, "federation": _federation_page, "sweep": sweep_page}[kind_of(folder)](folder)
    write_atomically(path, text.encode())


def _federation_page(folder: Path) -> str:
    from coterie._src.federation.page import federation_page

    return federation_page(folder)
