"""A study: a set of experiments that a command runs, resumes, reports and draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from coterie._src.experiments.results import Row
from coterie._src.experiments.sweep import Grid

Preset = Literal["as-published", "fair"]
Rows = Mapping[str, Sequence[Row]]
"""The results of each grid of a study, by the grid's name."""

OUT = "."
"""The name of a grid whose results are in the study's folder itself, not in a folder below it."""


@dataclass(frozen=True)
class Options:
    """What a user may choose about a study.

    trials: of every configuration. quick: a small version of the study. seed: None is that of the grids. preset: of
    Figure 1. data: a folder with the data that a study reads. out: the folder of the results, where one was named.
    """

    trials: int
    quick: bool = False
    seed: int | None = None
    preset: Preset = "as-published"
    device: Literal["cpu", "cuda"] = "cpu"
    data: Path | None = None
    out: Path | None = None


@dataclass(frozen=True)
class Study:
    """All that `coterie reproduce NAME` needs to know about a study.

    Parameters
    ----------
    name, summary
        As the command and its help have them.
    grids
        The configurations by name. The results of a grid are kept in the folder of its name below the study's own.
    reports
        By file name, the Markdown that the results give.
    figures
        By file name, a function that draws the results into that file.
    trials, quick_trials
        The default number of trials, and that of the quick version (None: the study has none).
    needs_data
        Whether `Options.data` must be given; else it must not.
    check
        Raises ValueError where the options do not fit the study.
    report_early
        Whether the first report is also written after every grid, from the results so far.
    always_resumes
        Whether results in the folder are used without being asked to.
    prints_tables
        Whether the table of each grid is printed when it is finished.
    together
        Whether the grids share the workers, and trial 0 of all of them is run before trial 1 of any.
    """

    name: str
    summary: str
    grids: Callable[[Options], Mapping[str, Grid]]
    reports: Mapping[str, Callable[[Rows, Options], str]]
    figures: Mapping[str, Callable[[Rows, Path, Options], None]] = field(default_factory=dict)
    trials: int = 50
    quick_trials: int | None = None
    needs_data: bool = False
    check: Callable[[Options], None] = lambda options: None
    report_early: bool = False
    always_resumes: bool = False
    prints_tables: bool = True
    together: bool = False

    def default_trials(self, quick: bool) -> int:
        """The number of trials where the user names none."""
        return self.quick_trials if quick and self.quick_trials is not None else self.trials

    def check_options(self, options: Options) -> None:
        """Raise ValueError where the options do not fit the study."""
        if options.quick and self.quick_trials is None:
            raise ValueError(f"--quick: {self.name} has no quick version")
        if (options.data is not None) != self.needs_data:
            needs = f"{self.name} needs a folder with data" if self.needs_data else f"{self.name} reads no data"
            raise ValueError(f"--data: {needs}")
        self.check(options)


def on_cpu_only(options: Options) -> None:
    """The check of a study whose attacks are not implemented for the GPU."""
    if options.device != "cpu":
        raise ValueError("--device: this study needs cpu, since some of its attacks are not implemented for the GPU")
