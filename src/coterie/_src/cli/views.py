"""What `coterie run` and `coterie sweep` show and write while trials run, and at the end: callbacks."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from coterie._src.cli.app import output_console
from coterie._src.cli.progress import ProgressLines
from coterie._src.experiments import Config, RunFolder, TrialResult, run_title, summarise
from coterie._src.experiments.callbacks import Callback, RunInfo, Status
from coterie._src.experiments.doubts import result_doubts
from coterie._src.experiments.methods import METHODS
from coterie._src.experiments.printable import printable
from coterie._src.experiments.progress import max_rounds
from coterie._src.experiments.run_folder import outcome
from coterie._src.report import accuracy_table, as_table, cluster_members, shortened

TABLE_SECONDS = 2.0
"""The seconds between two updates of the running table, each of which reads all results so far."""


class Results(Callback):
    """Prints the results at the end, as tables or as JSON."""

    def __init__(self, chosen: Config, as_json: bool) -> None:
        self.chosen, self.as_json = chosen, as_json
        self.trials: list[TrialResult] = []
        self.status: Status = "failed"

    def on_trial(self, result: TrialResult) -> None:
        self.trials.append(result)

    def on_end(self, status: Status) -> None:
        self.status = status
        self.trials.sort(key=lambda trial: trial.trial)
        if status == "failed":
            return
        if self.as_json:
            print(json.dumps(outcome(self.chosen, self.trials, status)))
        elif self.trials:
            _show(self.chosen, self.trials)
            for line in result_doubts(self.chosen, self.trials).values():
                print(f"note: {line}", file=sys.stderr)


class Page(Callback):
    """Writes the picture and the page of a run at its end."""

    def __init__(self, folder: RunFolder, results: Results) -> None:
        self.folder, self.results = folder, results

    def on_end(self, status: Status) -> None:
        from coterie._src.cli.report import write_page
        from coterie._src.plot import convergence
        from coterie._src.report.html import FILE

        if status != "failed" and self.results.trials:
            path, chosen = self.folder.path, self.results.chosen
            convergence(self.results.trials, path / "convergence.png", _title(chosen, self.results.trials))
            write_page(path, path / FILE)


def _title(chosen: Config, results: list[TrialResult]) -> str:
    first = next((name for name in results[0].methods if METHODS[name].clusters_clients), None)
    found = [] if first is None else [result.methods[first].metrics["clusters"] for result in results]
    title = run_title(chosen, found)
    return f"{title}, {chosen.run.trials} trials" if chosen.problem.has_truth else title


def _show(chosen: Config, results: list[TrialResult]) -> None:
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


class ProgressBar(Callback):
    """A progress bar on stderr with trials, rounds and the remaining time; lines where that is no terminal."""

    def __init__(self, chosen: Config) -> None:
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

    def on_start(self, run: RunInfo) -> None:
        self.bar.start()

    def on_progress(self, rounds: int) -> None:
        if self.bar.disable:
            self.lines.show(rounds)
            return
        trial = min(self.trials, 1 + rounds // self.per_trial)
        self.bar.update(self.task, completed=rounds, trial=trial)

    def on_end(self, status: Status) -> None:
        self.bar.stop()


class SweepProgress(Callback):
    """A bar with trials, rate and time left, below a running table, on stderr; lines where that is no terminal."""

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
        self.lines, self.done = ProgressLines("trials", total, done), done

    def __enter__(self) -> Self:
        if self.live is not None:
            self.live.start()
        return self

    def on_trial(self, result: TrialResult) -> None:
        self.done += 1
        if self.live is None:
            self.lines.show(self.done)
            return
        speed = self.bar.tasks[0].finished_speed or self.bar.tasks[0].speed
        self.bar.update(self.task, advance=1, rate=f"{speed:.1f}/s" if speed else "")
        if time.monotonic() - self.drawn > TABLE_SECONDS:
            self.live.update(Group(self.table(), self.bar))
            self.drawn = time.monotonic()

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()
