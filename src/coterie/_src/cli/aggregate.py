"""`coterie aggregate`: one robust aggregate of updates in files."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Annotated

import typer

from coterie._src.cli.app import app


@app.command()
def aggregate(
    folder: Annotated[Path, typer.Argument(help="The folder of the updates: a .npy or .safetensors file per client.")],
    out: Annotated[Path, typer.Option(help="The folder of the results: a file `cluster-0`, `cluster-1`, … each.")],
    rule: Annotated[str, typer.Option(help="The rule; `coterie list rules` shows them all.")] = "filter",
    max_byzantine: Annotated[float, typer.Option(help="The largest fraction of Byzantine updates per cluster.")] = 0.2,
    labels: Annotated[
        Path | None, typer.Option(help="CSV with columns file and cluster (0, 1, …). Default: one cluster.")
    ] = None,
    clusters: Annotated[int, typer.Option(min=1, help="The number of clusters.")] = 1,
    like: Annotated[
        Path | None, typer.Option(help="A file with the expected arrays, such as the model. Default: as most files.")
    ] = None,
) -> None:
    """Aggregate updates robustly that lie in files and need not fit into memory.

    Files are read once or twice, by ranges of columns, in less than 1 GiB of memory beside the results. float16 and
    bfloat16 are aggregated in float32. A file that is no update, differs in its arrays or holds NaN is left out, and
    named on stderr.
    """
    from coterie._src.sharding import aggregate_files
    from coterie._src.sharding.rules import RULES

    try:
        record = RULES[rule]
    except ValueError as error:
        raise ValueError(f"--rule: {error}") from None
    chosen = record.build(max_byzantine)
    found = aggregate_files(
        folder, chosen, labels=None if labels is None else _read_labels(labels), clusters=clusters, like=like, out=out
    )
    for name, reason in found.faults.items():
        print(f"refused: {name} {reason}", file=sys.stderr)
    if not any(found.counts):
        raise ValueError(f"{folder}: no update is left")
    for j, (path, count) in enumerate(zip(found.paths, found.counts, strict=True)):
        print(f"cluster {j}: {count} updates, {'no file' if path is None else path}")


def _read_labels(path: Path) -> dict[str, int]:
    """The clusters by name of the file; −1 for what is no number, which is refused with its file."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if not {"file", "cluster"} <= set(reader.fieldnames or ()):
            raise ValueError(f"--labels: {path} has no columns file and cluster")
        return {row["file"]: int(row["cluster"]) if (row["cluster"] or "").isdecimal() else -1 for row in reader}
