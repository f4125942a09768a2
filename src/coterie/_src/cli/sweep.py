"""`coterie sweep`: run a grid with a progress bar and a table."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from coterie._src.cli.app import (
    CtrlC,
    Overrides,
    Tracked,
    app,
    command_line,
    dated_folder,
    output_console,
    print_doubts,
)

if TYPE_CHECKING:
    from coterie._src.experiments.callbacks import Callback
    from coterie._src.experiments.database import Database
    from coterie._src.experiments.engines import Engine
    from coterie._src.experiments.sweep import Grid

Workers = Annotated[int | None, typer.Option(min=1, help="Processes; default: as the grid says, or one per core.")]
EngineName = Annotated[Literal["local", "ray"], typer.Option(help="Where trials run: here, or on a Ray cluster.")]
RayAddress = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="An existing Ray cluster, e.g. auto or HOST:6379.")
]
Device = Annotated[
    Literal["cpu", "cuda"] | None, typer.Option(help="cuda: trials in batches on a GPU (coterie[gpu]). Default: cpu.")
]
Seed = Annotated[int | None, typer.Option(min=0, help="Of all random numbers. Default: 0.")]


@app.command()
def sweep(
    file: Annotated[
        Path | None, typer.Argument(help="A grid: a TOML file in which any key may hold a list of values.")
    ] = None,
    changes: Overrides = None,
    workers: Workers = None,
    engine: EngineName = "local",
    ray_address: RayAddress = None,
    device: Device = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results. Default: runs/DATE-TIME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on in a folder that already holds results.")] = False,
    track: Tracked = None,
) -> None:
    """Run a grid of configurations: the product of all lists, times the trials.

    Every finished trial is written to OUT/results.sqlite at once; after an interruption the same command with
    --resume runs the rest. `[[settings]]` tables hold keys that change together. See the results with
    `coterie results OUT` and `coterie plot OUT`.
    """
    from coterie._src.experiments.sweep import read_grid
    from coterie._src.tracking import tracker

    if file is None:
        if not (resume and out is not None):
            raise ValueError("sweep: needs a grid file (or --resume with --out of an earlier sweep)")
        check_resume(out, ["."], resume)
        file = out / "grid.toml"
    grid = read_grid(file, [*(changes or []), *([f"run.device={device}"] if device else [])])
    check_resume(out, ["."], resume)
    trackers = [tracker(text) for text in track or []]
    run_grid(grid, out or dated_folder(), workers, engine, ray_address, trackers=trackers)


def check_resume(out: Path | None, names: Sequence[str], resume: bool) -> None:
    """Raise ValueError unless OUT has no results, or with --resume some, in its folders of these names (".": OUT)."""
    from coterie._src.experiments.database import FILE

    begun = out is not None and any((out / name / FILE).exists() for name in names)
    if resume and not begun:
        raise ValueError(f"--resume: needs --out of an earlier sweep; {out or 'none'} was given and holds no results")
    if begun and not resume:
        raise ValueError(f"{out}: already holds results; add --resume to go on there")


def run_grid(
    grid: Grid,
    folder: Path,
    workers: int | None,
    engine: str,
    ray_address: str | None,
    table: bool = True,
    trackers: Sequence[Callback] = (),
) -> Database:
    """Run the trials that are left of a grid with a progress bar, write summary.csv, and print the table if `table`."""
    return run_grids({".": grid}, folder, workers, engine, ray_address, table, trackers)["."]


def run_grids(
    grids: Mapping[str, Grid],
    folder: Path,
    workers: int | None,
    engine: str,
    ray_address: str | None,
    table: bool = True,
    trackers: Sequence[Callback] = (),
) -> dict[str, Database]:
    """As `run_grid` for several grids, whose results are in folders of their names below `folder`.

    They share the workers, and trial 0 of all of them is run before trial 1 of any.
    """
    from coterie._src.cli.views import SweepProgress
    from coterie._src.experiments import check
    from coterie._src.experiments.callbacks import Callbacks, RunInfo, start_and_end
    from coterie._src.experiments.database import FILE, Database
    from coterie._src.experiments.engines import local_engine, ray_engine, worker_count
    from coterie._src.experiments.progress import ProgressFile
    from coterie._src.experiments.results import aggregate, as_csv, without_clock
    from coterie._src.experiments.run_folder import write_atomically
    from coterie._src.experiments.sweep import all_options, jobs_left, keep_grid, varied_options
    from coterie._src.experiments.sweep import sweep as run_jobs
    from coterie._src.report import results_table

    configs = [config for grid in grids.values() for config in grid.configs]
    for config in configs:
        check(config)
    print_doubts(configs)
    first = next(iter(grids.values()))
    finished = all(
        (folder / name / FILE).is_file() and not jobs_left(grid, Database(folder / name))
        for name, grid in grids.items()
    )
    if configs[0].run.device != "cpu" and not finished:  # a finished grid is read without a GPU
        chosen = device_engine_for(first, engine, workers)
    else:
        chosen = ray_engine(ray_address) if engine == "ray" else local_engine(workers or worker_count(configs[0]))
    with CtrlC() as interrupted:
        databases = {name: Database(folder / name, create=True) for name in grids}
        for name, grid in grids.items():
            keep_grid(grid, folder / name)
        left = [(job, databases[name]) for name, grid in grids.items() for job in jobs_left(grid, databases[name])]
        left.sort(key=lambda one: one[0].trial)
        total = sum(len(grid.configs) * grid.trials for grid in grids.values())

        def rows() -> list[dict[str, Any]]:
            return [row for name, grid in grids.items() for row in databases[name].rows(grid.keys)]

        run = RunInfo(command_line(), configs[0].run.seed, all_options(configs) if trackers else {}, folder)
        with (
            start_and_end(tracked := Callbacks(trackers), run, interrupted),
            SweepProgress(total, total - len(left), lambda: results_table(aggregate(rows()), last=12)) as view,
            ProgressFile(place := folder.resolve(), total, total - len(left)) as progress,
        ):
            jobs = [job._replace(folder=place) for job, _ in left]
            run_jobs(
                jobs,
                [database for _, database in left],
                chosen,
                Callbacks([view, progress, tracked]),
                interrupted,
                varied_options(configs) if trackers else (),
            )
            progress.close("interrupted" if interrupted() else "complete")
            summaries = {
                name: without_clock(aggregate(databases[name].rows(grid.keys))) for name, grid in grids.items()
            }
            for name, summary in summaries.items():
                write_atomically(folder / name / "summary.csv", as_csv(summary).encode())
    for summary in summaries.values() if table else ():
        output_console().print(results_table(summary))
    state = "Interrupted; go on with --resume. Finished trials are" if interrupted() else "Everything is"
    print(f"{state} in {folder}/", file=sys.stderr)
    if interrupted():
        raise SystemExit(130)
    return databases


def device_engine_for(grid: Grid, engine: str, workers: int | None) -> Engine:
    """The engine for a grid that asks for a GPU; ValueError where it cannot run there."""
    from coterie._src.experiments.engines import local_engine

    if engine == "ray":
        raise ValueError("--engine: ray runs trials on CPUs; leave out --device")
    if not any(config.problem.has_parameters for config in grid.configs):
        return local_engine(workers or 1)
    try:
        from coterie._src.batch.engine import check_device, device_engine
    except ImportError:
        raise ValueError("run.device: cuda needs PyTorch and CuPy (pip install 'coterie[gpu]')") from None
    for config in grid.configs:
        check_device(config)
    return device_engine(grid.configs[0].run.device)
