"""`coterie audit`: which clients of a run or a federation are worth a look."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from coterie._src.cli.app import app, output_console
from coterie._src.cli.federate import print_scores

AUDIT_OF_FEDERATION = "audit.sqlite"


@app.command()
def audit(
    folder: Annotated[
        Path, typer.Argument(help="The folder of a run, or the one that a federation leaves on its server.")
    ],
    everyone: Annotated[bool, typer.Option("--all", help="Show all clients, not only those that stand out.")] = False,
    method: Annotated[
        str | None, typer.Option(help="The method of a run. Default: the first that clusters the clients.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Of a federation, PNG, SVG or PDF: clients by rounds. Default: in FOLDER.")
    ] = None,
) -> None:
    """Show which clients stand out, and why (evidence, not a verdict), and which client is in which cluster.

    In a run a client stands out by its loss at the model of its cluster, which a member would have with a probability
    of less than 1 %, by being in a cluster that may be all Byzantine, or by its replies. The sites of a federation are
    shown by name where the server was started by a deployment's `start.sh`, which writes down whose key is whose.
    """
    if (folder / AUDIT_OF_FEDERATION).is_file():
        if method is not None:
            raise ValueError("--method: a federation has one method; leave it out")
        _audit_federation(folder, everyone, picture)
    else:
        if picture is not None:
            raise ValueError("--picture: is for a federation; `coterie report DIR` draws a run")
        _audit_run(folder, everyone, method)


def _audit_run(folder: Path, everyone: bool, method: str | None) -> None:
    from coterie._src.report import cluster_members
    from coterie._src.report.looks import looks, looks_table, small_clusters
    from coterie._src.report.run_record import SUMMARY, read_run

    if not (folder / SUMMARY).is_file():
        raise ValueError(f"{folder}: is the folder of no run or federation")
    record = read_run(folder)
    if not record.clustering:
        raise ValueError(f"{folder}: no method has put the clients into clusters")
    chosen = record.clustering[0] if method is None else method
    if chosen not in record.clustering:
        raise ValueError(f"--method: must be one of {', '.join(record.clustering)}, got {chosen}")
    clients = looks(record.audit_of(chosen))
    shown = [one for one in clients if one.reasons or everyone]
    standing_out = sum(bool(one.reasons) for one in clients)
    verb = "stands" if standing_out == 1 else "stand"
    print(f"{chosen}, trial {record.first}: {standing_out} of {len(clients)} clients {verb} out.")
    if shown:
        output_console().print(looks_table(shown))
    rows = record.audit_of(chosen)
    small = small_clusters(clients)
    for line in cluster_members((row["client"], int(row["cluster"])) for row in rows):
        head, colon, names = line.partition(":")
        mark = " (no larger than the bound on Byzantine clients)" if head in small else ""
        print(f"{head}{mark}{colon}{names}")
    if "suspicion" not in rows[0]:
        print("audit.csv has no losses, since an earlier version wrote it; run again for those that stand out by them.")


def _audit_federation(folder: Path, everyone: bool, picture: Path | None) -> None:
    from coterie._src.federation.audit import MIN_COMPARED, audit_clients, site_names
    from coterie._src.federation.checkpoint import Checkpoint
    from coterie._src.federation.report import audit_table
    from coterie._src.plot import audit_map
    from coterie._src.report import cluster_members

    rows = Checkpoint(folder).rows()
    if not rows:
        raise ValueError(f"{folder}: no round is finished yet")
    clients, names = audit_clients(rows), site_names(folder)
    shown = [one for one in clients if one.reasons or everyone]
    if shown:
        output_console().print(audit_table(shown, names))
    else:
        print(f"Nobody stands out among {len(clients)} clients in {max(row['round'] for row in rows)} rounds.")
    in_order = sorted(clients, key=lambda one: one.client)
    print(*cluster_members((names.get(one.node, str(one.client)), one.cluster) for one in in_order), sep="\n")
    sizes = Counter(one.cluster for one in clients if one.cluster >= 0)
    if any(size < MIN_COMPARED for size in sizes.values()):
        print(f"In a cluster of fewer than {MIN_COMPARED} nobody can stand out.")
    print_scores(folder)
    for line in _expiry(folder):
        print(f"note: {line}")
    path = picture or folder / "audit.png"
    audit_map(rows, path, names)
    print(path)


def _expiry(folder: Path) -> list[str]:
    """What to know about certificates that end soon; nothing without the package that reads them."""
    try:
        from coterie._src.federation.certificates import expiry_warnings
    except ImportError:
        return []
    return expiry_warnings(folder.resolve().parent)
