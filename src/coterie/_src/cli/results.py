"""`coterie results` and `coterie plot`: tables and pictures of a sweep."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from coterie._src.cli.app import app, output_console

Where = Annotated[
    list[str] | None, typer.Option("--where", metavar="KEY=VALUE", help="Only these results, e.g. dim=20. Repeatable.")
]
Folder = Annotated[Path, typer.Argument(help="The folder of a sweep.")]


@app.command()
def results(
    folder: Folder,
    where: Where = None,
    by: Annotated[
        list[str] | None, typer.Option("--by", metavar="KEY", help="Group by this key. Default: all that vary.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Every trial, not the means.")] = False,
    form: Annotated[
        Literal["table", "csv", "parquet", "json"], typer.Option("--format", help="How to write them.")
    ] = "table",
    out: Annotated[Path | None, typer.Option(help="A file to write to; parquet needs one.")] = None,
) -> None:
    """List, filter, average and export the results of a sweep."""
    from coterie._src.experiments.database import Database
    from coterie._src.experiments.results import aggregate, as_csv, as_json, as_parquet, full_name, select, varied
    from coterie._src.experiments.run_folder import write_atomically
    from coterie._src.experiments.summary import METRICS
    from coterie._src.report import results_table

    rows = select(Database(folder).rows(), where or [])
    if not rows:
        raise ValueError(f"{folder}: no result" + (f" with {' and '.join(where)}" if where else ""))
    chosen = rows if raw else aggregate(rows, None if by is None else [full_name(name, rows) for name in by])
    if form == "table":
        if out is not None:
            raise ValueError("--out: needs --format csv, json or parquet; a table is for the screen")
        names = {"method", "seed", "trial", *varied(rows), *METRICS}
        shown = [{name: value for name, value in row.items() if name in names} for row in chosen] if raw else chosen
        output_console().print(results_table(shown))
        return
    if form == "parquet" and out is None:
        raise ValueError("--out: parquet needs a file to write to")
    content = as_parquet(chosen) if form == "parquet" else (as_csv if form == "csv" else as_json)(chosen).encode()
    if out is None:
        print(content.decode(), end="")
    else:
        write_atomically(out, content)


@app.command()
def plot(
    folder: Folder,
    x: Annotated[str, typer.Option(help="The key along the axis.")] = "dim",
    y: Annotated[str, typer.Option(help="The metric that is drawn.")] = "matched_dist",
    series: Annotated[str, typer.Option(help="One line per value of this key.")] = "method",
    where: Where = None,
    log: Annotated[bool, typer.Option("--log", help="Logarithmic axes.")] = False,
    out: Annotated[Path | None, typer.Option(help="PNG, SVG or PDF file. Default: FOLDER/Y-by-X.png.")] = None,
) -> None:
    """Draw a metric against a key, with error bars of one standard error."""
    from coterie._src.experiments.database import Database
    from coterie._src.experiments.results import full_name, select, varied
    from coterie._src.plot import lines

    rows = select(Database(folder).rows(), where or [])
    if not rows:
        raise ValueError(f"{folder}: no result" + (f" with {' and '.join(where)}" if where else ""))
    names = [full_name(x, rows), full_name(series, rows), full_name(y, rows, metric=True)]
    pooled = [key for key in varied(rows) if key not in names]
    if pooled:
        print(f"note: {', '.join(pooled)} vary, too, and are averaged over; choose with --where", file=sys.stderr)
    file = out or folder / f"{y}-by-{x}.png"
    lines(rows, *names, path=file, log=log)
    print(file)
