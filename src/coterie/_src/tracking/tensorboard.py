"""Curves for TensorBoard."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Sequence
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from coterie._src.experiments.callbacks import RunInfo, Status
from coterie._src.experiments.outcome import TrialResult
from coterie._src.experiments.summary import summarise
from coterie._src.tracking.base import Entry, Tracker, check_package, check_place, points, tags


class TensorBoard(Tracker):
    """Writes curves that `tensorboard --logdir DIR` shows; needs `coterie[tensorboard]`.

    Every run has a folder below DIR, with a folder of its own for every method, so that one chart has the curves of all
    methods: `rounds/NAME` is a column of `rounds.csv` by round, of trial 0; `trials/NAME` a metric by trial. The
    options and the results are texts of the run.

    Parameters
    ----------
    folder : str or Path
        DIR, which is made if need be.

    Examples
    --------
    >>> import coterie as ct
    >>> from coterie.callbacks import TensorBoard
    >>> federation = ct.mixed_regression(0, clients=20, clusters=2, samples=50, dim=3)
    >>> result = ct.fit(federation, clusters=2, callbacks=[TensorBoard("curves")])  # doctest: +SKIP
    """

    name = "tensorboard"

    def __init__(self, folder: str | Path) -> None:
        check_package(self.name, "tensorboard")
        check_place(f"tensorboard:{folder}", Path(folder), is_folder=True)
        self.target, self._folder = str(folder), Path(folder).absolute()

    def begin(self, run: RunInfo) -> None:
        """Make the folder of the run, and write the options."""
        name = f"{datetime.now():%Y%m%d-%H%M%S}" if run.folder is None else run.folder.resolve().name
        places = (self._folder / (name if number == 1 else f"{name}-{number}") for number in count(1))
        self._place = next(place for place in places if not place.exists())
        self._writers: dict[str, Any] = {}
        self._text("options", {**tags(run), **run.params})

    def write(self, entries: Sequence[Entry]) -> None:
        """Write a number for each point."""
        for point in points(entries):
            self._event(point.method, point.seconds, point.step, {"tag": point.name, "simple_value": point.value})
        self._flush_files()

    def finish(self, status: Status, results: Sequence[TrialResult]) -> None:
        """Write the results."""
        means = {
            f"{method}: {metric}": f"{found['mean']:.6g}"
            for method, statistics in summarise(results).items()
            for metric, found in statistics.items()
            if found["mean"] is not None
        }
        self._text("results", {"status": status, **means})

    def _text(self, tag: str, values: dict[str, Any]) -> None:
        """Write a table of two columns."""
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text.metadata import create_summary_metadata

        cells = ((name, re.sub(r"([|\\`<])", r"\\\1", str(value))) for name, value in values.items())
        table = "\n".join(["| name | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in cells)])
        tensor = {"dtype": DT_STRING, "string_val": [table.encode()]}
        metadata = create_summary_metadata(display_name="", description="")
        self._event("", time.time(), 0, {"tag": tag, "metadata": metadata, "tensor": tensor})
        self._flush_files()

    def _event(self, method: str, seconds: float, step: int, value: dict[str, Any]) -> None:
        """Write an event of a method; the empty one is the run itself."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        if method not in self._writers:
            folder = self._place / re.sub(r"[^\w.+=, ()-]", "_", method)
            folder.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{seconds:.0f}.{socket.gethostname()}.{os.getpid()}"
            self._writers[method] = RecordWriter(self.files.enter_context((folder / name).open("ab")))
            self._writers[method].write(Event(wall_time=seconds, file_version="brain.Event:2").SerializeToString())
        event = Event(wall_time=seconds, step=step, summary={"value": [value]})
        self._writers[method].write(event.SerializeToString())

    def _flush_files(self) -> None:
        for writer in self._writers.values():
            writer.flush()
