"""The command line."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from coterie import __version__

if TYPE_CHECKING:
    from coterie.experiments import Config, RunFolder, TrialResult

app = typer.Typer(
    name="coterie",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Byzantine-robust clustered federated learning: find the clusters of clients and learn one model "
    "for each, while some of the clients lie.\n\nStart with `coterie run`; `coterie config` explains every key.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"coterie {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Read the options that stand before the command."""


ConfigFile = Annotated[
    Path | None, typer.Argument(help="A TOML file; without one, the default problem (see `coterie config`).")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one key, e.g. `--set problem.dim=50`. Repeatable."),
]


@app.command()
def config(file: ConfigFile = None, changes: Overrides = None) -> None:
    """Print the complete configuration as TOML, with a comment on every key."""
    from coterie.experiments import as_toml, read_config

    print(as_toml(read_config(file, changes or [])), end="")


@app.command()
def run(
    file: ConfigFile = None,
    changes: Overrides = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="NAME",
            help="brifca-median, brifca-trimmed, ifca, three-stage, local, global or oracle. Repeatable; default: all.",
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Independent repetitions.", show_default="10")] = None,
    seed: Annotated[int | None, typer.Option(help="Everything random follows from it.", show_default="0")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results, new or empty. Default: runs/DATE-TIME; with --json none."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Compare methods on a problem: a table, a convergence plot, a per-client audit, and all numbers in a folder.

    The folder holds config.toml (`coterie run DIR/config.toml` gives the same numbers again), summary.json,
    trials.csv, rounds.csv, audit.csv, centres/ and convergence.png. Ctrl-C keeps what is finished.
    """
    from coterie.experiments import RunFolder, check, read_config

    changes = list(changes or [])
    if method:
        changes.append(f"run.methods={json.dumps(method)}")
    changes += [f"run.{key}={value}" for key, value in (("trials", trials), ("seed", seed)) if value is not None]
    chosen = read_config(file, changes)
    check(chosen)
    place = out or (None if as_json else Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S"))
    folder = None if place is None else RunFolder(place, chosen)
    _run(chosen, folder, as_json)


def _run(chosen: Config, folder: RunFolder | None, as_json: bool) -> None:
    from coterie.experiments import summarise
    from coterie.experiments.run import run_trials

    results = []
    with CtrlC() as interrupted, ProgressBar(chosen) as report_rounds:
        if folder is not None:
            folder.open()
        for result in run_trials(chosen, report_rounds, interrupted):
            results.append(result)
            if folder is not None:
                folder.add(result)
    results.sort(key=lambda result: result.trial)
    if folder is not None:
        folder.close("interrupted" if interrupted() else "complete")
    if as_json:
        print(json.dumps({"methods": summarise(results)}))
    elif results:
        _show(chosen, results)
    if folder is not None:
        if results:
            from coterie.plot import convergence

            convergence(results, folder.path / "convergence.png", _title(chosen))
        print(
            f"{'Interrupted; finished trials are' if interrupted() else 'Everything is'} in {folder.path}/",
            file=sys.stderr,
        )
    if interrupted():
        raise SystemExit(130)


def _title(chosen: Config) -> str:
    problem = chosen.problem
    if problem.kind == "folder":
        return f"{problem.path}: k={problem.clusters}, {problem.task}"
    attack = f"{chosen.attack.kind} attack on {chosen.attack.target}"
    return (
        f"{problem.kind}: k={problem.clusters}, m={problem.clients}, n={problem.samples}, d={problem.dim}, "
        f"α={problem.byzantine}, {attack}, {chosen.run.trials} trials"
    )


def _show(chosen: Config, results: list[TrialResult]) -> None:
    from coterie.experiments import summarise
    from coterie.report import as_table

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    console.print(as_table(summarise(results), _title(chosen), console.width))


class CtrlC:
    """Turns the first Ctrl-C into a question that the run asks at safe points; a second one ends at once."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Callable[[], bool]:
        self.before = signal.signal(signal.SIGINT, self._ask)
        return lambda: self.asked

    def _ask(self, *_: object) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self.before)


class ProgressBar:
    """A bar on stderr with trials, rounds and the time left; silent where stderr is no terminal."""

    def __init__(self, chosen: Config) -> None:
        rounds = chosen.algorithm.rounds
        self.per_trial = sum(1 if m in ("local", "oracle") else rounds + 1 for m in chosen.methods)
        self.trials = chosen.run.trials
        console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("trial {task.fields[trial]}/{task.fields[trials]}"),
            BarColumn(),
            TextColumn("rounds"),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self.task = self.bar.add_task("", total=self.per_trial * self.trials, trial=1, trials=self.trials)

    def __enter__(self) -> Callable[[int], None]:
        self.bar.start()
        return self._advance

    def _advance(self, rounds: int) -> None:
        trial = min(self.trials, 1 + rounds // self.per_trial)
        self.bar.update(self.task, completed=rounds, trial=trial)

    def __exit__(self, *error: object) -> None:
        self.bar.stop()


def entry() -> None:
    """What the `coterie` command runs: a bad input is one line on stderr and exit code 2."""
    try:
        app()
    except ValueError as error:
        _fail(str(error), 2)
    except OSError as error:
        _fail(f"{error.filename or 'output'}: {error.strerror or error}", 1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except MemoryError:
        _fail("not enough memory for this problem; lower problem.clients, problem.samples or problem.dim", 1)


def _fail(message: str, code: int) -> None:
    print(f"coterie: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(code)
