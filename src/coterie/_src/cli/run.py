"""`coterie run` and `coterie config`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie._src.cli.app import ConfigFile, CtrlC, Overrides, Tracked, app, command_line, dated_folder, print_doubts

if TYPE_CHECKING:
    from coterie._src.experiments import Config, RunFolder
    from coterie._src.experiments.callbacks import Callback


@app.command()
def config(file: ConfigFile = None, changes: Overrides = None) -> None:
    """Print the complete configuration as TOML, with a comment on every key."""
    from coterie._src.experiments import as_toml, read_config

    print(as_toml(read_config(file, changes or [])), end="")


@app.command(name="list")
def list_names(
    kind: Annotated[
        str | None, typer.Argument(help="methods, attacks, targets, starts, problems, tasks or rules; default: all.")
    ] = None,
) -> None:
    """List the names that a configuration or a command may use, each with a line that says what it is."""
    from coterie._src.experiments.config import ATTACK_TARGETS, ATTACKS
    from coterie._src.experiments.methods import METHODS
    from coterie._src.experiments.problems import PROBLEMS
    from coterie._src.experiments.starts import STARTS
    from coterie._src.registry import Registry
    from coterie._src.sharding.rules import RULES
    from coterie._src.tasks import TASKS

    registries: dict[str, Registry[Any]] = {
        "methods": METHODS,
        "attacks": ATTACKS,
        "targets": ATTACK_TARGETS,
        "starts": STARTS,
        "problems": PROBLEMS,
        "tasks": TASKS,
        "rules": RULES,
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
    track: Tracked = None,
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
    from coterie._src.tracking import tracker

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
    _run(chosen, folder, as_json, [tracker(text) for text in track or []], continued)


def _run(
    chosen: Config,
    folder: RunFolder | None,
    as_json: bool,
    trackers: Sequence[Callback],
    continued: Path | None = None,
) -> None:
    from coterie._src.cli.views import Page, ProgressBar, Results
    from coterie._src.experiments.callbacks import Callbacks, RunInfo, flattened, replay_rounds, start_and_end
    from coterie._src.experiments.continuation import continue_trial, read_run
    from coterie._src.experiments.engines import run_trials
    from coterie._src.experiments.progress import ProgressFile, max_rounds, trial_notes

    earlier = None if continued is None else read_run(continued, chosen.methods[0])
    results = Results(chosen, as_json)
    place, trials = None if folder is None else folder.path.resolve(), chosen.run.trials
    progress = ProgressFile(place, trials, max_rounds=trials * max_rounds(chosen))
    files = [] if folder is None else [folder, progress, results, Page(folder, results)]
    callback = Callbacks([ProgressBar(chosen), *(files or [results]), *trackers])
    run = RunInfo(command_line(), chosen.run.seed, flattened(chosen), None if folder is None else folder.path)
    with CtrlC() as interrupted, start_and_end(callback, run, interrupted):
        print_doubts([chosen])
        if earlier is None:
            for _ in run_trials(chosen, callback, interrupted, folder=place):
                pass
        else:
            trial = continue_trial(chosen, earlier, trial_notes(place))
            replay_rounds(callback, trial)
            callback.on_trial(trial)
    if folder is not None:
        state = "Interrupted; finished trials are" if results.status == "interrupted" else "Everything is"
        print(f"{state} in {folder.path}/", file=sys.stderr)
    if results.status == "interrupted":
        raise SystemExit(130)
