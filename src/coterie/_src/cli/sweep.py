"""`coterie sweep`, `coterie results` and `coterie plot`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from coterie._src.cli.app import CtrlC, Overrides, app, dated_folder, output_console, tell_doubts

if TYPE_CHECKING:
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
Where = Annotated[
    list[str] | None, typer.Option("--where", metavar="KEY=VALUE", help="Only these results, e.g. dim=20. Repeatable.")
]

TABLE_SECONDS = 2.0
"""How often the running table is drawn anew: it reads all results so far."""


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
) -> None:
    """Work off a grid of configurations: the product of all lists, times the trials.

    Every finished trial is in OUT/results.sqlite at once, so that nothing is lost, whatever happens; the same
    command with --resume does the rest. `[[settings]]` tables hold keys that change together. See the results
    with `coterie results OUT` and `coterie plot OUT`.
    """
    from coterie._src.experiments.sweep import read_grid

    if file is None:
        if not (resume and out is not None):
            raise ValueError("sweep: needs a grid file (or --resume with --out of an earlier sweep)")
        file = results_folder(out, resume) / "grid.toml"
    grid = read_grid(file, [*(changes or []), *([f"run.device={device}"] if device else [])])
    place = results_folder(out, resume)
    work(grid, place, workers, engine, ray_address)


def results_folder(out: Path | None, resume: bool) -> Path:
    """Where a sweep writes: a new place, or with --resume one that has results."""
    from coterie._src.experiments.database import FILE

    if resume and (out is None or not (out / FILE).exists()):
        raise ValueError(f"--resume: needs --out of an earlier sweep; {out or 'none'} was given and holds no results")
    if not resume and out is not None and (out / FILE).exists():
        raise ValueError(f"{out}: already holds results; add --resume to go on there")
    return out or dated_folder()


def work(
    grid: Grid, place: Path, workers: int | None, engine: str, ray_address: str | None, table: bool = True
) -> Database:
    """Do what is left of a grid, show how it goes, print the table unless told not to, and leave OUT/summary.csv."""
    from coterie._src.experiments import check
    from coterie._src.experiments.database import FILE, Database
    from coterie._src.experiments.engines import local_engine, ray_engine, worker_count
    from coterie._src.experiments.results import aggregate, as_csv, without_clock
    from coterie._src.experiments.run_folder import write_atomically
    from coterie._src.experiments.sweep import jobs_left, keep_grid
    from coterie._src.experiments.sweep import sweep as work_off
    from coterie._src.report import results_table

    for config in grid.configs:
        check(config)
    tell_doubts(grid.configs)
    finished = (place / FILE).is_file() and not jobs_left(grid, Database(place))
    if grid.configs[0].run.device != "cpu" and not finished:  # what is finished needs no device to be looked at
        chosen = device_engine_for(grid, engine, workers)
    else:
        chosen = ray_engine(ray_address) if engine == "ray" else local_engine(workers or worker_count(grid.configs[0]))
    with CtrlC() as interrupted:
        database = Database(place, create=True)
        keep_grid(grid, place)
        jobs = jobs_left(grid, database)
        total = len(grid.configs) * grid.trials
        with Watch(total, total - len(jobs), lambda: results_table(aggregate(database.rows(grid.keys)), last=12)) as on:
            work_off(jobs, database, chosen, on_trial=lambda _: on(), stop=interrupted)
    summary = without_clock(aggregate(database.rows(grid.keys)))
    write_atomically(place / "summary.csv", as_csv(summary).encode())
    if table:
        output_console().print(results_table(summary))
    state = "Interrupted; go on with --resume. Finished trials are" if interrupted() else "Everything is"
    print(f"{state} in {place}/", file=sys.stderr)
    if interrupted():
        raise SystemExit(130)
    return database


def device_engine_for(grid: Grid, engine: str, workers: int | None) -> Engine:
    """The engine for a grid that asks for a GPU, or the reason why there is none."""
    from coterie._src.experiments.config import IMAGE_KINDS
    from coterie._src.experiments.engines import local_engine

    if engine == "ray":
        raise ValueError("--engine: ray runs trials on CPUs; leave out --device")
    if all(config.problem.kind in IMAGE_KINDS for config in grid.configs):
        return local_engine(workers or 1)
    try:
        from coterie._src.batch.engine import check_device, device_engine
    except ImportError:
        raise ValueError("run.device: cuda needs PyTorch and CuPy (pip install 'coterie[gpu]')") from None
    for config in grid.configs:
        check_device(config)
    return device_engine(grid.configs[0].run.device)


class Watch:
    """A bar with trials, rate and the time left over a running table, on stderr; silent where it is no terminal."""

    def __init__(self, total: int, done: int, table: Callable[[], Any]) -> None:
        console = Console(stderr=True)
        self.table, self.drawn = table, -TABLE_SECONDS
        self.bar = Progress(
            TextColumn("trials"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self.task = self.bar.add_task("", total=total, completed=done, rate="")
        self.live = Live(self.bar, console=console, transient=True) if console.is_terminal else None

    def __enter__(self) -> Callable[[], None]:
        if self.live is not None:
            self.live.start()
        return self._advance

    def _advance(self) -> None:
        if self.live is None:
            return
        speed = self.bar.tasks[0].finished_speed or self.bar.tasks[0].speed
        self.bar.update(self.task, advance=1, rate=f"{speed:.1f}/s" if speed else "")
        if time.monotonic() - self.drawn > TABLE_SECONDS:
            self.live.update(Group(self.table(), self.bar))
            self.drawn = time.monotonic()

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()


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
