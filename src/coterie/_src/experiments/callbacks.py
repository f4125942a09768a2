"""Callbacks, which are called while a run goes on: stores, views and trackers stay out of the loop over rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from coterie._src.experiments.config import Config
from coterie._src.experiments.methods import OWN
from coterie._src.experiments.outcome import Row, TrialResult

Status = Literal["complete", "interrupted", "failed"]
OnRound = Callable[[int, str, Row], None]
"""Called with the trial, the method and the row of the round; the row of a start is empty."""


@dataclass(frozen=True)
class RunInfo:
    """What is about to run; made by `coterie run` and `ct.fit`.

    Attributes
    ----------
    command : str
        The command line, or "ct.fit".
    seed : int
        The seed of all random numbers.
    params : mapping
        Every option by its name, such as "algorithm.rounds", with its value.
    folder : Path or None
        The folder of the run, if it has one; what `coterie run` writes there is complete before trackers read it.

    Examples
    --------
    >>> RunInfo("ct.fit", 0, {"clusters": 2}).folder is None
    True
    """

    command: str
    seed: int
    params: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None


class Callback:
    """The base class of callbacks; a subclass overrides the methods that it needs, and each does nothing by default.

    All methods are called in the process and the thread that began the run, in this order: `on_start`; for every trial
    `on_round` as often as there are rounds, and `on_trial`; `on_end`. `on_round` is called when the round ends. For
    trials in other processes it is called when the trial has ended, immediately before `on_trial`, and not at all if
    the trial is interrupted there. What a method raises ends the run, and the `on_end` of the other callbacks is still
    called. No method is added or changed without a deprecation.

    Examples
    --------
    >>> import coterie as ct
    >>> from coterie.callbacks import Callback
    >>> class Refused(Callback):
    ...     def on_round(self, trial, method, row):
    ...         print(method, row["round"], row["refused"])
    >>> federation = ct.mixed_regression(0, clients=20, clusters=2, samples=50, dim=3, byzantine=0.1)
    >>> result = ct.fit(federation, clusters=2, method="ifca", rounds=2, callbacks=[Refused()])
    ifca 1 0
    ifca 2 0
    """

    def on_start(self, run: RunInfo) -> None:
        """Called before the first trial.

        Parameters
        ----------
        run : RunInfo
            The command, the seed, all options and the folder.
        """

    def on_progress(self, rounds: int) -> None:
        """Called now and then while trials run, here or in other processes.

        Parameters
        ----------
        rounds : int
            The number of rounds so far, in all trials and methods together; a start counts as one.
        """

    def on_round(self, trial: int, method: str, row: Row) -> None:
        """Called for every round of every method.

        Parameters
        ----------
        trial : int
            The number of the trial, from 0.
        method : str
            The method; personal models, whose methods are called NAME+own, have no rounds of their own.
        row : dict
            The row of `rounds.csv`: round, movement, refused and silent clients, cluster sizes and, with a truth,
            the distances. Not to be changed.
        """

    def on_trial(self, result: TrialResult) -> None:
        """Called when a trial has ended.

        Parameters
        ----------
        result : TrialResult
            With `trial`, its number, and `methods`, which has for every name `metrics`, `rounds`, `audit`, `centres`
            and `labels`. Not to be changed.
        """

    def on_end(self, status: Status) -> None:
        """Called once at the end, also of a run that was interrupted or failed, if `on_start` has returned.

        Parameters
        ----------
        status : "complete", "interrupted" or "failed"
            How the run ended.
        """


NOTHING = Callback()
"""A callback that does nothing."""


class Callbacks(Callback):
    """Several callbacks as one; each is called in turn."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        for one in callbacks:
            if not isinstance(one, Callback):
                raise ValueError(f"callbacks: must be objects of coterie.callbacks.Callback, got {one!r}")
        self._all, self._started = tuple(callbacks), 0

    def on_start(self, run: RunInfo) -> None:
        for one in self._all:
            one.on_start(run)
            self._started += 1

    def on_progress(self, rounds: int) -> None:
        for one in self._all:
            one.on_progress(rounds)

    def on_round(self, trial: int, method: str, row: Row) -> None:
        for one in self._all:
            one.on_round(trial, method, row)

    def on_trial(self, result: TrialResult) -> None:
        for one in self._all:
            one.on_trial(result)

    def on_end(self, status: Status) -> None:
        with ExitStack() as stack:  # all of them, also if one raises
            for one in reversed(self._all[: self._started]):
                stack.callback(one.on_end, status)


@contextmanager
def start_and_end(callback: Callback, run: RunInfo, stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """A context in which a run goes on: calls `on_start` before it and, whatever happens, `on_end` after it."""
    status: Status = "failed"
    try:
        callback.on_start(run)
        yield
        status = "interrupted" if stopped() else "complete"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        callback.on_end(status)


def replay_rounds(callback: Callback, result: TrialResult) -> None:
    """Call `on_round` for every round of a trial that has ended."""
    plain = {name.removesuffix(OWN): found for name, found in result.methods.items()}
    for method, found in plain.items():
        for row in found.rounds:
            callback.on_round(result.trial, method, row)


def flattened(config: Config) -> dict[str, Any]:
    """Every option of a configuration by its name, such as "algorithm.rounds"."""
    sections = config.model_dump(mode="json")
    return {f"{section}.{name}": value for section, options in sections.items() for name, value in options.items()}
