"""`coterie federate`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from coterie._src.cli.app import ConfigFile, Overrides, Tracked, app

federate = typer.Typer(
    no_args_is_help=True, help="Real federations over Flower (`pip install 'coterie[flower]'`); see docs/federation.md."
)
app.add_typer(federate, name="federate")
REFRESH_SECONDS = 0.25
Method = Annotated[str, typer.Option(help="The method that the server runs.")]


@contextlib.contextmanager
def needing_flower() -> Iterator[None]:
    """Say in one line that Flower is not installed."""
    try:
        yield
    except ImportError:
        raise ValueError("federate: needs Flower (pip install 'coterie[flower]')") from None


@federate.command()
def up(
    out: Annotated[Path, typer.Argument(help="The folder to write, new or empty.")],
    site: Annotated[list[str], typer.Option("--site", metavar="NAME", help="The name of a site. Repeatable.")],
    host: Annotated[str, typer.Option(help="The server's name or address, as the sites see it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The server's port.")] = 9093,
    config: Annotated[Path | None, typer.Option(help="A TOML file as `coterie config` prints it.")] = None,
    changes: Overrides = None,
    method: Method = "coterie",
    features: Annotated[
        int,
        typer.Option(help="The number of feature columns, with the intercept, where problem.columns names none."),
    ] = 0,
    deadline: Annotated[float, typer.Option(help="Seconds that a site has for an answer.")] = 60.0,
    key: Annotated[
        list[Path] | None,
        typer.Option(
            "--key", metavar="FILE", help="The public key of the site that the file is named after. Repeatable."
        ),
    ] = None,
    make_keys: Annotated[
        bool,
        typer.Option("--make-keys", help="Make the keys of all other sites here: then this machine can pass for them."),
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Write no certificates and no keys: for a trial only.")
    ] = False,
) -> None:
    """Write all that a federation needs: the app, certificates, and start scripts for server and sites.

    OUT/README.md says who gets and starts what, and how many Byzantine sites this federation can stand; one that can
    stand fewer than `algorithm.max_byzantine` allows is refused. Connections are encrypted, and the server knows a
    site by its key, which the site makes (`coterie site init`); its public half is given here (--key), or later
    (`coterie federate add`).
    """
    from coterie._src.experiments import read_config
    from coterie._src.experiments.problems import Folder

    with needing_flower():
        from coterie._src.federation.deployment import write_deployment
        from coterie._src.federation.protection import protection
    chosen = read_config(config, changes or [])
    if isinstance(chosen.problem, Folder) and features < 1 and not chosen.problem.columns:
        raise ValueError(
            'problem.columns: name the sites\' feature columns, e.g. --set \'problem.columns=["age", "dose"]\', or say'
            " --features how many there are, in the same order everywhere"
        )
    protection(chosen, len(site), method).check()
    page = write_deployment(
        out,
        chosen,
        site,
        host=host,
        port=port,
        method=method,
        features=features,
        deadline=deadline,
        insecure=insecure,
        keys={file.name.removesuffix(".pub"): file for file in key or []},
        make_keys=make_keys,
    )
    if insecure:
        print("warning: no certificates and no keys; anybody who reaches the server can join and run", file=sys.stderr)
    print(page.read_text(encoding="utf-8"))


@federate.command()
def simulate(
    file: ConfigFile = None,
    changes: Overrides = None,
    method: Method = "coterie",
    out: Annotated[Path, typer.Option(help="Folder for app and results, new or empty.")] = Path("federation"),
    track: Tracked = None,
) -> None:
    """Rehearse a federation: the clients of a synthetic problem as nodes of a Flower simulation on this machine."""
    from coterie._src.experiments import read_config

    with needing_flower():
        from coterie._src.federation.rehearsal import rehearse
    watched = Console(stderr=True).is_terminal
    rehearse(read_config(file, changes or []), method, out, _show if watched else None, track or [])
    if watched:  # else the log of the run, which ends with it, is shown
        print_scores(out / "results")
    print(out / "results")


def print_scores(folder: Path) -> None:
    """Print the sites' scores, where there are any."""
    from coterie._src.federation.report import TABLE

    if (folder / TABLE).is_file():
        print((folder / TABLE).read_text(encoding="utf-8"), end="")


@federate.command()
def watch(
    folder: Annotated[Path, typer.Argument(help="The folder that the federation writes, such as server/federation.")],
) -> None:
    """Show the progress of a federation on its server: rounds, replies, clusters, faults, time left. Ctrl-C ends this
    view, not the federation. Where the run has died it says so, and ends with exit code 2.

    This view is for a terminal; `coterie watch FOLDER` shows the same and the audit as a page for the browser.
    """
    with needing_flower():
        from coterie._src.experiments.printable import printable
        from coterie._src.federation.certificates import expiry_warnings
        from coterie._src.federation.progress import read_progress
    if read_progress(folder) is None:
        raise ValueError(f"{folder}: no federation writes here yet")
    for line in expiry_warnings(folder.resolve().parent):
        print(f"warning: {line}", file=sys.stderr)

    def has_died() -> bool:
        found = read_progress(folder)
        return found is not None and found[0].has_died()

    with contextlib.suppress(KeyboardInterrupt):
        _show(folder, has_died)
        found, _ = read_progress(folder) or (None, 0.0)
        if found is not None and found.has_died():
            why = f" ({printable(found.error, 500)})" if found.error else ""
            raise ValueError(
                f"{folder}: the run has died after round {found.round} of {found.rounds}{why}; run.sh starts it again, "
                "and it goes on after the last finished round"
            )


def _show(folder: Path, has_ended: Callable[[], bool]) -> None:
    """Show the progress until the federation is done or has ended; without a terminal print a line for each round."""
    from coterie._src.federation.progress import read_progress
    from coterie._src.federation.report import federation_view

    console, last_printed = Console(stderr=True), -1
    with Live(console=console, refresh_per_second=4) if console.is_terminal else contextlib.nullcontext() as live:
        while True:
            ended = has_ended()  # before the file is read, so that its last state is shown
            progress, age = read_progress(folder) or (None, 0.0)
            if live is not None:
                live.update("Flower is starting …" if progress is None else federation_view(progress, age))
            elif progress is not None and progress.sizes and progress.round > last_printed:
                print(progress.line(), flush=True)
                last_printed = progress.round
            if ended or (progress is not None and progress.done):
                return
            time.sleep(REFRESH_SECONDS)
