"""`coterie reproduce` and `coterie arena`: run a study, write its reports and draw its figures."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from coterie._src.cli.app import app, dated_folder
from coterie._src.cli.sweep import Device, EngineName, RayAddress, Seed, Workers, check_resume, run_grids

if TYPE_CHECKING:
    from coterie._src.experiments.results import Row
    from coterie._src.experiments.sweep import Grid
    from coterie._src.studies.study import Options, Study

Trials = Annotated[int | None, typer.Option(min=1, help="Of every configuration. Default: the study's own.")]
Quick = Annotated[bool, typer.Option("--quick", help="A small version with few trials: a minute or two.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the results. Default: runs/DATE-TIME.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on in a folder that already holds results.")]


class StudyCommand(TyperCommand):
    """A command whose help lists the studies; they are imported only when it is printed."""

    def format_help(self, *arguments: Any) -> None:
        from coterie._src.studies.registry import STUDIES

        studies = [f"- {study.name}: {study.summary}." for study in STUDIES]
        self.help = "\n\n".join([cleandoc(self.callback.__doc__ or ""), *studies])
        super().format_help(*arguments)


@app.command(cls=StudyCommand)
def reproduce(
    name: Annotated[str, typer.Argument(metavar="[STUDY]", help="One of the studies above.")] = "figure1",
    preset: Annotated[
        Literal["as-published", "fair"],
        typer.Option(help="figure1: as the authors' code does, or with one start, step and mean for all and no truth."),
    ] = "as-published",
    trials: Trials = None,
    quick: Quick = False,
    seed: Seed = None,
    workers: Workers = None,
    engine: EngineName = "local",
    ray_address: RayAddress = None,
    device: Device = None,
    out: Out = None,
    resume: Resume = False,
    data: Annotated[Path | None, typer.Option(help="The folder with the data of a study that needs some.")] = None,
) -> None:
    """Run a study: the paper's experiments, and those beyond it. Writes figures, tables and a report in Markdown.

    Every finished trial is kept at once, and the same command with --resume does the rest.
    """
    from coterie._src.studies import registry
    from coterie._src.studies.study import Options

    study = registry.study(name)
    chosen = Options(trials or study.default_trials(quick), quick, seed, preset, device or "cpu", data, out)
    for report in run_study(study, chosen, resume, workers, engine, ray_address):
        print(report)


@app.command()
def arena(
    quick: Quick = False,
    trials: Trials = None,
    seed: Seed = None,
    workers: Workers = None,
    engine: EngineName = "local",
    ray_address: RayAddress = None,
    out: Out = None,
    resume: Resume = False,
) -> None:
    """Run every defence under every attack: a heat map, a table, and which defence to use when.

    Byzantine fractions go up to just below the point at which these clients outnumber a cluster. OUT holds arena.md,
    arena.png and all results, as of any sweep.
    """
    from coterie._src.studies.arena import STUDY
    from coterie._src.studies.study import Options

    chosen = Options(trials or STUDY.default_trials(quick), quick, seed, out=out)
    (report,) = run_study(STUDY, chosen, resume, workers, engine, ray_address)
    for line in report.read_text(encoding="utf-8").splitlines():
        if line.startswith(("## ", "Use ", "Without ")):
            print(line.removeprefix("## "))
    print(report)


def run_study(
    study: Study, options: Options, resume: bool, workers: int | None, engine: str, ray_address: str | None
) -> list[Path]:
    """Run the trials that are left of a study, draw its figures, and return the paths of its reports."""
    from coterie._src.experiments.run_folder import write_atomically
    from coterie._src.experiments.sweep import seeded

    study.check_options(options)
    grids = {name: seeded(grid, options.seed) for name, grid in study.grids(options).items()}
    if not study.always_resumes:
        check_resume(options.out, list(grids), resume)
    folder = options.out or dated_folder()
    first = next(iter(study.reports))
    rows: dict[str, Sequence[Row]] = {}
    for part in [grids] if study.together else [{name: grid} for name, grid in grids.items()]:
        for name in part:
            _announce(study, name, grids)
        databases = run_grids(part, folder, workers, engine, ray_address, study.prints_tables)
        rows |= {name: databases[name].rows(grid.keys) for name, grid in part.items()}
        if study.report_early:
            write_atomically(folder / first, study.reports[first](rows, options).encode())
    for file, report in study.reports.items():
        print(f"{study.name}: {file}", file=sys.stderr)
        write_atomically(folder / file, report(rows, options).encode())
    for file, draw in study.figures.items():  # last: the tables are there if drawing fails
        draw(rows, folder / file, options)
    return [folder / file for file in study.reports]


def _announce(study: Study, name: str, grids: Mapping[str, Grid]) -> None:
    """One line on stderr for each of several grids."""
    if len(grids) > 1:
        grid = grids[name]
        counts = f"{len(grid.configs)} configurations, {grid.trials} trials"
        print(f"{study.name} {list(grids).index(name) + 1}/{len(grids)}, {name}: {counts}", file=sys.stderr)
