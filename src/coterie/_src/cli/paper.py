"""`coterie plan` and `coterie reproduce`: the paper as a tool."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from coterie._src.cli.app import Overrides, app, dated_folder, output_console
from coterie._src.cli.sweep import Device, EngineName, RayAddress, Seed, Workers, results_folder, work


@app.command()
def plan(
    clients: Annotated[int | None, typer.Option(help="m. Default of all: as `coterie config` prints.")] = None,
    clusters: Annotated[int | None, typer.Option(help="k.")] = None,
    byzantine: Annotated[float | None, typer.Option(help="alpha, the Byzantine fraction.")] = None,
    samples: Annotated[int | None, typer.Option(help="n_min, samples per client.")] = None,
    dim: Annotated[int | None, typer.Option(help="d.")] = None,
    trim: Annotated[float | None, typer.Option(help="beta.")] = None,
    config: Annotated[Path | None, typer.Option(help="Take the rest from this TOML file.")] = None,
    changes: Overrides = None,
    c1: Annotated[float, typer.Option(help="The constant of Lemma 1: 64 + 64 in its proof.")] = 128.0,
    bound: Annotated[float, typer.Option(help="The constant of the error bounds, which has no name.")] = 1.0,
    delta: Annotated[float, typer.Option(help="The failure probability.")] = 0.1,
    epsilon: Annotated[float, typer.Option(help="The distance that is kept from 1/2.")] = 0.1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Say what the paper's theorems promise for a federation, and whether they apply at all.

    The bounds leave a constant open, 1 unless you set it, so they are orders of magnitude; the proof of Theorem 1 names
    all of its own.
    """
    from coterie._src.experiments import read_config
    from coterie._src.experiments.plan import as_dict
    from coterie._src.experiments.plan import plan as findings
    from coterie._src.report import plan_table
    from coterie._src.theory import Constants

    if not (0 < delta < 1 and 0 < epsilon < 0.5 and c1 >= 0 and bound > 0):
        raise ValueError("plan: needs 0 < delta < 1, 0 < epsilon < 0.5, c1 >= 0 and bound > 0")
    given = {
        "problem.clients": clients, "problem.clusters": clusters, "problem.byzantine": byzantine,
        "problem.samples": samples, "problem.dim": dim, "algorithm.trim": trim,
    }  # fmt: skip
    overrides = [*(changes or []), *(f"{key}={value}" for key, value in given.items() if value is not None)]
    lines = findings(read_config(config, overrides), Constants(c1=c1, bound=bound, delta=delta, epsilon=epsilon))
    if as_json:
        print(json.dumps(as_dict(lines)))
    else:
        output_console().print(plan_table(lines))


@app.command()
def reproduce(
    what: Annotated[
        Literal["figure1", "slopes", "claims", "beyond", "rotated-mnist"],
        typer.Argument(
            help="figure1: the paper's experiments. slopes: the theorems' exponents, measured. "
            "claims: what both presets of figure1 in OUT say about the paper's claims. "
            "beyond: the recommended method on the paper's problems and past them. "
            "rotated-mnist: networks on IFCA's problem, with --data."
        ),
    ] = "figure1",
    preset: Annotated[
        Literal["as-published", "fair"],
        typer.Option(help="What the authors' code does, or the same start, step and mean for all and no truth."),
    ] = "as-published",
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, help="Default: 50 (claims: 20; rotated-mnist: 5; parts of beyond: fewer); with --quick 5 or 2."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="d <= 100, fewer clusters and trials: a minute or two.")
    ] = False,
    seed: Seed = None,
    workers: Workers = None,
    engine: EngineName = "local",
    ray_address: RayAddress = None,
    device: Device = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results. Default: runs/DATE-TIME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on in a folder that already holds results.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="rotated-mnist: the folder with MNIST's IDX files, gzipped or not.")
    ] = None,
) -> None:
    """Run the paper's experiments: a figure, a table of all cells, and a report in Markdown.

    figure1 is Figure 1 (a), (b), (c) of the paper: 20 cells, 50 trials, half an hour on two cores. slopes sweeps
    n, m, d, k and alpha from a warm start and sets the fitted exponents beside those of Theorems 1 and 2. claims
    reads OUT/as-published and OUT/fair, runs three small grids beside them, and writes OUT/claims.md. beyond sets the
    method `coterie` against every attack in every cell, hides k from it, and measures how rules depend on d.
    rotated-mnist trains perceptrons on MNIST in four rotations (coterie[torch]), best with --device cuda.
    """
    from coterie._src.experiments.run_folder import write_atomically
    from coterie._src.experiments.sweep import seeded
    from coterie._src.plot import figure1 as draw
    from coterie._src.studies.figure1 import figure1, report

    if what == "claims":
        if seed is not None:
            raise ValueError("--seed: claims go with the results of figure1 that they read, which have seed 0")
        if quick:
            raise ValueError("--quick: claims are about the whole grid")
        _claims(out, trials or 20, workers, engine, ray_address, device or "cpu")
        return
    if (data is not None) != (what == "rotated-mnist"):
        raise ValueError("--data: rotated-mnist needs the folder with MNIST's IDX files, and nothing else does")
    if what == "rotated-mnist":
        assert data is not None
        _models(
            data, out or dated_folder(), trials or (2 if quick else 5), seed, quick, workers, device or "cpu", resume
        )
        return
    if what == "beyond":
        if device == "cuda":
            raise ValueError("--device: beyond needs attacks that only the CPU plays")
        _beyond(
            out or dated_folder(), trials or (2 if quick else 50), seed, quick, workers, engine, ray_address, resume
        )
        return
    place = results_folder(out, resume) if what == "figure1" else out or dated_folder()
    if what == "slopes":
        if device == "cuda":
            raise ValueError("--device: the slopes need attacks that only the CPU plays")
        if trials == 1:
            raise ValueError("--trials: must be at least 2 for a slope with a standard error")
        _slopes(place, trials or (5 if quick else 50), seed, workers, engine, ray_address, resume)
        return
    grid = seeded(figure1(preset, trials or (5 if quick else 50), quick, device or "cpu"), seed)
    rows = work(grid, place, workers, engine, ray_address).rows(grid.keys)
    draw(rows, place / "figure1.png", preset)
    write_atomically(place / "report.md", report(rows, preset).encode())
    print(place / "report.md")


