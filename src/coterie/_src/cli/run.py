"""`coterie run` and `coterie config`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from coterie._src.cli.app import ConfigFile, CtrlC, Overrides, app, dated_folder, output_console, print_doubts
from coterie._src.cli.progress import ProgressLines

if TYPE_CHECKING:
    from coterie._src.experiments import Config, RunFolder, TrialResult


@app.command()
def config(file: ConfigFile = None, changes: Overrides = None) -> None:
    """Print the complete configuration as TOML, with a comment on every key."""
    from coterie._src.experiments import as_toml, read_config

    print(as_toml(read_config(file, changes or [])), end="")


@app.command(name="list")
def list_names(
    kind: Annotated[
        str | None, typer.Argument(help="methods, attacks, targets, starts, problems or tasks; default: all of them.")
    ] = None,
) -> None:
    """List the names that a configuration may use, each with a line that says what it is."""
    from coterie._src.experiments.config import ATTACK_TARGETS, ATTACKS
    from coterie._src.experiments.methods import METHODS
    from coterie._src.experiments.problems import PROBLEMS
    from coterie._src.experiments.starts import STARTS
    from coterie._src.registry import Registry
    from coterie._src.tasks import TASKS

    registries: dict[str, Registry[Any]] = {
        "methods": METHODS,
        "attacks": ATTACKS,
        "targets": ATTACK_TARGETS,
        "starts": STARTS,
        "problems": PROBLEMS,
        "tasks": TASKS,
    }
    if kind is not None and kind not in registries:
        raise ValueError(f"list: must be one of {', '.join(registries)}, got {kind}")
    parts = [f"{name}\n\n{registry.described()}" for name, registry in registries.items() if kind in (None, name)]
    print("\n\n".join(parts) if kind is None else registries[kind].described())


@app.command()
def run(
    file: ConfigFile = None,
    changes: Overrides = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="NAME",
            help="A method; `coterie list methods` names them. Repeatable; default: coterie, the paper's methods and "
            "the baselines.",
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Independent repetitions.", show_default="10")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random numbers.", show_default="0")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results, new or empty. Default: runs/DATE-TIME; with --json none."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    continued: Annotated[
        Path | None,
        typer.Option(
            "--continue",
            metavar="DIR",
            help="Go on from the results in DIR, with its configuration and its first method, e.g. with new data by "
            "`--set problem.path=NEW`; says what has changed.",
        ),
    ] = None,
) -> None:
    """Compare methods on a problem; print a table, and write all results to a folder.

    The folder contains config.toml (`coterie run DIR/config.toml` repeats the run with the same results), report.html
    (a page with all of it), summary.json, trials.csv, rounds.csv, audit.csv (per client), assignments.csv and
    directions.csv (of the first trial), centres/, membership.json and convergence.png; for networks also clusters.csv,
    for your own data clients.csv (held-out scores per client), personal/ (a model per client) and columns.json; with
    --continue also changes.json.
    `coterie.load(DIR)` reads the models. After Ctrl-C the finished trials are kept.
    """
    from coterie._src.experiments import RunFolder, check, read_config

    changes = list(changes or [])
    if continued is not None:
        if file is not None or trials is not None:
            raise ValueError("--continue: has the configuration of DIR, and one trial; change it by --set")
        file, trials = continued / "config.toml", 1
        method = (method or read_config(file).methods)[:1]
    if method:
        changes.append(f"run.methods={json.dumps(method)}")
    changes += [f"run.{key}={value}" for key, value in (("trials", trials), ("seed", seed)) if value is not None]
    chosen = read_config(file, changes)
    check(chosen)
    if chosen.run.device != "cpu" and chosen.problem.has_parameters:
        raise ValueError(f"run.device: {chosen.run.device} is for `coterie sweep`; a run keeps every round, on the CPU")
    path = out or (None if as_json else dated_folder())
    folder = None if path is None else RunFolder(path, chosen)
    _run(chosen, folder, as_json, continued)


def _run(chosen: Config, folder: RunFolder | None, as_json: bool, continued: Path | None = None) -> None:
    from coterie._src.experiments.continuation import continue_trial, read_run
    from coterie._src.experiments.doubts import result_doubts
    from coterie._src.experiments.engines import counted_rounds, run_trials
    from coterie._src.experiments.progress import ProgressFile, max_rounds, trial_notes
    from coterie._src.experiments.run_folder import outcome

    results: list[TrialResult] = []
    earlier = None if continued is None else read_run(continued, chosen.methods[0])
    place, trials = None if folder is None else folder.path.resolve(), chosen.run.trials
    with CtrlC() as interrupted, ProgressBar(chosen) as show_rounds:
        if folder is not None:
            folder.open()
        print_doubts([chosen])
        with ProgressFile(place, trials, max_rounds=trials * max_rounds(chosen)) as progress:

            def on_rounds(rounds: int) -> None:
                show_rounds(rounds)
                progress.on_rounds(rounds)

            try:
                for result in (
                    run_trials(chosen, on_rounds, interrupted, folder=place)
                    if earlier is None
                    else [continue_trial(chosen, earlier, counted_rounds(on_rounds), trial_notes(place))]
                ):
                    results.append(result)
                    if folder is not None:
                        folder.add(result)
                    progress.on_trial()
            except BaseException:
                if folder is not None:
                    folder.close("failed")
                raise
            results.sort(key=lambda result: result.trial)
            status: Literal["interrupted", "complete"] = "interrupted" if interrupted() else "complete"
            if folder is not None:
                folder.close(status)
            progress.close(status)
    if as_json:
        print(json.dumps(outcome(chosen, results, status)))
    elif results:
        _show(chosen, results)
        for line in result_doubts(chosen, results).values():
            print(f"note: {line}", file=sys.stderr)
    if folder is not None:
        if results:
            from coterie._src.cli.report import write_page
            from coterie._src.plot import convergence
            from coterie._src.report.html import FILE

            convergence(results, folder.path / "convergence.png", _title(chosen, results))
            write_page(folder.path, folder.path / FILE)
        print(
            f"{'Interrupted; finished trials are' if interrupted() else 'Everything is'} in {folder.path}/",
            file=sys.stderr,
        )
    if interrupted():
        raise SystemExit(130)


def _title(chosen: Config, results: list[TrialResult]) -> str:
    from coterie._src.experiments import run_title
    from coterie._src.experiments.methods import METHODS

    first = next((name for name in results[0].methods if METHODS[name].clusters_clients), None)
    found = [] if first is None else [result.methods[first].metrics["clusters"] for result in results]
    title = run_title(chosen, found)
    return f"{title}, {chosen.run.trials} trials" if chosen.problem.has_truth else title


def _show(chosen: Config, results: list[TrialResult]) -> None:
    from coterie._src.experiments import summarise
    from coterie._src.experiments.methods import METHODS
    from coterie._src.report import accuracy_table, as_table, cluster_members, printable, shortened

    console = output_console()
    console.print(as_table(summarise(results), _title(chosen, results), console.width))
    if (clusters := accuracy_table(results)) is not None:
        console.print(clusters)
    first = results[0]
    for method, found in first.methods.items():
        if found.diagnostics is not None:
            lines = found.diagnostics.lines([printable(str(row["client"])) for row in found.audit])
            print(f"{method}, trial {first.trial}:", *lines, sep="\n  ")
            break
    if first.comparisons:
        print("on held-out samples:", *(f"{name}: {line}" for name, line in first.comparisons.items()), sep="\n  ")
    if first.changes is not None:
        print("changes since the earlier run:", *first.changes.lines(), sep="\n  ")
    if not chosen.problem.has_truth:
        for method, found in results[0].methods.items():
            if METHODS[method].clusters_clients:
                lines = cluster_members((str(row["client"]), row["cluster"]) for row in found.audit)
                print(f"{method}, trial {results[0].trial}:", *lines, sep="\n  ")
                if seen := [str(row["client"]) for row in found.audit if row.get("evidence")]:
                    print(f"worth a look (coterie audit says why): {shortened(seen)}")
                break


class ProgressBar:
    """A progress bar on stderr with trials, rounds and the remaining time; lines where that is no terminal."""

    def __init__(self, chosen: Config) -> None:
        from coterie._src.experiments.progress import max_rounds

        self.per_trial = max_rounds(chosen)
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
        self.lines = ProgressLines("rounds", self.per_trial * self.trials)
        self.task = self.bar.add_task("", total=self.per_trial * self.trials, trial=1, trials=self.trials)

    def __enter__(self) -> Callable[[int], None]:
        self.bar.start()
        return self._advance

    def _advance(self, rounds: int) -> None:
        if self.bar.disable:
            self.lines.show(rounds)
            return
        trial = min(self.trials, 1 + rounds // self.per_trial)
        self.bar.update(self.task, completed=rounds, trial=trial)

    def __exit__(self, *error: object) -> None:
        self.bar.stop()
