"""`coterie arena`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie._src.cli.app import app
from coterie._src.cli.sweep import EngineName, RayAddress, Seed, Workers, results_folder, work


@app.command()
def arena(
    quick: Annotated[
        bool, typer.Option("--quick", help="A small problem, two fractions, 2 trials: under three minutes.")
    ] = False,
    trials: Annotated[int | None, typer.Option(min=1, help="Default: 10; with --quick 2.")] = None,
    seed: Seed = None,
    workers: Workers = None,
    engine: EngineName = "local",
    ray_address: RayAddress = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results. Default: runs/DATE-TIME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on in a folder that already holds results.")] = False,
) -> None:
    """Set every defence against every attack: a heat map, a table, and which defence to use when.

    Fractions of liars go up to just below the point at which they outnumber a cluster. OUT holds arena.md,
    arena.png and all results, as of any sweep.
    """
    from coterie._src.experiments.run_folder import write_atomically
    from coterie._src.experiments.sweep import seeded
    from coterie._src.plot import heat_map
    from coterie._src.studies.arena import arena as grid_of
    from coterie._src.studies.arena import bouts, report

    place = results_folder(out, resume)
    count = trials or (2 if quick else 10)
    grid = seeded(grid_of(count, quick), seed)
    rows = work(grid, place, workers, engine, ray_address, table=False).rows(grid.keys)
    heat_map(bouts(rows), place / "arena.png")
    command = f"coterie arena{' --quick' if quick else ''} --trials {count}" + (f" --seed {seed}" if seed else "")
    text = report(rows, command)
    write_atomically(place / "arena.md", text.encode())
    for line in text.splitlines():
        if line.startswith(("## ", "Use ", "Where ")):
            print(line.removeprefix("## "))
    print(place / "arena.md")
