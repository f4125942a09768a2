"""`coterie watch`: a run, a sweep or a federation that is under way, as a local page."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie._src.cli.app import app

if TYPE_CHECKING:
    from coterie._src.watch.snapshot import Source


@app.command()
def watch(
    folder: Annotated[Path, typer.Argument(help="The folder that a run, a sweep or a federation writes.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on 127.0.0.1; 0: any that is free.")] = 0,
) -> None:
    """Show a run, a sweep or a federation that is under way as a page for the browser on this machine.

    Prints the address, with a token that others do not know. The page has progress, time left, clusters with their
    losses, refused replies with reasons, and the audit's top; the address with `metrics` at its end has the same for
    Prometheus. It reads what lies on disk and changes nothing. Ctrl-C ends the page, not what it shows.

    Without a browser: `coterie run` and `coterie sweep` show their own progress in their terminal, and
    `coterie federate watch DIR` that of a federation in any terminal of its server.
    """
    source = _source(folder)
    try:
        from coterie._src.watch.server import serve
    except ImportError:
        raise ValueError("watch: needs Starlette and uvicorn (pip install 'coterie[watch]')") from None

    def show(address: str) -> None:
        print(address, flush=True)
        print("Ctrl-C ends this page, not what it shows.", file=sys.stderr)

    with contextlib.suppress(KeyboardInterrupt):
        serve(source, port, show)


def _source(folder: Path) -> Source:
    from coterie._src.report.kinds import kind_of
    from coterie._src.watch.sources import RunSource, SweepSource

    kind = kind_of(folder)
    if kind != "federation":
        return RunSource(folder) if kind == "run" else SweepSource(folder)
    try:
        from coterie._src.watch.federated import FederationSource
    except ImportError:
        raise ValueError("watch: needs Flower (pip install 'coterie[flower]') for a federation") from None
    return FederationSource(folder)
