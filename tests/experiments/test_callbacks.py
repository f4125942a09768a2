"""What callbacks are told: the same wherever trials run, in order, and of every end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie as ct
from coterie._src.experiments import RunFolder, TrialResult, run_trials
from coterie._src.experiments.callbacks import Callback, Callbacks, RunInfo, Status, flattened, start_and_end
from coterie._src.experiments.outcome import Row
from small_trials import small

RUN = RunInfo("coterie run", 0)


class Seen(Callback):
    """Notes everything that it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.progress = 0

    def on_start(self, run: RunInfo) -> None:
        self.events.append(("start", run))

    def on_progress(self, rounds: int) -> None:
        assert rounds >= self.progress
        self.progress = rounds

    def on_round(self, trial: int, method: str, row: Row) -> None:
        self.events.append(("round", trial, method, row["round"], repr(row)))

    def on_trial(self, result: TrialResult) -> None:
        self.events.append(("trial", result.trial))

    def on_end(self, status: Status) -> None:
        self.events.append(("end", status))


def by_trial(events: list[tuple[Any, ...]]) -> dict[int, list[tuple[Any, ...]]]:
    trials = sorted({event[1] for event in events})
    return {trial: [event for event in events if event[1] == trial] for trial in trials}


def test_rounds_are_told_alike_in_this_process_and_from_workers() -> None:
    chosen = ('run.methods=["ifca", "coterie+own", "local"]', "run.trials=2")
    here, there = Seen(), Seen()
    results = list(run_trials(small("run.workers=1", *chosen), here))
    list(run_trials(small("run.workers=2", *chosen), there))
    assert by_trial(here.events) == by_trial(there.events)
    for result in results:
        told_of = by_trial(here.events)[result.trial]
        assert told_of[-1] == ("trial", result.trial)
        wanted = [("ifca", row) for row in result.methods["ifca"].rounds]
        wanted += [("coterie", row) for row in result.methods["coterie+own"].rounds]
        assert len(wanted) > 12
        assert told_of[:-1] == [("round", result.trial, name, row["round"], repr(row)) for name, row in wanted]
    assert here.progress == there.progress > 24
    trials = [event[1] for event in there.events]
    assert trials in (sorted(trials), sorted(trials, reverse=True))  # one trial after the other, in any order


@contextmanager
def told_in_turn(*callbacks: Callback) -> Iterator[None]:
    with start_and_end(Callbacks(callbacks), RUN):
        yield


def test_every_end_is_told() -> None:
    seen = Seen()
    with start_and_end(seen, RUN):
        pass
    with start_and_end(seen, RUN, lambda: True):
        pass
    with pytest.raises(KeyboardInterrupt), start_and_end(seen, RUN):
        raise KeyboardInterrupt
    with pytest.raises(ZeroDivisionError), start_and_end(seen, RUN):
        raise ZeroDivisionError
    ends = [event[1] for event in seen.events if event[0] == "end"]
    assert ends == ["complete", "interrupted", "interrupted", "failed"]


class Broken(Callback):
    """Fails in one of its methods."""

    def __init__(self, method: str) -> None:
        setattr(self, method, self._fail)

    def _fail(self, *values: object) -> None:
        raise OSError(28, "No space left on device", "broken")


def test_what_one_callback_raises_ends_the_run_and_the_others_are_told() -> None:
    first, last = Seen(), Seen()
    with pytest.raises(OSError, match="No space"), told_in_turn(first, Broken("on_end"), last):
        pass
    assert first.events == last.events == [("start", RUN), ("end", "complete")]
    first, last = Seen(), Seen()
    with pytest.raises(OSError, match="No space"), told_in_turn(first, Broken("on_start"), last):
        pytest.fail("began")
    assert first.events == [("start", RUN), ("end", "failed")]
    assert last.events == []
    with pytest.raises(OSError, match="No space"):
        list(run_trials(small("run.trials=1"), Broken("on_round")))


def test_a_folder_is_left_as_failed_where_another_callback_fails(tmp_path: Path) -> None:
    config = small("run.trials=1", 'run.methods=["ifca"]')
    callback = Callbacks([RunFolder(tmp_path / "run", config), Broken("on_trial")])
    with pytest.raises(OSError, match="No space"), start_and_end(callback, RUN):
        list(run_trials(config, callback))
    assert '"status": "failed"' in (tmp_path / "run" / "summary.json").read_text()
    assert (tmp_path / "run" / "centres" / "0.safetensors").exists()


def test_a_fit_tells_what_it_is_and_every_round() -> None:
    seen = Seen()
    drawn = ct.mixed_regression(0, clients=24, clusters=2, samples=30, dim=4, byzantine=0.1)
    result = ct.fit(drawn, clusters=2, max_byzantine=0.1, method="ifca", rounds=3, seed=5, callbacks=[seen])
    (kind, run), *rounds, trial, end = seen.events
    assert (kind, run.command, run.seed, run.folder) == ("start", "ct.fit", 5, None)
    assert (run.params["clusters"], run.params["method"], run.params["algorithm.rounds"]) == (2, "ifca", 3)
    assert rounds == [("round", 0, "ifca", t + 1, repr(row)) for t, row in enumerate(result.rounds)]
    assert (trial, end) == (("trial", 0), ("end", "complete"))
    seen = Seen()
    again = ct.fit(drawn, clusters=2, max_byzantine=0.1, method="ifca", rounds=3, state=result, callbacks=[seen])
    assert [event[3] for event in seen.events if event[0] == "round"] == [row["round"] for row in again.rounds]


def test_a_fit_that_is_interrupted_or_fails_tells_so() -> None:
    drawn = ct.mixed_regression(0, clients=24, clusters=2, samples=30, dim=4)

    class Interrupting(Callback):
        def on_round(self, trial: int, method: str, row: Row) -> None:
            raise KeyboardInterrupt

    seen = Seen()
    with pytest.raises(KeyboardInterrupt):
        ct.fit(drawn, clusters=2, method="ifca", callbacks=[seen, Interrupting()])
    assert seen.events[-1] == ("end", "interrupted")
    with pytest.raises(ValueError, match=r"callbacks: must be objects of coterie\.callbacks\.Callback, got 3"):
        ct.fit(drawn, clusters=2, callbacks=[3])  # type: ignore[list-item]


def test_callbacks_change_no_number() -> None:
    drawn = ct.mixed_regression(0, clients=24, clusters=2, samples=30, dim=4)
    alone, watched = (ct.fit(drawn, clusters=2, callbacks=some) for some in ([], [Seen()]))
    assert np.array_equal(alone.centres, watched.centres)
    assert alone.rounds == watched.rounds


def test_options_are_flattened_without_loss() -> None:
    config = small("attack.kind=alie")
    found = flattened(config)
    assert found["attack.kind"] == "alie"
    assert found["problem.kind"] == "mixed-regression"
    assert len(found) == sum(len(section) for section in config.model_dump().values())
