"""`coterie federate serve`, `run`, `stop`, `status`: the daily business on the server of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie._src.cli.app import output_console
from coterie._src.cli.federate import federate, needing_flower

ServerFolder = Annotated[
    Path, typer.Option("--folder", help="The folder of the server, as `coterie federate up` writes it.")
]
HERE = Path()


def say(line: str) -> None:
    """Print a line at once, as a log that is followed needs it."""
    print(line, flush=True)


@federate.command()
def serve(
    folder: ServerFolder = HERE,
    listen: Annotated[str, typer.Option(help="The address that Flower's server listens on.")] = "127.0.0.1",
) -> None:
    """Run the server of a federation until Ctrl-C; `start.sh` does this.

    Looks at the certificates first, lets one server alone work on a folder, and takes up keys that are added or revoked
    while it runs.
    """
    with needing_flower():
        from coterie._src.federation.server_process import serve as serve_folder
    raise typer.Exit(serve_folder(folder, say, listen))


@federate.command()
def run(
    settings: Annotated[
        list[str] | None, typer.Argument(help='Settings of this run, such as "min_clients=4 deadline=20.0".')
    ] = None,
    folder: ServerFolder = HERE,
) -> None:
    """Run a federation on a server that has been started, to its end; `run.sh` does this.

    Prints the log. Ctrl-C stops the run. The exit code is 0 only if the run has ended well. Started again, a run goes
    on after the last finished round.
    """
    with needing_flower():
        from coterie._src.federation.server_process import run as run_federation
    run_federation(folder, settings or [], lambda text: print(text, end="", flush=True))


@federate.command()
def stop(
    folder: ServerFolder = HERE,
    run_only: Annotated[bool, typer.Option("--run-only", help="Stop the run alone.")] = False,
) -> None:
    """Stop the run and the server of a federation; `stop.sh` does this."""
    with needing_flower():
        from coterie._src.federation.server_process import stop as stop_federation
    stop_federation(folder, say, run_only)


@federate.command()
def status(
    folder: ServerFolder = HERE,
) -> None:
    """Say how the server, its sites and its certificates are; the exit code is 1 if the server does not answer."""
    with needing_flower():
        from coterie._src.federation.server_status import status_of, status_table
    found = status_of(folder)
    output_console().print(status_table(found))
    for line in found.warnings:
        print(f"warning: {line}")
    raise typer.Exit(0 if found.answers else 1)