def _slopes(
    out: Path,
    trials: int,
    seed: int | None,
    workers: int | None,
    engine: str,
    ray_address: str | None,
    resume: bool,
) -> None:
    from coterie._src.experiments.database import FILE
    from coterie._src.experiments.run_folder import write_atomically
    from coterie._src.experiments.sweep import seeded
    from coterie._src.plot import slopes as draw
    from coterie._src.studies.figure1 import slopes, slopes_report

    found, asked = [], [slope._replace(grid=seeded(slope.grid, seed)) for slope in slopes(trials)]
    begun = [slope.name for slope in asked if (out / slope.folder / FILE).exists()]
    for slope in asked:
        # an interruption may have left some that were never begun
        inside = results_folder(out / slope.folder, resume and (slope.name in begun or not begun))
        found.append((slope, work(slope.grid, inside, workers, engine, ray_address).rows(slope.grid.keys)))
    draw([(slope.key, slope.metric, rows) for slope, rows in found], out / "slopes.png")
    write_atomically(out / "report.md", slopes_report(found).encode())
    print(out / "report.md")


def _claims(
    out: Path | None, trials: int, workers: int | None, engine: str, ray_address: str | None, device: str
) -> None:
    from coterie._src.experiments.database import Database
    from coterie._src.experiments.run_folder import write_atomically
    from coterie._src.studies.claims import Results, check_complete, claims_report, questions
    from coterie._src.studies.figure1 import Preset

    if out is None:
        raise ValueError("claims: needs --out, the folder that holds as-published/ and fair/")
    known = []
    presets: tuple[Preset, ...] = ("as-published", "fair")
    for preset in presets:
        known.append(Database(out / preset).rows())
        check_complete(known[-1], preset, out / preset)
    found = []
    for name, grid in questions(trials, device).items():
        found.append(work(grid, out / name, workers, engine, ray_address).rows(grid.keys))
    more = out / "many" / "summary.csv"
    many = list(csv.DictReader(more.read_text(encoding="utf-8").splitlines())) if more.is_file() else []
    write_atomically(out / "claims.md", claims_report(Results(*known, *found)._replace(many=many)).encode())
    print(out / "claims.md")


def _beyond(
    out: Path,
    trials: int,
    seed: int | None,
    quick: bool,
    workers: int | None,
    engine: str,
    ray_address: str | None,
    resume: bool,
) -> None:
    from coterie._src.experiments.run_folder import write_atomically
    from coterie._src.experiments.sweep import seeded
    from coterie._src.plot import by_dimension
    from coterie._src.studies.beyond import beyond_report, questions
    from coterie._src.studies.information_limit import DRAWS, measure, wall_report

    if out.exists() and any(out.iterdir()) and not resume:
        raise ValueError(f"{out}: is not empty; add --resume to go on there")
    found = {}
    for name, asked in questions(trials, quick).items():
        grid = seeded(asked, seed)
        found[name] = work(grid, out / name, workers, engine, ray_address, table=False).rows(grid.keys)
        write_atomically(out / "beyond.md", beyond_report(found).encode())
    by_dimension(found["dimension"], out / "dimension.png")
    draws = 20 if quick else DRAWS
    print(f"What no server can know, {draws} draws", file=sys.stderr)
    write_atomically(out / "wall.md", wall_report(measure(draws), draws).encode())
    print(out / "beyond.md", out / "wall.md", sep="\n")


def _models(
    data: Path, out: Path, trials: int, seed: int | None, quick: bool, workers: int | None, device: str, resume: bool
) -> None:
    from coterie._src.experiments.run_folder import write_atomically
    from coterie._src.experiments.sweep import seeded
    from coterie._src.plot import accuracies
    from coterie._src.studies.rotated_mnist import models_report, questions

    if out.exists() and any(out.iterdir()) and not resume:
        raise ValueError(f"{out}: is not empty; add --resume to go on there")
    found = {}
    for name, asked in questions(data, trials, quick, device).items():
        grid = seeded(asked, seed)
        found[name] = work(grid, out / name, workers, "local", None, table=False).rows(grid.keys)
        write_atomically(out / "models.md", models_report(found).encode())
    accuracies([*found["honest"], *found["attacked"]], out / "accuracies.png")
    print(out / "models.md")
