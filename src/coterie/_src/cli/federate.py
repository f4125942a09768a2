"""`coterie federate` and `coterie audit`."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from coterie._src.cli.app import ConfigFile, Overrides, app, output_console

federate = typer.Typer(
    no_args_is_help=True, help="Real federations over Flower (`pip install 'coterie[flower]'`); see docs/federation.md."
)
app.add_typer(federate, name="federate")
FLOWER = "federate: needs Flower (pip install 'coterie[flower]')"
LOOK_SECONDS = 0.25
FEWEST_JUDGED = 3


@federate.command()
def up(
    out: Annotated[Path, typer.Argument(help="The folder to write, new or empty.")],
    site: Annotated[list[str], typer.Option("--site", metavar="NAME", help="A site. Repeatable.")],
    host: Annotated[str, typer.Option(help="The server's name or address, as the sites see it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The server's port.")] = 9093,
    config: Annotated[Path | None, typer.Option(help="A TOML file as `coterie config` prints it.")] = None,
    changes: Overrides = None,
    method: Annotated[str, typer.Option(help="What the server plays.")] = "coterie",
    features: Annotated[
        int, typer.Option(help="Feature columns of the sites' files, an intercept included, if not named.")
    ] = 0,
    deadline: Annotated[float, typer.Option(help="Seconds that a site has for an answer.")] = 60.0,
    insecure: Annotated[bool, typer.Option("--insecure", help="No certificates, no keys: for a trial only.")] = False,
) -> None:
    """Write all that a federation needs: the app, certificates and keys, and a command for the server and each site.

    OUT/README.md says who gets what and who starts what. Connections are encrypted, and a site is known by its key.
    """
    from coterie._src.experiments import read_config

    try:
        from coterie._src.federation.deployment import prepare
    except ImportError:
        raise ValueError(FLOWER) from None
    chosen = read_config(config, changes or [])
    if chosen.problem.kind == "folder" and features < 1 and not chosen.problem.columns:
        raise ValueError(
            'problem.columns: name the sites\' feature columns, e.g. --set \'problem.columns=["age", "dose"]\', or say'
            " --features how many there are, in the same order everywhere"
        )
    page = prepare(
        out,
        chosen,
        site,
        host=host,
        port=port,
        method=method,
        features=features,
        deadline=deadline,
        insecure=insecure,
    )
    if insecure:
        print("warning: no certificates and no keys; anybody who reaches the server can join and run", file=sys.stderr)
    print(page.read_text(encoding="utf-8"))


@federate.command()
def simulate(
    file: ConfigFile = None,
    changes: Overrides = None,
    method: Annotated[str, typer.Option(help="What the server plays.")] = "coterie",
    out: Annotated[Path, typer.Option(help="Folder for app and results, new or empty.")] = Path("federation"),
) -> None:
    """Rehearse: the clients of a synthetic problem as nodes of a Flower simulation on this machine."""
    from coterie._src.experiments import read_config
    from coterie._src.experiments.config import Synthetic

    try:
        from coterie._src.federation.deployment import free_port, prepare
    except ImportError:
        raise ValueError(FLOWER) from None
    chosen = read_config(file, changes or [])
    if not isinstance(chosen.problem, Synthetic):
        raise ValueError("problem.kind: a rehearsal needs a synthetic problem; real sites have their own data")
    clients, port = chosen.problem.clients, free_port()
    prepare(
        out, chosen, [f"site{i}" for i in range(clients)], host="127.0.0.1", port=port, method=method, insecure=True
    )
    place = out.resolve()
    environment = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", **os.environ}
    environment |= {
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(place / "server" / "flwr"),
    }
    serve = ["flower-superlink", "--insecure", "--simulation", "--port", str(port)]
    run = ["flwr", "run", str(place / "app"), "here", "--stream", "--run-config", f"folder='{place / 'results'}'"]
    run += ["--federation-config", f"num-supernodes={clients}"]
    started: list[subprocess.Popen[bytes]] = []
    with (place / "server" / "superlink.log").open("wb") as log, (place / "server" / "run.log").open("wb") as lines:
        shown = Console(stderr=True).is_terminal
        try:
            serve += ["--disable-runtime-dependency-installation"]
            started.append(subprocess.Popen(serve, stdout=log, stderr=log, env=environment))
            while started[0].poll() is None and not _reachable(port):
                time.sleep(0.1)
            output = lines if shown else None
            started.append(subprocess.Popen(run, env=environment, stdout=output, stderr=output))
            if shown:
                _look(place / "results", lambda: started[1].poll() is not None)
            code = started[1].wait()
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait()
    if code or not (place / "results" / "centres.safetensors").is_file():
        raise ValueError(f"federate simulate: the run failed; the logs are in {place / 'server'}")
    print(out / "results")


@federate.command()
def watch(
    folder: Annotated[Path, typer.Argument(help="The folder that the federation writes, such as server/federation.")],
) -> None:
    """Watch a federation on its server: rounds, replies, clusters, faults, the time left. Ctrl-C leaves it running."""
    try:
        from coterie._src.federation.progress import read_progress
    except ImportError:
        raise ValueError(FLOWER) from None
    if read_progress(folder) is None:
        raise ValueError(f"{folder}: no federation writes here yet")
    with contextlib.suppress(KeyboardInterrupt):
        _look(folder, lambda: False)


def _look(folder: Path, ended: Callable[[], bool]) -> None:
    """Show how a federation goes until it is done or `ended`; without a terminal a line for each round."""
    from coterie._src.federation.progress import read_progress
    from coterie._src.report import federation_view

    console, told = Console(stderr=True), -1
    with Live(console=console, refresh_per_second=4) if console.is_terminal else contextlib.nullcontext() as live:
        while True:
            last = ended()  # before the file is read, so that the last note is seen
            progress, age = read_progress(folder) or (None, 0.0)
            if live is not None:
                live.update("Flower is starting …" if progress is None else federation_view(progress, age))
            elif progress is not None and progress.sizes and progress.round > told:
                print(progress.line(), flush=True)
                told = progress.round
            if last or (progress is not None and progress.done):
                return
            time.sleep(LOOK_SECONDS)


def _reachable(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@app.command()
def audit(
    folder: Annotated[Path, typer.Argument(help="The folder that a federation leaves on its server.")],
    everyone: Annotated[bool, typer.Option("--all", help="All clients, not only those worth a look.")] = False,
    picture: Annotated[
        Path | None, typer.Option(help="PNG, SVG or PDF: clients by rounds. Default: in FOLDER.")
    ] = None,
) -> None:
    """Say which clients are worth a look, and why (evidence, not a verdict), and who is in which cluster.

    Sites have their names where the server was started by a kit's script, which notes whose key is whose.
    """
    try:
        from coterie._src.federation.audit import registered, suspicions
        from coterie._src.federation.checkpoint import AUDIT, Checkpoint
    except ImportError:
        raise ValueError(FLOWER) from None
    from coterie._src.plot import audit_map
    from coterie._src.report import audit_table, whereabouts

    if not (folder / AUDIT).is_file():
        raise ValueError(f"{folder / AUDIT}: no such file; a federation writes one")
    rows = Checkpoint(folder).rows()
    if not rows:
        raise ValueError(f"{folder}: no round is finished yet")
    found, names = suspicions(rows), registered(folder)
    shown = [one for one in found if one.reasons or everyone]
    if shown:
        output_console().print(audit_table(shown, names))
    else:
        print(f"Nobody stands out among {len(found)} clients in {max(row['round'] for row in rows)} rounds.")
    in_order = sorted(found, key=lambda one: one.client)
    print(*whereabouts((names.get(one.node, str(one.client)), one.cluster) for one in in_order), sep="\n")
    sizes = Counter(one.cluster for one in found if one.cluster >= 0)
    if any(size < FEWEST_JUDGED for size in sizes.values()):
        print(f"In a cluster of fewer than {FEWEST_JUDGED} nobody can stand out.")
    place = picture or folder / "audit.png"
    audit_map(rows, place, names)
    print(place)
