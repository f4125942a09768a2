"""A file with a line of JSON for everything that happens."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie._src.experiments.callbacks import RunInfo, Status
from coterie._src.experiments.outcome import TrialResult
from coterie._src.experiments.recorder import RENAMED_COLUMNS
from coterie._src.experiments.summary import summarise
from coterie._src.tracking.base import Entry, Tracker, check_place, tags


class JSONLines(Tracker):
    """Appends a line of JSON to a file for the start, every round, every trial and the end of a run.

    Parameters
    ----------
    file : str or Path
        The file; its folder is made if need be. Several runs may follow each other in it.

    Examples
    --------
    >>> import coterie as ct, json, tempfile
    >>> from pathlib import Path
    >>> from coterie.callbacks import JSONLines
    >>> clients = {"a": ([[0.0], [1.0]], [1.0, 3.0]), "b": ([[1.0], [2.0]], [3.0, 5.0])}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "fit.jsonl")
    ...     result = ct.fit(clients, clusters=1, holdout=0, callbacks=[JSONLines(file)])
    ...     lines = [json.loads(line) for line in file.read_text().splitlines()]
    >>> lines[0]["event"], lines[0]["params"]["clusters"], lines[-1]["event"], lines[-1]["status"]
    ('start', 1, 'end', 'complete')
    """

    name = "jsonl"

    def __init__(self, file: str | Path) -> None:
        self.target, self._file = str(file), Path(file).absolute()
        check_place(f"jsonl:{file}", Path(file), is_folder=False)

    def begin(self, run: RunInfo) -> None:
        """Write the line of the start."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._append([{"event": "start", "time": time.time(), **tags(run), "seed": run.seed, "params": {**run.params}}])

    def write(self, entries: Sequence[Entry]) -> None:
        """Write a line for each."""
        self._append(
            [
                {
                    **{"event": "trial" if entry.is_final else "round", "time": entry.seconds},
                    **{"trial": entry.trial, **self._curve(entry.method)},
                    **{name: value for name, value in entry.values.items() if name not in RENAMED_COLUMNS},
                }
                for entry in entries
            ]
        )

    def finish(self, status: Status, results: Sequence[TrialResult]) -> None:
        """Write the line of the end."""
        self._append([{"event": "end", "time": time.time(), "status": status, "methods": summarise(results)}])

    def _curve(self, name: str) -> dict[str, Any]:
        method, options = self.curves.get(name, (name, {}))
        return {"method": method, **({"options": {**options}} if options else {})}

    def _append(self, rows: Sequence[dict[str, Any]]) -> None:
        with self._file.open("a", encoding="utf-8") as stream:
            stream.writelines(f"{json.dumps(_plain(row), allow_nan=False)}\n" for row in rows)


def _plain(value: Any) -> Any:
    """The value as JSON has it: null for a number that is not finite, a text for what JSON has not."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
